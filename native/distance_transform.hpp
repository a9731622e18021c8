// Generalized distance transforms: minima and log-sums over all positions of a grid, at every
// position, of a cost plus a weighted squared distance.
#pragma once

#include <cstddef>
#include <cstdint>

namespace crfield {

// Images (n_images, height, width); an image's weights w >= 0 and offsets d are (n_images, 2), first
// down the rows, then along them. Costs may be +inf, not NaN or -inf.
struct DistanceProblem {
  std::size_t n_images, height, width;
  const double *costs, *weights, *offsets;
};

// values[x] = min_y costs[y] + sum_axes w (x + d - y)^2, and the y that attains it as row * width +
// column, of several the least; 0 where all costs are +inf. Linear in the number of pixels.
// height * width must fit into 31 bits.
void distance_transform(const DistanceProblem& problem, double* values, std::int32_t* argmins,
                        int threads);

// values[x] = -log sum_y exp(-(costs[y] + sum_axes w (x + d - y)^2)), a pass along each axis.
void soft_distance_transform(const DistanceProblem& problem, double* values, int threads);

}  // namespace crfield

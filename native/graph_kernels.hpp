// The hot loops of belief propagation, compiled once per instruction set.
#pragma once

#include <cstddef>

namespace crfield {

// Messages from the pixels of one row of a 4-connected grid. Planes are (n_states, rows + 2, stride), and
// pointers are to the pixel (0, 0); what lies outside the grid has weight 0, and so only messages of 0.
template <class T> struct GridPass {
  std::size_t columns, stride, plane;
  int n_states;
  T temperature, kept;  // kept: share of an old message
  const T* costs;
  const T* in[4];       // to each pixel from its left, right, upper and lower neighbor
  // What the row sends to the right, to the left, downwards and upwards: (n_states, out_plane), each at
  // the column where it arrives, -1 included.
  T* out[4];
  std::size_t out_plane;
  // Of the edge to the right of, and below, each pixel: a plane each.
  const T* weights[2];
  // For Potts and t > 0: exp(-weight / t), or where weights are `steep` for that
  // -t log(1 - exp(-weight / t)).
  const T* leaks[2];
  bool steep;
  const T* tables[2];   // (n_states, n_states) times the weight, from left and from above; null: Potts
};

// Weights above so many times the temperature are steep: exp(-weight / t) leaves the range of numbers.
inline constexpr double steep_weight = 60;

inline constexpr int grid_lanes(std::size_t size) { return static_cast<int>(32 / size); }
// Numbers of scratch that a pass needs.
inline constexpr std::size_t grid_scratch(int n_states, std::size_t size) {
  return static_cast<std::size_t>(6 * n_states * grid_lanes(size));
}

struct GraphKernels {
  // out[b] = soft minimum over j of table[j, b] + in[j]; t = 0 for the minimum
  void (*fold_rows)(const double* table, const double* in, std::size_t n_in, std::size_t n_out,
                    double t, double* out);
  // out[a] = soft minimum over j of table[a, j] + in[j]
  void (*fold_columns)(const double* table, const double* in, std::size_t n_in, std::size_t n_out,
                       double t, double* out);
  // out[b] = shift - t log sum_j weights[j, b] exp(-in[j] / t), for t > 0; with `transposed` the weights
  // are (n_out, n_in). False, and out is of no use, where a sum is too small to tell. scratch (n_in,)
  bool (*cross_weights)(const double* weights, bool transposed, const double* in, std::size_t n_in,
                        std::size_t n_out, double t, double shift, double* scratch, double* out);
  // The messages from a row; gives the largest change before damping.
  float (*grid_single)(const GridPass<float>& pass, std::size_t row, float* scratch);
  double (*grid_double)(const GridPass<double>& pass, std::size_t row, double* scratch);

  float grid(const GridPass<float>& pass, std::size_t row, float* scratch) const {
    return grid_single(pass, row, scratch);
  }
  double grid(const GridPass<double>& pass, std::size_t row, double* scratch) const {
    return grid_double(pass, row, scratch);
  }
};

}  // namespace crfield

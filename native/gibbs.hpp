// Gibbs sampling of binary label maps on 4-connected grids.
#pragma once

#include <cstddef>
#include <cstdint>

namespace crfield {

// Label maps of many Markov chains, and the conditional distribution that they are drawn from.
template <class T> struct GridChains {
  std::size_t height, width, n_chains;
  std::uint8_t* labels;          // (n_chains, height * width), 0 or 1
  const T* log_odds;             // (n_chains, height * width), of label 1, apart from neighbors
  const T* weights;              // (n_images, 2, height * width), of edges to the right and down
  const std::int32_t* image;     // (n_chains,), whose weights a chain has
  const std::uint64_t* stream;   // (n_chains,), random numbers differ between streams
};

// Draws all pixels of one color of the checkerboard given the others, then those of the other
// color. The draws depend on seed, sweep and stream alone, not on the number of threads.
template <class T>
void sweep_grids(const GridChains<T>& chains, std::uint64_t seed, std::uint64_t sweep, int threads);

}  // namespace crfield

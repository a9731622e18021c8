// The kernel sum over all pairs of points, computed tile by tile and never stored.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "buffers.hpp"
#include "kernels.hpp"

namespace crfield {

template <class T> class ExactSum {
 public:
  // features: (n_points, dim), scaled so that the kernel is a function of f - g alone. Pairs of tiles
  // in which every |kernel| is below `tolerance` are skipped; 0 skips nothing.
  ExactSum(const T* features, std::size_t n_points, int dim, Shape shape, double tolerance,
           int threads);

  // out = diag(post) K diag(pre) x for x (n_points, n_columns); null scales are ones.
  void apply(const T* x, const T* pre, const T* post, int n_columns, int threads, T* out);

  std::size_t n_points() const { return n_points_; }
  // The share of tile pairs that is summed.
  double active_fraction() const;

 private:
  bool is_far(std::size_t a, std::size_t b) const;

  std::size_t n_points_, n_tiles_;
  int dim_;
  Shape shape_;
  double tolerance_;
  std::vector<std::size_t> order_;  // tile position -> point; neighbors in feature space are together
  std::vector<T> features_;         // (dim, n_tiles * tile_size)
  std::vector<T> low_, high_;       // (n_tiles, dim) bounding boxes
  std::vector<std::size_t> first_;  // (n_tiles + 1,) into active_
  std::vector<std::uint32_t> active_;  // tiles near enough to each tile; empty when nothing is skipped
  BufferPool<T> buffers_;
};

}  // namespace crfield

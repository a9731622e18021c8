#include "exact.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>

#include "cpu.hpp"
#include "interrupt.hpp"
#include "thread_pool.hpp"

namespace crfield {
namespace {

// Points sorted along a Z-order curve through half-sigma cells, so that tiles are compact.
template <class T>
std::vector<std::size_t> curve_order(const T* features, std::size_t n_points, int dim) {
  std::vector<double> low(dim, std::numeric_limits<double>::infinity());
  for (std::size_t i = 0; i < n_points; ++i)
    for (int d = 0; d < dim; ++d) low[d] = std::min<double>(low[d], features[i * dim + d]);
  const int used = std::min(dim, 64), bits = 64 / std::max(1, used);
  const double most = std::ldexp(1.0, bits) - 1;
  std::vector<std::uint64_t> code(n_points);
  Pace pace;
  for (std::size_t i = 0; i < n_points; ++i) {
    pace.step(64);
    std::uint64_t z = 0;
    for (int d = 0; d < used; ++d) {
      const auto cell = static_cast<std::uint64_t>(
          std::clamp((features[i * dim + d] - low[d]) * 2.0, 0.0, std::min(most, 1e15)));
      for (int b = 0; b < bits && b < 50; ++b) z |= (cell >> b & 1u) << (b * used + d);
    }
    code[i] = z;
  }
  std::vector<std::size_t> order(n_points);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    pace.step();
    return code[a] < code[b];
  });
  return order;
}

}  // namespace

template <class T>
ExactSum<T>::ExactSum(const T* features, std::size_t n_points, int dim, Shape shape,
                      double tolerance, int threads)
    : n_points_(n_points), n_tiles_((n_points + tile_size - 1) / tile_size), dim_(dim),
      shape_(shape), tolerance_(tolerance), order_(curve_order(features, n_points, dim)),
      features_(n_tiles_ * tile_size * dim), low_(n_tiles_ * dim), high_(n_tiles_ * dim) {
  const std::size_t n_padded = n_tiles_ * tile_size;
  Pace pace;
  for (std::size_t tile = 0; tile < n_tiles_; ++tile)
    for (int d = 0; d < dim; ++d) {
      pace.step(tile_size);
      T low = std::numeric_limits<T>::infinity(), high = -low;
      for (std::size_t k = tile * tile_size; k < (tile + 1) * tile_size; ++k) {
        // The last tile is filled up with its last point, whose rows of x are zero.
        const T f = features[order_[std::min(k, n_points - 1)] * dim + d];
        features_[d * n_padded + k] = f;
        low = std::min(low, f);
        high = std::max(high, f);
      }
      low_[tile * dim + d] = low;
      high_[tile * dim + d] = high;
    }
  if (tolerance <= 0) return;
  std::vector<std::vector<std::uint32_t>> near(n_tiles_);
  parallel_ranges(n_tiles_, threads, 16, [&](int, std::size_t begin, std::size_t end) {
    Pace own_pace;
    for (std::size_t a = begin; a < end; ++a)
      for (std::size_t b = 0; b < n_tiles_; ++b) {
        own_pace.step(4 + static_cast<std::size_t>(dim_));
        if (!is_far(a, b)) near[a].push_back(static_cast<std::uint32_t>(b));
      }
  });
  first_.assign(n_tiles_ + 1, 0);
  for (std::size_t a = 0; a < n_tiles_; ++a) first_[a + 1] = first_[a] + near[a].size();
  active_.reserve(first_.back());
  for (const auto& row : near) {
    pace.step(row.size());
    active_.insert(active_.end(), row.begin(), row.end());
  }
}

// Whether |kernel| < tolerance for every pair of points of the two tiles, from their boxes.
template <class T> bool ExactSum<T>::is_far(std::size_t a, std::size_t b) const {
  double squares = 0, distance = 0, envelope = 1;
  for (int d = 0; d < dim_; ++d) {
    const double gap = std::max({0.0, static_cast<double>(low_[a * dim_ + d]) - high_[b * dim_ + d],
                                 static_cast<double>(low_[b * dim_ + d]) - high_[a * dim_ + d]});
    squares += gap * gap;
    distance += gap;
    envelope /= std::max(1.0, gap);
  }
  switch (shape_) {
    case Shape::gaussian: return std::exp(-0.5 * squares) < tolerance_;
    case Shape::tent: return 1 - distance < tolerance_;
    case Shape::sinc: return envelope < tolerance_;
  }
  return false;
}

template <class T> double ExactSum<T>::active_fraction() const {
  if (first_.empty() || n_tiles_ == 0) return 1.0;
  return static_cast<double>(active_.size()) / (static_cast<double>(n_tiles_) * n_tiles_);
}

template <class T>
void ExactSum<T>::apply(const T* x, const T* pre, const T* post, int n_columns, int threads,
                        T* out) {
  if (n_points_ == 0 || n_columns == 0) return;
  const auto stride = static_cast<std::size_t>(padded_columns<T>(n_columns));
  const std::size_t size = n_tiles_ * tile_size * stride;
  typename BufferPool<T>::Loan sorted(buffers_, size), total(buffers_, size);
  fill_in_pieces(sorted.data(), sorted.data() + size, T(0));
  fill_in_pieces(total.data(), total.data() + size, T(0));
  parallel_ranges(n_points_, threads, 1024, [&](int, std::size_t begin, std::size_t end) {
    Pace pace;
    for (std::size_t k = begin; k < end; ++k) {
      pace.step(stride);
      const std::size_t i = order_[k];
      const T scale = pre ? pre[i] : T(1);
      for (int c = 0; c < n_columns; ++c) sorted.data()[k * stride + c] = scale * x[i * n_columns + c];
    }
  });
  const TiledPoints<T> points{features_.data(), n_points_, n_tiles_ * tile_size, dim_};
  const auto& kernel = kernels<T>();
  // Tiles have unequal numbers of near tiles, so they are dealt out in small portions.
  const std::size_t portion = 4, n_portions = (n_tiles_ + portion - 1) / portion;
  std::atomic<std::size_t> next{0};
  run_parts(static_cast<int>(std::min<std::size_t>(threads, n_portions)), [&](int) {
    Pace pace;
    for (std::size_t p; (p = next.fetch_add(1)) < n_portions;)
      for (std::size_t a = p * portion; a < std::min(n_tiles_, (p + 1) * portion); ++a) {
        const bool all = first_.empty();
        const std::size_t count = all ? n_tiles_ : first_[a + 1] - first_[a];
        for (std::size_t k = 0; k < count; ++k) {
          pace.step(tile_size * tile_size * (stride + static_cast<std::size_t>(dim_)));
          kernel.exact_tile(shape_, points, a, all ? k : active_[first_[a] + k], sorted.data(),
                            n_columns, total.data());
        }
      }
  });
  parallel_ranges(n_points_, threads, 1024, [&](int, std::size_t begin, std::size_t end) {
    Pace pace;
    for (std::size_t k = begin; k < end; ++k) {
      pace.step(stride);
      const std::size_t i = order_[k];
      const T scale = post ? post[i] : T(1);
      for (int c = 0; c < n_columns; ++c) out[i * n_columns + c] = scale * total.data()[k * stride + c];
    }
  });
}

template class ExactSum<float>;
template class ExactSum<double>;

}  // namespace crfield

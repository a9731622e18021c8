// Where a lattice gets its points from, block by block, so that features of large images are never stored.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <variant>
#include <vector>

namespace crfield {

constexpr int max_lattice_dim = 16;

struct Range {
  double low = std::numeric_limits<double>::infinity(), high = -low;

  void include(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
};

// Scaled features, n_points rows of dim numbers.
template <class T> struct DenseFeatures {
  const T* rows;
  std::size_t n_points;
  int dim;

  // Points one after another that lie on one line of a grid; here nothing is known of lines.
  std::size_t line_length() const { return n_points; }
  std::vector<Range> ranges() const {
    std::vector<Range> found(dim, n_points ? Range{} : Range{0, 0});
    for (std::size_t i = 0; i < n_points; ++i)
      for (int d = 0; d < dim; ++d) found[d].include(rows[i * dim + d]);
    return found;
  }
  // out[d * stride + t] = feature d of point begin + t
  template <class F> void block(std::size_t begin, int count, int stride, F* out) const {
    for (int t = 0; t < count; ++t)
      for (int d = 0; d < dim; ++d)
        out[d * stride + t] = static_cast<F>(rows[(begin + t) * dim + d]);
  }
};

// The points of a grid, last axis fastest: a coordinate for each axis, then colors times factors.
template <class T> struct GridFeatures {
  using Colors = std::variant<const std::uint8_t*, const float*, const double*>;

  std::vector<std::vector<double>> axes;
  Colors colors = static_cast<const double*>(nullptr);
  std::vector<double> factors;
  std::size_t n_points = 1;
  int dim = 0;

  GridFeatures(std::vector<std::vector<double>> coordinates, Colors values,
               std::vector<double> color_factors)
      : axes(std::move(coordinates)), colors(values), factors(std::move(color_factors)),
        dim(static_cast<int>(axes.size() + factors.size())) {
    for (const auto& axis : axes) n_points *= axis.size();
  }

  std::size_t line_length() const { return axes.back().size(); }
  std::vector<Range> ranges() const {
    std::vector<Range> found(dim, n_points ? Range{} : Range{0, 0});
    if (n_points == 0) return found;
    for (std::size_t a = 0; a < axes.size(); ++a)
      for (const double x : axes[a]) found[a].include(static_cast<T>(x));
    std::visit([&](const auto* values) { color_ranges(values, found.data() + axes.size()); }, colors);
    return found;
  }

  template <class F> void block(std::size_t begin, int count, int stride, F* out) const {
    const int n_axes = static_cast<int>(axes.size());
    std::size_t index[max_lattice_dim] = {}, rest = begin;
    for (int a = n_axes - 1; a >= 0; --a) {
      index[a] = rest % axes[a].size();
      rest /= axes[a].size();
    }
    for (int t = 0; t < count; ++t) {
      for (int a = 0; a < n_axes; ++a) out[a * stride + t] = static_cast<T>(axes[a][index[a]]);
      for (int a = n_axes - 1; a >= 0 && ++index[a] == axes[a].size(); --a) index[a] = 0;
    }
    std::visit([&](const auto* values) { color_block(values, begin, count, stride, out + n_axes * stride); },
               colors);
  }

 private:
  template <class C> void color_ranges(const C* values, Range* found) const {
    const std::size_t n = factors.size();
    for (std::size_t c = 0; c < n; ++c) {
      if constexpr (sizeof(C) == 1) {  // a bound is all that is asked for
        found[c].include(static_cast<T>(0.0));
        found[c].include(static_cast<T>(255.0 * factors[c]));
      } else {
        C low = values[c], high = values[c];
        for (std::size_t i = 0; i < n_points; ++i) {
          low = std::min(low, values[i * n + c]);
          high = std::max(high, values[i * n + c]);
        }
        found[c].include(static_cast<T>(low * factors[c]));
        found[c].include(static_cast<T>(high * factors[c]));
      }
    }
  }
  template <class C, class F>
  void color_block(const C* values, std::size_t begin, int count, int stride, F* out) const {
    const std::size_t n = factors.size();
    for (std::size_t c = 0; c < n; ++c)
      for (int t = 0; t < count; ++t)
        out[c * stride + t] = static_cast<T>(values[(begin + t) * n + c] * factors[c]);
  }
};

}  // namespace crfield

#include "grid.hpp"

#include <algorithm>
#include <cmath>

#include "cpu.hpp"
#include "interrupt.hpp"
#include "thread_pool.hpp"

namespace crfield {
namespace {

constexpr double taps[] = {6.0 / 16.0, 4.0 / 16.0, 1.0 / 16.0};
// Two interpolations have variance 1/3 and the taps 1, in units of the squared node spacing.
const double spacing = std::sqrt(3.0) / 2.0;
// Points of a line between two looks at whether the call is to stop.
constexpr std::size_t points_per_check = 1 << 12;

}  // namespace

template <class T> Grid<T>::Grid(const std::vector<std::vector<double>>& axes) {
  for (const auto& coordinates : axes) {
    Axis axis;
    double lowest = 0, highest = 0;
    for (const double x : coordinates) {
      lowest = std::min(lowest, std::floor(x / spacing));
      highest = std::max(highest, std::floor(x / spacing));
    }
    for (const double x : coordinates) {
      const double position = x / spacing, below = std::floor(position);
      axis.node.push_back(static_cast<std::int32_t>(below - lowest));
      axis.fraction.push_back(position - below);
    }
    axis.n_nodes = static_cast<std::size_t>(highest - lowest) + 2;
    n_nodes_ *= axis.n_nodes;
    n_lines_ *= coordinates.size();
    axes_.push_back(std::move(axis));
  }
  const Axis& last = axes_.back();
  n_lines_ = last.node.empty() ? 0 : n_lines_ / last.node.size();
  for (std::size_t x = 0; x < last.node.size(); ++x)
    for (int side = 0; side < 2; ++side) {
      vertex_.push_back(last.node[x] + side);
      weight_.push_back(static_cast<T>(side ? last.fraction[x] : 1.0 - last.fraction[x]));
    }
}

template <class T>
typename Grid<T>::Corners Grid<T>::corners_of_line(std::size_t line, int derivative) const {
  const int n_outer = dim() - 1;
  Corners found;
  double weight[32] = {1.0};
  found.row[0] = 0;
  std::size_t rest = line, row_stride = axes_.back().n_nodes;
  for (int a = n_outer - 1; a >= 0; --a) {
    const Axis& axis = axes_[a];
    const std::size_t at = rest % axis.node.size();
    rest /= axis.node.size();
    const double upper = a == derivative ? 1.0 / spacing : axis.fraction[at];
    const double lower = a == derivative ? -1.0 / spacing : 1.0 - axis.fraction[at];
    for (int c = 0; c < found.count; ++c) {
      const std::size_t row = found.row[c] + static_cast<std::size_t>(axis.node[at]) * row_stride;
      found.row[c + found.count] = row + row_stride;
      weight[c + found.count] = weight[c] * upper;
      found.row[c] = row;
      weight[c] *= lower;
    }
    found.count *= 2;
    row_stride *= axis.n_nodes;
  }
  for (int c = 0; c < found.count; ++c) found.weight[c] = static_cast<T>(weight[c]);
  return found;
}

template <class T>
typename TableOperator<T>::Rows Grid<T>::rows_of_lines(std::size_t begin, std::size_t end) const {
  if (begin == end) return {0, 0};
  if (dim() == 1) return {0, n_nodes_};
  const std::size_t lines_per_slab = n_lines_ / axes_[0].node.size();
  const std::size_t rows_per_slab = n_nodes_ / axes_[0].n_nodes;
  const auto &nodes = axes_[0].node;
  const auto slab = [&](std::size_t line) { return static_cast<std::size_t>(nodes[line / lines_per_slab]); };
  return {slab(begin) * rows_per_slab, (slab(end - 1) + 2) * rows_per_slab};
}

template <class T>
typename TableOperator<T>::Rows Grid<T>::nodes_of_run(std::size_t begin, std::size_t count) const {
  const std::size_t at = begin % line_length();
  const auto [low, high] = std::minmax(axes_.back().node[at], axes_.back().node[at + count - 1]);
  return {static_cast<std::size_t>(low), static_cast<std::size_t>(high) + 2};
}

template <class T> void Grid<T>::open_points(std::size_t begin, PassTerm<T>& term) const {
  const std::size_t at = begin % line_length();
  term.vertex = &vertex_[2 * at];
  term.weight = &weight_[2 * at];
  term.corners = 2;
}

template <class T>
void Grid<T>::gather_run(const Corners& corners, std::size_t begin, std::size_t count, const T* table,
                         int n_columns, T* lines) const {
  const std::size_t stride = padded_columns<T>(n_columns);
  const auto nodes = nodes_of_run(begin, count);
  const T* rows[32];
  for (int c = 0; c < corners.count; ++c) rows[c] = table + (corners.row[c] + nodes.begin) * stride;
  kernels<T>().combine(rows, corners.weight, corners.count, (nodes.end - nodes.begin) * stride,
                       lines + nodes.begin * stride);
}

template <class T>
void Grid<T>::open_run(std::size_t begin, std::size_t count, const T* from, T* to, int n_columns,
                       T* lines, PassTerm<T>& term) const {
  const std::size_t stride = padded_columns<T>(n_columns);
  T* const splatted = lines + line_rows() * stride;
  open_points(begin, term);
  term.from = from ? lines : nullptr;
  term.to = to ? splatted : nullptr;
  if (from) gather_run(corners_of_line(begin / line_length()), begin, count, from, n_columns, lines);
  if (!to) return;
  const auto nodes = nodes_of_run(begin, count);
  std::fill(splatted + nodes.begin * stride, splatted + nodes.end * stride, T(0));
}

template <class T>
void Grid<T>::open_view(int view, std::size_t begin, std::size_t count, const T* from, int n_columns,
                        T* lines, PassTerm<T>& term) const {
  open_points(begin, term);
  term.from = lines;
  const int derivative = view + 1 < dim() ? view : -1;
  gather_run(corners_of_line(begin / line_length(), derivative), begin, count, from, n_columns, lines);
}

template <class T>
void Grid<T>::chain_views(const std::vector<const T*>& dots, int threads, T* gradient, T* own) const {
  const std::size_t d = axes_.size();
  parallel_ranges(n_points(), threads, 1024, [&](int, std::size_t begin, std::size_t end) {
    Pace pace;
    for (std::size_t i = begin; i < end; ++i) {
      pace.step(4 * d);
      const T* weight = &weight_[2 * (i % line_length())];
      for (std::size_t a = 0; a < d; ++a) {
        const T* at = dots[a] + 2 * i;
        const T sum = weight[0] * at[0] + weight[1] * at[1];
        gradient[i * d + a] = a + 1 < d ? sum : static_cast<T>((at[1] - at[0]) / spacing);
        if (a + 1 == d) own[i] = sum;
      }
    }
  });
}

template <class T>
void Grid<T>::close_run(std::size_t begin, std::size_t count, T* to, int n_columns,
                        const PassTerm<T>& term) const {
  if (!to) return;
  const std::size_t stride = padded_columns<T>(n_columns);
  const auto nodes = nodes_of_run(begin, count);
  const std::size_t first = nodes.begin * stride, length = (nodes.end - nodes.begin) * stride;
  const Corners corners = corners_of_line(begin / line_length());
  for (int c = 0; c < corners.count; ++c)
    kernels<T>().add_scaled(term.to + first, corners.weight[c], length,
                            to + corners.row[c] * stride + first);
}

template <class T> void Grid<T>::blur(const T* x, int n_columns, int threads, T* out) {
  const std::size_t size = n_nodes_ * padded_columns<T>(n_columns);
  typename BufferPool<T>::Loan spare(buffers_, size);
  const T own_taps[] = {T(taps[0]), T(taps[1]), T(taps[2])};
  std::size_t inner = padded_columns<T>(n_columns);
  for (int a = dim() - 1; a >= 0; --a) {
    const std::size_t n = axes_[a].n_nodes;
    T* target = a % 2 ? spare.data() : out;
    parallel_ranges(size / inner, threads, std::max<std::size_t>(1, 8192 / inner),
                    [&](int, std::size_t begin, std::size_t end) {
      in_pieces(begin, end, std::max<std::size_t>(1, (1 << 16) / inner),
                [&](std::size_t first, std::size_t last) {
        kernels<T>().blur_axis(x, own_taps, n, inner, first, last, target);
      });
    });
    x = target;
    inner *= n;
  }
}

template <class T>
void Grid<T>::splat(const T* x, const T* scale, int n_columns, int threads, T* out) {
  const std::size_t stride = padded_columns<T>(n_columns), size = n_nodes_ * stride;
  const std::size_t length = line_length(), line_size = line_rows() * stride;
  const Simplices<T> points{vertex_.data(), weight_.data(), 2};
  typename BufferPool<T>::Loan parts(buffers_, size * threads), lines(buffers_, line_size * threads);
  std::vector<typename TableOperator<T>::Rows> touched(threads, {0, 0});
  parallel_ranges(n_lines_, threads, 1, [&](int part, std::size_t begin, std::size_t end) {
    touched[part] = rows_of_lines(begin, end);
    T *table = parts.data() + size * part, *line = lines.data() + line_size * part;
    fill_in_pieces(table + touched[part].begin * stride, table + touched[part].end * stride, T(0));
    for (std::size_t l = begin; l < end; ++l) {
      std::fill_n(line, line_size, T(0));
      const std::size_t first = l * length;
      in_pieces(0, length, points_per_check, [&](std::size_t from, std::size_t to) {
        kernels<T>().splat(points, x + first * n_columns, scale ? scale + first : nullptr, from, to,
                           n_points() - first, n_columns, line);
      });
      PassTerm<T> term{};
      term.to = line;
      close_run(first, length, table, n_columns, term);
    }
  });
  fill_in_pieces(out, out + size, T(0));
  for (int part = 0; part < threads; ++part)
    in_pieces(touched[part].begin * stride, touched[part].end * stride, 1 << 18,
              [&](std::size_t first, std::size_t last) {
      kernels<T>().add(parts.data() + size * part, first, last, out);
    });
}

template <class T>
void Grid<T>::apply(const T* x, const T* pre, const T* post, int n_columns, int threads, T* out) {
  if (n_points() == 0 || n_columns == 0) return;
  const std::size_t stride = padded_columns<T>(n_columns), length = line_length();
  typename BufferPool<T>::Loan splatted(buffers_, n_nodes_ * stride), blurred(buffers_, n_nodes_ * stride);
  splat(x, pre, n_columns, threads, splatted.data());
  blur(splatted.data(), n_columns, threads, blurred.data());
  const Simplices<T> points{vertex_.data(), weight_.data(), 2};
  parallel_ranges(n_lines_, threads, 1, [&](int, std::size_t begin, std::size_t end) {
    typename BufferPool<T>::Loan line(buffers_, line_rows() * stride);
    for (std::size_t l = begin; l < end; ++l) {
      gather_run(corners_of_line(l), l * length, length, blurred.data(), n_columns, line.data());
      in_pieces(0, length, points_per_check, [&](std::size_t from, std::size_t to) {
        kernels<T>().slice(points, line.data(), T(1), post ? post + l * length : nullptr, from, to,
                           n_columns, out + l * length * n_columns);
      });
    }
  });
}

template <class T> void Grid<T>::diagonal(int threads, T* out) const {
  std::vector<std::vector<double>> along;
  for (const Axis& axis : axes_) {
    along.emplace_back();
    for (const double f : axis.fraction)
      along.back().push_back(((1 - f) * (1 - f) + f * f) * taps[0] + 2 * f * (1 - f) * taps[1]);
  }
  outer_product(along, threads, out);
}

// K 1 is a product too, because K and 1 are.
template <class T> void Grid<T>::row_sums(int threads, T* out) {
  std::vector<std::vector<double>> along;
  for (const Axis& axis : axes_) {
    const auto n = static_cast<std::ptrdiff_t>(axis.n_nodes);
    std::vector<double> mass(axis.n_nodes), blurred(axis.n_nodes);
    for (std::size_t x = 0; x < axis.node.size(); ++x) {
      mass[axis.node[x]] += 1.0 - axis.fraction[x];
      mass[axis.node[x] + 1] += axis.fraction[x];
    }
    for (std::ptrdiff_t at = 0; at < n; ++at)
      for (std::ptrdiff_t other = std::max<std::ptrdiff_t>(at - 2, 0); other <= at + 2 && other < n; ++other)
        blurred[at] += taps[std::abs(other - at)] * mass[other];
    along.emplace_back();
    for (std::size_t x = 0; x < axis.node.size(); ++x)
      along.back().push_back((1.0 - axis.fraction[x]) * blurred[axis.node[x]] +
                             axis.fraction[x] * blurred[axis.node[x] + 1]);
  }
  outer_product(along, threads, out);
}

template <class T>
void Grid<T>::outer_product(const std::vector<std::vector<double>>& along, int threads, T* out) const {
  parallel_ranges(n_lines_, threads, 16, [&](int, std::size_t begin, std::size_t end) {
    Pace pace;
    for (std::size_t line = begin; line < end; ++line) {
      pace.step(line_length());
      double outer = 1;
      std::size_t rest = line;
      for (int a = dim() - 2; a >= 0; --a) {
        outer *= along[a][rest % along[a].size()];
        rest /= along[a].size();
      }
      for (std::size_t x = 0; x < line_length(); ++x)
        out[line * line_length() + x] = static_cast<T>(outer * along.back()[x]);
    }
  });
}

template <class T>
void Grid<T>::diagonal_gradient(const T* s, int threads, T* gradient) const {
  const std::size_t d = axes_.size();
  const auto value = [](double f) {
    return ((1 - f) * (1 - f) + f * f) * taps[0] + 2 * f * (1 - f) * taps[1];
  };
  const auto slope = [](double f) { return 2 * (2 * f - 1) * (taps[0] - taps[1]) / spacing; };
  parallel_ranges(n_points(), threads, 1024, [&](int, std::size_t begin, std::size_t end) {
    Pace pace;
    for (std::size_t i = begin; i < end; ++i)
      for (std::size_t by = 0; by < d; ++by) {
        pace.step(4 * d);
        double product = s[i];
        std::size_t rest = i;
        for (std::size_t a = d; a-- > 0;) {
          const double f = axes_[a].fraction[rest % axes_[a].fraction.size()];
          rest /= axes_[a].fraction.size();
          product *= a == by ? slope(f) : value(f);
        }
        gradient[i * d + by] = static_cast<T>(product);
      }
  });
}

template <class T>
void Grid<T>::feature_gradient(const T* u, const T* u_scale, const T* v, const T* v_scale,
                               int n_columns, int threads, T* gradient, T* filtered_u) {
  if (n_points() == 0) return;
  const std::size_t stride = padded_columns<T>(n_columns), size = n_nodes_ * stride;
  const std::size_t length = line_length(), line_size = line_rows() * stride;
  typename BufferPool<T>::Loan splatted(buffers_, size), from_u(buffers_, size), from_v(buffers_, size);
  splat(u, u_scale, n_columns, threads, splatted.data());
  blur(splatted.data(), n_columns, threads, from_u.data());
  splat(v, v_scale, n_columns, threads, splatted.data());
  blur(splatted.data(), n_columns, threads, from_v.data());
  const Simplices<T> points{vertex_.data(), weight_.data(), 2};
  const auto at = [](const T* array, std::size_t offset) { return array ? array + offset : nullptr; };
  parallel_ranges(n_lines_, threads, 1, [&](int, std::size_t begin, std::size_t end) {
    typename BufferPool<T>::Loan lines(buffers_, 2 * line_size), by_corner(buffers_, 2 * length);
    T *line_u = lines.data(), *line_v = lines.data() + line_size;
    for (std::size_t l = begin; l < end; ++l) {
      const std::size_t first = l * length, offset = first * n_columns;
      for (int a = 0; a < dim(); ++a) {
        check_interrupt();
        const Corners corners = corners_of_line(l, a);
        gather_run(corners, first, length, from_u.data(), n_columns, line_u);
        gather_run(corners, first, length, from_v.data(), n_columns, line_v);
        std::fill_n(by_corner.data(), 2 * length, T(0));
        kernels<T>().correlate(points, {u + offset, at(u_scale, first), line_v},
                               {v + offset, at(v_scale, first), line_u}, T(1), 0, length,
                               n_points() - first, n_columns, by_corner.data());
        for (std::size_t x = 0; x < length; ++x) {
          const T *dots = by_corner.data() + 2 * x, *weight = &weight_[2 * x];
          gradient[(first + x) * dim() + a] =
              a + 1 < dim() ? weight[0] * dots[0] + weight[1] * dots[1]
                            : static_cast<T>((dots[1] - dots[0]) / spacing);
        }
        // The last axis leaves the lines as they are.
        if (filtered_u && a + 1 == dim())
          kernels<T>().slice(points, line_u, T(1), at(v_scale, first), 0, length, n_columns,
                             filtered_u + offset);
      }
    }
  });
}

template class Grid<float>;
template class Grid<double>;

}  // namespace crfield

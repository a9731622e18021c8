// Filtering with the lattice, and the derivative of what comes out by the features.
#include <algorithm>

#include "cpu.hpp"
#include "interrupt.hpp"
#include "lattice.hpp"
#include "thread_pool.hpp"

namespace crfield {
namespace {

// Points or vertices between two looks at whether the call is to stop.
constexpr std::size_t rows_per_check = 1 << 11;

}  // namespace

template <class T>
void Lattice<T>::blur_order(const T* in, bool reversed, int n_columns, int threads, T* spare,
                            T* out) const {
  const auto stride = static_cast<std::size_t>(padded_columns<T>(n_columns));
  // Ping-pong so that the last axis writes to `out`.
  const int corners = dim_ + 1;
  for (int k = 0; k < corners; ++k) {
    const int axis = reversed ? dim_ - k : k;
    T* target = (corners - k) % 2 ? out : spare;
    std::fill_n(target, stride, T(0));
    const std::int32_t* pairs = &neighbor_[static_cast<std::size_t>(axis) * (n_vertices_ + 1) * 2];
    parallel_ranges(n_vertices_, threads, 2048, [&](int, std::size_t begin, std::size_t end) {
      in_pieces(begin + 1, end + 1, rows_per_check, [&](std::size_t first, std::size_t last) {
        kernels<T>().blur(pairs, in, first, last, n_columns, target);
      });
    });
    in = target;
  }
}

// The sum of both blur orders, or twice the one.
template <class T> void Lattice<T>::blur(const T* x, int n_columns, int threads, T* out) {
  const std::size_t size = (n_vertices_ + 1) * padded_columns<T>(n_columns);
  typename BufferPool<T>::Loan backward(buffers_, size), spare(buffers_, size);
  if (one_order_ || threads != 2) {
    blur_order(x, false, n_columns, threads, spare.data(), out);
    if (!one_order_) blur_order(x, true, n_columns, threads, spare.data(), backward.data());
  } else {  // two threads need not meet after every axis
    typename BufferPool<T>::Loan other(buffers_, size);
    run_parts(2, [&](int part) {
      if (part == 0) blur_order(x, false, n_columns, 1, spare.data(), out);
      else blur_order(x, true, n_columns, 1, other.data(), backward.data());
    });
  }
  parallel_ranges(size, threads, 1 << 14, [&](int, std::size_t begin, std::size_t end) {
    in_pieces(begin, end, 1 << 18, [&](std::size_t first, std::size_t last) {
      kernels<T>().add(one_order_ ? out : backward.data(), first, last, out);
    });
  });
}

// Number by number: a vector for one column would be mostly empty.
template <class T> void Lattice<T>::row_sums(int threads, T* out) {
  if (n_points_ == 0) return;
  const std::size_t corners = dim_ + 1, rows = n_vertices_ + 1, stride = padded_columns<T>(1);
  const int parts = static_cast<int>(std::min<std::size_t>(threads, 1 + n_points_ / rows));
  typename BufferPool<T>::Loan mass(buffers_, rows * parts), table(buffers_, rows * stride),
      blurred(buffers_, rows * stride);
  fill_in_pieces(mass.data(), mass.data() + rows * parts, T(0));
  parallel_ranges(n_points_, parts, 1, [&](int part, std::size_t begin, std::size_t end) {
    T* own = mass.data() + rows * part;
    in_pieces(begin, end, rows_per_check, [&](std::size_t first, std::size_t last) {
      for (std::size_t k = first * corners; k < last * corners; ++k) own[vertex_[k]] += weight_[k];
    });
  });
  in_pieces(0, rows, 1 << 16, [&](std::size_t first, std::size_t last) {
    for (std::size_t row = first; row < last; ++row) {
      T sum = mass.data()[row];
      for (int part = 1; part < parts; ++part) sum += mass.data()[rows * part + row];
      for (std::size_t k = 0; k < stride; ++k) table.data()[row * stride + k] = k ? T(0) : sum;
    }
  });
  blur(table.data(), 1, threads, blurred.data());
  const T half = gain();
  in_pieces(0, rows, 1 << 16, [&](std::size_t first, std::size_t last) {
    for (std::size_t row = first; row < last; ++row)
      mass.data()[row] = half * blurred.data()[row * stride];
  });
  parallel_ranges(n_points_, threads, 1024, [&](int, std::size_t begin, std::size_t end) {
    const T* values = mass.data();
    in_pieces(begin, end, rows_per_check, [&](std::size_t first, std::size_t last) {
      for (std::size_t i = first; i < last; ++i) {
        T sum = 0;
        for (std::size_t k = i * corners; k < (i + 1) * corners; ++k)
          sum += weight_[k] * values[vertex_[k]];
        out[i] = sum;
      }
    });
  });
}

template <class T>
void Lattice<T>::open_run(std::size_t begin, std::size_t, const T* from, T* to, int, T*,
                          PassTerm<T>& term) const {
  term.corners = dim_ + 1;
  term.vertex = &vertex_[begin * term.corners];
  term.weight = &weight_[begin * term.corners];
  term.from = from;
  term.to = to;
}

template <class T>
void Lattice<T>::splat_and_blur(const T* x, const T* scale, int n_columns, int threads, T* out) {
  const auto& kernel = kernels<T>();
  const Simplices<T> points{vertex_.get(), weight_.get(), dim_ + 1};
  const std::size_t size = (n_vertices_ + 1) * padded_columns<T>(n_columns);
  // Each thread splats into a table of its own; with many vertices that costs more than it saves.
  const int tables = static_cast<int>(std::min<std::size_t>(
      threads, 1 + n_points_ / std::max<std::size_t>(1024, 2 * n_vertices_)));
  typename BufferPool<T>::Loan splatted(buffers_, size * tables);
  parallel_ranges(n_points_, tables, 1, [&](int part, std::size_t begin, std::size_t end) {
    T* table = splatted.data() + size * part;
    fill_in_pieces(table, table + size, T(0));
    in_pieces(begin, end, rows_per_check, [&](std::size_t first, std::size_t last) {
      kernel.splat(points, x, scale, first, last, n_points_, n_columns, table);
    });
  });
  parallel_ranges(size, threads, 1 << 14, [&](int, std::size_t begin, std::size_t end) {
    in_pieces(begin, end, 1 << 18, [&](std::size_t first, std::size_t last) {
      for (int part = 1; part < tables; ++part)
        kernel.add(splatted.data() + size * part, first, last, splatted.data());
    });
  });
  blur(splatted.data(), n_columns, threads, out);
}

template <class T>
void Lattice<T>::apply(const T* x, const T* pre, const T* post, int n_columns, int threads, T* out) {
  if (n_points_ == 0 || n_columns == 0) return;
  typename BufferPool<T>::Loan blurred(buffers_,
                                       (n_vertices_ + 1) * padded_columns<T>(n_columns));
  splat_and_blur(x, pre, n_columns, threads, blurred.data());
  const Simplices<T> points{vertex_.get(), weight_.get(), dim_ + 1};
  parallel_ranges(n_points_, threads, 1024, [&](int, std::size_t begin, std::size_t end) {
    in_pieces(begin, end, rows_per_check, [&](std::size_t first, std::size_t last) {
      kernels<T>().slice(points, blurred.data(), T(0.5), post, first, last, n_columns, out);
    });
  });
}

// Corner dim - r of the simplex gains (elevated_j - remainder_j) / (dim + 1) for coordinate j of rank r,
// and the corner after it, cyclically, loses as much; elevated coordinates are linear in the features.
template <class T>
void Lattice<T>::chain_to_features(std::size_t i, const double* by_weight, T* by_feature) const {
  const int corners = dim_ + 1;
  double by_elevated[max_lattice_dim + 1];
  for (int j = 0; j < corners; ++j) {
    const int r = rank(i, j);
    by_elevated[j] = (by_weight[dim_ - r] - by_weight[(corners - r) % corners]) / corners;
  }
  double partial = 0;
  for (int d = 0; d < dim_; ++d) {
    partial += by_elevated[d];
    by_feature[d] = static_cast<T>(axis_scale(d, dim_) * (partial - (d + 1) * by_elevated[d + 1]));
  }
}

template <class T>
void Lattice<T>::chain_views(const std::vector<const T*>& dots, int threads, T* gradient, T* own) const {
  const std::size_t corners = dim_ + 1;
  parallel_ranges(n_points_, threads, 1024, [&](int, std::size_t begin, std::size_t end) {
    double by_weight[max_lattice_dim + 1];
    Pace pace;
    for (std::size_t i = begin; i < end; ++i) {
      pace.step(corners * corners);
      T sum = 0;
      for (std::size_t c = 0; c < corners; ++c) {
        by_weight[c] = dots[0][i * corners + c];
        sum += weight_[i * corners + c] * dots[0][i * corners + c];
      }
      own[i] = sum;
      chain_to_features(i, by_weight, gradient + i * dim_);
    }
  });
}

template <class T>
void Lattice<T>::feature_gradient(const T* u, const T* u_scale, const T* v, const T* v_scale,
                                  int n_columns, int threads, T* gradient, T* filtered_u) {
  if (n_points_ == 0) return;
  const auto& kernel = kernels<T>();
  const std::size_t corners = dim_ + 1;
  const std::size_t size = (n_vertices_ + 1) * padded_columns<T>(n_columns);
  typename BufferPool<T>::Loan from_u(buffers_, size), from_v(buffers_, size),
      by_weight(buffers_, n_points_ * corners);
  splat_and_blur(u, u_scale, n_columns, threads, from_u.data());
  splat_and_blur(v, v_scale, n_columns, threads, from_v.data());
  const Simplices<T> points{vertex_.get(), weight_.get(), dim_ + 1};
  parallel_ranges(n_points_, threads, 1024, [&](int, std::size_t begin, std::size_t end) {
    in_pieces(begin, end, rows_per_check, [&](std::size_t first, std::size_t last) {
      std::fill(by_weight.data() + first * corners, by_weight.data() + last * corners, T(0));
      kernel.correlate(points, {u, u_scale, from_v.data()}, {v, v_scale, from_u.data()}, T(0.5),
                       first, last, n_points_, n_columns, by_weight.data());
      double own[max_lattice_dim + 1] = {};
      for (std::size_t i = first; i < last; ++i) {
        std::copy_n(by_weight.data() + i * corners, corners, own);
        chain_to_features(i, own, gradient + i * dim_);
      }
      if (filtered_u)
        kernel.slice(points, from_u.data(), T(0.5), v_scale, first, last, n_columns, filtered_u);
    });
  });
}

template void Lattice<float>::row_sums(int, float*);
template void Lattice<float>::blur(const float*, int, int, float*);
template void Lattice<float>::open_run(std::size_t, std::size_t, const float*, float*, int, float*,
                                      PassTerm<float>&) const;
template void Lattice<float>::apply(const float*, const float*, const float*, int, int, float*);
template void Lattice<float>::chain_views(const std::vector<const float*>&, int, float*, float*) const;
template void Lattice<float>::chain_to_features(std::size_t, const double*, float*) const;
template void Lattice<float>::feature_gradient(const float*, const float*, const float*, const float*, int, int, float*,
                                             float*);
template void Lattice<double>::row_sums(int, double*);
template void Lattice<double>::blur(const double*, int, int, double*);
template void Lattice<double>::open_run(std::size_t, std::size_t, const double*, double*, int, double*,
                                      PassTerm<double>&) const;
template void Lattice<double>::apply(const double*, const double*, const double*, int, int, double*);
template void Lattice<double>::chain_views(const std::vector<const double*>&, int, double*, double*) const;
template void Lattice<double>::chain_to_features(std::size_t, const double*, double*) const;
template void Lattice<double>::feature_gradient(const double*, const double*, const double*, const double*, int, int, double*,
                                             double*);

}  // namespace crfield

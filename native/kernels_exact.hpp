// The kernel sum between two tiles of points.
// Included by kernels.cpp inside its per-target namespace, after lanes.hpp and rows.hpp.
#pragma once

template <class T> T sinc(T x) { return std::abs(x) < T(1e-4) ? T(1) - x * x / 6 : std::sin(x) / x; }

// kernel(f_i - f_j) for one i and the whole tile of j.
template <class T>
void kernel_row(Shape shape, const TiledPoints<T>& points, std::size_t i, std::size_t first_j,
                T* row) {
  using V = typename Lanes<T, 64>::type;
  constexpr int width = Traits<V>::width;
  constexpr int n_vectors = static_cast<int>(tile_size) / width;
  V total[n_vectors] = {};
  if (shape == Shape::sinc)
    for (auto& t : total) t = V{} + T(1);
  for (int d = 0; d < points.dim; ++d) {
    const T* feature = points.features + static_cast<std::size_t>(d) * points.n_padded;
    const T own = feature[i];
    for (int k = 0; k < n_vectors; ++k) {
      const V difference = load<V>(feature + first_j + k * width) - own;
      if (shape == Shape::gaussian) total[k] += difference * difference;
      else if (shape == Shape::tent) total[k] += absolute(difference);
      else
        for (int c = 0; c < width; ++c) total[k][c] *= sinc(static_cast<T>(difference[c]));
    }
  }
  for (int k = 0; k < n_vectors; ++k) {
    V value = total[k];
    if (shape == Shape::gaussian) value = exp_nonpositive<V>(T(-0.5) * value);
    else if (shape == Shape::tent) value = larger(T(1) - value, V{});
    store<V>(row + k * width, value);
  }
}

template <class V, int K>
void multiply_rows(const typename Traits<V>::element* kernel, int n_rows,
                   const typename Traits<V>::element* x, std::size_t stride,
                   typename Traits<V>::element* out) {
  constexpr int width = Traits<V>::width;
  V total[4][K] = {};
  for (std::size_t j = 0; j < tile_size; ++j) {
    V value[K];
    for (int k = 0; k < K; ++k) value[k] = load<V>(x + j * stride + k * width);
    for (int r = 0; r < 4; ++r)
      for (int k = 0; k < K; ++k) total[r][k] += kernel[r * tile_size + j] * value[k];
  }
  for (int r = 0; r < n_rows; ++r)
    for (int k = 0; k < K; ++k) {
      auto* target = out + static_cast<std::size_t>(r) * stride + k * width;
      store<V>(target, load<V>(target) + total[r][k]);
    }
}

template <class T>
void exact_tile(Shape shape, const TiledPoints<T>& points, std::size_t tile_i, std::size_t tile_j,
                const T* x, int n_columns, T* out) {
  const auto stride = static_cast<std::size_t>(padded_columns<T>(n_columns));
  const std::size_t first_i = tile_i * tile_size, first_j = tile_j * tile_size;
  const std::size_t left = points.n_points - first_i;
  const std::size_t rows = left < tile_size ? left : tile_size;
  T kernel[4 * tile_size] = {};
  for (std::size_t i = 0; i < rows; i += 4) {
    const int group = static_cast<int>(rows - i < 4 ? rows - i : 4);
    for (int r = 0; r < group; ++r)
      kernel_row(shape, points, first_i + i + r, first_j, kernel + r * tile_size);
    with_row_vector<T>(n_columns, [&](auto v) {
      for_column_groups<decltype(v)>(n_columns, [&](auto count, int first) {
        multiply_rows<decltype(v), decltype(count)::value>(
            kernel, group, x + first_j * stride + first, stride, out + (first_i + i) * stride + first);
      });
    });
  }
}

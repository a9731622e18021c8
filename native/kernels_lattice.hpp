// Splat, blur and slice on the permutohedral lattice, and embedding into it.
// Included by kernels.cpp inside its per-target namespace, after lanes.hpp and rows.hpp.
#pragma once

template <class V, int K>
void splat_columns(const Simplices<typename Traits<V>::element>& points,
                   const typename Traits<V>::element* x, const typename Traits<V>::element* scale,
                   std::size_t begin, std::size_t end, std::size_t n_rows, int n_columns,
                   int first_column, std::size_t stride, typename Traits<V>::element* out) {
  constexpr int width = Traits<V>::width;
  const int corners = points.corners;
  const int here = n_columns - first_column < K * width ? n_columns - first_column : K * width;
  const int tail = here - (K - 1) * width;
  for (std::size_t i = begin; i < end; ++i) {
    const auto* row = x + i * n_columns + first_column;
    const bool inside = i * n_columns + first_column + K * width <= n_rows * n_columns;
    V value[K];
    for (int k = 0; k < K - 1; ++k) value[k] = load<V>(row + k * width);
    value[K - 1] = inside ? load<V>(row + (K - 1) * width)
                          : load_first<V>(row + (K - 1) * width, tail);
    if (scale)
      for (int k = 0; k < K; ++k) value[k] *= scale[i];
    const auto* vertex = points.vertex + i * corners;
    const auto* weight = points.weight + i * corners;
    for (int c = 0; c < corners; ++c) {
      auto* target = out + static_cast<std::size_t>(vertex[c]) * stride + first_column;
      for (int k = 0; k < K; ++k)
        store<V>(target + k * width, load<V>(target + k * width) + weight[c] * value[k]);
    }
  }
}

template <class V, int K>
void slice_columns(const Simplices<typename Traits<V>::element>& points,
                   const typename Traits<V>::element* values, typename Traits<V>::element factor,
                   const typename Traits<V>::element* scale, std::size_t begin, std::size_t end,
                   int n_columns, int first_column, std::size_t stride,
                   typename Traits<V>::element* out) {
  constexpr int width = Traits<V>::width;
  const int corners = points.corners;
  const int here = n_columns - first_column < K * width ? n_columns - first_column : K * width;
  const int tail = here - (K - 1) * width;
  // Spilling over the next row is harmless only if this call writes those columns as well.
  const bool whole_row = first_column == 0 && here == n_columns;
  for (std::size_t i = begin; i < end; ++i) {
    const auto* vertex = points.vertex + i * corners;
    const auto* weight = points.weight + i * corners;
    V value[K] = {};
    for (int c = 0; c < corners; ++c) {
      const auto* source = values + static_cast<std::size_t>(vertex[c]) * stride + first_column;
      for (int k = 0; k < K; ++k) value[k] += weight[c] * load<V>(source + k * width);
    }
    const auto own = scale ? factor * scale[i] : factor;
    for (int k = 0; k < K; ++k) value[k] *= own;
    auto* row = out + i * n_columns + first_column;
    for (int k = 0; k < K - 1; ++k) store<V>(row + k * width, value[k]);
    if (tail == width || (whole_row && i * n_columns + K * width <= end * n_columns))
      store<V>(row + (K - 1) * width, value[K - 1]);
    else
      store_first<V>(row + (K - 1) * width, value[K - 1], tail);
  }
}

template <class T>
void splat(const Simplices<T>& points, const T* x, const T* scale, std::size_t begin,
           std::size_t end, std::size_t n_rows, int n_columns, T* out) {
  const auto stride = static_cast<std::size_t>(padded_columns<T>(n_columns));
  with_row_vector<T>(n_columns, [&](auto v) {
    for_column_groups<decltype(v)>(n_columns, [&](auto count, int first) {
      splat_columns<decltype(v), decltype(count)::value>(points, x, scale, begin, end, n_rows,
                                                         n_columns, first, stride, out);
    });
  });
}

template <class T>
void slice(const Simplices<T>& points, const T* values, T factor, const T* scale, std::size_t begin,
           std::size_t end, int n_columns, T* out) {
  const auto stride = static_cast<std::size_t>(padded_columns<T>(n_columns));
  with_row_vector<T>(n_columns, [&](auto v) {
    for_column_groups<decltype(v)>(n_columns, [&](auto count, int first) {
      slice_columns<decltype(v), decltype(count)::value>(points, values, factor, scale, begin,
                                                         end, n_columns, first, stride, out);
    });
  });
}

template <class V, int K>
void correlate_columns(const Simplices<typename Traits<V>::element>& points,
                       const Correlated<typename Traits<V>::element>& u,
                       const Correlated<typename Traits<V>::element>& v,
                       typename Traits<V>::element factor, std::size_t begin, std::size_t end,
                       std::size_t n_rows, int n_columns, int first_column, std::size_t stride,
                       typename Traits<V>::element* out) {
  using T = typename Traits<V>::element;
  constexpr int width = Traits<V>::width;
  const int corners = points.corners;
  const int here = n_columns - first_column < K * width ? n_columns - first_column : K * width;
  const int tail = here - (K - 1) * width;
  V real = {};  // the padding of a table holds what whole-vector reads picked up
  for (int k = 0; k < tail; ++k) real[k] = T(1);
  const auto read_row = [&](const Correlated<T>& side, std::size_t i, V* row) {
    const T* x = side.x + i * n_columns + first_column;
    const bool inside = i * n_columns + first_column + K * width <= n_rows * n_columns;
    const T own = side.scale ? factor * side.scale[i] : factor;
    for (int k = 0; k < K - 1; ++k) row[k] = own * load<V>(x + k * width);
    const V ending = inside ? load<V>(x + (K - 1) * width)
                            : load_first<V>(x + (K - 1) * width, tail);
    row[K - 1] = real > V{} ? own * ending : V{};
  };
  for (std::size_t i = begin; i < end; ++i) {
    V from_u[K], from_v[K];
    read_row(u, i, from_u);
    read_row(v, i, from_v);
    for (int c = 0; c < corners; ++c) {
      const std::size_t row = static_cast<std::size_t>(points.vertex[i * corners + c]) * stride;
      const T *of_u = u.values + row + first_column, *of_v = v.values + row + first_column;
      V sum = {};
      for (int k = 0; k < K - 1; ++k)
        sum += from_u[k] * load<V>(of_u + k * width) + from_v[k] * load<V>(of_v + k * width);
      const V last_u = load<V>(of_u + (K - 1) * width), last_v = load<V>(of_v + (K - 1) * width);
      sum += real > V{} ? from_u[K - 1] * last_u + from_v[K - 1] * last_v : V{};
      out[i * corners + c] += sum_lanes<V>(sum);
    }
  }
}

template <class T>
void correlate(const Simplices<T>& points, const Correlated<T>& u, const Correlated<T>& v, T factor,
               std::size_t begin, std::size_t end, std::size_t n_rows, int n_columns, T* out) {
  const auto stride = static_cast<std::size_t>(padded_columns<T>(n_columns));
  with_row_vector<T>(n_columns, [&](auto lanes) {
    for_column_groups<decltype(lanes)>(n_columns, [&](auto count, int first) {
      correlate_columns<decltype(lanes), decltype(count)::value>(
          points, u, v, factor, begin, end, n_rows, n_columns, first, stride, out);
    });
  });
}

template <class T>
void blur(const std::int32_t* neighbors, const T* in, std::size_t begin, std::size_t end,
          int n_columns, T* out) {
  const auto stride = static_cast<std::size_t>(padded_columns<T>(n_columns));
  with_row_vector<T>(n_columns, [&](auto v) {
    using V = decltype(v);
    for (std::size_t row = begin; row < end; ++row) {
      const T* center = in + row * stride;
      const T* before = in + static_cast<std::size_t>(neighbors[2 * row]) * stride;
      const T* after = in + static_cast<std::size_t>(neighbors[2 * row + 1]) * stride;
      for (std::size_t c = 0; c < stride; c += Traits<V>::width)
        store<V>(out + row * stride + c,
                 T(0.5) * load<V>(center + c) + T(0.25) * (load<V>(before + c) + load<V>(after + c)));
    }
  });
}

template <class T> void add(const T* part, std::size_t begin, std::size_t end, T* total) {
  for (std::size_t k = begin; k < end; ++k) total[k] += part[k];
}

template <class T> void embed(const Embedding<T>& in) {
  constexpr int B = embed_block;
  const int dim = in.dim, corners = dim + 1;
  T elevated[17 * B], residual[17 * B], ordered[17 * B], partial[B] = {}, sum[B] = {};
  typename IntegerOf<T>::type rank[17 * B];
  for (int j = dim; j > 0; --j)
    for (int t = 0; t < B; ++t) {
      const T f = in.features[(j - 1) * B + t] * in.axis_scale[j - 1];
      elevated[j * B + t] = partial[t] - j * f;
      partial[t] += f;
    }
  for (int t = 0; t < B; ++t) elevated[t] = partial[t];
  const T n_corners = static_cast<T>(corners), inverse = T(1) / n_corners;
  // Adding and subtracting 1.5 * 2^(mantissa bits) rounds to the nearest whole number.
  constexpr T rounder = sizeof(T) == 4 ? T(12582912.0) : T(6755399441055744.0);
  for (int j = 0; j < corners; ++j)
    for (int t = 0; t < B; ++t) {
      const T nearest = (elevated[j * B + t] * inverse + rounder) - rounder;
      sum[t] += nearest;
      residual[j * B + t] = elevated[j * B + t] - nearest * n_corners;
      rank[j * B + t] = 0;
    }
  for (int a = 0; a < corners; ++a)
    for (int b = a + 1; b < corners; ++b)
      for (int t = 0; t < B; ++t) {
        const bool smaller_first = residual[a * B + t] < residual[b * B + t];
        rank[a * B + t] += smaller_first;
        rank[b * B + t] += !smaller_first;
      }
  for (int w = 0; w < in.n_words; ++w)
    for (int t = 0; t < B; ++t) in.key[w * B + t] = 0;
  for (int k = 0; k < in.n_codes; ++k)
    for (int t = 0; t < B; ++t) in.rank[k * B + t] = 0;
  // Points whose rounded coordinates do not sum to zero move to the neighboring remainder-0 point.
  for (int r = 0; r < corners; ++r)
    for (int t = 0; t < B; ++t) ordered[r * B + t] = 0;
  for (int j = 0; j < corners; ++j) {
    for (int t = 0; t < B; ++t) {
      const auto shifted = rank[j * B + t] + static_cast<typename IntegerOf<T>::type>(sum[t]);
      const int wrap = shifted < 0 ? corners : shifted > dim ? -corners : 0;
      rank[j * B + t] = shifted + wrap;
      residual[j * B + t] -= static_cast<T>(wrap);
      in.rank[j / 8 * B + t] += static_cast<std::uint64_t>(shifted + wrap) << (8 * (j % 8));
    }
    if (j < dim)
      for (int t = 0; t < B; ++t) {
        const T whole = elevated[j * B + t] - residual[j * B + t];
        const auto nearest = static_cast<typename IntegerOf<T>::type>((whole + rounder) - rounder);
        in.key[in.word[j] * B + t] +=
            static_cast<std::uint64_t>(static_cast<std::int64_t>(nearest) + in.offset[j]) << in.shift[j];
      }
    for (int r = 0; r < corners; ++r)
      for (int t = 0; t < B; ++t)
        ordered[r * B + t] += rank[j * B + t] == r ? residual[j * B + t] * inverse : T(0);
  }
  for (int t = 0; t < B; ++t) in.weight[t] = T(1) + ordered[dim * B + t] - ordered[t];
  for (int c = 1; c < corners; ++c)
    for (int t = 0; t < B; ++t)
      in.weight[c * B + t] = ordered[(dim - c) * B + t] - ordered[(corners - c) * B + t];
}

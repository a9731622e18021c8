// Tables of padded rows: sums over their rows, and the grid's blur.
// Included by kernels.cpp inside its per-target namespace, after lanes.hpp and rows.hpp.
#pragma once

template <class T>
void combine(const T* const* rows, const T* factors, int n, std::size_t length, T* out) {
  std::size_t k = 0;
  using V = typename Lanes<T, 32>::type;
  for (; k + Traits<V>::width <= length; k += Traits<V>::width) {
    V sum = factors[0] * load<V>(rows[0] + k);
    for (int r = 1; r < n; ++r) sum += factors[r] * load<V>(rows[r] + k);
    store<V>(out + k, sum);
  }
  for (; k < length; ++k) {
    T sum = factors[0] * rows[0][k];
    for (int r = 1; r < n; ++r) sum += factors[r] * rows[r][k];
    out[k] = sum;
  }
}

template <class T> void add_scaled(const T* x, T factor, std::size_t length, T* out) {
  for (std::size_t k = 0; k < length; ++k) out[k] += factor * x[k];
}

template <class T>
void column_dots(const T* x, const T* y, std::size_t n_rows, int n_padded, double* out) {
  constexpr std::size_t block = 32;  // short sums in T, long ones in double
  for (int c = 0; c < n_padded; ++c) out[c] = 0;
  using V = ShortestVector<T>;
  constexpr int width = Traits<V>::width;
  for (std::size_t begin = 0; begin < n_rows; begin += block) {
    const std::size_t end = begin + block < n_rows ? begin + block : n_rows;
    for_column_groups<V>(n_padded, [&](auto group, int first) {
      constexpr int K = decltype(group)::value;
      V sum[K] = {};
      for (std::size_t r = begin; r < end; ++r)
        for (int k = 0; k < K; ++k)
          sum[k] += load<V>(x + r * n_padded + first + k * width) *
                    load<V>(y + r * n_padded + first + k * width);
      for (int k = 0; k < K; ++k)
        for (int t = 0; t < width; ++t) out[first + k * width + t] += static_cast<double>(sum[k][t]);
    });
  }
}

template <class T>
double row_sum_dot(const T* x, const T* y, std::size_t n_rows, int n_padded) {
  using V = ShortestVector<T>;
  double total = 0;
  for (std::size_t r = 0; r < n_rows; ++r) {
    V of_x = {}, of_y = {};
    for (std::size_t c = r * n_padded; c < (r + 1) * n_padded; c += Traits<V>::width) {
      of_x += load<V>(x + c);
      of_y += load<V>(y + c);
    }
    total += static_cast<double>(sum_lanes<V>(of_x)) * static_cast<double>(sum_lanes<V>(of_y));
  }
  return total;
}

// Along the middle axis of (outer, n, inner): out[o, k] = sum_s taps[|s|] in[o, k + s], |s| <= 2. `inner`
// is a whole number of the shortest vectors. Rows are numbered o * n + k.
template <class T>
void blur_axis(const T* in, const T* taps, std::size_t n, std::size_t inner, std::size_t begin,
               std::size_t end, T* out) {
  using Long = typename Lanes<T, 32>::type;
  using Short = ShortestVector<T>;
  for (std::size_t row = begin; row < end;) {
    const std::size_t at = row % n, from = row * inner;
    if (at >= 2 && at + 2 < n) {  // rows that have all their neighbors, together
      const std::size_t last = row - at + n - 2, to = (last < end ? last : end) * inner;
      const auto at_once = [&](auto v, std::size_t k) {
        using V = decltype(v);
        store<V>(out + k, taps[0] * load<V>(in + k) +
                              taps[1] * (load<V>(in + k - inner) + load<V>(in + k + inner)) +
                              taps[2] * (load<V>(in + k - 2 * inner) + load<V>(in + k + 2 * inner)));
      };
      std::size_t k = from;
      for (; k + Traits<Long>::width <= to; k += Traits<Long>::width) at_once(Long{}, k);
      for (; k < to; k += Traits<Short>::width) at_once(Short{}, k);
      row = to / inner;
      continue;
    }
    const Short none = {};
    for (std::size_t k = from; k < from + inner; k += Traits<Short>::width)
      store<Short>(out + k,
                   taps[0] * load<Short>(in + k) +
                       taps[1] * ((at >= 1 ? load<Short>(in + k - inner) : none) +
                                  (at + 1 < n ? load<Short>(in + k + inner) : none)) +
                       taps[2] * ((at >= 2 ? load<Short>(in + k - 2 * inner) : none) +
                                  (at + 2 < n ? load<Short>(in + k + 2 * inner) : none)));
    ++row;
  }
}

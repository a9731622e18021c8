// The fused pass back through an iteration, and the sums that the compatibilities' gradient needs.
// Included by kernels.cpp inside its per-target namespace, after kernels_pass.hpp.
#pragma once

// Rows [begin, end) of the run; see pass_points for `Inside` and the rows' last vectors.
template <class V, int Fixed, bool Inside>
void back_rows(const BackInput<typename Traits<V>::element>& in, std::size_t begin, std::size_t end) {
  using T = typename Traits<V>::element;
  constexpr int width = Traits<V>::width;
  const int n = padded_columns<T>(in.n_columns), last = n - width, tail = in.n_columns - last;
  V real = {};
  for (int k = 0; k < tail; ++k) real[k] = T(1);
  for (std::size_t i = begin; i < end; ++i) {
    const std::size_t offset = i * in.n_columns;
    const auto read = [&](const T* rows, int c) __attribute__((always_inline)) {
      const V value = Inside || c < last ? load<V>(rows + offset + c)
                                         : load_first<V>(rows + offset + c, tail);
      return c == last && real[width - 1] == T(0) ? (real > V{} ? value : V{}) : value;
    };
    const auto slice = [&](auto group, int first, V* g) __attribute__((always_inline)) {
      constexpr int K = decltype(group)::value;
      for (int k = 0; k < K; ++k) g[k] = V{};
      for (int m = 0; m < in.n_terms; ++m) slice_row<V, K, 0>(in.terms[m], i, first, n, g);
    };
    V against = {};  // q'g, summed over all column groups before b can be formed
    V kept[Fixed > 0 ? Fixed : 1] = {};  // g, where the whole row is one group
    if (!in.given)
      for_groups<V, Fixed>(in.n_columns, [&](auto group, int first) __attribute__((always_inline)) {
        constexpr int K = decltype(group)::value;
        V g[K];
        slice(group, first, g);
        for (int k = 0; k < K; ++k) {
          against += read(in.q, first + k * width) * g[k];
          if constexpr (Fixed > 0) kept[k] = g[k];
        }
      });
    const T level = sum_lanes<V>(against);
    for_groups<V, Fixed>(in.n_columns, [&](auto group, int first) __attribute__((always_inline)) {
      constexpr int K = decltype(group)::value;
      V b[K] = {};
      if constexpr (Fixed > 0)
        for (int k = 0; k < K; ++k) b[k] = kept[k];
      else if (!in.given)
        slice(group, first, b);
      for (int k = 0; k < K; ++k) {
        const int c = first + k * width;
        b[k] = in.given ? read(in.given, c) : read(in.q, c) * (level - b[k]);
        T* at = in.total + offset + c;
        const bool whole = Inside || c < last;
        V sum = b[k];
        if (!in.first) sum += whole ? load<V>(at) : load_first<V>(at, tail);
        if (whole) store<V>(at, sum);
        else store_first<V>(at, sum, tail);
      }
      for (int m = 0; m < in.n_terms; ++m)
        if (in.terms[m].to) splat_row<V, K, 0>(in.terms[m], i, first, n, b);
    });
  }
}

template <class T> void back(const BackInput<T>& in) {
  with_row_length<T>(in.n_columns, [&](auto v, auto fixed) {
    constexpr int K = decltype(fixed)::value;
    const std::size_t columns = in.n_columns, n = padded_columns<T>(in.n_columns);
    const std::size_t spare = (n - columns + columns - 1) / columns;
    const std::size_t inside = in.count > spare ? in.count - spare : 0;
    back_rows<decltype(v), K, true>(in, 0, inside);
    back_rows<decltype(v), K, false>(in, inside, in.count);
  });
}

template <class T>
void gram(const T* x, const T* y, std::size_t n_rows, int n_columns, T* scratch, double* out) {
  constexpr std::size_t block = 64;  // short sums in T, long ones in double
  const int n = padded_columns<T>(n_columns);
  using V = typename Lanes<T, 16>::type;
  constexpr int width = Traits<V>::width;
  for (int k = 0; k < n_columns * n; ++k) out[k] = 0;
  for (std::size_t begin = 0; begin < n_rows; begin += block) {
    const std::size_t end = begin + block < n_rows ? begin + block : n_rows;
    for (int k = 0; k < n_columns * n; ++k) scratch[k] = 0;
    for (std::size_t r = begin; r < end; ++r)
      for (int a = 0; a < n_columns; ++a) {
        const T factor = x[r * n + a];
        T* sum = scratch + static_cast<std::size_t>(a) * n;
        for (int c = 0; c < n; c += width)
          store<V>(sum + c, load<V>(sum + c) + factor * load<V>(y + r * n + c));
      }
    for (int k = 0; k < n_columns * n; ++k) out[k] += static_cast<double>(scratch[k]);
  }
}

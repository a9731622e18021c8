// The fused pass back through an iteration, and the sums that the compatibilities' gradient needs.
// Included by kernels.cpp inside its per-target namespace, after kernels_pass.hpp.
#pragma once

// One step back over a run of points, a block of them at a time; see Pass for the blocks, the rows' last
// vectors and `Inside`.
template <class V, int Fixed, class Known> class Back {
 public:
  using T = typename Traits<V>::element;

  [[gnu::always_inline]] Back(const BackInput<T>& in, T* scratch)
      : in_(in), terms_(in), n_(Fixed > 0 ? Fixed * width : padded_columns<T>(in.n_columns)),
        last_(n_ - width), tail_(in.n_columns - last_), slope_(scratch) {
    for (int k = 0; k < tail_; ++k) real_[k] = 1;
  }

  [[gnu::always_inline]] void run() {
    const std::size_t columns = in_.n_columns, spare = (n_ - columns + columns - 1) / columns;
    const std::size_t inside = in_.count > spare ? in_.count - spare : 0;
    std::size_t i = 0;
    for (; i + pass_block <= inside; i += pass_block) block<true>(i, pass_block);
    for (; i < in_.count; i += pass_block)
      block<false>(i, static_cast<int>(in_.count - i < pass_block ? in_.count - i : pass_block));
  }

 private:
  static constexpr int width = Traits<V>::width, groups = pass_block / width;

  template <bool Inside> [[gnu::always_inline]] void block(std::size_t i, int count) {
    T level[pass_block] = {};
    if (!in_.given) {
      V row[pass_block], folded[groups];
      for (int p = 0; p < count; ++p) row[p] = slopes<Inside>(i + p, slope_ + p * n_);
      fold_block(row, count, T(0), [](V a, V b) { return a + b; }, folded);
      for (int k = 0; k < groups; ++k) store<V>(level + k * width, folded[k]);
    }
    for (int p = 0; p < count; ++p) finish<Inside>(i + p, level[p], slope_ + p * n_);
  }

  template <bool Inside> [[gnu::always_inline]] V read(const T* rows, std::size_t i, int c) const {
    const T* at = rows + i * in_.n_columns + c;
    const V value = Inside || c < last_ ? load<V>(at) : load_first<V>(at, tail_);
    return c == last_ ? (real_ > V{} ? value : V{}) : value;
  }

  // g of one point; returns q g lane by lane.
  template <bool Inside> [[gnu::always_inline]] V slopes(std::size_t i, T* slope) const {
    V against = {};
    for_groups<V, Fixed>(in_.n_columns, [&](auto group, int first) __attribute__((always_inline)) {
      constexpr int K = decltype(group)::value;
      V g[K] = {};
      terms_.each([&](const PassTerm<T>& term, auto corners) __attribute__((always_inline)) {
        slice_row<V, K, decltype(corners)::value>(term, i, first, n_, g);
      });
      for (int k = 0; k < K; ++k) {
        against += read<Inside>(in_.q, i, first + k * width) * g[k];
        store<V>(slope + first + k * width, g[k]);
      }
    });
    return against;
  }

  template <bool Inside>
  [[gnu::always_inline]] void finish(std::size_t i, T level, const T* slope) const {
    for_groups<V, Fixed>(in_.n_columns, [&](auto group, int first) __attribute__((always_inline)) {
      constexpr int K = decltype(group)::value;
      V b[K], q[K];
      for (int k = 0; k < K; ++k) {
        const int c = first + k * width;
        q[k] = read<Inside>(in_.q, i, c);
        b[k] = in_.given ? read<Inside>(in_.given, i, c) : q[k] * (level - load<V>(slope + c));
        T* at = in_.total + i * in_.n_columns + c;
        const bool whole = Inside || c < last_;
        V sum = b[k];
        if (!in_.first) sum += whole ? load<V>(at) : load_first<V>(at, tail_);
        if (whole) store<V>(at, sum);
        else store_first<V>(at, sum, tail_);
      }
      terms_.each([&](const PassTerm<T>& term, auto corners) __attribute__((always_inline)) {
        if (term.to) splat_row<V, K, decltype(corners)::value>(term, i, first, n_, b);
      });
      for (int v = 0; v < in_.n_views; ++v) correlate_corners<K>(in_.views[v], i, first, b, q);
    });
  }

  template <int K>
  void correlate_corners(const BackView<T>& view, std::size_t i, int first, const V* b,
                         const V* q) const {
    const int corners = view.corners;
    const std::int32_t* vertex = view.vertex + i * corners;
    T* dots = view.dots + i * corners;
    const T after = view.after ? view.after[i] : T(1);
    V by_b[K], by_q[K];
    for (int k = 0; k < K; ++k) {
      const V factor = view.factor ? after * load<V>(view.factor + first + k * width) : after - V{};
      by_b[k] = factor * b[k];
      by_q[k] = factor * q[k];
    }
    V sums[max_corners];
    for (int c = 0; c < corners; ++c) {
      const std::size_t offset = static_cast<std::size_t>(vertex[c]) * n_ + first;
      V sum = {};
      if (view.of_q)
        for (int k = 0; k < K; ++k) sum += by_b[k] * load<V>(view.of_q + offset + k * width);
      if (view.of_b)
        for (int k = 0; k < K; ++k) sum += by_q[k] * load<V>(view.of_b + offset + k * width);
      sums[c] = sum;
    }
    if (corners > width / 2 && corners <= width) {
      for (int c = corners; c < width; ++c) sums[c] = V{};
      const V total = fold_rows<V>(sums, [](V x, V y) { return x + y; });
      for (int c = 0; c < corners; ++c) dots[c] += total[c];
    } else {
      for (int c = 0; c < corners; ++c) dots[c] += sum_lanes<V>(sums[c]);
    }
  }

  static constexpr int max_corners = 32;
  const BackInput<T> in_;
  const Known terms_;
  const int n_, last_, tail_;
  T* slope_;
  V real_ = {};  // 1 in the lanes of a row's last vector that hold labels
};

template <class T> void back(const BackInput<T>& in, T* scratch) {
  with_row_length<T>(in.n_columns, [&](auto v, auto fixed) {
    using V = decltype(v);
    constexpr int K = decltype(fixed)::value;
    if constexpr (K > 0 && sizeof(T) == 4)
      if (Terms<T, 2, 6>::match(in)) return Back<V, K, Terms<T, 2, 6>>(in, scratch).run();
    Back<V, K, Terms<T>>(in, scratch).run();
  });
}

template <class T>
void gram(const T* x, const T* y, std::size_t n_rows, int n_columns, T* scratch, double* out) {
  constexpr std::size_t block = 64;  // short sums in T, long ones in double
  const int n = padded_columns<T>(n_columns);
  using V = ShortestVector<T>;
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

// One fused pass of mean-field inference: slice, update and splat while a variable is in registers.
// Included by kernels.cpp inside its per-target namespace, after kernels_update.hpp.
#pragma once

// Calls body(Count<K>{}, first column) for the column groups of a row; with `Fixed` groups known at
// compile time the whole row is one group.
template <class V, int Fixed, class Body> inline void for_groups(int n_columns, Body&& body) {
  if constexpr (Fixed > 0) body(Count<Fixed>{}, 0);
  else for_column_groups<V>(n_columns, body);
}

// Calls body(Count<0>{}) ... body(Count<N - 1>{}), so that arrays indexed by it can stay in registers.
template <int N, class Body> [[gnu::always_inline]] inline void each(Body&& body) {
  if constexpr (N > 1) each<N - 1>(body);
  body(Count<N - 1>{});
}

// The terms of a pass: any, or as many as there are numbers of corners here, which lets loops over
// corners unroll; the latter also have scales and factors, which need not be asked for then.
template <int... Corners> struct Terms {
  static constexpr bool known = sizeof...(Corners) > 0;
  template <class T> static bool match(const PassInput<T>& in) {
    constexpr int wanted[] = {Corners...};
    if (in.n_terms != static_cast<int>(sizeof...(Corners))) return false;
    for (int m = 0; m < in.n_terms; ++m)
      if (in.terms[m].corners != wanted[m] || !in.terms[m].before || !in.terms[m].after ||
          !in.terms[m].factor || !in.terms[m].to)
        return false;
    return true;
  }
  // body(term, Count<corners>{}), in the terms' order
  template <class T, class Body>
  [[gnu::always_inline]] static void each(const PassInput<T>& in, Body&& body) {
    const PassTerm<T>* term = in.terms;
    (body(*term++, Count<Corners>{}), ...);
  }
};
template <> struct Terms<> {
  static constexpr bool known = false;
  template <class T> static bool match(const PassInput<T>&) { return true; }
  template <class T, class Body>
  [[gnu::always_inline]] static void each(const PassInput<T>& in, Body&& body) {
    for (int m = 0; m < in.n_terms; ++m) body(in.terms[m], Count<0>{});
  }
};

// sum_c weight_c table[vertex_c], times the row's scale.
template <class V, int K, int Fixed, class T>
[[gnu::always_inline]] inline void slice_row(const PassTerm<T>& term, std::size_t i, int first,
                                             int stride, V* sum) {
  const int corners = Fixed > 0 ? Fixed : term.corners;
  const std::int32_t* vertex = term.vertex + i * corners;
  const T* weight = term.weight + i * corners;
  for (int k = 0; k < K; ++k) sum[k] = V{};
  for (int c = 0; c < corners; ++c) {
    const T* row = term.from + static_cast<std::size_t>(vertex[c]) * stride + first;
    for (int k = 0; k < K; ++k) sum[k] += weight[c] * load<V>(row + k * Traits<V>::width);
  }
  if (Fixed > 0 || term.after) {
    const T scale = term.after[i];
    for (int k = 0; k < K; ++k) sum[k] *= scale;
  }
}

template <class V, int K, int Fixed, class T>
[[gnu::always_inline]] inline void splat_row(const PassTerm<T>& term, std::size_t i, int first,
                                             int stride, const V* value) {
  const int corners = Fixed > 0 ? Fixed : term.corners;
  const std::int32_t* vertex = term.vertex + i * corners;
  const T* weight = term.weight + i * corners;
  const T scale = Fixed > 0 || term.before ? term.before[i] : T(1);
  V scaled[K];
  for (int k = 0; k < K; ++k) scaled[k] = scale * value[k];
  for (int c = 0; c < corners; ++c) {
    T* row = term.to + static_cast<std::size_t>(vertex[c]) * stride + first;
    for (int k = 0; k < K; ++k)
      store<V>(row + k * Traits<V>::width,
               load<V>(row + k * Traits<V>::width) + weight[c] * scaled[k]);
  }
}

// One row's numbers between the steps of an update: in registers if their number is known at compile
// time, in scratch memory otherwise.
template <class V, int Fixed> struct Row {
  V values[Fixed];
  void use(typename Traits<V>::element*) {}
  V get(int c) const { return values[c / Traits<V>::width]; }
  void set(int c, V value) { values[c / Traits<V>::width] = value; }
};
template <class V> struct Row<V, 0> {
  typename Traits<V>::element* memory = nullptr;
  void use(typename Traits<V>::element* scratch) { memory = scratch; }
  V get(int c) const { return load<V>(memory + c); }
  void set(int c, V value) { store<V>(memory + c, value); }
};

template <class V> struct PassTotals {
  using Wide = typename Lanes<double, Traits<V>::width * 8>::type;
  Wide free_energy = {}, self = {};
  V free_part = {}, self_part = {}, moved = {};
  double log_mass = 0, mass_product = 1;

  void flush() {
    log_mass += std::log(mass_product);
    mass_product = 1;
    free_energy += __builtin_convertvector(free_part, Wide);
    self += __builtin_convertvector(self_part, Wide);
    free_part = self_part = V{};
  }
};

// `Points` points of the run from i on, side by side: each step waits for the one before it, and the
// other point fills the gaps. `Inside` says that reading and writing whole vectors of these rows stays
// inside the arrays: what is read beyond a row does not count, what is written there is overwritten by
// the next row. `Plain` leaves out everything about self-pairs.
template <class V, int Fixed, class Known, int Points, bool Inside, bool Plain>
[[gnu::always_inline]] inline void pass_points(const PassInput<typename Traits<V>::element>& in,
                                               std::size_t i, const V& real,
                                               typename Traits<V>::element* scratch,
                                               PassTotals<V>& totals) {
  using T = typename Traits<V>::element;
  constexpr int width = Traits<V>::width;
  constexpr T never = T(1.5e38);  // the cost of a label that only pads the row: beyond any other
  const int n = Fixed > 0 ? Fixed * width : padded_columns<T>(in.n_columns), stride = n;
  const int last = n - width, tail = in.n_columns - last;
  Row<V, Fixed> weights[Points], log_q[Points], alpha[Points];
  const auto read = [&](const T* rows, int p, int c) __attribute__((always_inline)) {
    const T* at = rows + (i + p) * in.n_columns + c;
    return Inside || c < last ? load<V>(at) : load_first<V>(at, tail);
  };
  T least[Points], total[Points];
  each<Points>([&](auto point) __attribute__((always_inline)) {
    constexpr int p = decltype(point)::value;
    weights[p].use(scratch);
    log_q[p].use(scratch + n);
    alpha[p].use(scratch + 2 * n);
    if (!Plain)
      for (int c = 0; c < n; c += width) {
        V sum = {};
        for (int m = 0; m < in.n_terms; ++m)
          sum += in.terms[m].strength[i + p] * load<V>(in.terms[m].attraction + c);
        alpha[p].set(c, sum);
      }
    V lowest = V{} + never;
    for_groups<V, Fixed>(in.n_columns, [&](auto group, int first) __attribute__((always_inline)) {
      constexpr int K = decltype(group)::value;
      V e[K];
      for (int k = 0; k < K; ++k) e[k] = read(in.unary, p, first + k * width);
      Known::each(in, [&](const PassTerm<T>& term, auto corners) __attribute__((always_inline)) {
        if (!term.from) return;
        V sum[K];
        slice_row<V, K, decltype(corners)::value>(term, i + p, first, stride, sum);
        if (Known::known || term.factor)
          for (int k = 0; k < K; ++k) e[k] += load<V>(term.factor + first + k * width) * sum[k];
        else
          for (int k = 0; k < K; ++k) e[k] += sum[k];
      });
      for (int k = 0; k < K; ++k) {
        const int c = first + k * width;
        if (!Plain && in.without_self) e[k] += alpha[p].get(c) * read(in.old, p, c);
        if (c == last) e[k] = real > V{} ? e[k] : V{} + never;
        lowest = smaller(lowest, e[k]);
        log_q[p].set(c, e[k]);
      }
    });
    least[p] = min_lanes<V>(lowest);
  });
  each<Points>([&](auto point) __attribute__((always_inline)) {
    constexpr int p = decltype(point)::value;
    V mass = {};
    for (int c = 0; c < n; c += width) {
      const V y = least[p] - log_q[p].get(c), weight = exp_for_sums<V>(y);
      log_q[p].set(c, y);
      weights[p].set(c, weight);
      mass += weight;
    }
    total[p] = sum_lanes<V>(mass);
  });
  if (!Plain && in.convex_self)
    each<Points>([&](auto point) __attribute__((always_inline)) {
      constexpr int p = decltype(point)::value;
      T *energy = scratch + 3 * n, *solved = scratch + 4 * n, *strength = scratch + 5 * n;
      for (int c = 0; c < n; c += width) {
        store<V>(energy + c, -log_q[p].get(c));
        store<V>(strength + c, alpha[p].get(c));
      }
      solve_separable<V>(energy, strength, n, std::log(total[p]), scratch + 6 * n, solved);
      V mass = {};
      for (int c = 0; c < n; c += width) {
        const V y = load<V>(solved + c), weight = exp_nonpositive<V>(y);
        log_q[p].set(c, y);
        weights[p].set(c, weight);
        mass += weight;
      }
      total[p] = sum_lanes<V>(mass);
    });
  each<Points>([&](auto point) __attribute__((always_inline)) {
    constexpr int p = decltype(point)::value;
    const T scale = T(1) / total[p];
    totals.mass_product *= static_cast<double>(total[p]);
    for_groups<V, Fixed>(in.n_columns, [&](auto group, int first) __attribute__((always_inline)) {
      constexpr int K = decltype(group)::value;
      V q[K];
      for (int k = 0; k < K; ++k) {
        const int c = first + k * width;
        q[k] = scale * weights[p].get(c);
        V u = read(in.unary, p, c);
        if (c == last) u = real > V{} ? u : V{};
        totals.free_part += q[k] * (u + log_q[p].get(c));
        if (!Plain) totals.self_part += alpha[p].get(c) * q[k] * q[k];
        if (in.change) {
          V before = read(in.old, p, c);
          if (c == last) before = real > V{} ? before : V{};
          totals.moved = larger(totals.moved, absolute(q[k] - before));
        }
        if (in.q) {
          T* at = in.q + (i + p) * in.n_columns + c;
          if (Inside || c < last) store<V>(at, q[k]);
          else store_first<V>(at, q[k], tail);
        }
      }
      Known::each(in, [&](const PassTerm<T>& term, auto corners) __attribute__((always_inline)) {
        if (Known::known || term.to)
          splat_row<V, K, decltype(corners)::value>(term, i + p, first, stride, q);
      });
    });
  });
}

template <class V, int Fixed, class Known, bool Plain>
PassSums pass_run(const PassInput<typename Traits<V>::element>& in,
                  typename Traits<V>::element* scratch) {
  constexpr std::size_t points = Fixed > 0 && Plain ? 2 : 1;
  const std::size_t columns = in.n_columns, n = padded_columns<typename Traits<V>::element>(in.n_columns);
  // Writing may spill only within the run.
  const std::size_t spare = (n - columns + columns - 1) / columns;
  const std::size_t inside = in.count > spare ? in.count - spare : 0;
  PassTotals<V> totals;
  V real = {};  // 1 in the lanes of a row's last vector that hold labels
  for (std::size_t k = 0; k < columns - (n - Traits<V>::width); ++k) real[k] = 1;
  std::size_t i = 0;
  for (; i + points <= inside; i += points) {
    pass_points<V, Fixed, Known, points, true, Plain>(in, i, real, scratch, totals);
    // Totals lie between 1 and the number of labels: a few multiply before one logarithm is taken.
    if (i % 16 == 16 - points) totals.flush();
  }
  for (; i < in.count; ++i) pass_points<V, Fixed, Known, 1, false, Plain>(in, i, real, scratch, totals);
  totals.flush();
  return {sum_lanes(totals.free_energy) - totals.log_mass, sum_lanes(totals.self),
          static_cast<double>(max_lanes<V>(totals.moved))};
}

// Positions and colours of a picture (2 + 6 corners), of a grey volume (2 + 5), or anything.
template <class V, int Fixed, class T> PassSums pass_kind(const PassInput<T>& in, T* scratch) {
  if constexpr (Fixed > 0) {
    const bool plain = !in.has_strength;
    if (plain && Terms<2, 6>::match(in)) return pass_run<V, Fixed, Terms<2, 6>, true>(in, scratch);
    if (plain && Terms<2, 5>::match(in)) return pass_run<V, Fixed, Terms<2, 5>, true>(in, scratch);
  }
  return in.has_strength ? pass_run<V, Fixed, Terms<>, false>(in, scratch)
                         : pass_run<V, Fixed, Terms<>, true>(in, scratch);
}

template <class T> PassSums pass(const PassInput<T>& in, T* scratch) {
  PassSums sums;
  with_row_vector<T>(in.n_columns, [&](auto v) {
    using V = decltype(v);
    switch (padded_columns<T>(in.n_columns) / Traits<V>::width) {
      case 1: sums = pass_kind<V, 1>(in, scratch); break;
      case 2: sums = pass_kind<V, 2>(in, scratch); break;
      case 3: sums = pass_kind<V, 3>(in, scratch); break;
      case 4: sums = pass_kind<V, 4>(in, scratch); break;
      default: sums = pass_kind<V, 0>(in, scratch);
    }
  });
  return sums;
}

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
  using V = typename Lanes<T, 16>::type;
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

// Along the middle axis of (outer, n, inner): out[o, k] = sum_s taps[|s|] in[o, k + s], |s| <= 2. `inner`
// is a whole number of vectors. Rows are numbered o * n + k.
template <class T>
void blur_axis(const T* in, const T* taps, std::size_t n, std::size_t inner, std::size_t begin,
               std::size_t end, T* out) {
  using V = typename Lanes<T, 16>::type;  // the shortest that rows are padded to
  for (std::size_t row = begin; row < end; ++row) {
    const std::size_t at = row % n;
    const T* centre = in + row * inner;
    T* target = out + row * inner;
    if (at >= 2 && at + 2 < n) {
      for (std::size_t k = 0; k < inner; k += Traits<V>::width)
        store<V>(target + k,
                 taps[0] * load<V>(centre + k) +
                     taps[1] * (load<V>(centre + k - inner) + load<V>(centre + k + inner)) +
                     taps[2] * (load<V>(centre + k - 2 * inner) + load<V>(centre + k + 2 * inner)));
      continue;
    }
    const V none = {};
    for (std::size_t k = 0; k < inner; k += Traits<V>::width)
      store<V>(target + k,
               taps[0] * load<V>(centre + k) +
                   taps[1] * ((at >= 1 ? load<V>(centre + k - inner) : none) +
                              (at + 1 < n ? load<V>(centre + k + inner) : none)) +
                   taps[2] * ((at >= 2 ? load<V>(centre + k - 2 * inner) : none) +
                              (at + 2 < n ? load<V>(centre + k + 2 * inner) : none)));
  }
}

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

// Calls body(Count<C>{}) with the number of corners where it is a common one, so that loops over them
// unroll, and body(Count<0>{}) otherwise.
template <class Body> [[gnu::always_inline]] inline void with_corners(int corners, Body&& body) {
  switch (corners) {
    case 2: body(Count<2>{}); break;
    case 5: body(Count<5>{}); break;
    case 6: body(Count<6>{}); break;
    default: body(Count<0>{});
  }
}

// sum_c weight_c table[vertex_c], times the row's scale.
template <class V, int K, class T>
[[gnu::always_inline]] inline void slice_row(const PassTerm<T>& term, std::size_t i, int first,
                                             int stride, V* sum) {
  for (int k = 0; k < K; ++k) sum[k] = V{};
  with_corners(term.corners, [&](auto fixed) __attribute__((always_inline)) {
    const int corners = decltype(fixed)::value ? decltype(fixed)::value : term.corners;
    const std::int32_t* vertex = term.vertex + i * corners;
    const T* weight = term.weight + i * corners;
    for (int c = 0; c < corners; ++c) {
      const T* row = term.from + static_cast<std::size_t>(vertex[c]) * stride + first;
      for (int k = 0; k < K; ++k) sum[k] += weight[c] * load<V>(row + k * Traits<V>::width);
    }
  });
  if (term.after) {
    const T scale = term.after[i];
    for (int k = 0; k < K; ++k) sum[k] *= scale;
  }
}

template <class V, int K, class T>
[[gnu::always_inline]] inline void splat_row(const PassTerm<T>& term, std::size_t i, int first,
                                             int stride, const V* value) {
  const T scale = term.before ? term.before[i] : T(1);
  V scaled[K];
  for (int k = 0; k < K; ++k) scaled[k] = scale * value[k];
  with_corners(term.corners, [&](auto fixed) __attribute__((always_inline)) {
    const int corners = decltype(fixed)::value ? decltype(fixed)::value : term.corners;
    const std::int32_t* vertex = term.vertex + i * corners;
    const T* weight = term.weight + i * corners;
    for (int c = 0; c < corners; ++c) {
      T* row = term.to + static_cast<std::size_t>(vertex[c]) * stride + first;
      for (int k = 0; k < K; ++k)
        store<V>(row + k * Traits<V>::width,
                 load<V>(row + k * Traits<V>::width) + weight[c] * scaled[k]);
    }
  });
}

// The rows of lattice tables that a point touches are scattered over more memory than the fastest cache
// holds: they are asked for some points ahead.
constexpr std::size_t ahead = 4;
template <class T> inline void prefetch(const PassTerm<T>& term, std::size_t i, int stride) {
  if (term.corners <= 2) return;  // a line of a grid, which stays in the cache
  const std::int32_t* vertex = term.vertex + i * term.corners;
  for (int c = 0; c < term.corners; ++c) {
    const std::size_t row = static_cast<std::size_t>(vertex[c]) * stride;
    for (int k = 0; k < stride; k += 64 / static_cast<int>(sizeof(T))) {
      if (term.from) __builtin_prefetch(term.from + row + k, 0);
      if (term.to) __builtin_prefetch(term.to + row + k, 1);
    }
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
template <class V, int Fixed, int Points, bool Inside, bool Plain>
[[gnu::always_inline]] inline void pass_points(const PassInput<typename Traits<V>::element>& in,
                                               std::size_t i, const V& real,
                                               typename Traits<V>::element* scratch,
                                               PassTotals<V>& totals) {
  using T = typename Traits<V>::element;
  constexpr int width = Traits<V>::width;
  constexpr T never = T(1e30);  // the cost of a label that only pads the row
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
    if (i + p + ahead < in.count)
      for (int m = 0; m < in.n_terms; ++m) prefetch(in.terms[m], i + p + ahead, n);
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
      for (int m = 0; m < in.n_terms; ++m) {
        const PassTerm<T>& term = in.terms[m];
        if (!term.from) continue;
        V sum[K];
        slice_row<V, K>(term, i + p, first, stride, sum);
        if (term.factor)
          for (int k = 0; k < K; ++k) e[k] += load<V>(term.factor + first + k * width) * sum[k];
        else
          for (int k = 0; k < K; ++k) e[k] += sum[k];
      }
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
      for (int m = 0; m < in.n_terms; ++m)
        if (in.terms[m].to) splat_row<V, K>(in.terms[m], i + p, first, stride, q);
    });
  });
}

template <class V, int Fixed, bool Plain>
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
    pass_points<V, Fixed, points, true, Plain>(in, i, real, scratch, totals);
    // Totals lie between 1 and the number of labels: a few multiply before one logarithm is taken.
    if (i % 16 == 16 - points) totals.flush();
  }
  for (; i < in.count; ++i) pass_points<V, Fixed, 1, false, Plain>(in, i, real, scratch, totals);
  totals.flush();
  return {sum_lanes(totals.free_energy) - totals.log_mass, sum_lanes(totals.self),
          static_cast<double>(max_lanes<V>(totals.moved))};
}

template <class V, int Fixed, class T> PassSums pass_kind(const PassInput<T>& in, T* scratch) {
  return in.has_strength ? pass_run<V, Fixed, false>(in, scratch)
                         : pass_run<V, Fixed, true>(in, scratch);
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
  // Short sums in T, long ones in double.
  constexpr std::size_t block = 32;
  for (int c = 0; c < n_padded; ++c) out[c] = 0;
  using V = typename Lanes<T, 16>::type;
  constexpr int width = Traits<V>::width;
  for (int c = 0; c < n_padded; c += width)
    for (std::size_t begin = 0; begin < n_rows; begin += block) {
      const std::size_t end = begin + block < n_rows ? begin + block : n_rows;
      V sum = {};
      for (std::size_t r = begin; r < end; ++r)
        sum += load<V>(x + r * n_padded + c) * load<V>(y + r * n_padded + c);
      for (int k = 0; k < width; ++k) out[c + k] += static_cast<double>(sum[k]);
    }
}

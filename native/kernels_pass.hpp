// One fused pass of mean-field inference: slice, update and splat while a variable is in registers.
// Included by kernels.cpp inside its per-target namespace, after kernels_update.hpp.
#pragma once

// Calls body(Count<K>{}, first column) for the column groups of a row; with `Fixed` groups known at
// compile time the whole row is one group.
template <class V, int Fixed, class Body> inline void for_groups(int n_columns, Body&& body) {
  if constexpr (Fixed > 0) body(Count<Fixed>{}, 0);
  else for_column_groups<V>(n_columns, body);
}

// sum_c weight_c table[vertex_c], times the row's scale.
template <class V, int K, class T>
inline void slice_row(const PassTerm<T>& term, std::size_t i, int first, int stride, V* sum) {
  const std::int32_t* vertex = term.vertex + i * term.corners;
  const T* weight = term.weight + i * term.corners;
  for (int k = 0; k < K; ++k) sum[k] = V{};
  for (int c = 0; c < term.corners; ++c) {
    const T* row = term.from + static_cast<std::size_t>(vertex[c]) * stride + first;
    for (int k = 0; k < K; ++k) sum[k] += weight[c] * load<V>(row + k * Traits<V>::width);
  }
  if (term.after) {
    const T scale = term.after[i];
    for (int k = 0; k < K; ++k) sum[k] *= scale;
  }
}

template <class V, int K, class T>
inline void splat_row(const PassTerm<T>& term, std::size_t i, int first, int stride, const V* value) {
  const std::int32_t* vertex = term.vertex + i * term.corners;
  const T* weight = term.weight + i * term.corners;
  const T scale = term.before ? term.before[i] : T(1);
  for (int c = 0; c < term.corners; ++c) {
    T* row = term.to + static_cast<std::size_t>(vertex[c]) * stride + first;
    const T own = weight[c] * scale;
    for (int k = 0; k < K; ++k)
      store<V>(row + k * Traits<V>::width, load<V>(row + k * Traits<V>::width) + own * value[k]);
  }
}

// What a row is read and written with: whole vectors wherever that stays inside the array.
template <class V> struct RowAccess {
  using T = typename Traits<V>::element;
  int n_columns, n_padded, last, tail;
  explicit RowAccess(int columns)
      : n_columns(columns), n_padded(padded_columns<T>(columns)), last(n_padded - Traits<V>::width),
        tail(columns - last) {}
  V read(const T* row, int c, bool inside) const {
    return c < last || inside ? load<V>(row + c) : load_first<V>(row + c, tail);
  }
  void write(T* row, int c, V value, bool spill) const {
    if (c < last || spill) store<V>(row + c, value);
    else store_first<V>(row + c, value, tail);
  }
};

template <class V, int Fixed>
PassSums pass_rows(const PassInput<typename Traits<V>::element>& in,
                   typename Traits<V>::element* scratch) {
  using T = typename Traits<V>::element;
  constexpr int width = Traits<V>::width;
  using Wide = typename Lanes<double, width * 8>::type;
  constexpr T never = T(1e30);  // the cost of a label that only pads the row
  const RowAccess<V> access(in.n_columns);
  const int n = access.n_padded, stride = n;
  T *energy = scratch, *log_q = scratch + n, *alpha = scratch + 2 * n, *solver = scratch + 3 * n;
  V real = {};
  for (int k = 0; k < access.tail; ++k) real[k] = T(1);
  Wide free_energy = {}, self = {};
  V free_part = {}, self_part = {}, moved = {};
  double log_mass = 0, mass_product = 1;
  for (std::size_t i = 0; i < in.count; ++i) {
    const std::size_t offset = i * in.n_columns;
    const bool inside = offset + n <= in.readable, spill = offset + n <= in.count * in.n_columns;
    V lowest = V{} + never;
    if (in.has_strength)
      for (int c = 0; c < n; c += width) {
        V sum = {};
        for (int m = 0; m < in.n_terms; ++m)
          sum += in.terms[m].strength[i] * load<V>(in.terms[m].attraction + c);
        store<V>(alpha + c, sum);
      }
    for_groups<V, Fixed>(in.n_columns, [&](auto group, int first) {
      constexpr int K = decltype(group)::value;
      V e[K];
      for (int k = 0; k < K; ++k)
        e[k] = access.read(in.unary + offset, first + k * width, inside);
      for (int m = 0; m < in.n_terms; ++m) {
        const PassTerm<T>& term = in.terms[m];
        if (!term.from) continue;
        V sum[K];
        slice_row<V, K>(term, i, first, stride, sum);
        if (term.factor)
          for (int k = 0; k < K; ++k) e[k] += load<V>(term.factor + first + k * width) * sum[k];
        else
          for (int k = 0; k < K; ++k) e[k] += sum[k];
      }
      for (int k = 0; k < K; ++k) {
        const int c = first + k * width;
        if (in.without_self)
          e[k] += load<V>(alpha + c) * access.read(in.old + offset, c, inside);
        if (c == access.last) e[k] = real > V{} ? e[k] : V{} + never;
        lowest = smaller(lowest, e[k]);
        store<V>(energy + c, e[k]);
      }
    });
    const T least = -max_lanes<V>(-lowest);
    V mass = {};
    for (int c = 0; c < n; c += width) {
      const V y = least - load<V>(energy + c), p = exp_nonpositive<V>(y);
      store<V>(log_q + c, y);
      store<V>(energy + c, p);
      mass += p;
    }
    T total = sum_lanes<V>(mass);
    if (in.convex_self) {
      for (int c = 0; c < n; c += width) store<V>(energy + c, -load<V>(log_q + c));
      solve_separable<V>(energy, alpha, n, std::log(total), solver, log_q);
      mass = V{};
      for (int c = 0; c < n; c += width) {
        const V p = exp_nonpositive<V>(load<V>(log_q + c));
        store<V>(energy + c, p);
        mass += p;
      }
      total = sum_lanes<V>(mass);
    }
    const T scale = T(1) / total;
    mass_product *= static_cast<double>(total);
    for_groups<V, Fixed>(in.n_columns, [&](auto group, int first) {
      constexpr int K = decltype(group)::value;
      V q[K];
      for (int k = 0; k < K; ++k) {
        const int c = first + k * width;
        q[k] = scale * load<V>(energy + c);
        V u = access.read(in.unary + offset, c, inside);
        if (c == access.last) u = real > V{} ? u : V{};
        free_part += q[k] * (u + load<V>(log_q + c));
        if (in.has_strength) self_part += load<V>(alpha + c) * q[k] * q[k];
        if (in.change) {
          V old = access.read(in.old + offset, c, inside);
          if (c == access.last) old = real > V{} ? old : V{};
          moved = larger(moved, absolute(q[k] - old));
        }
        if (in.q) access.write(in.q + offset, c, q[k], spill);
      }
      for (int m = 0; m < in.n_terms; ++m)
        if (in.terms[m].to) splat_row<V, K>(in.terms[m], i, first, stride, q);
    });
    // Totals lie between 1 and the number of labels: a few multiply before one logarithm is taken.
    if (i % 16 == 15 || i + 1 == in.count) {
      log_mass += std::log(mass_product);
      mass_product = 1;
      free_energy += __builtin_convertvector(free_part, Wide);
      self += __builtin_convertvector(self_part, Wide);
      free_part = self_part = V{};
    }
  }
  return {sum_lanes<Wide>(free_energy) - log_mass, sum_lanes<Wide>(self),
          static_cast<double>(max_lanes<V>(moved))};
}

template <class T> PassSums pass(const PassInput<T>& in, T* scratch) {
  PassSums sums;
  with_row_vector<T>(in.n_columns, [&](auto v) {
    using V = decltype(v);
    switch (padded_columns<T>(in.n_columns) / Traits<V>::width) {
      case 1: sums = pass_rows<V, 1>(in, scratch); break;
      case 2: sums = pass_rows<V, 2>(in, scratch); break;
      case 3: sums = pass_rows<V, 3>(in, scratch); break;
      case 4: sums = pass_rows<V, 4>(in, scratch); break;
      default: sums = pass_rows<V, 0>(in, scratch);
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

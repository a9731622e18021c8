// The pieces of a mean-field update.
// Included by kernels.cpp inside its per-target namespace, after lanes.hpp and rows.hpp.
#pragma once

// The products with mu are formed in double precision: Potts is a difference of nearly equal numbers
// wherever a label is certain.
template <class V>
void message_rows(Compatibility kind, const typename Traits<V>::element* values,
                  const typename Traits<V>::element* x,
                  const typename Traits<V>::element* row_scale,
                  typename Traits<V>::element factor, bool overwrite, std::size_t begin,
                  std::size_t end, std::size_t n_rows, int n_columns,
                  typename Traits<V>::element* out) {
  using T = typename Traits<V>::element;
  constexpr int width = Traits<V>::width;
  using Wide = typename Lanes<double, width * 8>::type;
  const int n_padded = padded_columns<T>(n_columns), last = n_padded - width;
  const int tail = n_columns - last;
  V real = {};
  for (int k = 0; k < tail; ++k) real[k] = T(1);
  for (std::size_t i = begin; i < end; ++i) {
    const std::size_t offset = i * n_columns;
    const bool inside = offset + n_padded <= n_rows * n_columns;
    const auto get = [&](const T* array, int c) {
      return c < last || inside ? load<V>(array + offset + c)
                                : load_first<V>(array + offset + c, tail);
    };
    const T scale = row_scale ? factor * row_scale[i] : factor;
    double total = 0;
    if (kind == Compatibility::potts) {
      Wide sum = {};
      for (int c = 0; c < n_padded; c += width) {
        const V value = get(x, c);
        sum += __builtin_convertvector(c < last ? value : value * real, Wide);
      }
      total = sum_lanes<Wide>(sum);
    }
    for (int c = 0; c < n_padded; c += width) {
      V result;
      if (kind == Compatibility::potts) {
        const Wide others = total - __builtin_convertvector(get(x, c), Wide);
        result = (scale * values[0]) * __builtin_convertvector(others, V);
      } else if (kind == Compatibility::diagonal) {
        result = scale * load<V>(values + c) * get(x, c);
      } else {
        V sum = {};
        for (int k = 0; k < n_columns; ++k)
          sum += x[offset + k] * load<V>(values + static_cast<std::size_t>(k) * n_padded + c);
        result = scale * sum;
      }
      T* target = out + offset + c;
      if (c < last) store<V>(target, overwrite ? result : load<V>(target) + result);
      else store_first<V>(target, overwrite ? result : load_first<V>(target, tail) + result, tail);
    }
  }
}

template <class T>
void message(Compatibility kind, const T* values, const T* x, const T* row_scale, T factor,
             bool overwrite, std::size_t begin, std::size_t end, std::size_t n_rows, int n_columns,
             T* out) {
  with_row_vector<T>(n_columns, [&](auto v) {
    message_rows<decltype(v)>(kind, values, x, row_scale, factor, overwrite, begin, end, n_rows,
                              n_columns, out);
  });
}

template <class T>
double center(const T* x, std::size_t begin, std::size_t end, int n_columns, T* out) {
  double sum = 0;
  for (std::size_t i = begin; i < end; ++i) {
    const T* row = x + i * n_columns;
    T least = row[0];
    for (int c = 1; c < n_columns; ++c) least = row[c] < least ? row[c] : least;
    for (int c = 0; c < n_columns; ++c) out[i * n_columns + c] = row[c] - least;
    sum += least;
  }
  return sum;
}

template <class T> double largest(const T* x, std::size_t begin, std::size_t end) {
  using V = typename Lanes<T, 32>::type;
  constexpr std::size_t width = Traits<V>::width;
  V most[2] = {}, unordered[2] = {};
  std::size_t k = begin;
  for (; k + 2 * width <= end; k += 2 * width)
    for (int half = 0; half < 2; ++half) {
      const V value = load<V>(x + k + half * width);
      most[half] = larger(most[half], absolute(value));
      unordered[half] += value * T(0);  // infinities and NaN alike make this NaN
    }
  T found = max_lanes<V>(larger(most[0], most[1])), rest = sum_lanes<V>(unordered[0] + unordered[1]);
  for (; k < end; ++k) {
    const T magnitude = std::abs(x[k]);
    found = magnitude > found ? magnitude : found;
    rest += x[k] * T(0);
  }
  return static_cast<double>(found + rest);
}

template <class T> double dot(const T* a, const T* b, std::size_t begin, std::size_t end) {
  using V = typename Lanes<T, 32>::type;
  constexpr int width = Traits<V>::width;
  using Wide = typename Lanes<double, width * 8>::type;
  Wide sum = {};
  std::size_t k = begin;
  for (; k + width <= end; k += width)
    sum += __builtin_convertvector(load<V>(a + k), Wide) * __builtin_convertvector(load<V>(b + k), Wide);
  double total = sum_lanes<Wide>(sum);
  for (; k < end; ++k) total += static_cast<double>(a[k]) * static_cast<double>(b[k]);
  return total;
}

// log q + alpha q + lambda + e = 0, 1'q = 1 for one variable, by Newton's method in y = log q and lambda;
// `energy` has minimum 0, log_mass = log sum exp(-energy), scratch holds two rows.
//
// With alpha <= 1/2 the softmax is close, and plain Newton steps from there converge at once. Otherwise:
// no q exceeds 1, so lambda >= max_l (-e_l - alpha_l). At that bound one q is 1 and all are at most 1; the
// total mass of q(lambda) is convex and decreasing in lambda, so that Newton's method climbs from there
// to the solution without overshooting, provided that each label's own equation y + alpha e^y = z,
// z = -lambda - e, is solved first. That one is convex and increasing in y, and Newton's method comes
// down to its solution from above: at first from min(0, z, log x - log alpha), x = z + log alpha > 1,
// later from the tangent at the previous solution, which lies above because y is concave in lambda.
template <class V>
void solve_separable(const typename Traits<V>::element* energy,
                     const typename Traits<V>::element* alpha, int n_padded,
                     typename Traits<V>::element log_mass, typename Traits<V>::element* scratch,
                     typename Traits<V>::element* y) {
  using T = typename Traits<V>::element;
  constexpr int width = Traits<V>::width;
  constexpr T enough = sizeof(T) == 4 ? T(1e-6) : T(1e-13);
  constexpr T nearly = sizeof(T) == 4 ? T(3e-4) : T(1e-7);  // one more Newton step squares this
  // Where large numbers cancel, rounding hides the last digits: then these many steps are enough.
  constexpr int most_inner = 12, most_outer = 60;
  V least_reach = load<V>(energy) + load<V>(alpha), strongest = load<V>(alpha);
  for (int c = width; c < n_padded; c += width) {
    least_reach = smaller(least_reach, load<V>(energy + c) + load<V>(alpha + c));
    strongest = larger(strongest, load<V>(alpha + c));
  }
  const bool weak = max_lanes<V>(strongest) <= T(0.5);
  T multiplier = weak ? log_mass : -min_lanes<V>(least_reach);
  for (int c = 0; c < n_padded; c += width) {
    const V z = -multiplier - load<V>(energy + c);
    V start = smaller(z, V{});
    if (!weak) {
      const V log_alpha = log_estimate<V>(larger(load<V>(alpha + c), V{} + T(1e-30)));
      const V x = z + log_alpha;
      const V lower = log_estimate<V>(larger(x, V{} + T(1))) - log_alpha;
      start = x > V{} + T(1) ? smaller(start, lower) : start;
    }
    store<V>(y + c, start);
  }
  T* newton = scratch;            // the step of y at fixed lambda
  T* tangent = scratch + n_padded;  // -dy / dlambda
  for (int outer = 0, inner = 0; outer < most_outer;) {
    V mass = {}, slope = {}, pending = {}, moved = {};
    for (int c = 0; c < n_padded; c += width) {
      const V from = load<V>(y + c), a = load<V>(alpha + c), q = exp_nonpositive<V>(from);
      const V h = T(1) / (T(1) + a * q);
      const V step = (from + a * q + multiplier + load<V>(energy + c)) * h;
      store<V>(newton + c, step);
      store<V>(tangent + c, h);
      mass += q;
      slope += q * h;
      pending += q * step;
      moved = larger(moved, q * absolute(step));
    }
    const T largest_move = max_lanes<V>(moved);
    const bool solved = largest_move <= enough || ++inner > most_inner;
    const T excess = sum_lanes<V>(mass) - T(1);
    if (weak || solved) {
      ++outer;
      inner = 0;
    }
    const T climb = weak || solved ? (excess - sum_lanes<V>(pending)) / sum_lanes<V>(slope) : T(0);
    multiplier += climb;
    for (int c = 0; c < n_padded; c += width) {
      const V to = load<V>(y + c) - load<V>(newton + c) - climb * load<V>(tangent + c);
      store<V>(y + c, smaller(to, V{}));
    }
    const T bound = weak ? nearly : enough;
    if ((weak ? largest_move <= bound : solved) && std::abs(excess) <= bound) return;
  }
}

template <class V>
StepSums step_rows(const StepInput<typename Traits<V>::element>& in, std::size_t begin,
                   std::size_t end, typename Traits<V>::element* scratch,
                   typename Traits<V>::element* q) {
  using T = typename Traits<V>::element;
  constexpr int width = Traits<V>::width;
  constexpr T never = T(1.5e38);  // the cost of a label that only pads the row: beyond any other
  const int n_columns = in.n_columns, n_padded = padded_columns<T>(n_columns);
  const int last = n_padded - width, tail = n_columns - last;
  T* energy = scratch;
  T* alpha = scratch + n_padded;
  T* log_q = scratch + 2 * n_padded;
  V real = {};  // 1 in the lanes of the last vector that hold labels
  for (int k = 0; k < tail; ++k) real[k] = T(1);
  StepSums sums;
  T change = 0;
  for (std::size_t i = begin; i < end; ++i) {
    const std::size_t offset = i * n_columns;
    const bool inside = offset + n_padded <= in.n_rows * n_columns;
    const bool spill = offset + n_padded <= end * n_columns;
    const auto get = [&](const T* array, int c) {
      return c < last || inside ? load<V>(array + offset + c)
                                : load_first<V>(array + offset + c, tail);
    };
    bool separable = false;
    for (int m = 0; m < in.n_terms; ++m) {
      const T strength = in.shift[m] + (in.strength[m] ? in.strength[m][i] : T(0));
      for (int c = 0; c < n_padded; c += width) {
        const V more = strength * load<V>(in.attraction + m * n_padded + c);
        store<V>(alpha + c, m ? load<V>(alpha + c) + more : more);
      }
      separable = true;
    }
    V lowest = V{} + never;
    for (int c = 0; c < n_padded; c += width) {
      V e = get(in.unary, c) + get(in.pairwise, c);
      if (separable) e -= load<V>(alpha + c) * get(in.old, c);
      if (c == last) e = real > V{} ? e : V{} + never;
      lowest = smaller(lowest, e);
      store<V>(energy + c, e);
    }
    const T least = -max_lanes<V>(-lowest);
    V mass = {}, weighted = {};
    for (int c = 0; c < n_padded; c += width) {
      const V e = load<V>(energy + c) - least, p = exp_nonpositive<V>(-e);
      store<V>(energy + c, e);
      store<V>(log_q + c, p);
      mass += p;
      weighted += p * e;
    }
    T total = sum_lanes<V>(mass), log_total = std::log(total);
    if (separable) {
      solve_separable<V>(energy, alpha, n_padded, log_total, scratch + 3 * n_padded, log_q);
      mass = weighted = V{};
      for (int c = 0; c < n_padded; c += width) {
        const V y = load<V>(log_q + c), p = exp_nonpositive<V>(y);
        store<V>(log_q + c, p);
        mass += p;
        weighted -= p * y;
      }
      total = sum_lanes<V>(mass);
      log_total = std::log(total);
    }
    // sum q log q with q = p / total and log p = -weighted / p, without a logarithm per label.
    sums.negative_entropy -= static_cast<double>(sum_lanes<V>(weighted)) / total + log_total;
    const T scale = T(1) / total;
    V linear = {}, moved = {};
    for (int c = 0; c < n_padded; c += width) {
      V p = scale * load<V>(log_q + c), u = get(in.unary, c), old = get(in.old, c);
      if (c == last) {  // what a whole-vector read picked up from the next row must not count
        u = real > V{} ? u : V{};
        old = real > V{} ? old : V{};
      }
      linear += p * u;
      moved = larger(moved, absolute(p - old));
      if (c < last || spill) store<V>(q + offset + c, p);
      else store_first<V>(q + offset + c, p, tail);
    }
    sums.linear += static_cast<double>(sum_lanes<V>(linear));
    const T most = max_lanes<V>(moved);
    change = change > most ? change : most;
  }
  sums.change = change;
  return sums;
}

template <class T>
StepSums step(const StepInput<T>& in, std::size_t begin, std::size_t end, T* scratch, T* q) {
  StepSums sums;
  with_row_vector<T>(in.n_columns, [&](auto v) {
    sums = step_rows<decltype(v)>(in, begin, end, scratch, q);
  });
  return sums;
}

// One fused pass of mean-field inference: slice, update and splat while a variable is in registers.
// Included by kernels.cpp inside its per-target namespace, after kernels_self_pairs.hpp.
#pragma once

// Calls body(Count<K>{}, first column) for the column groups of a row; with `Fixed` groups known at
// compile time the whole row is one group.
template <class V, int Fixed, class Body> inline void for_groups(int n_columns, Body&& body) {
  if constexpr (Fixed > 0) body(Count<Fixed>{}, 0);
  else for_column_groups<V>(n_columns, body);
}

// The terms of a pass: any, or one per number of corners given here, which lets loops over corners
// unroll; the latter also have scales and one factor for all labels.
template <class T, int... Corners> struct Terms {
  static constexpr bool known = true;
  PassTerm<T> term[sizeof...(Corners)];

  template <class Input> explicit Terms(const Input& in) {
    for (int m = 0; m < in.n_terms; ++m) term[m] = in.terms[m];
  }
  template <class Input> static bool match(const Input& in) {
    constexpr int wanted[] = {Corners...};
    if (in.n_terms != static_cast<int>(sizeof...(Corners))) return false;
    for (int m = 0; m < in.n_terms; ++m)
      if (in.terms[m].corners != wanted[m] || !in.terms[m].before || !in.terms[m].after ||
          in.terms[m].uniform == T(0))
        return false;
    return true;
  }
  // body(term, Count<corners>{}), in the terms' order
  template <class Body> [[gnu::always_inline]] void each(Body&& body) const {
    const PassTerm<T>* at = term;
    (body(*at++, Count<Corners>{}), ...);
  }
};
template <class T> struct Terms<T> {
  static constexpr bool known = false;
  const PassTerm<T>* term;
  int count;

  template <class Input> explicit Terms(const Input& in) : term(in.terms), count(in.n_terms) {}
  template <class Body> [[gnu::always_inline]] void each(Body&& body) const {
    for (int m = 0; m < count; ++m) body(term[m], Count<0>{});
  }
};

// e += factor * scale * sum_c weight_c table[vertex_c]
template <class V, int K, int Fixed, class T>
[[gnu::always_inline]] inline void slice_row(const PassTerm<T>& term, std::size_t i, int first,
                                             int stride, V* e) {
  const int corners = Fixed > 0 ? Fixed : term.corners;
  const std::int32_t* vertex = term.vertex + i * corners;
  const T* weight = term.weight + i * corners;
  const T* from = term.from + first;
  V sum[K] = {};
  for (int c = 0; c < corners; ++c) {
    const T* row = from + static_cast<std::size_t>(vertex[c]) * stride;
    const T own = weight[c];
    for (int k = 0; k < K; ++k) sum[k] += own * load<V>(row + k * Traits<V>::width);
  }
  const T scale = Fixed > 0 || term.after ? term.after[i] : T(1);
  if (Fixed > 0 || !term.factor) {
    const T factor = Fixed > 0 ? term.uniform * scale : scale;
    for (int k = 0; k < K; ++k) e[k] += factor * sum[k];
  } else {
    for (int k = 0; k < K; ++k)
      e[k] += load<V>(term.factor + first + k * Traits<V>::width) * (scale * sum[k]);
  }
}

template <class V, int K, int Fixed, class T>
[[gnu::always_inline]] inline void splat_row(const PassTerm<T>& term, std::size_t i, int first,
                                             int stride, const V* value) {
  const int corners = Fixed > 0 ? Fixed : term.corners;
  const std::int32_t* vertex = term.vertex + i * corners;
  const T* weight = term.weight + i * corners;
  T* to = term.to + first;
  const T scale = Fixed > 0 || term.before ? term.before[i] : T(1);
  V scaled[K];
  for (int k = 0; k < K; ++k) scaled[k] = scale * value[k];
  for (int c = 0; c < corners; ++c) {
    T* row = to + static_cast<std::size_t>(vertex[c]) * stride;
    const T own = weight[c];
    for (int k = 0; k < K; ++k)
      store<V>(row + k * Traits<V>::width,
               load<V>(row + k * Traits<V>::width) + own * scaled[k]);
  }
}

// One pass over a run of points, a block of them at a time: each step of the update waits for the one
// before it, and the other points of the block fill the gaps. `Plain` leaves out everything about
// self-pairs. With the number of vectors per row `Fixed` at compile time, a point's numbers stay in
// registers within a step; between steps they lie in scratch rows.
template <class V, int Fixed, class Known, bool Plain> class Pass {
 public:
  using T = typename Traits<V>::element;

  [[gnu::always_inline]] Pass(const PassInput<T>& in, T* scratch)
      : in_(in), terms_(in), n_(Fixed > 0 ? Fixed * width : padded_columns<T>(in.n_columns)),
        last_(n_ - width), tail_(in.n_columns - last_), energy_(scratch),
        weight_(scratch + pass_block * n_), alpha_{scratch + 2 * pass_block * n_},
        rest_(scratch + 3 * pass_block * n_) {
    for (int k = 0; k < tail_; ++k) real_[k] = 1;
  }

  [[gnu::always_inline]] PassSums run() {
    // Writing whole vectors may spill only within the run.
    const std::size_t columns = in_.n_columns, spare = (n_ - columns + columns - 1) / columns;
    const std::size_t inside = in_.count > spare ? in_.count - spare : 0;
    std::size_t i = 0;
    for (int blocks = 0; i + pass_block <= inside; i += pass_block) {
      block<true>(i, pass_block);
      // Totals lie between 1 and the number of labels: a few multiply before one logarithm is taken.
      if (++blocks % 16 == 0) flush();
    }
    for (; i < in_.count; i += pass_block)
      block<false>(i, static_cast<int>(in_.count - i < pass_block ? in_.count - i : pass_block));
    flush();
    return {sum_lanes<Wide>(free_energy_) - log_mass_, sum_lanes<Wide>(self_),
            static_cast<double>(max_lanes<V>(moved_))};
  }

 private:
  static constexpr int width = Traits<V>::width, groups = pass_block / width;
  static constexpr T never = T(1.5e38);  // the cost of a label that only pads the row: beyond any other
  using Wide = typename Lanes<double, width * 8>::type;

  // `Inside`: what is read beyond a row does not count, what is written there is overwritten by the
  // next row.
  template <bool Inside> [[gnu::always_inline]] void block(std::size_t i, int count) {
    V row[pass_block];  // of each point, what is to be folded over the labels
    V folded[groups];
    T each[pass_block];
    if (!Plain) find_alpha(i, count);
    for (int p = 0; p < count; ++p) row[p] = energies<Inside>(i, p);
    fold_block(row, count, T(0), [](V a, V b) { return smaller(a, b); }, folded);
    for (int k = 0; k < groups; ++k) store<V>(each + k * width, folded[k]);
    for (int p = 0; p < count; ++p) {
      T *y = energy_ + p * n_, *weight = weight_ + p * n_;
      V mass = {};
      for (int c = 0; c < n_; c += width) {
        const V log_weight = each[p] - load<V>(y + c), w = exp_for_sums<V>(log_weight);
        store<V>(y + c, log_weight);
        store<V>(weight + c, w);
        mass += w;
      }
      row[p] = mass;
    }
    fold_block(row, count, T(1), [](V a, V b) { return a + b; }, folded);
    count_masses(folded);
    if (!Plain && in_.convex_self) {
      for (int k = 0; k < groups; ++k) store<V>(each + k * width, folded[k]);
      SelfPairs<V, Fixed, Known::known>{count, n_, alpha_, energy_, weight_, each, rest_}.solve();
      for (int k = 0; k < groups; ++k) folded[k] = load<V>(each + k * width);
      count_masses(folded);
    }
    for (int k = 0; k < groups; ++k) store<V>(each + k * width, T(1) / folded[k]);
    for (int p = 0; p < count; ++p) finish<Inside>(i, p, each[p]);
  }

  template <bool Inside> [[gnu::always_inline]] V read(const T* rows, std::size_t i, int c) const {
    const T* at = rows + i * in_.n_columns + c;
    return Inside || c < last_ ? load<V>(at) : load_first<V>(at, tail_);
  }

  [[gnu::always_inline]] void count_masses(const V* total) {
    for (int k = 0; k < groups; ++k) mass_product_ *= __builtin_convertvector(total[k], Wide);
  }

  [[gnu::always_inline]] void flush() {
    for (int k = 0; k < width; ++k) log_mass_ += std::log(mass_product_[k]);
    mass_product_ = Wide{} + 1.0;
    free_energy_ += __builtin_convertvector(free_part_, Wide);
    self_ += __builtin_convertvector(self_part_, Wide);
    free_part_ = self_part_ = V{};
  }

  [[gnu::always_inline]] void find_alpha(std::size_t i, int count) {
    for (int p = 0; p < count; ++p) {
      if constexpr (Known::known) {
        T sum = 0;
        terms_.each([&](const PassTerm<T>& term, auto) { sum += term.strength[i + p] * term.attraction[0]; });
        alpha_.values[p] = sum;
      } else {
        for (int c = 0; c < n_; c += width) {
          V sum = {};
          for (int m = 0; m < in_.n_terms; ++m)
            sum += in_.terms[m].strength[i + p] * load<V>(in_.terms[m].attraction + c);
          store<V>(alpha_.values + p * n_ + c, sum);
        }
      }
    }
  }

  // e of point i + p; returns its minimum lane by lane.
  template <bool Inside> [[gnu::always_inline]] V energies(std::size_t begin, int p) const {
    const std::size_t i = begin + p;
    T* energy = energy_ + p * n_;
    V lowest = V{} + never;
    for_groups<V, Fixed>(in_.n_columns, [&](auto group, int first) __attribute__((always_inline)) {
      constexpr int K = decltype(group)::value;
      V e[K];
      for (int k = 0; k < K; ++k) e[k] = read<Inside>(in_.unary, i, first + k * width);
      terms_.each([&](const PassTerm<T>& term, auto corners) __attribute__((always_inline)) {
        if (term.from) slice_row<V, K, decltype(corners)::value>(term, i, first, n_, e);
      });
      for (int k = 0; k < K; ++k) {
        const int c = first + k * width;
        if (!Plain && in_.without_self) e[k] += alpha_.row(p, n_)[c] * read<Inside>(in_.old, i, c);
        if (c == last_) e[k] = real_ > V{} ? e[k] : V{} + never;
        lowest = c == 0 ? e[k] : smaller(lowest, e[k]);
        store<V>(energy + c, e[k]);
      }
    });
    return lowest;
  }

  // q of point i + p from its weights, what is summed over points, and the splat.
  template <bool Inside> [[gnu::always_inline]] void finish(std::size_t begin, int p, T scale) {
    const std::size_t i = begin + p;
    const T *y = energy_ + p * n_, *weight = weight_ + p * n_;
    for_groups<V, Fixed>(in_.n_columns, [&](auto group, int first) __attribute__((always_inline)) {
      constexpr int K = decltype(group)::value;
      V q[K];
      for (int k = 0; k < K; ++k) {
        const int c = first + k * width;
        q[k] = scale * load<V>(weight + c);
        V u = read<Inside>(in_.unary, i, c);
        if (c == last_) u = real_ > V{} ? u : V{};
        free_part_ += q[k] * (u + load<V>(y + c));
        if (!Plain) self_part_ += alpha_.row(p, n_)[c] * q[k] * q[k];
        if (in_.change) {
          V before = read<Inside>(in_.old, i, c);
          if (c == last_) before = real_ > V{} ? before : V{};
          moved_ = larger(moved_, absolute(q[k] - before));
        }
        if (in_.q) {
          T* at = in_.q + i * in_.n_columns + c;
          if (Inside || c < last_) store<V>(at, q[k]);
          else store_first<V>(at, q[k], tail_);
        }
      }
      terms_.each([&](const PassTerm<T>& term, auto corners) __attribute__((always_inline)) {
        if (term.to) splat_row<V, K, decltype(corners)::value>(term, i, first, n_, q);
      });
    });
  }

  const PassInput<T> in_;
  const Known terms_;
  const int n_, last_, tail_;
  T *energy_, *weight_;
  const Strengths<V, Known::known> alpha_;
  T* rest_;
  V real_ = {};  // 1 in the lanes of a row's last vector that hold labels
  Wide free_energy_ = {}, self_ = {}, mass_product_ = Wide{} + 1.0;
  V free_part_ = {}, self_part_ = {}, moved_ = {};
  double log_mass_ = 0;
};

template <class V, int Fixed, class Known, bool Plain, class T>
PassSums pass_run(const PassInput<T>& in, T* scratch) {
  return Pass<V, Fixed, Known, Plain>(in, scratch).run();
}

// Positions and colors of a picture (2 + 6 corners), of a gray volume (2 + 5), or anything.
template <class V, int Fixed, class T> PassSums pass_kind(const PassInput<T>& in, T* scratch) {
  const bool plain = !in.has_strength;
  if constexpr (Fixed > 0 && sizeof(T) == 4) {
    if (Terms<T, 2, 6>::match(in))
      return plain ? pass_run<V, Fixed, Terms<T, 2, 6>, true>(in, scratch)
                   : pass_run<V, Fixed, Terms<T, 2, 6>, false>(in, scratch);
    if (Terms<T, 2, 5>::match(in))
      return plain ? pass_run<V, Fixed, Terms<T, 2, 5>, true>(in, scratch)
                   : pass_run<V, Fixed, Terms<T, 2, 5>, false>(in, scratch);
  }
  return plain ? pass_run<V, Fixed, Terms<T>, true>(in, scratch)
               : pass_run<V, Fixed, Terms<T>, false>(in, scratch);
}

template <class T> PassSums pass(const PassInput<T>& in, T* scratch) {
  PassSums sums;
  with_row_length<T>(in.n_columns, [&](auto v, auto fixed) {
    sums = pass_kind<decltype(v), decltype(fixed)::value>(in, scratch);
  });
  return sums;
}

// The update of cccp for a block of points: the solution of log q + alpha q + lambda + e = 0, 1'q = 1.
// Included by kernels.cpp inside its per-target namespace, after kernels_update.hpp.
#pragma once

// Lane p, counted through the vectors of `out`, is row[p] folded over its lanes for the points of a
// block, and `missing` for those beyond the run.
template <class V, class Fold>
[[gnu::always_inline]] inline void fold_block(V* row, int count, typename Traits<V>::element missing,
                                              Fold&& fold, V* out) {
  constexpr int width = Traits<V>::width;
  for (int p = count; p < pass_block; ++p) row[p] = V{};
  for (int k = 0; k < pass_block / width; ++k) out[k] = fold_rows<V>(row + k * width, fold);
  for (int p = count; p < pass_block; ++p) out[p / width][p % width] = missing;
}

// alpha_il of a block's points: one number per point if `Uniform`, rows of n numbers otherwise.
template <class V, bool Uniform> struct Strengths {
  using T = typename Traits<V>::element;
  struct Row {
    V same;
    const T* values;
    [[gnu::always_inline]] V operator[](int c) const { return Uniform ? same : load<V>(values + c); }
  };
  T* values;
  [[gnu::always_inline]] Row row(int p, int n) const {
    return Uniform ? Row{values[p] - V{}, nullptr} : Row{V{}, values + p * n};  // x - 0 is x
  }
};

// From the softmax to the solution of log q + alpha q + lambda + e = 0, 1'q = 1, for the `count` points
// of a block. Rows of n numbers; weight and total hold exp(-e) and its sum before, q and its sum after;
// log_q stands for -e before and for log q after, both up to log of the total before.
template <class V, int Fixed, bool Uniform> struct SelfPairs {
  using T = typename Traits<V>::element;
  static constexpr int width = Traits<V>::width;
  const int count, n_columns;
  const Strengths<V, Uniform> alpha;
  T *const log_q, *const weight, *const total, *const scratch;

  int n() const { return Fixed > 0 ? Fixed * width : n_columns; }

  void solve() {
    V most = {};
    for (int p = 0; p < count; ++p)
      for (int c = 0; c < (Uniform ? 1 : n()); c += width) most = larger(most, alpha.row(p, n())[c]);
    const T strongest = max_lanes<V>(most);
    if (sizeof(T) == 4 && strongest <= T(weak_self_pair)) together(strongest);
    else one_by_one();
  }

  // With p the softmax and delta the change of lambda, q = W(alpha p exp(-delta)) / alpha for Lambert's
  // W; 1'q = 1 is solved for delta, from its expansion in alpha up to the second order, with the slope
  // -dq / ddelta = q / (1 + alpha q) taken as q (1 - alpha q).
  void together(T strongest) {
    constexpr T enough = T(1e-6);
    constexpr int most_rounds = 20;
    constexpr int groups = pass_block / width;
    const auto plus = [](V a, V b) { return a + b; };
    V first[pass_block], second[pass_block], delta[groups], move[groups], mass[groups], slope[groups];
    T each[pass_block], last_move[pass_block];
    for (int k = 0; k < groups; ++k) store<V>(each + k * width, T(1) / load<V>(total + k * width));
    for (int p = 0; p < count; ++p) {
      T* const row = weight + p * n();
      const auto a = alpha.row(p, n());
      const T scale = each[p];
      V once = {}, twice = {};
      for (int c = 0; c < n(); c += width) {
        const V q = scale * load<V>(row + c), pull = a[c] * q;
        store<V>(row + c, q);
        once += q * pull;
        twice += q * pull * pull;
      }
      first[p] = once;
      second[p] = twice;
    }
    fold_block(first, count, T(0), plus, mass);
    fold_block(second, count, T(0), plus, slope);
    for (int k = 0; k < groups; ++k) delta[k] = T(1.5) * (slope[k] - mass[k] * mass[k]) - mass[k];
    for (int round = 0; round < most_rounds; ++round) {
      for (int k = 0; k < groups; ++k) store<V>(each + k * width, exp_small<V>(-delta[k]));
      for (int p = 0; p < count; ++p) {
        const T* const row = weight + p * n();
        T* const solved = scratch + p * n();
        const auto a = alpha.row(p, n());
        const T grown = each[p];
        V sum = {}, fall = {};
        for (int c = 0; c < n(); c += width) {
          const V z = grown * load<V>(row + c), q = z * lambert_ratio<V>(a[c] * z);
          store<V>(solved + c, q);
          sum += q;
          fall += q - q * (a[c] * q);
        }
        first[p] = sum;
        second[p] = fall;
      }
      fold_block(first, count, T(1), plus, mass);
      fold_block(second, count, T(1), plus, slope);
      V worst = {};
      for (int k = 0; k < groups; ++k) {
        worst = larger(worst, absolute(mass[k] - T(1)));
        move[k] = (mass[k] - T(1)) / slope[k];
        delta[k] += move[k];
      }
      // What the slope leaves out is of the order alpha^2, and found to be less than a sixth of that.
      if (max_lanes<V>(worst) * strongest * strongest * T(0.15) <= enough) break;
    }
    for (int k = 0; k < groups; ++k) {
      store<V>(each + k * width, delta[k]);
      store<V>(last_move + k * width, move[k]);
    }
    for (int p = 0; p < count; ++p) {
      const T* const solved = scratch + p * n();
      T *const row = weight + p * n(), *const y = log_q + p * n();
      const auto a = alpha.row(p, n());
      const T shift = each[p], moved = last_move[p];
      V sum = {};
      for (int c = 0; c < n(); c += width) {
        const V before = load<V>(solved + c), q = before - moved * (before - before * (a[c] * before));
        store<V>(row + c, q);
        store<V>(y + c, load<V>(y + c) - (a[c] * q + shift));
        sum += q;
      }
      first[p] = sum;
    }
    fold_block(first, count, T(1), plus, mass);
    for (int k = 0; k < groups; ++k) store<V>(total + k * width, mass[k]);
  }

  void one_by_one() {
    T *cost = scratch, *strength = scratch + n(), *solved = scratch + 2 * n(), *spare = scratch + 3 * n();
    for (int p = 0; p < count; ++p) {
      const int begin = p * n();
      for (int c = 0; c < n(); c += width) {
        store<V>(cost + c, -load<V>(log_q + begin + c));
        store<V>(strength + c, alpha.row(p, n())[c]);
      }
      const T log_mass = std::log(total[p]);
      solve_separable<V>(cost, strength, n(), log_mass, spare, solved);
      V mass = {};
      for (int c = 0; c < n(); c += width) {
        const V y = load<V>(solved + c), q = exp_nonpositive<V>(y);
        store<V>(log_q + begin + c, y + log_mass);
        store<V>(weight + begin + c, q);
        mass += q;
      }
      total[p] = sum_lanes<V>(mass);
    }
  }
};

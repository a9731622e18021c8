// Patterns and rays: factors of many variables with messages in linear time.
#include <algorithm>
#include <cmath>

#include "factor_graph.hpp"
#include "interrupt.hpp"

namespace crfield {

namespace {

// Binary variables under one of several units (CHOPP eq. 4 for one hidden unit, or "min").
class Patterns final : public FactorGroup {
 public:
  Patterns(std::size_t n_factors, std::size_t n_units, std::size_t arity, const double* weights,
           const double* biases, bool shared, bool may_be_none)
      : FactorGroup(n_factors), n_units_(n_units), arity_(arity), weights_(weights), biases_(biases),
        shared_(shared), may_be_none_(may_be_none) {}

  std::size_t arity(std::size_t) const override { return arity_; }
  std::size_t n_states(std::size_t, std::size_t) const override { return 2; }

  // Given the unit the variables are independent: gain_jk is what variable k brings to unit j, and a
  // message adds up the gains of all others.
  void send_all(std::size_t factor, const double* in, double t, double* out,
                Scratch& scratch) const override {
    const std::size_t n = arity_, units = n_units_ + may_be_none_;
    double* costs = reserve(scratch, units * (n + 1) + 2 * units);
    double *after = costs, *off = costs + units * (n + 1), *on = off + units;
    Pace pace;
    for (std::size_t j = 0; j < units; ++j) {
      pace.step(8 * n);
      double* sums = after + j * (n + 1);
      sums[n] = 0;
      for (std::size_t k = n; k-- > 0;) sums[k] = sums[k + 1] + least(factor, in, j, k, t);
    }
    Scratch before(units, 0.0);
    for (std::size_t k = 0; k < n; ++k) {
      pace.step(16 * units);
      for (std::size_t j = 0; j < units; ++j) {
        off[j] = before[j] + after[j * (n + 1) + k + 1] - bias(factor, j);
        on[j] = off[j] - weight(factor, j, k);
        before[j] += least(factor, in, j, k, t);
      }
      out[2 * k] = soft_min(off, units, t);
      out[2 * k + 1] = soft_min(on, units, t);
    }
  }

  double total(std::size_t factor, const double* in, double t, Scratch& scratch) const override {
    unit_costs(factor, in, t, scratch);
    return soft_min(scratch.data(), n_units_ + may_be_none_, t);
  }

  void choose(std::size_t factor, const double* in, double t, const Draw& draw,
              std::int32_t* states, Scratch& scratch) const override {
    unit_costs(factor, in, t, scratch);
    const std::size_t j = choose_state(scratch.data(), n_units_ + may_be_none_, t, draw);
    for (std::size_t k = 0; k < arity_; ++k) {
      const double both[2] = {in[2 * k], in[2 * k + 1] - weight(factor, j, k)};
      states[k] = static_cast<std::int32_t>(choose_state(both, 2, t, draw));
    }
  }

  double cost(std::size_t factor, const std::int32_t* states, double t) const override {
    std::vector<double> costs(n_units_ + may_be_none_);
    for (std::size_t j = 0; j < costs.size(); ++j) {
      costs[j] = -bias(factor, j);
      for (std::size_t k = 0; k < arity_; ++k) costs[j] -= states[k] ? weight(factor, j, k) : 0;
    }
    return soft_min(costs.data(), costs.size(), t);
  }

 private:
  double weight(std::size_t factor, std::size_t j, std::size_t k) const {
    return j == n_units_ ? 0 : weights_[((shared_ ? 0 : factor) * n_units_ + j) * arity_ + k];
  }
  double bias(std::size_t factor, std::size_t j) const {
    return j == n_units_ ? 0 : biases_[(shared_ ? 0 : factor) * n_units_ + j];
  }
  double least(std::size_t factor, const double* in, std::size_t j, std::size_t k, double t) const {
    return soft_min(in[2 * k], in[2 * k + 1] - weight(factor, j, k), t);
  }
  void unit_costs(std::size_t factor, const double* in, double t, Scratch& scratch) const {
    double* costs = reserve(scratch, n_units_ + may_be_none_);
    for (std::size_t j = 0; j < n_units_ + may_be_none_; ++j) {
      costs[j] = -bias(factor, j);
      for (std::size_t k = 0; k < arity_; ++k) costs[j] += least(factor, in, j, k, t);
    }
  }

  std::size_t n_units_, arity_;
  const double *weights_, *biases_;
  bool shared_;
  std::size_t may_be_none_;
};

// Rays, see rays.hpp; here with costs for any temperature, and states that may be forbidden.
class Rays final : public FactorGroup {
 public:
  Rays(std::size_t n_factors, const std::int64_t* offsets, const double* costs,
       const double* empty_costs)
      : FactorGroup(n_factors), offsets_(offsets), costs_(costs), empty_costs_(empty_costs) {}

  std::size_t arity(std::size_t factor) const override {
    return static_cast<std::size_t>(offsets_[factor + 1] - offsets_[factor]);
  }
  std::size_t n_states(std::size_t, std::size_t) const override { return 2; }

  void send_all(std::size_t factor, const double* in, double t, double* out,
                Scratch& scratch) const override {
    const std::size_t n = arity(factor);
    const double* score = costs_ + offsets_[factor];
    scan_back(factor, in, t, scratch);
    const double* beyond = scratch.data();
    double transmitted = 0, collected = forbidden;
    for (std::size_t i = 0; i < n; ++i) {
      const double any = soft_min(in[2 * i], in[2 * i + 1], t);
      out[2 * i] = soft_min(collected, transmitted + beyond[i + 1], t);
      out[2 * i + 1] = soft_min(collected, transmitted + score[i], t);
      // Nothing is divided by: what any state of this variable costs is carried along instead.
      if (any == forbidden) {
        collected = transmitted = forbidden;
        continue;
      }
      collected = soft_min(collected, transmitted + (in[2 * i + 1] - any) + score[i], t);
      transmitted += in[2 * i] - any;
    }
  }

  double total(std::size_t factor, const double* in, double t, Scratch& scratch) const override {
    double sum = scan_back(factor, in, t, scratch);
    for (std::size_t i = 0; i < arity(factor); ++i) sum += soft_min(in[2 * i], in[2 * i + 1], t);
    return sum;
  }

  void choose(std::size_t factor, const double* in, double t, const Draw& draw,
              std::int32_t* states, Scratch& scratch) const override {
    scan_back(factor, in, t, scratch);
    bool is_free = true;
    for (std::size_t i = 0; i < arity(factor); ++i) {
      const double both[2] = {in[2 * i] + (is_free ? scratch[i + 1] : 0),
                              in[2 * i + 1] + (is_free ? costs_[offsets_[factor] + static_cast<std::int64_t>(i)] : 0)};
      states[i] = static_cast<std::int32_t>(choose_state(both, 2, t, draw));
      is_free = is_free && states[i] == 0;
    }
  }

  double cost(std::size_t factor, const std::int32_t* states, double) const override {
    for (std::size_t i = 0; i < arity(factor); ++i)
      if (states[i]) return costs_[offsets_[factor] + static_cast<std::int64_t>(i)];
    return empty_costs_[factor];
  }

 private:
  // V_i of rays.hpp as costs, with incoming messages whose soft minimum is 0; gives V_1.
  double scan_back(std::size_t factor, const double* in, double t, Scratch& scratch) const {
    const std::size_t n = arity(factor);
    double* beyond = reserve(scratch, n + 1);
    beyond[n] = empty_costs_[factor];
    for (std::size_t i = n; i-- > 0;) {
      const double any = soft_min(in[2 * i], in[2 * i + 1], t);
      const double score = costs_[offsets_[factor] + static_cast<std::int64_t>(i)];
      beyond[i] = any == forbidden ? forbidden
                                   : soft_min(in[2 * i + 1] - any + score,
                                              in[2 * i] - any + beyond[i + 1], t);
    }
    return beyond[0];
  }

  const std::int64_t* offsets_;
  const double *costs_, *empty_costs_;
};

}  // namespace

std::unique_ptr<FactorGroup> pattern_factors(std::size_t n_factors, std::size_t n_units,
                                             std::size_t arity, const double* weights,
                                             const double* biases, bool shared, bool may_be_none) {
  return std::make_unique<Patterns>(n_factors, n_units, arity, weights, biases, shared, may_be_none);
}

std::unique_ptr<FactorGroup> ray_factors(std::size_t n_factors, const std::int64_t* offsets,
                                         const double* costs, const double* empty_costs) {
  return std::make_unique<Rays>(n_factors, offsets, costs, empty_costs);
}

}  // namespace crfield

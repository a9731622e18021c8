// What follows from the messages: beliefs, Bethe's log Z, joint states.
#include <algorithm>
#include <cmath>

#include "interrupt.hpp"
#include "propagation_workspace.hpp"
#include "thread_pool.hpp"
#include "uniform.hpp"

namespace crfield {

void Propagation::belief(std::size_t v, double* out) const {
  const auto& s = structure_;
  const std::size_t n = n_states(v);
  std::copy_n(node_costs_ + s.state_starts[v], n, out);
  for (std::int64_t at = s.degree_starts[v]; at < s.degree_starts[v + 1]; ++at) {
    const auto slot = static_cast<std::size_t>(s.slots_of[static_cast<std::size_t>(at)]);
    const double* in = to_variables_.data() + s.message_starts[slot];
    const double share = share_of(static_cast<std::size_t>(s.slot_factors[slot]));
    for (std::size_t x = 0; x < n; ++x) out[x] += share * in[x];
  }
}

void Propagation::beliefs(double* out) const {
  parallel_ranges(structure_.n_variables(), threads_, grain, [&](int, std::size_t begin, std::size_t end) {
    Pace pace;
    for (std::size_t v = begin; v < end; ++v) {
      pace.step(16 + work_of_variable(v));
      double* values = out + structure_.state_starts[v];
      const std::size_t n = n_states(v);
      belief(v, values);
      const double least = *std::min_element(values, values + n);
      if (least == forbidden) continue;
      for (std::size_t x = 0; x < n; ++x) values[x] -= least;
      if (temperature_ == 0) continue;
      double sum = 0;
      for (std::size_t x = 0; x < n; ++x) sum += values[x] = std::exp(-values[x] / temperature_);
      for (std::size_t x = 0; x < n; ++x) values[x] /= sum;
    }
  });
}

// log Z = sum_v log Z_v + sum_f log Z_f - sum_(f, v) log Z_fv, where Z_v sums over what comes into a
// variable, Z_f over a factor and what comes into it, Z_fv over both messages of an edge: at a fixed
// point this is Bethe's, and the constants of messages cancel. Reweighted, all terms of a factor count by
// its share, and it is an upper bound.
double Propagation::log_partition() const {
  const auto& s = structure_;
  const double t = temperature_;
  const double of_variables = sum_blocks(s.n_variables(), [&](std::size_t begin, std::size_t end) {
    Scratch values;
    double sum = 0;
    Pace pace;
    for (std::size_t v = begin; v < end; ++v) {
      pace.step(16 + work_of_variable(v));
      values.resize(n_states(v));
      belief(v, values.data());
      sum += soft_min(values.data(), values.size(), t);
    }
    return sum;
  });
  const double of_factors = sum_blocks(s.n_factors(), [&](std::size_t begin, std::size_t end) {
    Scratch values;
    Workspace workspace;
    double sum = 0;
    for (std::size_t f = begin; f < end; ++f) {
      pace_factor(f, workspace.pace);
      const auto first = static_cast<std::size_t>(s.slot_starts[f]);
      const auto last = static_cast<std::size_t>(s.slot_starts[f + 1]);
      std::size_t inside;
      const FactorGroup& group = group_of(f, inside);
      const double share = share_of(f);
      sum += group.total(inside, shared_in(f, workspace.shared), share * t, workspace.scratch);
      for (std::size_t slot = first; slot < last; ++slot) {
        const auto from = static_cast<std::size_t>(s.message_starts[slot]);
        values.resize(static_cast<std::size_t>(s.message_starts[slot + 1]) - from);
        for (std::size_t x = 0; x < values.size(); ++x)
          values[x] = to_factors_[from + x] + to_variables_[from + x];
        sum -= share * soft_min(values.data(), values.size(), t);
      }
    }
    return sum;
  });
  return -(of_variables + of_factors);
}

// Summed over ranges that do not depend on the number of threads, so the result does not either.
double Propagation::sum_blocks(
    std::size_t n, const std::function<double(std::size_t, std::size_t)>& sum) const {
  constexpr std::size_t length = 1024;
  std::vector<double> sums((n + length - 1) / length, 0.0);
  parallel_ranges(sums.size(), threads_, 1, [&](int, std::size_t begin, std::size_t end) {
    for (std::size_t k = begin; k < end; ++k)
      sums[k] = sum(k * length, std::min(n, (k + 1) * length));
  });
  double total = 0;
  for (const double part : sums) total += part;
  return total;
}

void Propagation::choose(std::uint64_t seed, std::uint64_t sample, std::int32_t* states) const {
  const auto& s = structure_;
  Uniform uniform(seed, sample, 0);
  const Draw draw = [&] { return uniform.next<double>(); };
  Scratch in;
  Workspace workspace;
  std::vector<std::int32_t> chosen;
  for (const std::int32_t root : s.roots) {
    workspace.pace.step(16 + work_of_variable(static_cast<std::size_t>(root)));
    in.resize(n_states(static_cast<std::size_t>(root)));
    belief(static_cast<std::size_t>(root), in.data());
    states[root] = static_cast<std::int32_t>(choose_state(in.data(), in.size(), temperature_, draw));
  }
  for (const std::int32_t factor : s.order) {
    const auto f = static_cast<std::size_t>(factor);
    pace_factor(f, workspace.pace);
    const auto first = static_cast<std::size_t>(s.slot_starts[f]);
    const auto last = static_cast<std::size_t>(s.slot_starts[f + 1]);
    if (last - first == 1) continue;
    const auto begin = static_cast<std::size_t>(s.message_starts[first]);
    in.assign(to_factors_.begin() + s.message_starts[first], to_factors_.begin() + s.message_starts[last]);
    const auto parent = static_cast<std::size_t>(s.parent_slot[f]);
    const std::int32_t known = states[s.variables[parent]];
    for (auto at = static_cast<std::size_t>(s.message_starts[parent]);
         at < static_cast<std::size_t>(s.message_starts[parent + 1]); ++at)
      in[at - begin] =
          at == static_cast<std::size_t>(s.message_starts[parent]) + static_cast<std::size_t>(known)
              ? 0 : forbidden;
    std::size_t inside;
    const FactorGroup& group = group_of(f, inside);
    chosen.resize(last - first);
    group.choose(inside, in.data(), temperature_, draw, chosen.data(), workspace.scratch);
    for (std::size_t slot = first; slot < last; ++slot) states[s.variables[slot]] = chosen[slot - first];
  }
}

void Propagation::conditional(std::size_t variable, const std::int32_t* states, double* out, Scratch& in,
                              Workspace& workspace) const {
  const auto& s = structure_;
  const std::size_t n = n_states(variable);
  std::copy_n(node_costs_ + s.state_starts[variable], n, out);
  for (std::int64_t at = s.degree_starts[variable]; at < s.degree_starts[variable + 1]; ++at) {
    const auto own = static_cast<std::size_t>(s.slots_of[static_cast<std::size_t>(at)]);
    const auto f = static_cast<std::size_t>(s.slot_factors[own]);
    pace_factor(f, workspace.pace);
    const auto first = static_cast<std::size_t>(s.slot_starts[f]);
    const auto last = static_cast<std::size_t>(s.slot_starts[f + 1]);
    const auto begin = static_cast<std::size_t>(s.message_starts[first]);
    const auto end = static_cast<std::size_t>(s.message_starts[last]);
    in.assign(to_factors_.begin() + static_cast<std::ptrdiff_t>(begin),
              to_factors_.begin() + static_cast<std::ptrdiff_t>(end));
    // As beliefs count messages by the share of their factor, see shared_in.
    for (double& value : in) value *= share_of(f);
    for (std::size_t slot = first; slot < last; ++slot) {
      const std::int32_t state = states[s.variables[slot]];
      if (slot == own || state < 0) continue;
      const auto from = static_cast<std::size_t>(s.message_starts[slot]);
      const auto to = static_cast<std::size_t>(s.message_starts[slot + 1]);
      for (std::size_t i = from; i < to; ++i)
        in[i - begin] = i - from == static_cast<std::size_t>(state) ? 0 : forbidden;
    }
    double* sent = workspace.room(end - begin);
    std::size_t inside;
    const FactorGroup& group = group_of(f, inside);
    group.send(inside, in.data(), own - first, false, temperature_, sent, workspace.scratch);
    const double* message = sent + (static_cast<std::size_t>(s.message_starts[own]) - begin);
    for (std::size_t x = 0; x < n; ++x) out[x] += message[x];
  }
}

void Propagation::choose_in_turn(std::int32_t* states) const {
  constexpr int most_sweeps = 20;
  const std::size_t n_variables = structure_.n_variables();
  std::vector<double> gaps(n_variables), costs;
  Pace pace;
  for (std::size_t v = 0; v < n_variables; ++v) {
    pace.step(16 + work_of_variable(v));
    costs.resize(std::max<std::size_t>(2, n_states(v)));
    costs[1] = forbidden;  // of a variable with one state
    belief(v, costs.data());
    std::nth_element(costs.begin(), costs.begin() + 1, costs.end());
    gaps[v] = costs[1] == forbidden ? forbidden : costs[1] - *std::min_element(costs.begin(), costs.begin() + 1);
  }
  std::vector<std::size_t> order(n_variables);
  for (std::size_t v = 0; v < n_variables; ++v) order[v] = v;
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t u, std::size_t v) {
                     pace.step();
                     return gaps[u] > gaps[v];
                   });
  std::fill_n(states, n_variables, -1);
  Scratch in;
  Workspace workspace;
  const auto best = [&](std::size_t v) {
    costs.resize(n_states(v));
    conditional(v, states, costs.data(), in, workspace);
    return static_cast<std::size_t>(std::min_element(costs.begin(), costs.end()) - costs.begin());
  };
  for (const std::size_t v : order) states[v] = static_cast<std::int32_t>(best(v));
  for (int sweep = 0; sweep < most_sweeps; ++sweep) {
    bool has_changed = false;
    for (const std::size_t v : order) {
      const std::size_t better = best(v);
      if (!(costs[better] < costs[static_cast<std::size_t>(states[v])])) continue;
      states[v] = static_cast<std::int32_t>(better);
      has_changed = true;
    }
    if (!has_changed) break;
  }
}

double Propagation::energy(const std::int32_t* states) const {
  const auto& s = structure_;
  double sum = 0;
  for (std::size_t v = 0; v < s.n_variables(); ++v) sum += node_costs_[s.state_starts[v] + states[v]];
  std::vector<std::int32_t> own;
  Pace pace;
  for (std::size_t f = 0; f < s.n_factors(); ++f) {
    pace.step(16 + 4 * static_cast<std::size_t>(s.slot_starts[f + 1] - s.slot_starts[f]));
    own.clear();
    for (std::int64_t slot = s.slot_starts[f]; slot < s.slot_starts[f + 1]; ++slot)
      own.push_back(states[s.variables[static_cast<std::size_t>(slot)]]);
    std::size_t inside;
    const FactorGroup& group = group_of(f, inside);
    sum += group.cost(inside, own.data(), temperature_);
  }
  return sum;
}

}  // namespace crfield

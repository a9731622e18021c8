// Factor graphs: variables with any number of states, factors of several kinds, belief propagation.
//
// Everything is a cost. A message gives each state of a variable a cost up to a constant, and infinity
// forbids a state. With temperature t, "soft minimum" means -t log sum exp(-cost / t), for t = 0 the
// minimum: one implementation for sum-product and max-product. No cost is ever subtracted from a sum
// it went into, so infinite costs need no special case and nothing cancels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <vector>

namespace crfield {

class Pace;

inline constexpr double forbidden = std::numeric_limits<double>::infinity();

// -t log(exp(-a / t) + exp(-b / t))
double soft_min(double a, double b, double t);
double soft_min(const double* values, std::size_t n, double t);

// A number in [0, 1) for each call, or 0 for choices of least cost.
using Draw = std::function<double()>;
// A state with probability exp(-cost / t) / Z, or for t = 0 the first of least cost; t > 0 needs `draw`.
std::size_t choose_state(const double* costs, std::size_t n, double t, const Draw& draw);

using Scratch = std::vector<double>;
inline double* reserve(Scratch& scratch, std::size_t n) {
  if (scratch.size() < n) scratch.resize(n);
  return scratch.data();
}

// Factors of one kind. `in` and `out` hold the messages of the slots of one factor one after the
// other, `sizes` the number of states of each slot's variable.
class FactorGroup {
 public:
  virtual ~FactorGroup() = default;
  std::size_t n_factors() const { return n_factors_; }

  // The message to slot k, or to all slots but k if `others`.
  void send(std::size_t factor, const double* in, std::size_t k, bool others, double t, double* out,
            Scratch& scratch) const {
    send_slots(factor, in, k, others, t, out, scratch);
  }
  // Messages to all slots.
  virtual void send_all(std::size_t factor, const double* in, double t, double* out,
                        Scratch& scratch) const = 0;
  // The soft minimum of cost + in over all joint states.
  virtual double total(std::size_t factor, const double* in, double t, Scratch& scratch) const = 0;
  // Joint states by exp(-(cost + in) / t), as `choose_state` does.
  virtual void choose(std::size_t factor, const double* in, double t, const Draw& draw,
                      std::int32_t* states, Scratch& scratch) const = 0;
  virtual double cost(std::size_t factor, const std::int32_t* states, double t) const = 0;
  virtual std::size_t arity(std::size_t factor) const = 0;
  virtual std::size_t n_states(std::size_t factor, std::size_t slot) const = 0;

 protected:
  explicit FactorGroup(std::size_t n_factors) : n_factors_(n_factors) {}
  virtual void send_slots(std::size_t factor, const double* in, std::size_t, bool, double t,
                          double* out, Scratch& scratch) const {
    send_all(factor, in, t, out, scratch);  // where all cost no more than one
  }

 private:
  std::size_t n_factors_;
};

// Tables of any order, (n_factors, sizes...) or one (sizes...) for all. Fastest at this temperature.
std::unique_ptr<FactorGroup> table_factors(std::size_t n_factors, std::vector<std::size_t> sizes,
                                           const double* costs, bool shared, double temperature);
// weight [x != y], weight of any sign.
std::unique_ptr<FactorGroup> potts_factors(std::size_t n_factors, std::size_t n_states,
                                           const double* weights);
// min(weight |x - y|^power, ceiling) for power 1 or 2, weight and ceiling >= 0.
std::unique_ptr<FactorGroup> distance_factors(std::size_t n_factors, std::size_t n_states,
                                              const double* weights, const double* ceilings,
                                              int power);
// -t log sum_j exp((bias_j + sum_k weights_jk y_k) / t) over the units j of a factor, y binary. Factor f
// has n_units units, of arity `arity` each: weights (n_factors, n_units, arity), or shared by all. With
// `may_be_none` there is one more unit that is 0 everywhere.
std::unique_ptr<FactorGroup> pattern_factors(std::size_t n_factors, std::size_t n_units,
                                             std::size_t arity, const double* weights,
                                             const double* biases, bool shared, bool may_be_none);
// The cost costs_i if i is the first slot of the ray in state 1, empty_cost if none is.
std::unique_ptr<FactorGroup> ray_factors(std::size_t n_factors, const std::int64_t* offsets,
                                         const double* costs, const double* empty_costs);

// Which variables the factors of all groups join, and an order for exact inference on forests.
class GraphStructure {
 public:
  // n_states (n_variables,); factor f has slots slot_starts[f] to slot_starts[f + 1] on
  // variables[...], all different within a factor.
  GraphStructure(const std::int64_t* n_states, std::size_t n_variables,
                 const std::int64_t* slot_starts, std::size_t n_factors,
                 const std::int32_t* variables);

  std::size_t n_variables() const { return state_starts.size() - 1; }
  std::size_t n_factors() const { return slot_starts.size() - 1; }
  std::size_t n_slots() const { return variables.size(); }
  std::size_t n_messages() const { return static_cast<std::size_t>(message_starts.back()); }

  std::vector<std::int64_t> state_starts;    // (n_variables + 1,) into node costs
  std::vector<std::int64_t> slot_starts;     // (n_factors + 1,)
  std::vector<std::int32_t> variables;       // (n_slots,)
  std::vector<std::int64_t> message_starts;  // (n_slots + 1,) into messages
  std::vector<std::int32_t> slot_factors;    // (n_slots,)
  std::vector<std::int64_t> degree_starts;   // (n_variables + 1,) into slots_of
  std::vector<std::int64_t> slots_of;        // (n_slots,) the slots of each variable

  // A forest's factors in an order in which all that are nearer to a root come first, and the slot
  // through which each is reached; tree c has order[tree_starts[c]] to order[tree_starts[c + 1]].
  bool is_forest = true;
  // The factors of each component are parted into forests, greedily: 1 / their number, for each factor;
  // 1 in a tree, and for factors of one variable.
  std::vector<double> forest_shares() const;
  std::vector<std::int32_t> order;        // (n_factors,)
  std::vector<std::int64_t> parent_slot;  // (n_factors,), global
  std::vector<std::int64_t> up_slot;      // (n_variables,) the slot towards the root, -1 at roots
  std::vector<std::int32_t> roots;        // (n_trees,) variables
  std::vector<std::int64_t> tree_starts;  // (n_trees + 1,)

 private:
  void find_trees();
};

// A graph with its costs, and the messages of belief propagation on it.
class Propagation {
 public:
  // node_costs (state_starts.back(),) is read at every call. With shares (n_factors,) messages are
  // reweighted (Wainwright et al., 2005): if every factor is in that share of the forests of some mixture,
  // log Z is bounded from above by a function that is convex in the costs, and its beliefs are found
  // instead of Bethe's. Factors then work at the temperature `share * temperature`.
  Propagation(const GraphStructure& structure, std::vector<const FactorGroup*> groups,
              const double* node_costs, double temperature, std::vector<double> shares, int threads);

  // One iteration of all factors at once. The largest change of a message before damping.
  double flood(double damping);
  // One after the other, in the order given or backwards.
  double sweep(double damping, bool backwards);
  // n_updates of the factors whose incoming messages have changed most; the largest change since then
  // that waits for its factor.
  double update_most_changed(double damping, std::size_t n_updates);
  // Exact messages on a forest.
  void two_pass();
  // The largest difference of the messages from what they would be sent as.
  double residual();

  // Node marginals exp(-belief / t), each summing to 1; for t = 0 costs above the least (max-marginals).
  void beliefs(double* out) const;
  // Bethe's approximation of t log Z, exact on forests with messages that have settled.
  double log_partition() const;
  // Joint states of a forest after `two_pass`: of least cost for t = 0, drawn from P for t > 0.
  void choose(std::uint64_t seed, std::uint64_t sample, std::int32_t* states) const;
  // Joint states of low cost on a graph with loops, from messages at t = 0: the surest variable first,
  // each given those before it, so that equals do not contradict each other; then one variable at a
  // time as long as the cost falls.
  void choose_in_turn(std::int32_t* states) const;
  // E(x), (factor costs at this temperature).
  double energy(const std::int32_t* states) const;

  std::vector<double>& to_variables() { return to_variables_; }
  std::vector<double>& to_factors() { return to_factors_; }
  void send_from_variables();

 private:
  struct Workspace;
  // What a variable's states cost, given the states of some of the others (-1: what they send).
  void conditional(std::size_t variable, const std::int32_t* states, double* out, Scratch& in,
                   Workspace& workspace) const;
  const FactorGroup& group_of(std::size_t factor, std::size_t& inside) const;
  std::size_t n_states(std::size_t variable) const;
  std::size_t work_of_variable(std::size_t variable) const;
  void pace_factor(std::size_t factor, Pace& pace) const;
  void send_from_variable(std::size_t variable, Scratch& scratch);
  void send_from_variable_to(std::int64_t slot);
  void send_reweighted(std::size_t variable, double* sum);
  void belief(std::size_t variable, double* out) const;
  double share_of(std::size_t factor) const { return shares_.empty() ? 1 : shares_[factor]; }
  const double* shared_in(std::size_t factor, Scratch& room) const;
  double settle(std::size_t factor, const double* fresh, double damping);
  double update(std::size_t factor, double damping, Workspace& workspace);
  void shift_to_least(std::size_t begin, std::size_t end, double* messages) const;

  const GraphStructure& structure_;
  std::vector<const FactorGroup*> groups_;
  std::vector<std::size_t> first_factors_;  // of each group, and the number of all
  const double* node_costs_;
  double temperature_;
  std::vector<double> shares_;  // of each factor, or none
  int threads_;
  std::vector<double> to_variables_, to_factors_;
  std::vector<double> waiting_;  // change of what comes into each factor since its last update
  double sum_blocks(std::size_t n, const std::function<double(std::size_t, std::size_t)>& sum) const;
};

}  // namespace crfield

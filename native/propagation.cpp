// Belief propagation: messages and the order in which they are sent.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <queue>
#include <utility>

#include "interrupt.hpp"
#include "propagation_workspace.hpp"
#include "thread_pool.hpp"

namespace crfield {

namespace {

// Of a variable's messages, from which on it is worth a look at whether the call is to stop.
constexpr std::size_t work_per_check = 1 << 12;

double change_of(double fresh, double old) { return fresh == old ? 0 : std::fabs(fresh - old); }

}  // namespace

Propagation::Propagation(const GraphStructure& structure, std::vector<const FactorGroup*> groups,
                         const double* node_costs, double temperature, std::vector<double> shares,
                         int threads)
    : structure_(structure), groups_(std::move(groups)), node_costs_(node_costs),
      temperature_(temperature), shares_(std::move(shares)), threads_(threads), to_variables_(structure.n_messages(), 0.0),
      to_factors_(structure.n_messages(), 0.0) {
  first_factors_.push_back(0);
  for (const FactorGroup* group : groups_)
    first_factors_.push_back(first_factors_.back() + group->n_factors());
}

const FactorGroup& Propagation::group_of(std::size_t factor, std::size_t& inside) const {
  const auto above = std::upper_bound(first_factors_.begin(), first_factors_.end(), factor);
  const auto g = static_cast<std::size_t>(above - first_factors_.begin()) - 1;
  inside = factor - first_factors_[g];
  return *groups_[g];
}

// Before work on a factor, whose amount is guessed from its messages.
void Propagation::pace_factor(std::size_t f, Pace& pace) const {
  const auto& s = structure_;
  const auto size = static_cast<std::size_t>(s.message_starts[static_cast<std::size_t>(s.slot_starts[f + 1])] -
                                             s.message_starts[static_cast<std::size_t>(s.slot_starts[f])]);
  pace.step(16 + 4 * size * size);
}

std::size_t Propagation::work_of_variable(std::size_t v) const {
  return n_states(v) * static_cast<std::size_t>(structure_.degree_starts[v + 1] - structure_.degree_starts[v]);
}

std::size_t Propagation::n_states(std::size_t v) const {
  return static_cast<std::size_t>(structure_.state_starts[v + 1] - structure_.state_starts[v]);
}

// What comes into a factor times its share: with s = share, the soft minimum of cost / s + in at
// temperature t is that of cost + s in at s t, divided by s.
const double* Propagation::shared_in(std::size_t factor, Scratch& room) const {
  const auto& s = structure_;
  const double* in = to_factors_.data() + s.message_starts[static_cast<std::size_t>(s.slot_starts[factor])];
  const double share = share_of(factor);
  if (share == 1) return in;
  const double* end = to_factors_.data() + s.message_starts[static_cast<std::size_t>(s.slot_starts[factor + 1])];
  room.assign(in, end);
  for (double& value : room) value *= share;
  return room.data();
}

// Only differences of a message's costs matter.
void Propagation::shift_to_least(std::size_t begin, std::size_t end, double* messages) const {
  const double least = *std::min_element(messages + begin, messages + end);
  if (least == forbidden || least == 0) return;
  for (std::size_t i = begin; i < end; ++i) messages[i] -= least;
}

void Propagation::send_from_variable_to(std::int64_t slot) {
  const auto& s = structure_;
  const auto v = static_cast<std::size_t>(s.variables[static_cast<std::size_t>(slot)]);
  const std::size_t n = n_states(v);
  if (work_of_variable(v) > work_per_check) check_interrupt();
  const auto begin = static_cast<std::size_t>(s.message_starts[static_cast<std::size_t>(slot)]);
  double* out = to_factors_.data() + begin;
  if (!shares_.empty()) {
    belief(v, out);
    for (std::size_t x = 0; x < n; ++x)
      out[x] = out[x] == forbidden ? forbidden : out[x] - to_variables_[begin + x];
    shift_to_least(begin, begin + n, to_factors_.data());
    return;
  }
  std::copy_n(node_costs_ + s.state_starts[v], n, out);
  for (std::int64_t at = s.degree_starts[v]; at < s.degree_starts[v + 1]; ++at) {
    const std::int64_t other = s.slots_of[static_cast<std::size_t>(at)];
    if (other == slot) continue;
    const double* in = to_variables_.data() + s.message_starts[static_cast<std::size_t>(other)];
    for (std::size_t x = 0; x < n; ++x) out[x] += in[x];
  }
  shift_to_least(begin, begin + n, to_factors_.data());
}

// To all its factors: sums of those before each, then of those behind it.
void Propagation::send_from_variable(std::size_t v, Scratch& scratch) {
  const auto& s = structure_;
  const std::size_t n = n_states(v);
  if (scratch.size() < n) scratch.resize(n);
  double* sum = scratch.data();
  if (!shares_.empty()) return send_reweighted(v, sum);
  std::copy_n(node_costs_ + s.state_starts[v], n, sum);
  const auto start_of = [&](std::int64_t at) {
    return s.message_starts[static_cast<std::size_t>(s.slots_of[static_cast<std::size_t>(at)])];
  };
  for (std::int64_t at = s.degree_starts[v]; at < s.degree_starts[v + 1]; ++at) {
    const std::int64_t begin = start_of(at);
    for (std::size_t x = 0; x < n; ++x) {
      to_factors_[static_cast<std::size_t>(begin) + x] = sum[x];
      sum[x] += to_variables_[static_cast<std::size_t>(begin) + x];
    }
  }
  std::fill_n(sum, n, 0.0);
  for (std::int64_t at = s.degree_starts[v + 1]; at-- > s.degree_starts[v];) {
    const auto begin = static_cast<std::size_t>(start_of(at));
    for (std::size_t x = 0; x < n; ++x) {
      to_factors_[begin + x] += sum[x];
      sum[x] += to_variables_[begin + x];
    }
    shift_to_least(begin, begin + n, to_factors_.data());
  }
}

// Beliefs less what came from each factor; what is forbidden stays so.
void Propagation::send_reweighted(std::size_t v, double* sum) {
  const auto& s = structure_;
  const std::size_t n = n_states(v);
  belief(v, sum);
  for (std::int64_t at = s.degree_starts[v]; at < s.degree_starts[v + 1]; ++at) {
    const auto slot = static_cast<std::size_t>(s.slots_of[static_cast<std::size_t>(at)]);
    const auto begin = static_cast<std::size_t>(s.message_starts[slot]);
    for (std::size_t x = 0; x < n; ++x)
      to_factors_[begin + x] = sum[x] == forbidden ? forbidden : sum[x] - to_variables_[begin + x];
    shift_to_least(begin, begin + n, to_factors_.data());
  }
}

void Propagation::send_from_variables() {
  parallel_ranges(structure_.n_variables(), threads_, grain, [&](int, std::size_t begin, std::size_t end) {
    Scratch scratch;
    Pace pace;
    for (std::size_t v = begin; v < end; ++v) {
      pace.step(16 + work_of_variable(v));
      send_from_variable(v, scratch);
    }
  });
}

// Takes over fresh messages of a factor, damped; the largest change before that.
double Propagation::settle(std::size_t factor, const double* fresh, double damping) {
  const auto& s = structure_;
  double largest = 0;
  for (std::int64_t slot = s.slot_starts[factor]; slot < s.slot_starts[factor + 1]; ++slot) {
    const auto begin = static_cast<std::size_t>(s.message_starts[static_cast<std::size_t>(slot)]);
    const auto end = static_cast<std::size_t>(s.message_starts[static_cast<std::size_t>(slot) + 1]);
    const double* from = fresh + (begin - static_cast<std::size_t>(s.message_starts[static_cast<std::size_t>(s.slot_starts[factor])]));
    double least = *std::min_element(from, from + (end - begin));
    if (least == forbidden) least = 0;
    for (std::size_t i = begin; i < end; ++i) {
      const double value = from[i - begin] - least;
      double& kept = to_variables_[i];
      largest = std::max(largest, change_of(value, kept));
      // Only messages of another graph can have forbidden what is allowed now.
      const bool is_new = damping == 0 || value == forbidden || kept == forbidden;
      kept = is_new ? value : value + damping * (kept - value);
    }
  }
  return largest;
}

double Propagation::update(std::size_t factor, double damping, Workspace& workspace) {
  const auto& s = structure_;
  const auto first = static_cast<std::size_t>(s.slot_starts[factor]);
  const auto last = static_cast<std::size_t>(s.slot_starts[factor + 1]);
  const auto begin = static_cast<std::size_t>(s.message_starts[first]);
  const std::size_t n = static_cast<std::size_t>(s.message_starts[last]) - begin;
  double* fresh = workspace.room(n);
  std::size_t inside;
  const FactorGroup& group = group_of(factor, inside);
  const double share = share_of(factor);
  group.send_all(inside, shared_in(factor, workspace.shared), share * temperature_, fresh,
                 workspace.scratch);
  if (share < 1)
    for (std::size_t i = 0; i < n; ++i) fresh[i] /= share;
  return settle(factor, fresh, damping);
}

double Propagation::flood(double damping) {
  send_from_variables();
  std::vector<double> changes(static_cast<std::size_t>(threads_), 0.0);
  parallel_ranges(structure_.n_factors(), threads_, grain,
                  [&](int part, std::size_t begin, std::size_t end) {
                    Workspace workspace;
                    double change = 0;
                    for (std::size_t f = begin; f < end; ++f) {
                      pace_factor(f, workspace.pace);
                      change = std::max(change, update(f, damping, workspace));
                    }
                    changes[static_cast<std::size_t>(part)] = change;
                  });
  return *std::max_element(changes.begin(), changes.end());
}

double Propagation::residual() {
  const std::vector<double> kept = to_variables_;
  const double change = flood(0);
  to_variables_ = kept;
  return change;
}

double Propagation::sweep(double damping, bool backwards) {
  const auto& s = structure_;
  Workspace workspace;
  double change = 0;
  for (std::size_t i = 0; i < s.n_factors(); ++i) {
    const std::size_t f = backwards ? s.n_factors() - 1 - i : i;
    pace_factor(f, workspace.pace);
    for (std::int64_t slot = s.slot_starts[f]; slot < s.slot_starts[f + 1]; ++slot)
      send_from_variable_to(slot);
    change = std::max(change, update(f, damping, workspace));
  }
  return change;
}

double Propagation::update_most_changed(double damping, std::size_t n_updates) {
  const auto& s = structure_;
  if (waiting_.empty()) waiting_.assign(s.n_factors(), forbidden);  // all are to be sent once
  using Entry = std::pair<double, std::int64_t>;  // of equals the first factor comes first
  std::priority_queue<Entry> queue;
  // The priority with which each factor is queued. It is queued anew when it has waited for twice as much:
  // otherwise the neighbors of a variable with many factors would fill the queue.
  std::vector<double> queued(waiting_);
  for (std::size_t f = 0; f < s.n_factors(); ++f)
    if (waiting_[f] > 0) queue.emplace(waiting_[f], -static_cast<std::int64_t>(f));
  Workspace workspace;
  while (n_updates > 0 && !queue.empty()) {
    const auto [priority, place] = queue.top();
    queue.pop();
    const auto f = static_cast<std::size_t>(-place);
    if (priority != queued[f]) continue;  // has been entered again since
    pace_factor(f, workspace.pace);
    waiting_[f] = queued[f] = 0;
    --n_updates;
    for (std::int64_t slot = s.slot_starts[f]; slot < s.slot_starts[f + 1]; ++slot)
      send_from_variable_to(slot);
    const double change = update(f, damping, workspace);
    if (change == 0) continue;
    const auto wait = [&](std::size_t g, double more) {
      waiting_[g] += more;
      if (waiting_[g] <= 2 * queued[g]) return;
      queued[g] = waiting_[g];
      queue.emplace(queued[g], -static_cast<std::int64_t>(g));
    };
    // A damped message has a way to go even if nothing else moves.
    if (damping > 0) wait(f, damping * change);
    for (std::int64_t slot = s.slot_starts[f]; slot < s.slot_starts[f + 1]; ++slot) {
      const auto v = static_cast<std::size_t>(s.variables[static_cast<std::size_t>(slot)]);
      for (std::int64_t at = s.degree_starts[v]; at < s.degree_starts[v + 1]; ++at) {
        const auto other = static_cast<std::size_t>(s.slots_of[static_cast<std::size_t>(at)]);
        const auto g = static_cast<std::size_t>(s.slot_factors[other]);
        if (g != f) wait(g, (1 - damping) * change);
      }
    }
  }
  return waiting_.empty() ? 0 : *std::max_element(waiting_.begin(), waiting_.end());
}

void Propagation::two_pass() {
  const auto& s = structure_;
  std::atomic<std::size_t> next{0};
  const std::size_t n_trees = s.roots.size();
  const std::size_t trees_a_turn = std::max<std::size_t>(1, n_trees / 64);
  const std::size_t turns = (n_trees + trees_a_turn - 1) / trees_a_turn;
  const auto parts = std::clamp<std::size_t>(turns, 1, static_cast<std::size_t>(threads_));
  run_parts(static_cast<int>(parts), [&](int) {
    Workspace workspace;
    const auto send = [&](std::size_t f, bool down) {
      const auto first = s.slot_starts[f];
      const auto begin = static_cast<std::size_t>(s.message_starts[static_cast<std::size_t>(first)]);
      std::size_t inside;
      const FactorGroup& group = group_of(f, inside);
      group.send(inside, to_factors_.data() + begin, static_cast<std::size_t>(s.parent_slot[f] - first),
                 down, temperature_, to_variables_.data() + begin, workspace.scratch);
      for (std::int64_t slot = first; slot < s.slot_starts[f + 1]; ++slot)
        shift_to_least(static_cast<std::size_t>(s.message_starts[static_cast<std::size_t>(slot)]),
                       static_cast<std::size_t>(s.message_starts[static_cast<std::size_t>(slot) + 1]),
                       to_variables_.data());
    };
    for (std::size_t turn; (turn = next.fetch_add(1)) < turns;) {
      const auto begin = static_cast<std::size_t>(s.tree_starts[turn * trees_a_turn]);
      const auto end = static_cast<std::size_t>(
          s.tree_starts[std::min(n_trees, (turn + 1) * trees_a_turn)]);
      for (std::size_t i = end; i-- > begin;) {
        const auto f = static_cast<std::size_t>(s.order[i]);
        pace_factor(f, workspace.pace);
        for (std::int64_t slot = s.slot_starts[f]; slot < s.slot_starts[f + 1]; ++slot)
          if (slot != s.parent_slot[f]) send_from_variable_to(slot);
        send(f, false);
      }
      std::int32_t sent = -1;  // factors of one variable follow each other
      for (std::size_t i = begin; i < end; ++i) {
        const auto f = static_cast<std::size_t>(s.order[i]);
        pace_factor(f, workspace.pace);
        const std::int32_t parent = s.variables[static_cast<std::size_t>(s.parent_slot[f])];
        if (parent != sent) send_from_variable(static_cast<std::size_t>(parent), workspace.fresh);
        sent = parent;
        send(f, true);
      }
    }
  });
}

}  // namespace crfield

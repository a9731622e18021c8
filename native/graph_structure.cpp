#include <algorithm>
#include <unordered_map>

#include "factor_graph.hpp"
#include "interrupt.hpp"

namespace crfield {

GraphStructure::GraphStructure(const std::int64_t* n_states, std::size_t n_variables,
                               const std::int64_t* starts, std::size_t n_factors,
                               const std::int32_t* joined)
    : state_starts(n_variables + 1, 0), slot_starts(starts, starts + n_factors + 1),
      variables(joined, joined + slot_starts.back()), degree_starts(n_variables + 1, 0) {
  for (std::size_t v = 0; v < n_variables; ++v) state_starts[v + 1] = state_starts[v] + n_states[v];
  message_starts.reserve(n_slots() + 1);
  message_starts.push_back(0);
  slot_factors.resize(n_slots());
  Pace pace;
  for (std::size_t slot = 0; slot < n_slots(); ++slot) {
    pace.step(4);
    const auto v = static_cast<std::size_t>(variables[slot]);
    message_starts.push_back(message_starts.back() + n_states[v]);
    ++degree_starts[v + 1];
  }
  for (std::size_t f = 0; f < n_factors; ++f)
    std::fill(slot_factors.begin() + slot_starts[f], slot_factors.begin() + slot_starts[f + 1],
              static_cast<std::int32_t>(f));
  for (std::size_t v = 0; v < n_variables; ++v) degree_starts[v + 1] += degree_starts[v];
  slots_of.resize(n_slots());
  std::vector<std::int64_t> next(degree_starts.begin(), degree_starts.end() - 1);
  for (std::size_t slot = 0; slot < n_slots(); ++slot) {
    pace.step(4);
    slots_of[static_cast<std::size_t>(next[static_cast<std::size_t>(variables[slot])]++)] =
        static_cast<std::int64_t>(slot);
  }
  find_trees();
}

std::vector<double> GraphStructure::forest_shares() const {
  std::vector<double> shares(n_factors(), 1.0);
  if (is_forest) return shares;
  // Sets of joined variables. A forest that few variables are in lists these alone: there may be as many
  // forests as a variable has factors.
  struct Sets {
    explicit Sets(std::size_t n) : parents(n) {
      for (std::size_t v = 0; v < n; ++v) parents[v] = static_cast<std::int32_t>(v);
    }
    std::int32_t& parent(std::int32_t v) {
      return parents.empty() ? listed.try_emplace(v, v).first->second : parents[static_cast<std::size_t>(v)];
    }
    std::int32_t find(std::int32_t v) {
      for (std::int32_t up = parent(v); up != v; up = parent(v)) v = parent(v) = parent(up);
      return v;
    }
    std::vector<std::int32_t> parents;
    std::unordered_map<std::int32_t, std::int32_t> listed;
  };
  constexpr std::size_t most_full_forests = 8;
  // A factor goes to the first forest in which it closes no loop.
  std::vector<Sets> forests;
  Sets whole(n_variables());
  std::vector<std::int32_t> ends;
  Pace pace;
  std::vector<std::size_t> forest_of(n_factors(), 0);
  for (std::size_t f = 0; f < n_factors(); ++f) {
    const std::int32_t first = variables[static_cast<std::size_t>(slot_starts[f])];
    for (std::int64_t slot = slot_starts[f] + 1; slot < slot_starts[f + 1]; ++slot)
      whole.parent(whole.find(variables[static_cast<std::size_t>(slot)])) = whole.find(first);
    if (slot_starts[f + 1] - slot_starts[f] == 1) continue;
    for (std::size_t k = 0;; ++k) {
      pace.step(64 * static_cast<std::size_t>(slot_starts[f + 1] - slot_starts[f]));
      if (k == forests.size()) forests.emplace_back(k < most_full_forests ? n_variables() : 0);
      ends.clear();
      for (std::int64_t slot = slot_starts[f]; slot < slot_starts[f + 1]; ++slot)
        ends.push_back(forests[k].find(variables[static_cast<std::size_t>(slot)]));
      std::sort(ends.begin(), ends.end());
      if (std::adjacent_find(ends.begin(), ends.end()) != ends.end()) continue;
      for (const std::int32_t end : ends) forests[k].parent(end) = ends.front();
      forest_of[f] = k;
      break;
    }
  }
  const auto component = [&](std::size_t f) {
    const std::int32_t first = variables[static_cast<std::size_t>(slot_starts[f])];
    return static_cast<std::size_t>(whole.find(first));
  };
  std::vector<std::size_t> counts(n_variables(), 1);
  for (std::size_t f = 0; f < n_factors(); ++f)
    counts[component(f)] = std::max(counts[component(f)], forest_of[f] + 1);
  for (std::size_t f = 0; f < n_factors(); ++f)
    if (slot_starts[f + 1] - slot_starts[f] > 1)
      shares[f] = 1.0 / static_cast<double>(counts[component(f)]);
  return shares;
}

// A walk in breadth from a variable of every component. A variable or factor that is met a second time
// closes a loop.
void GraphStructure::find_trees() {
  const std::size_t n = n_variables();
  up_slot.assign(n, -1);
  parent_slot.assign(n_factors(), -1);
  tree_starts.push_back(0);
  std::vector<char> is_met(n, 0);
  std::vector<std::int32_t> queue;
  Pace pace;
  for (std::size_t root = 0; root < n; ++root) {
    if (is_met[root]) continue;
    is_met[root] = 1;
    roots.push_back(static_cast<std::int32_t>(root));
    queue.assign(1, static_cast<std::int32_t>(root));
    for (std::size_t head = 0; head < queue.size(); ++head) {
      const auto v = static_cast<std::size_t>(queue[head]);
      for (std::int64_t at = degree_starts[v]; at < degree_starts[v + 1]; ++at) {
        const std::int64_t slot = slots_of[static_cast<std::size_t>(at)];
        pace.step(16);
        if (slot == up_slot[v]) continue;
        const auto f = static_cast<std::size_t>(slot_factors[static_cast<std::size_t>(slot)]);
        if (parent_slot[f] >= 0) {
          is_forest = false;
          return;
        }
        parent_slot[f] = slot;
        order.push_back(static_cast<std::int32_t>(f));
        for (std::int64_t other = slot_starts[f]; other < slot_starts[f + 1]; ++other) {
          if (other == slot) continue;
          const auto u = static_cast<std::size_t>(variables[static_cast<std::size_t>(other)]);
          if (is_met[u]) {
            is_forest = false;
            return;
          }
          is_met[u] = 1;
          up_slot[u] = other;
          queue.push_back(static_cast<std::int32_t>(u));
        }
      }
    }
    tree_starts.push_back(static_cast<std::int64_t>(order.size()));
  }
}

}  // namespace crfield

// Factor graphs of all kinds of factors, and grids, under belief propagation.
#include <memory>

#include "factor_graph.hpp"
#include "fuzz_input.hpp"
#include "grid_propagation.hpp"

namespace {

using namespace crfield;
using fuzz::Input;

// Factors of one or more kinds on variables with the same number of states, and what they point to.
struct Graph {
  std::vector<std::int64_t> n_states, slot_starts{0};
  std::vector<std::int32_t> variables;
  std::vector<std::vector<double>> numbers;
  std::vector<std::vector<std::int64_t>> offsets;
  std::vector<std::unique_ptr<FactorGroup>> groups;

  const double* keep(std::vector<double> values) { return numbers.emplace_back(std::move(values)).data(); }

  // `arity` different variables.
  void join(Input& input, std::size_t arity) {
    const int n = static_cast<int>(n_states.size());
    const int first = input.between(0, n - 1), step = input.flag() ? 1 : n - 1;
    for (std::size_t k = 0; k < arity; ++k)
      variables.push_back(static_cast<std::int32_t>((first + static_cast<int>(k) * step) % n));
    slot_starts.push_back(static_cast<std::int64_t>(variables.size()));
  }
};

void add_group(Graph& graph, Input& input, double temperature) {
  const std::size_t n = graph.n_states.size(), states = graph.n_states[0], count = input.between(1, 6);
  switch (input.between(0, states == 2 ? 4 : 2)) {
    case 0: {
      const std::size_t arity = input.between(1, static_cast<int>(std::min<std::size_t>(3, n)));
      const std::vector<std::size_t> sizes(arity, states);
      std::size_t entries = 1;
      for (const std::size_t size : sizes) entries *= size;
      const bool shared = input.flag();
      const double* costs = graph.keep(input.costs((shared ? 1 : count) * entries, 1e3, input.flag()));
      graph.groups.push_back(table_factors(count, sizes, costs, shared, temperature));
      for (std::size_t f = 0; f < count; ++f) graph.join(input, arity);
      return;
    }
    case 1:
      graph.groups.push_back(potts_factors(count, states, graph.keep(input.numbers<double>(count, 1e3))));
      break;
    case 2: {
      const double* weights = graph.keep(input.positives<double>(count, 1e3));
      const double* ceilings = graph.keep(input.positives<double>(count, 1e3));
      graph.groups.push_back(distance_factors(count, states, weights, ceilings, input.between(1, 2)));
      break;
    }
    case 3: {
      const std::size_t units = input.between(1, 4);
      const bool shared = input.flag();
      const std::size_t tables = shared ? 1 : count;
      const double* weights = graph.keep(input.numbers<double>(tables * units * n, 1e3));
      const double* biases = graph.keep(input.numbers<double>(tables * units, 1e3));
      graph.groups.push_back(pattern_factors(count, units, n, weights, biases, shared, input.flag()));
      for (std::size_t f = 0; f < count; ++f) graph.join(input, n);
      return;
    }
    default: {
      auto& offsets = graph.offsets.emplace_back(1, 0);
      for (std::size_t f = 0; f < count; ++f) {
        const std::size_t arity = input.between(1, static_cast<int>(n));
        offsets.push_back(offsets.back() + static_cast<std::int64_t>(arity));
        graph.join(input, arity);
      }
      const double* costs = graph.keep(input.costs(offsets.back(), 1e3, input.flag()));
      graph.groups.push_back(ray_factors(count, offsets.data(), costs, graph.keep(input.costs(count, 1e3, false))));
      return;
    }
  }
  for (std::size_t f = 0; f < count; ++f) graph.join(input, 2);
}

void use_graph(Input& input) {
  Graph graph;
  graph.numbers.reserve(64);  // pointers into them are kept
  graph.offsets.reserve(64);
  graph.n_states.assign(input.between(2, 8), input.between(1, 5));
  const double temperature = input.flag() ? 0 : 1e-2 + input.positive(10);
  for (int group = input.between(1, 3); group-- > 0;) add_group(graph, input, temperature);
  const GraphStructure structure(graph.n_states.data(), graph.n_states.size(), graph.slot_starts.data(),
                                 graph.slot_starts.size() - 1, graph.variables.data());
  const std::size_t n_states = static_cast<std::size_t>(structure.state_starts.back());
  const auto costs = input.costs(n_states, 1e3, input.flag());
  std::vector<const FactorGroup*> groups;
  for (const auto& group : graph.groups) groups.push_back(group.get());
  const auto shares = input.flag() ? structure.forest_shares() : std::vector<double>();
  Propagation propagation(structure, groups, costs.data(), temperature, shares, input.threads());
  const double damping = input.flag() ? 0 : 0.5;
  for (int round = 0; round < 3; ++round) {
    propagation.flood(damping);
    propagation.sweep(damping, input.flag());
    propagation.update_most_changed(damping, 20);
  }
  std::vector<std::int32_t> states(structure.n_variables());
  if (structure.is_forest && shares.empty()) {
    propagation.two_pass();
    propagation.choose(input.byte(), input.byte(), states.data());
    fuzz::require_below(states, graph.n_states[0], "states of a forest");
  }
  propagation.residual();
  propagation.log_partition();
  std::vector<double> beliefs(n_states);
  propagation.beliefs(beliefs.data());
  propagation.choose_in_turn(states.data());
  fuzz::require_below(states, graph.n_states[0], "states in turn");
  propagation.energy(states.data());
}

template <class T> void use_grid(Input& input) {
  const std::size_t rows = input.between(1, 10), columns = input.between(1, 20);
  const int n = input.between(1, 7);
  const auto costs = input.numbers<T>(rows * columns * n, 1e3);
  const auto right = input.positives<T>(rows * (columns - 1), 1e3), down = input.positives<T>((rows - 1) * columns, 1e3);
  const auto table = input.positives<T>(n * n, 10);
  const GridEdges<T> edges{{right.data(), down.data()},
                           {input.flag() ? table.data() : nullptr, input.flag() ? table.data() : nullptr}};
  GridPropagation<T> grid(rows, columns, n, costs.data(), edges, input.flag() ? 0 : 1e-2 + input.positive(10),
                          input.threads());
  for (int round = 0; round < 3; ++round) grid.flood(input.flag() ? 0 : 0.5);
  std::vector<T> beliefs(costs.size()), pairs((right.size() + down.size()) * n * n);
  grid.beliefs(beliefs.data());
  fuzz::require_finite(beliefs, "beliefs are finite");
  grid.edge_beliefs(pairs.data());
  grid.log_partition();
  auto labels = input.labels(rows * columns, n);
  grid.improve(labels.data());
  fuzz::require_below(labels, n, "improved labels");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input(data, size);
  const int kind = input.between(0, 3);
  if (kind < 2) use_graph(input);
  else if (kind == 2) use_grid<float>(input);
  else use_grid<double>(input);
  return 0;
}

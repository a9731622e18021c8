// Python bindings of factor graphs and belief propagation.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "bindings_common.hpp"
#include "factor_graph.hpp"
#include "grid_propagation.hpp"

namespace crfield {

namespace {

using nb::literals::operator""_a;

// A group and the Python arrays whose memory it reads.
struct BoundGroup {
  std::vector<nb::object> kept;
  std::unique_ptr<FactorGroup> group;
};

struct BoundPropagation {
  nb::object structure;
  std::vector<nb::object> groups;
  nb::object node_costs;
  std::size_t n_variables, n_states;
  std::unique_ptr<Propagation> propagation;
};

void bind_groups(nb::module_& m) {
  nb::class_<BoundGroup>(m, "FactorGroup");
  m.def("table_factors",
        [](std::size_t n_factors, const std::vector<std::size_t>& sizes, Vector<double> costs,
           bool shared, double temperature) {
          std::size_t n_entries = 1;
          for (const std::size_t size : sizes) n_entries *= size;
          require(!sizes.empty() && n_entries > 0, "a table has no entries");
          require(costs.shape(0) == (shared ? 1 : n_factors) * n_entries, "costs have the wrong length");
          std::unique_ptr<FactorGroup> group;
          {
            const Released release;
            group = table_factors(n_factors, sizes, costs.data(), shared, temperature);
          }
          return BoundGroup{{nb::cast(costs)}, std::move(group)};
        },
        "n_factors"_a, "sizes"_a, "costs"_a.noconvert(), "shared"_a, "temperature"_a);
  m.def("potts_factors",
        [](std::size_t n_states, Vector<double> weights) {
          require(n_states > 0, "no states");
          return BoundGroup{{nb::cast(weights)}, potts_factors(weights.shape(0), n_states, weights.data())};
        },
        "n_states"_a, "weights"_a.noconvert());
  m.def("distance_factors",
        [](std::size_t n_states, Vector<double> weights, Vector<double> ceilings, int power) {
          require(n_states > 0, "no states");
          require(weights.shape(0) == ceilings.shape(0), "ceilings have the wrong length");
          require(power == 1 || power == 2, "unknown power");
          return BoundGroup{{nb::cast(weights), nb::cast(ceilings)},
                            distance_factors(weights.shape(0), n_states, weights.data(),
                                             ceilings.data(), power)};
        },
        "n_states"_a, "weights"_a.noconvert(), "ceilings"_a.noconvert(), "power"_a);
  m.def("pattern_factors",
        [](std::size_t n_factors, std::size_t n_units, std::size_t arity, Vector<double> weights,
           Vector<double> biases, bool shared, bool may_be_none) {
          const std::size_t n = shared ? 1 : n_factors;
          require(n_units > 0 && arity > 0, "no units");
          require(biases.shape(0) == n * n_units && weights.shape(0) == n * n_units * arity,
                  "weights or biases have the wrong length");
          return BoundGroup{{nb::cast(weights), nb::cast(biases)},
                            pattern_factors(n_factors, n_units, arity, weights.data(), biases.data(),
                                            shared, may_be_none)};
        },
        "n_factors"_a, "n_units"_a, "arity"_a, "weights"_a.noconvert(), "biases"_a.noconvert(),
        "shared"_a, "may_be_none"_a);
  m.def("ray_factors",
        [](Vector<std::int64_t> offsets, Vector<double> costs, Vector<double> empty_costs) {
          const std::size_t n = empty_costs.shape(0);
          require(offsets.shape(0) == n + 1 && offsets.data()[0] == 0 &&
                      offsets.data()[n] == static_cast<std::int64_t>(costs.shape(0)),
                  "offsets do not fit");
          for (std::size_t f = 0; f < n; ++f)
            require(offsets.data()[f] <= offsets.data()[f + 1], "offsets must not fall");
          return BoundGroup{{nb::cast(offsets), nb::cast(costs), nb::cast(empty_costs)},
                            ray_factors(n, offsets.data(), costs.data(), empty_costs.data())};
        },
        "offsets"_a.noconvert(), "costs"_a.noconvert(), "empty_costs"_a.noconvert());
}

void check_groups(const GraphStructure& structure, const std::vector<const FactorGroup*>& groups) {
  std::size_t f = 0;
  for (const FactorGroup* group : groups)
    for (std::size_t inside = 0; inside < group->n_factors(); ++inside, ++f) {
      require(f < structure.n_factors(), "there are too many factors");
      const auto first = static_cast<std::size_t>(structure.slot_starts[f]);
      const auto last = static_cast<std::size_t>(structure.slot_starts[f + 1]);
      require(group->arity(inside) == last - first, "a factor has the wrong number of variables");
      for (std::size_t slot = first; slot < last; ++slot)
        require(static_cast<std::int64_t>(group->n_states(inside, slot - first)) ==
                    structure.message_starts[slot + 1] - structure.message_starts[slot],
                "a factor has the wrong number of states");
    }
  require(f == structure.n_factors(), "there are too few factors");
}

void bind_structure(nb::module_& m) {
  nb::class_<GraphStructure>(m, "GraphStructure")
      .def("__init__",
           [](GraphStructure* self, Vector<std::int64_t> n_states, Vector<std::int64_t> slot_starts,
              Vector<std::int32_t> variables) {
             const std::size_t n = n_states.shape(0), n_slots = variables.shape(0);
             require(n > 0, "there are no variables");
             for (std::size_t v = 0; v < n; ++v) require(n_states.data()[v] > 0, "a variable has no states");
             require(slot_starts.shape(0) > 0 && slot_starts.data()[0] == 0 &&
                         slot_starts.data()[slot_starts.shape(0) - 1] == static_cast<std::int64_t>(n_slots),
                     "slot_starts do not fit");
             for (std::size_t f = 0; f + 1 < slot_starts.shape(0); ++f)
               require(slot_starts.data()[f] < slot_starts.data()[f + 1], "a factor has no variables");
             for (std::size_t slot = 0; slot < n_slots; ++slot)
               require(variables.data()[slot] >= 0 &&
                           static_cast<std::size_t>(variables.data()[slot]) < n,
                       "a variable is out of range");
             const Released release;
             new (self) GraphStructure(n_states.data(), n, slot_starts.data(),
                                       slot_starts.shape(0) - 1, variables.data());
           },
           "n_states"_a.noconvert(), "slot_starts"_a.noconvert(), "variables"_a.noconvert())
      .def_prop_ro("is_forest", [](const GraphStructure& self) { return self.is_forest; })
      .def("forest_shares",
           [](const GraphStructure& self, OutVector<double> out) {
             require(out.shape(0) == self.n_factors(), "out has the wrong length");
             const Released release;
             const std::vector<double> shares = self.forest_shares();
             std::copy(shares.begin(), shares.end(), out.data());
           }, "out"_a.noconvert())
      .def_prop_ro("n_messages", [](const GraphStructure& self) { return self.n_messages(); });
}

void bind_propagation(nb::module_& m) {
  using Self = BoundPropagation;
  nb::class_<Self>(m, "Propagation")
      .def("__init__",
           [](Self* self, nb::object structure, const std::vector<nb::object>& groups,
              Vector<double> node_costs, double temperature,
              std::optional<Vector<double>> shares, int threads) {
             require_threads(threads);
             require(temperature >= 0, "temperature out of range");
             const auto& native = *nb::cast<GraphStructure*>(structure);
             std::vector<const FactorGroup*> given;
             for (const nb::object& group : groups)
               given.push_back(nb::cast<BoundGroup*>(group)->group.get());
             check_groups(native, given);
             const auto n_states = static_cast<std::size_t>(native.state_starts.back());
             require(node_costs.shape(0) == n_states, "node costs have the wrong length");
             std::vector<double> own;
             if (shares) {
               require(shares->shape(0) == native.n_factors(), "shares have the wrong length");
               own.assign(shares->data(), shares->data() + shares->shape(0));
               for (const double share : own) require(share > 0 && share <= 1, "share out of range");
             }
             new (self) Self{structure, groups, nb::cast(node_costs), native.n_variables(), n_states,
                             std::make_unique<Propagation>(native, given, node_costs.data(),
                                                           temperature, std::move(own), threads)};
           },
           "structure"_a, "groups"_a, "node_costs"_a.noconvert(), "temperature"_a,
           "shares"_a.noconvert().none(), "threads"_a)
      .def("flood",
           [](Self& self, double damping) {
             const Released release;
             return self.propagation->flood(damping);
           }, "damping"_a)
      .def("sweep",
           [](Self& self, double damping, bool backwards) {
             const Released release;
             return self.propagation->sweep(damping, backwards);
           }, "damping"_a, "backwards"_a)
      .def("update_most_changed",
           [](Self& self, double damping, std::size_t n_updates) {
             const Released release;
             return self.propagation->update_most_changed(damping, n_updates);
           }, "damping"_a, "n_updates"_a)
      .def("two_pass",
           [](Self& self) {
             require(nb::cast<GraphStructure*>(self.structure)->is_forest, "not a forest");
             const Released release;
             self.propagation->two_pass();
           })
      .def("send_from_variables",
           [](Self& self) {
             const Released release;
             self.propagation->send_from_variables();
           })
      .def("residual",
           [](Self& self) {
             const Released release;
             return self.propagation->residual();
           })
      .def("log_partition",
           [](const Self& self) {
             const Released release;
             return self.propagation->log_partition();
           })
      .def("beliefs",
           [](const Self& self, OutVector<double> out) {
             require(out.shape(0) == self.n_states, "out has the wrong length");
             const Released release;
             self.propagation->beliefs(out.data());
           }, "out"_a.noconvert())
      .def("choose",
           [](const Self& self, std::uint64_t seed, OutMatrix<std::int32_t> out) {
             require(nb::cast<GraphStructure*>(self.structure)->is_forest, "not a forest");
             require(out.shape(1) == self.n_variables, "out has the wrong length");
             const Released release;
             for (std::size_t i = 0; i < out.shape(0); ++i)
               self.propagation->choose(seed, i, out.data() + i * self.n_variables);
           }, "seed"_a, "out"_a.noconvert())
      .def("choose_in_turn",
           [](const Self& self, OutVector<std::int32_t> out) {
             require(out.shape(0) == self.n_variables, "out has the wrong length");
             const Released release;
             self.propagation->choose_in_turn(out.data());
           }, "out"_a.noconvert())
      .def("energy",
           [](const Self& self, Vector<std::int32_t> states) {
             require(states.shape(0) == self.n_variables, "states have the wrong length");
             const auto& starts = nb::cast<GraphStructure*>(self.structure)->state_starts;
             for (std::size_t v = 0; v < self.n_variables; ++v)
               require(states.data()[v] >= 0 && states.data()[v] < starts[v + 1] - starts[v],
                       "a state is out of range");
             const Released release;
             return self.propagation->energy(states.data());
           }, "states"_a.noconvert())
      .def("messages",
           [](Self& self, bool to_factors, OutVector<double> out) {
             const auto& from = to_factors ? self.propagation->to_factors() : self.propagation->to_variables();
             require(out.shape(0) == from.size(), "out has the wrong length");
             std::copy(from.begin(), from.end(), out.data());
           }, "to_factors"_a, "out"_a.noconvert())
      .def("start_from",
           [](Self& self, Vector<double> messages) {
             auto& to = self.propagation->to_variables();
             require(messages.shape(0) == to.size(), "messages have the wrong length");
             std::copy_n(messages.data(), to.size(), to.begin());
           }, "messages"_a.noconvert());
}

template <class T> void bind_grid(nb::module_& m, const char* name) {
  using Self = GridPropagation<T>;
  using Table = std::optional<Matrix<T>>;
  struct Bound {
    std::size_t n_pixels, size, n_pairs;
    std::unique_ptr<Self> grid;
  };
  nb::class_<Bound>(m, name)
      .def("__init__",
           [](Bound* self, std::size_t rows, std::size_t columns, Matrix<T> costs,
              Vector<T> horizontal, Vector<T> vertical, Table horizontal_table, Table vertical_table,
              double temperature, int threads) {
             require_threads(threads);
             require(temperature >= 0, "temperature out of range");
             require(rows > 0 && columns > 0 && costs.shape(0) == rows * columns && costs.shape(1) > 0,
                     "costs have the wrong shape");
             require(horizontal.shape(0) == rows * (columns - 1) &&
                         vertical.shape(0) == (rows - 1) * columns,
                     "weights have the wrong length");
             const std::size_t n = costs.shape(1);
             for (const auto* table : {&horizontal_table, &vertical_table})
               require(!*table || ((*table)->shape(0) == n && (*table)->shape(1) == n),
                       "a table has the wrong shape");
             const GridEdges<T> edges{
                 {horizontal.data(), vertical.data()},
                 {horizontal_table ? horizontal_table->data() : nullptr,
                  vertical_table ? vertical_table->data() : nullptr}};
             const Released release;
             const std::size_t n_edges = horizontal.shape(0) + vertical.shape(0);
             new (self) Bound{costs.shape(0), costs.size(), n_edges * n * n, std::make_unique<Self>(
                                  rows, columns, static_cast<int>(n), costs.data(), edges,
                                  temperature, threads)};
           },
           "rows"_a, "columns"_a, "costs"_a.noconvert(), "horizontal"_a.noconvert(),
           "vertical"_a.noconvert(), "horizontal_table"_a.noconvert().none(),
           "vertical_table"_a.noconvert().none(), "temperature"_a, "threads"_a)
      .def("flood",
           [](Bound& self, double damping) {
             const Released release;
             return self.grid->flood(damping);
           }, "damping"_a)
      .def("beliefs",
           [](const Bound& self, OutVector<T> out) {
             require(out.shape(0) == self.size, "out has the wrong length");
             const Released release;
             self.grid->beliefs(out.data());
           }, "out"_a.noconvert())
      .def("start_from",
           [](Bound& self, const Bound& other) {
             require(self.size == other.size && self.n_pairs == other.n_pairs, "another grid");
             const Released release;
             self.grid->start_from(*other.grid);
           }, "other"_a)
      .def("edge_beliefs",
           [](const Bound& self, OutVector<T> out) {
             require(out.shape(0) == self.n_pairs, "out has the wrong length");
             const Released release;
             self.grid->edge_beliefs(out.data());
           }, "out"_a.noconvert())
      .def("improve",
           [](const Bound& self, OutVector<std::int32_t> labels) {
             require(labels.shape(0) == self.n_pixels, "labels have the wrong length");
             const auto n = static_cast<std::int32_t>(self.size / self.n_pixels);
             for (std::size_t i = 0; i < self.n_pixels; ++i)
               require(labels.data()[i] >= 0 && labels.data()[i] < n, "labels out of range");
             const Released release;
             self.grid->improve(labels.data());
           }, "labels"_a.noconvert())
      .def("log_partition", [](const Bound& self) {
        const Released release;
        return self.grid->log_partition();
      });
}

}  // namespace

void bind_factor_graphs(nb::module_& m) {
  bind_groups(m);
  bind_structure(m);
  bind_propagation(m);
  bind_grid<float>(m, "GridPropagation32");
  bind_grid<double>(m, "GridPropagation64");
}

}  // namespace crfield

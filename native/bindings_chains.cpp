// Python bindings of inference on chains.
#include <nanobind/stl/optional.h>

#include <cstdint>

#include "bindings_common.hpp"
#include "chains.hpp"

namespace crfield {

namespace {

using nb::literals::operator""_a;
template <class T> using Tables = nb::ndarray<T, nb::ndim<3>, nb::c_contig, nb::device::cpu>;

template <class T>
Chains<T> as_chains(const Matrix<T>& costs, const Vector<std::int64_t>& offsets,
                    const Tables<const T>& transitions, bool per_edge) {
  const std::size_t n_nodes = costs.shape(0), n_states = costs.shape(1);
  require(offsets.shape(0) >= 2, "there must be a chain");
  const std::size_t n_chains = offsets.shape(0) - 1;
  const std::int64_t* bounds = offsets.data();
  require(bounds[0] == 0 && bounds[n_chains] == static_cast<std::int64_t>(n_nodes),
          "offsets must go from 0 to the number of nodes");
  for (std::size_t chain = 0; chain < n_chains; ++chain)
    require(bounds[chain] < bounds[chain + 1], "every chain must have a node");
  require(n_states >= 1 && n_states <= 46340, "the number of states is out of range");
  require(transitions.shape(0) == (per_edge ? n_nodes - n_chains : 1) &&
              transitions.shape(1) == n_states && transitions.shape(2) == n_states,
          "transitions have the wrong shape");
  return {n_chains, bounds, static_cast<int>(n_states), costs.data(), transitions.data(), per_edge};
}

template <class T> void bind_type(nb::module_& m) {
  m.def("sum_chains",
        [](Matrix<T> costs, Vector<std::int64_t> offsets, Tables<const T> transitions, bool per_edge,
           double temperature, OutVector<double> log_partition, OutMatrix<T> marginals,
           OutMatrix<double> counts, std::optional<Tables<T>> edge_marginals, int threads) {
          require_threads(threads);
          require(temperature > 0, "temperature must be positive");
          const auto chains = as_chains<T>(costs, offsets, transitions, per_edge);
          const std::size_t n = costs.shape(1);
          require(log_partition.shape(0) == chains.n_chains, "log_partition has the wrong length");
          require(marginals.shape(0) == costs.shape(0) && marginals.shape(1) == n,
                  "marginals have the wrong shape");
          require(counts.shape(0) == n && counts.shape(1) == n, "counts have the wrong shape");
          require(!edge_marginals ||
                      (edge_marginals->shape(0) == costs.shape(0) - chains.n_chains &&
                       edge_marginals->shape(1) == n && edge_marginals->shape(2) == n),
                  "edge_marginals have the wrong shape");
          const ChainSums<T> out{log_partition.data(), marginals.data(), counts.data(),
                                 edge_marginals ? edge_marginals->data() : nullptr};
          const Released release;
          sum_chains(chains, temperature, threads, out);
        },
        "costs"_a.noconvert(), "offsets"_a.noconvert(), "transitions"_a.noconvert(), "per_edge"_a,
        "temperature"_a, "log_partition"_a.noconvert(), "marginals"_a.noconvert(),
        "counts"_a.noconvert(), "edge_marginals"_a.noconvert().none(), "threads"_a);

  m.def("sample_chains",
        [](Matrix<T> costs, Vector<std::int64_t> offsets, Tables<const T> transitions, bool per_edge,
           double temperature, std::uint64_t seed, OutMatrix<std::int32_t> labels, int threads) {
          require_threads(threads);
          require(temperature > 0, "temperature must be positive");
          const auto chains = as_chains<T>(costs, offsets, transitions, per_edge);
          require(labels.shape(1) == costs.shape(0), "labels have the wrong shape");
          const std::size_t n_samples = labels.shape(0);
          std::int32_t* out = labels.data();
          const Released release;
          sample_chains(chains, temperature, seed, n_samples, threads, out);
        },
        "costs"_a.noconvert(), "offsets"_a.noconvert(), "transitions"_a.noconvert(), "per_edge"_a,
        "temperature"_a, "seed"_a, "labels"_a.noconvert(), "threads"_a);

  m.def("best_chains",
        [](Matrix<T> costs, Vector<std::int64_t> offsets, Tables<const T> transitions, bool per_edge,
           OutVector<std::int32_t> labels, OutVector<double> energies, int threads) {
          require_threads(threads);
          const auto chains = as_chains<T>(costs, offsets, transitions, per_edge);
          require(labels.shape(0) == costs.shape(0), "labels have the wrong length");
          require(energies.shape(0) == chains.n_chains, "energies have the wrong length");
          std::int32_t* out = labels.data();
          double* of_chains = energies.data();
          const Released release;
          best_chains(chains, threads, out, of_chains);
        },
        "costs"_a.noconvert(), "offsets"_a.noconvert(), "transitions"_a.noconvert(), "per_edge"_a,
        "labels"_a.noconvert(), "energies"_a.noconvert(), "threads"_a);

  m.def("k_best_chains",
        [](Matrix<T> costs, Vector<std::int64_t> offsets, Tables<const T> transitions, bool per_edge,
           OutVector<std::int32_t> labels, OutMatrix<double> energies, int threads) {
          require_threads(threads);
          const auto chains = as_chains<T>(costs, offsets, transitions, per_edge);
          const std::size_t k = energies.shape(1), n_states = costs.shape(1);
          require(k >= 1 && k <= 0x7fffffff / n_states, "k is out of range");
          require(labels.shape(0) == k * costs.shape(0), "labels have the wrong length");
          require(energies.shape(0) == chains.n_chains, "energies have the wrong shape");
          std::int32_t* out = labels.data();
          double* of_chains = energies.data();
          const Released release;
          k_best_chains(chains, static_cast<int>(k), threads, out, of_chains);
        },
        "costs"_a.noconvert(), "offsets"_a.noconvert(), "transitions"_a.noconvert(), "per_edge"_a,
        "labels"_a.noconvert(), "energies"_a.noconvert(), "threads"_a);
}

}  // namespace

void bind_chains(nb::module_& m) {
  bind_type<float>(m);
  bind_type<double>(m);
}

}  // namespace crfield

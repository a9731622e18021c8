// Exact inference on chains: many at once, of any lengths.
//
// E(x) = sum_t cost_t(x_t) + sum_t transition_t(x_t, x_{t+1}), P(x) = exp(-E(x) / temperature) / Z. All
// sums are formed in double precision, and no result depends on the number of threads.
#pragma once

#include <cstddef>
#include <cstdint>

namespace crfield {

// Chain c has the nodes offsets[c] ... offsets[c + 1] - 1, at least one, and the edges offsets[c] - c
// ... offsets[c + 1] - c - 2, one less than nodes.
template <class T> struct Chains {
  std::size_t n_chains;
  const std::int64_t* offsets;  // (n_chains + 1,)
  int n_states;
  const T* costs;               // (n_nodes, n_states)
  const T* transitions;         // (n_states, n_states), or with `per_edge` one such table per edge
  bool per_edge;

  std::size_t first_node(std::size_t chain) const { return static_cast<std::size_t>(offsets[chain]); }
  std::size_t length(std::size_t chain) const {
    return static_cast<std::size_t>(offsets[chain + 1] - offsets[chain]);
  }
  std::size_t first_edge(std::size_t chain) const { return first_node(chain) - chain; }
  std::size_t table_size() const { return static_cast<std::size_t>(n_states) * n_states; }
  const T* table(std::size_t edge) const { return transitions + (per_edge ? edge * table_size() : 0); }
};

// What is computed.
template <class T> struct ChainSums {
  double* log_partition;  // (n_chains,)
  T* marginals;           // (n_nodes, n_states)
  double* counts;         // (n_states, n_states), the pairwise marginals of all edges added up
  T* edge_marginals;      // (n_edges, n_states, n_states), or null: not wanted
};

template <class T>
void sum_chains(const Chains<T>&, double temperature, int threads, const ChainSums<T>&);

// Labels (n_samples, n_nodes) drawn from P. They depend on the seed and the chain's number alone.
template <class T>
void sample_chains(const Chains<T>&, double temperature, std::uint64_t seed, std::size_t n_samples,
                   int threads, std::int32_t* labels);

// Labels (n_nodes,) of least energy and that energy, (n_chains,). Among equals the last node takes the
// lowest label, then the one before it, and so on.
template <class T>
void best_chains(const Chains<T>&, int threads, std::int32_t* labels, double* energies);

// The k labelings of least energy of each chain, in order: chain c has (k, length) labels from
// k * offsets[c] on, and energies (n_chains, k). Equal ones come in the order of their last labels, then
// of those before. Where there are fewer than k: -1 and infinity.
template <class T>
void k_best_chains(const Chains<T>&, int k, int threads, std::int32_t* labels, double* energies);

}  // namespace crfield

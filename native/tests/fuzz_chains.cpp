// Chains: sums, best, k best and sampled labels; Gibbs sampling on grids.
#include "chains.hpp"
#include "fuzz_input.hpp"
#include "gibbs.hpp"

namespace {

using namespace crfield;
using fuzz::Input;

template <class T> void use_chains(Input& input) {
  const int n_states = input.between(1, 20), threads = input.threads();
  std::vector<std::int64_t> offsets{0};
  for (int chain = input.between(1, 6); chain-- > 0;) offsets.push_back(offsets.back() + input.between(1, 20));
  const std::size_t n_chains = offsets.size() - 1, n_nodes = offsets.back(), n_edges = n_nodes - n_chains;
  const bool per_edge = input.flag();
  const std::size_t table = static_cast<std::size_t>(n_states) * n_states;
  const auto costs = input.numbers<T>(n_nodes * n_states, 1e6);
  const auto transitions = input.numbers<T>((per_edge ? n_edges : 1) * table, 1e6);
  const Chains<T> chains{n_chains, offsets.data(), n_states, costs.data(), transitions.data(), per_edge};
  const double temperature = 1e-3 + input.positive(100);

  std::vector<double> log_z(n_chains), counts(table), energies(n_chains);
  std::vector<T> marginals(n_nodes * n_states), edges(n_edges * table);
  sum_chains(chains, temperature, threads,
             ChainSums<T>{log_z.data(), marginals.data(), counts.data(), input.flag() ? edges.data() : nullptr});
  fuzz::require_finite(log_z, "log Z is finite");
  fuzz::require_finite(marginals, "marginals are finite");
  fuzz::require_finite(counts, "counts are finite");

  std::vector<std::int32_t> labels(n_nodes);
  best_chains(chains, threads, labels.data(), energies.data());
  fuzz::require_below(labels, n_states, "best labels are labels");
  const int k = input.between(1, 8), n_samples = input.between(1, 5);
  std::vector<std::int32_t> lists(k * n_nodes), samples(n_samples * n_nodes);
  std::vector<double> of_lists(n_chains * k);
  k_best_chains(chains, k, threads, lists.data(), of_lists.data());
  for (const std::int32_t label : lists) fuzz::require(label >= -1 && label < n_states, "k best labels");
  for (std::size_t chain = 0; chain < n_chains; ++chain)
    fuzz::require(of_lists[chain * k] == energies[chain], "the first of the k best is the best");
  sample_chains(chains, temperature, input.byte(), n_samples, threads, samples.data());
  fuzz::require_below(samples, n_states, "samples are labels");
}

template <class T> void use_gibbs(Input& input) {
  const std::size_t height = input.between(1, 12), width = input.between(1, 12), n = height * width;
  const std::size_t n_chains = input.between(1, 20), n_images = input.between(1, 3);
  const auto odds = input.numbers<T>(n_chains * n, 1e4), weights = input.numbers<T>(n_images * 2 * n, 1e4);
  const auto image = input.labels(n_chains, static_cast<int>(n_images));
  std::vector<std::uint8_t> labels(n_chains * n);
  std::vector<std::uint64_t> stream(n_chains);
  for (auto& label : labels) label = input.flag();
  for (auto& number : stream) number = input.byte();
  sweep_grids(GridChains<T>{height, width, n_chains, labels.data(), odds.data(), weights.data(),
                            image.data(), stream.data()}, input.byte(), input.byte(), input.threads());
  fuzz::require_below(labels, 2, "labels are 0 or 1");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input(data, size);
  const int kind = input.between(0, 3);
  if (kind == 0) use_chains<float>(input);
  else if (kind == 1) use_chains<double>(input);
  else if (kind == 2) use_gibbs<float>(input);
  else use_gibbs<double>(input);
  return 0;
}

// Labels of least energy on chains: Viterbi's algorithm, and the same with lists.
#include <limits>

#include "chain_blocks.hpp"

namespace crfield {

namespace {

template <class T> class Viterbi {
 public:
  explicit Viterbi(const Chains<T>& chains) : chains_(chains), tables_(chains, 1, false) {}

  double run(std::size_t chain, std::int32_t* labels) {
    const int n = chains_.n_states;
    const auto stride = static_cast<std::size_t>(padded_states(n));
    const std::size_t length = chains_.length(chain), edge = chains_.first_edge(chain);
    const T* costs = chains_.costs + chains_.first_node(chain) * n;
    resize_in_pieces(from_, length * stride);
    best_.resize(stride);
    before_.resize(stride);
    Pace pace;
    for (std::size_t t = 0; t < length; ++t, costs += n) {
      pace.step(chains_.table_size());
      best_.swap(before_);
      if (t)
        chain_kernels().min_plus(before_.data(), tables_.with_rows(edge + t - 1).rows.data(), n,
                                 best_.data(), from_.data() + t * stride);
      for (int k = 0; k < n; ++k) best_[k] = (t ? best_[k] : 0) + static_cast<double>(costs[k]);
    }
    const auto least = std::min_element(best_.begin(), best_.begin() + n);
    auto label = static_cast<std::int32_t>(least - best_.begin());
    for (std::size_t t = length; t-- > 0;) {
      labels[t] = label;
      if (t) label = from_[t * stride + static_cast<std::size_t>(label)];
    }
    return *least;
  }

 private:
  const Chains<T>& chains_;
  ChainTables<T> tables_;
  std::vector<double> best_, before_;
  std::vector<std::int32_t> from_;  // (length, stride)
};

// A node's list for each state: energies in ascending order, and where each came from, coded as
// state * k + place in that state's list.
template <class T> class ListViterbi {
 public:
  ListViterbi(const Chains<T>& chains, int k)
      : chains_(chains), k_(static_cast<std::size_t>(k)), tables_(chains, 1, false) {}

  void run(std::size_t chain, std::int32_t* labels, double* energies) {
    const auto n = static_cast<std::size_t>(chains_.n_states);
    const std::size_t length = chains_.length(chain), edge = chains_.first_edge(chain);
    const T* costs = chains_.costs + chains_.first_node(chain) * n;
    resize_in_pieces(from_, length * n * k_);
    lists_.assign(n * k_, never);
    place_.resize(n);
    for (std::size_t state = 0; state < n; ++state)
      lists_[state * k_] = static_cast<double>(costs[state]);
    for (std::size_t t = 1; t < length; ++t) {
      lists_.swap(before_);
      lists_.resize(n * k_);
      const std::vector<double>& columns = tables_.with_columns(edge + t - 1).columns;
      for (std::size_t state = 0; state < n; ++state) {
        const std::size_t at = state * k_;
        merge(columns.data() + state * padded_states(chains_.n_states), lists_.data() + at,
              from_.data() + t * n * k_ + at);
        const auto cost = static_cast<double>(costs[t * n + state]);
        for (std::size_t r = 0; r < k_; ++r) lists_[at + r] += cost;
      }
    }
    lists_.swap(before_);
    last_.resize(k_);
    merge(nullptr, energies, last_.data());
    for (std::size_t r = 0; r < k_; ++r, labels += length) {
      pace_.step(4 * length);
      if (energies[r] == never) {
        std::fill_n(labels, length, -1);
        continue;
      }
      auto code = static_cast<std::size_t>(last_[r]);
      for (std::size_t t = length; t-- > 0;) {
        labels[t] = static_cast<std::int32_t>(code / k_);
        if (t) code = static_cast<std::size_t>(from_[t * n * k_ + code]);
      }
    }
  }

 private:
  static constexpr double never = std::numeric_limits<double>::infinity();

  // The k least of all entries of `before_`, each state's raised by its transition (null: none).
  void merge(const double* transition, double* out, std::int32_t* from) {
    std::fill(place_.begin(), place_.end(), std::size_t{0});
    for (std::size_t r = 0; r < k_; ++r) {
      pace_.step(place_.size());
      double least = never;
      std::size_t best = 0;
      for (std::size_t state = 0; state < place_.size(); ++state) {
        if (place_[state] == k_) continue;
        const double energy =
            before_[state * k_ + place_[state]] + (transition ? transition[state] : 0);
        if (energy < least) {
          least = energy;
          best = state;
        }
      }
      out[r] = least;
      from[r] = least == never ? 0 : static_cast<std::int32_t>(best * k_ + place_[best]++);
    }
  }

  const Chains<T>& chains_;
  std::size_t k_;
  Pace pace_;
  ChainTables<T> tables_;
  std::vector<double> lists_, before_;    // (n, k)
  std::vector<std::size_t> place_;        // (n,)
  std::vector<std::int32_t> from_, last_;  // (length, n, k), (k,)
};

}  // namespace

template <class T>
void best_chains(const Chains<T>& chains, int threads, std::int32_t* labels, double* energies) {
  for_chains(
      chain_blocks(chains, 64), threads, [&] { return Viterbi<T>(chains); },
      [&](Viterbi<T>& viterbi, std::size_t, std::size_t chain) {
        energies[chain] = viterbi.run(chain, labels + chains.first_node(chain));
      });
}

template <class T>
void k_best_chains(const Chains<T>& chains, int k, int threads, std::int32_t* labels,
                   double* energies) {
  const auto count = static_cast<std::size_t>(k);
  for_chains(
      chain_blocks(chains, 64), threads, [&] { return ListViterbi<T>(chains, k); },
      [&](ListViterbi<T>& viterbi, std::size_t, std::size_t chain) {
        viterbi.run(chain, labels + count * chains.first_node(chain), energies + count * chain);
      });
}

template void best_chains(const Chains<float>&, int, std::int32_t*, double*);
template void best_chains(const Chains<double>&, int, std::int32_t*, double*);
template void k_best_chains(const Chains<float>&, int, int, std::int32_t*, double*);
template void k_best_chains(const Chains<double>&, int, int, std::int32_t*, double*);

}  // namespace crfield

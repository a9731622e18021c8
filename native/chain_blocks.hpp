// What the algorithms on chains share: tables of transitions, and how chains are dealt out to threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <vector>

#include "chains.hpp"
#include "cpu.hpp"
#include "interrupt.hpp"
#include "thread_pool.hpp"

namespace crfield {

// A table of transitions in padded rows, and the same by columns once that is asked for.
struct ChainTable {
  std::vector<double> rows, columns;
  double least = 0;

  // The rows of factor x, or of weights exp(least - factor x) if `weigh`.
  template <class T> void set(const T* x, double factor, int n, bool weigh) {
    const auto stride = static_cast<std::size_t>(padded_states(n)), count = static_cast<std::size_t>(n);
    rows.resize(count * stride);
    if (weigh) {
      lowest_.resize(count);
      chain_kernels().weigh(x, factor, count, n, true, rows.data(), lowest_.data());
      least = lowest_[0];
    } else {
      for (std::size_t a = 0; a < count; ++a) {
        pace_.step(count);
        for (std::size_t b = 0; b < count; ++b)
          rows[a * stride + b] = factor * static_cast<double>(x[a * count + b]);
      }
    }
  }
  void transpose(int n) {
    const auto stride = static_cast<std::size_t>(padded_states(n)), count = static_cast<std::size_t>(n);
    columns.resize(count * stride);
    for (std::size_t a = 0; a < count; ++a) {
      pace_.step(4 * count);
      for (std::size_t b = 0; b < count; ++b) columns[b * stride + a] = rows[a * stride + b];
    }
  }

 private:
  Pace pace_;
  std::vector<double> lowest_;
};

// The table of each edge, made when it is asked for: once where all edges share it.
template <class T> class ChainTables {
 public:
  ChainTables(const Chains<T>& chains, double factor, bool weigh)
      : chains_(&chains), factor_(factor), weigh_(weigh) {}
  const ChainTable& with_rows(std::size_t edge) {
    if (chains_->per_edge || table_.rows.empty())
      table_.set(chains_->table(edge), factor_, chains_->n_states, weigh_);
    return table_;
  }
  const ChainTable& with_columns(std::size_t edge) {
    if (chains_->per_edge || table_.columns.empty()) {
      with_rows(edge);
      table_.transpose(chains_->n_states);
    }
    return table_;
  }

 private:

  const Chains<T>* chains_;
  double factor_;
  bool weigh_;
  ChainTable table_;
};

// Blocks of chains of about as many nodes each, the same for any number of threads.
template <class T>
std::vector<std::size_t> chain_blocks(const Chains<T>& chains, std::size_t most_blocks) {
  const std::size_t n_nodes = chains.first_node(chains.n_chains);
  const std::size_t enough = 1 + (std::size_t{1} << 16) / (chains.table_size() + 16);
  const std::size_t target = std::max(enough, (n_nodes + most_blocks - 1) / most_blocks);
  std::vector<std::size_t> bounds{0};
  for (std::size_t chain = 0; chain < chains.n_chains; ++chain)
    if (chain + 1 == chains.n_chains ||
        chains.first_node(chain + 1) - chains.first_node(bounds.back()) >= target)
      bounds.push_back(chain + 1);
  return bounds;
}

// Calls body(worker, block, chain) for every chain, with a worker = make() for each thread.
template <class Make, class Body>
void for_chains(const std::vector<std::size_t>& bounds, int threads, Make&& make, Body&& body) {
  const std::size_t n_blocks = bounds.size() - 1;
  std::atomic<std::size_t> next{0};
  run_parts(static_cast<int>(std::min<std::size_t>(n_blocks, static_cast<std::size_t>(threads))),
            [&](int) {
              auto worker = make();
              Pace pace;
              for (std::size_t block; (block = next++) < n_blocks;)
                for (std::size_t chain = bounds[block]; chain < bounds[block + 1]; ++chain) {
                  pace.step(64);
                  body(worker, block, chain);
                }
            });
}

}  // namespace crfield

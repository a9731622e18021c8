#include "chains.hpp"

#include <cmath>

#include "chain_blocks.hpp"
#include "uniform.hpp"

namespace crfield {

namespace {

// Weights below 1e-307 are dropped where they arise. What is lost at a node is at most n times that,
// times beta there, and the same goes for beta itself: nothing that counts, within these bounds.
constexpr double least_scale = 1e-90, largest_beta = 1e200;
// Samples that are drawn together, so that the table of an edge is made once for all of them.
constexpr std::size_t samples_a_turn = 256;

// The product of many numbers as a sum of few logarithms.
class LogProduct {
 public:
  void multiply(double x) {
    product_ *= x;
    if (product_ < 1e-200 || product_ > 1e200) {
      log_ += std::log(product_);
      product_ = 1;
    }
  }
  double log() const { return log_ + std::log(product_); }

 private:
  double product_ = 1, log_ = 0;
};

// Forward-backward on one chain after the other. alpha_t(x) is proportional to the weight of all
// beginnings that end in x at t, beta_t(x) to that of all ends that begin there; `pull_t` is the weight
// of node t's costs times beta_t. Where weights leave the range of numbers, all are logarithms.
template <class T> class Passes {
 public:
  Passes(const Chains<T>& chains, double temperature)
      : chains_(chains), factor_(1 / temperature), weights_of_(chains, factor_, true),
        costs_of_(chains, factor_, false) {}

  // log Z
  double run(std::size_t chain) {
    node_ = chains_.first_node(chain);
    edge_ = chains_.first_edge(chain);
    length_ = chains_.length(chain);
    const std::size_t size = length_ * stride();
    if (alpha_.size() < size)
      for (auto* rows : {&alpha_, &pull_, &weights_, &q_}) resize_in_pieces(*rows, size);
    if (scale_.size() < length_) {
      scale_.resize(length_);
      least_.resize(length_);
    }
    is_linear_ = forward() && backward();
    if (is_linear_) return log_partition_;
    log_forward();
    log_backward();
    return log_partition_;
  }

  void marginals(T* out) const {
    Pace pace;
    for (std::size_t t = 0; t < length_; ++t) {
      pace.step(stride());
      const double* q = q_.data() + t * stride();
      double sum = 0;
      for (int k = 0; k < n(); ++k) sum += q[k];
      for (int k = 0; k < n(); ++k) out[t * n() + k] = static_cast<T>(q[k] / sum);
    }
  }

  // Pairwise marginals: of each edge to `edges` (null: not wanted), and added up, (n, stride), those
  // that lack the table which all edges share apart.
  void add_pairs(T* edges, double* whole, double* without_table) {
    const bool is_shared = is_linear_ && !chains_.per_edge;
    if (is_shared)
      in_pieces(0, length_ - 1, rows_of(chains_.table_size()), [&](std::size_t first, std::size_t last) {
        chain_kernels().add_products(alpha_.data() + first * stride(),
                                     pull_.data() + (first + 1) * stride(), last - first, n(),
                                     without_table);
      });
    if (is_shared && !edges) return;
    pair_.resize(chains_.table_size());
    Pace pace;
    for (std::size_t t = 0; t + 1 < length_; ++t) {
      pace.step(4 * chains_.table_size());
      const double sum = pair_weights(t, pair_.data());
      for (double& pair : pair_) pair /= sum;
      if (edges) edges = std::transform(pair_.begin(), pair_.end(), edges,
                                        [](double pair) { return static_cast<T>(pair); });
      if (is_shared) continue;
      for (int a = 0; a < n(); ++a)
        for (int b = 0; b < n(); ++b)
          whole[a * stride() + b] += pair_[static_cast<std::size_t>(a) * n() + b];
    }
  }

  // One label after the other from the last on, of all samples at once: sample s goes to
  // labels + s * step.
  void sample(std::vector<Uniform>& random, std::size_t step, std::int32_t* labels) {
    std::vector<double> weight(static_cast<std::size_t>(n()));
    Pace pace;
    for (std::size_t t = length_; t-- > 0;) {
      const double* columns = nullptr;
      if (t + 1 < length_) columns = tables().with_columns(edge_ + t).columns.data();
      for (std::size_t s = 0; s < random.size(); ++s) {
        pace.step(stride());
        std::int32_t* label = labels + s * step + t;
        *label = draw(t, columns ? columns + label[1] * stride() : nullptr, random[s], weight);
      }
    }
  }

 private:
  int n() const { return chains_.n_states; }
  std::size_t stride() const { return static_cast<std::size_t>(padded_states(n())); }
  const T* costs(std::size_t t) const { return chains_.costs + (node_ + t) * n(); }
  ChainTables<T>& tables() { return is_linear_ ? weights_of_ : costs_of_; }
  // Rows between two looks at whether the call is to stop, of so much work each; whole blocks of 64.
  static std::size_t rows_of(std::size_t work) { return 64 * (1 + (std::size_t(1) << 12) / work); }

  // The label of node t, given the column of its table that belongs to the label after it.
  std::int32_t draw(std::size_t t, const double* column, Uniform& random,
                    std::vector<double>& weight) const {
    const double* alpha = alpha_.data() + t * stride();
    for (int k = 0; k < n(); ++k)
      weight[k] = is_linear_ ? alpha[k] * (column ? column[k] : 1)
                             : alpha[k] - (column ? column[k] : 0);
    if (!is_linear_) exponentiate(weight.data(), weight.size());
    double sum = 0;
    for (double& w : weight) w = sum += w;
    const double at = random.next<double>() * sum;
    auto label = std::upper_bound(weight.begin(), weight.end() - 1, at) - weight.begin();
    // Rounding up may lead past the last label that has any weight.
    while (label > 0 && weight[label] == weight[label - 1]) --label;
    return static_cast<std::int32_t>(label);
  }

  bool forward() {
    const ChainKernels& kernels = chain_kernels();
    in_pieces(0, length_, rows_of(stride()), [&](std::size_t first, std::size_t last) {
      kernels.weigh(costs(first), factor_, last - first, n(), false,
                    weights_.data() + first * stride(), least_.data() + first);
    });
    Pace pace;
    LogProduct product;
    double constant = 0;
    for (std::size_t t = 0; t < length_; ++t) {
      pace.step(chains_.table_size());
      const ChainTable* table = t ? &weights_of_.with_rows(edge_ + t - 1) : nullptr;
      double* row = alpha_.data() + t * stride();
      const double scale =
          kernels.forward(t ? row - stride() : nullptr, table ? table->rows.data() : nullptr,
                          weights_.data() + t * stride(), n(), row);
      if (!(scale >= least_scale && scale <= 2.0 * n())) return false;
      product.multiply(scale_[t] = scale);
      constant += least_[t] + (table ? table->least : 0);
    }
    log_partition_ = product.log() - constant;
    return true;
  }

  bool backward() {
    Pace pace;
    for (std::size_t t = length_; t-- > 0;) {
      pace.step(chains_.table_size());
      const bool last = t + 1 == length_;
      const std::size_t at = t * stride();
      const double most = chain_kernels().backward(
          last ? nullptr : pull_.data() + at + stride(),
          last ? nullptr : weights_of_.with_columns(edge_ + t).columns.data(), alpha_.data() + at,
          weights_.data() + at, scale_[t], n(), q_.data() + at, pull_.data() + at);
      if (!(most <= largest_beta)) return false;
    }
    return true;
  }

  void log_forward() {
    log_partition_ = 0;
    Pace pace;
    for (std::size_t t = 0; t < length_; ++t) {
      pace.step(4 * chains_.table_size());
      double* row = alpha_.data() + t * stride();
      if (t)
        chain_kernels().log_sum(row - stride(), costs_of_.with_rows(edge_ + t - 1).rows.data(), n(),
                                row);
      const T* cost = costs(t);
      for (int k = 0; k < n(); ++k)
        row[k] = (t ? row[k] : 0) - factor_ * static_cast<double>(cost[k]);
      log_partition_ += lower(row);
    }
    const double* row = alpha_.data() + (length_ - 1) * stride();
    double sum = 0;
    for (int k = 0; k < n(); ++k) sum += std::exp(row[k]);
    log_partition_ += std::log(sum);
  }

  void log_backward() {
    Pace pace;
    for (std::size_t t = length_; t-- > 0;) {
      pace.step(4 * chains_.table_size());
      const std::size_t at = t * stride();
      double *pull = pull_.data() + at, *q = q_.data() + at;
      if (t + 1 < length_)
        chain_kernels().log_sum(pull + stride(), costs_of_.with_columns(edge_ + t).columns.data(),
                                n(), pull);
      else std::fill_n(pull, n(), 0.0);
      const T* cost = costs(t);
      for (int k = 0; k < n(); ++k) {
        q[k] = alpha_[at + k] + pull[k];
        pull[k] -= factor_ * static_cast<double>(cost[k]);
      }
      lower(pull);
      exponentiate(q, static_cast<std::size_t>(n()));
    }
  }

  // P(x_t = a, x_{t+1} = b) times the returned number.
  double pair_weights(std::size_t t, double* out) {
    const double* alpha = alpha_.data() + t * stride();
    const double* pull = pull_.data() + (t + 1) * stride();
    const double* table = tables().with_rows(edge_ + t).rows.data();
    double* entry = out;
    for (int a = 0; a < n(); ++a)
      for (int b = 0; b < n(); ++b, ++entry) {
        const double between = table[a * stride() + b];
        *entry = is_linear_ ? alpha[a] * between * pull[b] : alpha[a] - between + pull[b];
      }
    if (!is_linear_) exponentiate(out, chains_.table_size());
    double sum = 0;
    for (std::size_t k = 0; k < chains_.table_size(); ++k) sum += out[k];
    return sum;
  }

  // Subtracts the largest entry of a row and returns it.
  double lower(double* row) const {
    const double most = *std::max_element(row, row + n());
    for (int k = 0; k < n(); ++k) row[k] -= most;
    return most;
  }

  static void exponentiate(double* x, std::size_t size) {
    const double most = *std::max_element(x, x + size);
    for (std::size_t k = 0; k < size; ++k) x[k] = std::exp(x[k] - most);
  }

  const Chains<T>& chains_;
  double factor_;
  ChainTables<T> weights_of_, costs_of_;
  std::size_t node_ = 0, edge_ = 0, length_ = 0;
  std::vector<double> alpha_, pull_, weights_, q_;  // (length, stride)
  std::vector<double> scale_, least_;               // (length,)
  std::vector<double> pair_;                        // (n, n)
  double log_partition_ = 0;
  bool is_linear_ = true;
};

}  // namespace

template <class T>
void sum_chains(const Chains<T>& chains, double temperature, int threads, const ChainSums<T>& out) {
  const auto n = static_cast<std::size_t>(chains.n_states);
  const auto stride = static_cast<std::size_t>(padded_states(chains.n_states));
  const std::size_t size = n * stride, room = std::size_t{1} << 22;
  const auto bounds = chain_blocks(chains, std::clamp<std::size_t>(room / size, 1, 64));
  const std::size_t n_blocks = bounds.size() - 1;
  // Of each block, with the table of transitions multiplied in and without.
  std::vector<double> counts(2 * n_blocks * size);
  for_chains(
      bounds, threads, [&] { return Passes<T>(chains, temperature); },
      [&](Passes<T>& passes, std::size_t block, std::size_t chain) {
        out.log_partition[chain] = passes.run(chain);
        passes.marginals(out.marginals + chains.first_node(chain) * n);
        T* edges = out.edge_marginals;
        double* both = counts.data() + 2 * block * size;
        passes.add_pairs(edges ? edges + chains.first_edge(chain) * n * n : nullptr, both,
                         both + size);
      });
  std::fill_n(out.counts, n * n, 0.0);
  ChainTable weights;
  if (!chains.per_edge) weights.set(chains.transitions, 1 / temperature, chains.n_states, true);
  for (std::size_t block = 0; block < n_blocks; ++block)
    for (std::size_t a = 0; a < n; ++a)
      for (std::size_t b = 0; b < n; ++b) {
        const double* both = counts.data() + 2 * block * size + a * stride + b;
        out.counts[a * n + b] += both[0];
        if (!chains.per_edge) out.counts[a * n + b] += weights.rows[a * stride + b] * both[size];
      }
}

template <class T>
void sample_chains(const Chains<T>& chains, double temperature, std::uint64_t seed,
                   std::size_t n_samples, int threads, std::int32_t* labels) {
  const std::size_t n_nodes = chains.first_node(chains.n_chains);
  for_chains(
      chain_blocks(chains, 64), threads, [&] { return Passes<T>(chains, temperature); },
      [&](Passes<T>& passes, std::size_t, std::size_t chain) {
        passes.run(chain);
        std::vector<Uniform> random;
        for (std::size_t first = 0; first < n_samples; first += samples_a_turn) {
          random.clear();
          for (std::size_t s = first; s < std::min(n_samples, first + samples_a_turn); ++s)
            random.emplace_back(seed, s, chain);
          passes.sample(random, n_nodes, labels + first * n_nodes + chains.first_node(chain));
        }
      });
}

template void sum_chains(const Chains<float>&, double, int, const ChainSums<float>&);
template void sum_chains(const Chains<double>&, double, int, const ChainSums<double>&);
template void sample_chains(const Chains<float>&, double, std::uint64_t, std::size_t, int,
                            std::int32_t*);
template void sample_chains(const Chains<double>&, double, std::uint64_t, std::size_t, int,
                            std::int32_t*);

}  // namespace crfield

// Tables, and pairs whose cost is a formula: what they send to their variables.
#include <algorithm>
#include <cmath>
#include <utility>

#include "cpu.hpp"
#include "factor_graph.hpp"
#include "interrupt.hpp"

namespace crfield {

double soft_min(double a, double b, double t) {
  const double low = std::min(a, b), high = std::max(a, b);
  if (t == 0 || high == forbidden) return low;
  return low - t * std::log1p(std::exp((low - high) / t));
}

double soft_min(const double* values, std::size_t n, double t) {
  double least = forbidden;
  for (std::size_t i = 0; i < n; ++i) least = std::min(least, values[i]);
  if (t == 0 || least == forbidden) return least;
  double sum = 0;
  for (std::size_t i = 0; i < n; ++i) sum += std::exp((least - values[i]) / t);
  return least - t * std::log(sum);
}

std::size_t choose_state(const double* costs, std::size_t n, double t, const Draw& draw) {
  const auto best = static_cast<std::size_t>(std::min_element(costs, costs + n) - costs);
  if (t == 0 || costs[best] == forbidden) return best;
  double sum = 0;
  for (std::size_t i = 0; i < n; ++i) sum += std::exp((costs[best] - costs[i]) / t);
  double left = draw() * sum;
  std::size_t last = best;
  for (std::size_t i = 0; i < n; ++i) {
    const double weight = std::exp((costs[best] - costs[i]) / t);
    if (weight == 0) continue;
    last = i;
    if ((left -= weight) < 0) return i;
  }
  return last;  // rounding has left a little
}

namespace {

class Tables final : public FactorGroup {
 public:
  Tables(std::size_t n_factors, std::vector<std::size_t> sizes, const double* costs, bool shared,
         double temperature)
      : FactorGroup(n_factors), sizes_(std::move(sizes)), costs_(costs), shared_(shared),
        temperature_(temperature) {
    starts_.push_back(0);
    for (const std::size_t size : sizes_) {
      n_entries_ *= size;
      starts_.push_back(starts_.back() + size);
    }
    if (sizes_.size() == 2 && temperature > 0) weigh();
  }

  std::size_t arity(std::size_t) const override { return sizes_.size(); }
  std::size_t n_states(std::size_t, std::size_t slot) const override { return sizes_[slot]; }

  void send_all(std::size_t factor, const double* in, double t, double* out,
                Scratch& scratch) const override {
    for (std::size_t k = 0; k < sizes_.size(); ++k) send_one(factor, in, k, t, out, scratch);
  }

  double total(std::size_t factor, const double* in, double t, Scratch& scratch) const override {
    Scratch message(sizes_[0]);
    send_one(factor, in, 0, t, message.data(), scratch);
    for (std::size_t x = 0; x < sizes_[0]; ++x) message[x] += in[x];
    return soft_min(message.data(), sizes_[0], t);
  }

  void choose(std::size_t factor, const double* in, double t, const Draw& draw,
              std::int32_t* states, Scratch& scratch) const override {
    double* joint = reserve(scratch, n_entries_);
    std::copy_n(table(factor), n_entries_, joint);
    std::size_t inner = n_entries_, outer = 1;
    for (std::size_t k = 0; k < sizes_.size(); ++k) {
      inner /= sizes_[k];
      for (std::size_t a = 0; a < outer; ++a)
        for (std::size_t x = 0; x < sizes_[k]; ++x)
          for (std::size_t b = 0; b < inner; ++b)
            joint[(a * sizes_[k] + x) * inner + b] += in[starts_[k] + x];
      outer *= sizes_[k];
    }
    std::size_t chosen = choose_state(joint, n_entries_, t, draw);
    for (std::size_t k = sizes_.size(); k-- > 0; chosen /= sizes_[k])
      states[k] = static_cast<std::int32_t>(chosen % sizes_[k]);
  }

  double cost(std::size_t factor, const std::int32_t* states, double) const override {
    std::size_t at = 0;
    for (std::size_t k = 0; k < sizes_.size(); ++k)
      at = at * sizes_[k] + static_cast<std::size_t>(states[k]);
    return table(factor)[at];
  }

 protected:
  void send_slots(std::size_t factor, const double* in, std::size_t k, bool others, double t,
                  double* out, Scratch& scratch) const override {
    for (std::size_t j = 0; j < sizes_.size(); ++j)
      if ((j == k) != others) send_one(factor, in, j, t, out, scratch);
  }

 private:
  const double* table(std::size_t factor) const { return costs_ + (shared_ ? 0 : factor * n_entries_); }

  // Tables of pairs as exp(-(cost - least) / t): a message is then a product with a matrix.
  void weigh() {
    const std::size_t n_tables = shared_ ? 1 : n_factors();
    weights_.resize(n_tables * n_entries_);
    least_.resize(n_tables);
    Pace pace;
    for (std::size_t f = 0; f < n_tables; ++f) {
      pace.step(8 * n_entries_);
      const double* from = table(f);
      least_[f] = *std::min_element(from, from + n_entries_);
      const double least = least_[f] == forbidden ? 0 : least_[f];
      for (std::size_t i = 0; i < n_entries_; ++i)
        weights_[f * n_entries_ + i] = std::exp((least - from[i]) / temperature_);
    }
  }

  bool send_by_weights(std::size_t factor, const double* in, std::size_t k, double t, double* out,
                       Scratch& scratch) const {
    if (weights_.empty() || t != temperature_) return false;
    const std::size_t f = shared_ ? 0 : factor, other = 1 - k;
    if (least_[f] == forbidden) return false;
    return graph_kernels().cross_weights(weights_.data() + f * n_entries_, k == 0,
                                         in + starts_[other], sizes_[other], sizes_[k], t, least_[f],
                                         reserve(scratch, sizes_[other]), out + starts_[k]);
  }

  // Axes behind k are folded from the last on, then those before it from the first on; each fold
  // leaves a smaller table.
  void send_one(std::size_t factor, const double* in, std::size_t k, double t, double* out,
                Scratch& scratch) const {
    if (send_by_weights(factor, in, k, t, out, scratch)) return;
    const GraphKernels& kernels = graph_kernels();
    const double* from = table(factor);
    std::size_t n = n_entries_;
    double* rooms = reserve(scratch, 2 * n_entries_);
    double* to = rooms;
    const auto take = [&] {
      from = to;
      to = to == rooms ? rooms + n_entries_ : rooms;
    };
    for (std::size_t j = sizes_.size(); j-- > k + 1;) {
      n /= sizes_[j];
      in_pieces(0, n, rows_per_check, [&](std::size_t first, std::size_t last) {
        kernels.fold_columns(from + first * sizes_[j], in + starts_[j], sizes_[j], last - first, t,
                             to + first);
      });
      take();
    }
    for (std::size_t j = 0; j < k; ++j) {
      n /= sizes_[j];
      if (n > rows_per_check) check_interrupt();
      kernels.fold_rows(from, in + starts_[j], sizes_[j], n, t, to);
      take();
    }
    std::copy_n(from, sizes_[k], out + starts_[k]);
  }

  static constexpr std::size_t rows_per_check = 1 << 14;

  std::vector<std::size_t> sizes_, starts_;
  std::size_t n_entries_ = 1;
  const double* costs_;
  bool shared_;
  double temperature_;
  std::vector<double> weights_, least_;
};

// Two variables with the same number of states, and a cost that is a formula.
template <class Formula> class Pairs final : public FactorGroup {
 public:
  Pairs(std::size_t n_factors, std::size_t n_states, Formula formula)
      : FactorGroup(n_factors), n_(n_states), formula_(formula) {}

  std::size_t arity(std::size_t) const override { return 2; }
  std::size_t n_states(std::size_t, std::size_t) const override { return n_; }

  void send_all(std::size_t factor, const double* in, double t, double* out,
                Scratch& scratch) const override {
    formula_.cross(factor, in + n_, n_, t, out, scratch);
    formula_.cross(factor, in, n_, t, out + n_, scratch);
  }

  double total(std::size_t factor, const double* in, double t, Scratch& scratch) const override {
    Scratch message(n_);
    formula_.cross(factor, in, n_, t, message.data(), scratch);
    for (std::size_t x = 0; x < n_; ++x) message[x] += in[n_ + x];
    return soft_min(message.data(), n_, t);
  }

  void choose(std::size_t factor, const double* in, double t, const Draw& draw,
              std::int32_t* states, Scratch& scratch) const override {
    Scratch costs(n_);
    formula_.cross(factor, in + n_, n_, t, costs.data(), scratch);
    for (std::size_t x = 0; x < n_; ++x) costs[x] += in[x];
    const std::size_t first = choose_state(costs.data(), n_, t, draw);
    for (std::size_t y = 0; y < n_; ++y) costs[y] = in[n_ + y] + formula_.cost(factor, first, y);
    states[0] = static_cast<std::int32_t>(first);
    states[1] = static_cast<std::int32_t>(choose_state(costs.data(), n_, t, draw));
  }

  double cost(std::size_t factor, const std::int32_t* states, double) const override {
    return formula_.cost(factor, static_cast<std::size_t>(states[0]),
                         static_cast<std::size_t>(states[1]));
  }

 protected:
  void send_slots(std::size_t factor, const double* in, std::size_t k, bool others, double t,
                  double* out, Scratch& scratch) const override {
    const std::size_t to = others ? 1 - k : k;
    formula_.cross(factor, in + (1 - to) * n_, n_, t, out + to * n_, scratch);
  }

 private:
  std::size_t n_;
  Formula formula_;
};

struct PottsCost {
  const double* weights;

  double cost(std::size_t factor, std::size_t x, std::size_t y) const {
    return x == y ? 0 : weights[factor];
  }

  // out(x) = soft minimum of in(x) and weight + the soft minimum of in over the other states
  void cross(std::size_t factor, const double* in, std::size_t n, double t, double* out,
             Scratch& scratch) const {
    const double weight = weights[factor];
    double* after = reserve(scratch, 2 * n + 1);
    if (t > 0 && std::fabs(weight) <= safe_exponent * t) return cross_sums(weight, in, n, t, out, after);
    after[n] = forbidden;
    for (std::size_t x = n; x-- > 1;) after[x] = soft_min(in[x], after[x + 1], t);
    double before = forbidden;
    for (std::size_t x = 0; x < n; ++x) {
      out[x] = soft_min(in[x], weight + soft_min(before, after[x + 1], t), t);
      before = soft_min(before, in[x], t);
    }
  }

 private:
  static constexpr double safe_exponent = 600;  // of exp in double precision

  // The same with sums of exp(-in / t) over the states before and behind each.
  static void cross_sums(double weight, const double* in, std::size_t n, double t, double* out,
                         double* after) {
    double least = *std::min_element(in, in + n);
    if (least == forbidden) {
      std::fill_n(out, n, forbidden);
      return;
    }
    double* own = after + n + 1;
    after[n] = 0;
    for (std::size_t x = n; x-- > 0;) {
      own[x] = std::exp((least - in[x]) / t);
      after[x] = after[x + 1] + own[x];
    }
    const double factor = std::exp(-weight / t);
    double before = 0;
    for (std::size_t x = 0; x < n; ++x) {
      out[x] = least - t * std::log(own[x] + factor * (before + after[x + 1]));
      before += own[x];
    }
  }
};

struct DistanceCost {
  const double *weights, *ceilings;
  int power;

  double cost(std::size_t factor, std::size_t x, std::size_t y) const {
    const double gap = x > y ? static_cast<double>(x - y) : static_cast<double>(y - x);
    return std::min(weights[factor] * (power == 1 ? gap : gap * gap), ceilings[factor]);
  }

  void cross(std::size_t factor, const double* in, std::size_t n, double t, double* out,
             Scratch& scratch) const {
    if (t == 0 && power == 1) return cross_linear(factor, in, n, out);
    if (t == 0) return cross_quadratic(factor, in, n, out, scratch);
    double* costs = reserve(scratch, n);
    Pace pace;
    for (std::size_t x = 0; x < n; ++x) {
      pace.step(8 * n);
      for (std::size_t y = 0; y < n; ++y) costs[y] = in[y] + cost(factor, x, y);
      out[x] = soft_min(costs, n, t);
    }
  }

 private:
  // One pass in each direction: a state is at most one weight above its neighbors.
  void cross_linear(std::size_t factor, const double* in, std::size_t n, double* out) const {
    const double ceiling = *std::min_element(in, in + n) + ceilings[factor];
    std::copy_n(in, n, out);
    for (std::size_t x = 1; x < n; ++x) out[x] = std::min(out[x], out[x - 1] + weights[factor]);
    for (std::size_t x = n - 1; x-- > 0;) out[x] = std::min(out[x], out[x + 1] + weights[factor]);
    for (std::size_t x = 0; x < n; ++x) out[x] = std::min(out[x], ceiling);
  }

  // The lower envelope of parabolas (Felzenszwalb and Huttenlocher).
  void cross_quadratic(std::size_t factor, const double* in, std::size_t n, double* out,
                       Scratch& scratch) const {
    const double weight = weights[factor];
    const double least = *std::min_element(in, in + n), ceiling = least + ceilings[factor];
    if (weight == 0) {
      std::fill_n(out, n, least);
      return;
    }
    double* feet = reserve(scratch, 2 * n);  // of the parabolas of the envelope
    double* starts = feet + n;               // from where on each is the lowest
    std::size_t count = 0;
    for (std::size_t y = 0; y < n; ++y) {
      if (in[y] == forbidden) continue;
      const auto foot = static_cast<double>(y);
      double start = -forbidden;
      while (count > 0) {
        const double last = feet[count - 1], low = in[static_cast<std::size_t>(last)];
        start = ((in[y] - low) / weight + (foot * foot - last * last)) / (2 * (foot - last));
        if (start > starts[count - 1]) break;
        --count;
        start = -forbidden;
      }
      feet[count] = foot;
      starts[count++] = start;
    }
    for (std::size_t x = 0, at = 0; x < n; ++x) {
      if (count == 0) {
        out[x] = forbidden;
        continue;
      }
      const auto here = static_cast<double>(x);
      while (at + 1 < count && starts[at + 1] < here) ++at;
      const double gap = here - feet[at];
      out[x] = std::min(in[static_cast<std::size_t>(feet[at])] + weight * gap * gap, ceiling);
    }
  }
};

}  // namespace

std::unique_ptr<FactorGroup> table_factors(std::size_t n_factors, std::vector<std::size_t> sizes,
                                           const double* costs, bool shared, double temperature) {
  return std::make_unique<Tables>(n_factors, std::move(sizes), costs, shared, temperature);
}

std::unique_ptr<FactorGroup> potts_factors(std::size_t n_factors, std::size_t n_states,
                                           const double* weights) {
  return std::make_unique<Pairs<PottsCost>>(n_factors, n_states, PottsCost{weights});
}

std::unique_ptr<FactorGroup> distance_factors(std::size_t n_factors, std::size_t n_states,
                                              const double* weights, const double* ceilings,
                                              int power) {
  return std::make_unique<Pairs<DistanceCost>>(n_factors, n_states,
                                               DistanceCost{weights, ceilings, power});
}

}  // namespace crfield

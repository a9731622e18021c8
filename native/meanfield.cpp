#include "meanfield.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "cpu.hpp"
#include "interrupt.hpp"
#include "thread_pool.hpp"

namespace crfield {
namespace {

constexpr std::size_t grain = 512;
// Between two looks at whether the call is to stop. Sums are formed piece by piece, so the pieces of
// cheap ones are long.
constexpr std::size_t rows_per_check = 1 << 12, numbers_per_check = 1 << 24;

StepSums combine(const std::vector<StepSums>& parts) {
  StepSums sums;
  for (const auto& part : parts) {
    sums.negative_entropy += part.negative_entropy;
    sums.linear += part.linear;
    sums.change = std::max(sums.change, part.change);
  }
  return sums;
}

template <class T>
std::vector<T> pad_rows(const T* rows, std::size_t n_rows, int n_columns) {
  const auto stride = static_cast<std::size_t>(padded_columns<T>(n_columns));
  std::vector<T> padded(n_rows * stride, T(0));
  for (std::size_t r = 0; r < n_rows; ++r)
    std::copy_n(rows + r * n_columns, n_columns, padded.data() + r * stride);
  return padded;
}

// min q'log q + q'e - q'Mq / 2 over the simplex for one variable, M negative semidefinite, by Newton's
// method in log q: the step solves (diag(1/q) - M) d + lambda 1 = -gradient, 1'd = 0, scaled by
// sqrt(q) so that labels of vanishing probability do no harm, and q moves to q exp(t d / q).
class CoupledSolver {
 public:
  explicit CoupledSolver(int n)
      : n_(n), m(n * n), e(n), log_q(n), q(n), factor_(n * n), gradient_(n), with_gradient_(n),
        with_one_(n), trial_(n), trial_q_(n) {}

  void solve() {
    std::fill(log_q.begin(), log_q.end(), 0.0);  // far from the boundary, where Newton stalls
    double value = normalize(log_q, q);
    for (int iteration = 0; iteration < 100; ++iteration) {
      const double slope = find_direction();  // minus twice the decrease still to be had, in nats
      // One full step squares what is left; a label of no weight yet may still be about to grow.
      double growth = 0;
      for (int l = 0; l < n_; ++l) growth = std::max(growth, q[l] * std::exp(direction(l)) - q[l]);
      const bool last = slope > -1e-9 && growth < 1e-4;
      for (double t = 1;; t *= 0.5) {
        for (int l = 0; l < n_; ++l) trial_[l] = log_q[l] + t * direction(l);
        const double trial_value = normalize(trial_, trial_q_);
        if (last || trial_value <= value + 1e-4 * t * slope) {
          value = trial_value;
          break;
        }
        if (t < 1e-10) return;
      }
      log_q.swap(trial_);
      q.swap(trial_q_);
      if (last) return;
    }
  }

 private:
  // Makes exp(y) sum to one and returns the objective there.
  double normalize(std::vector<double>& y, std::vector<double>& p) const {
    const double most = *std::max_element(y.begin(), y.end());
    double total = 0;
    for (int l = 0; l < n_; ++l) total += std::exp(y[l] - most);
    const double log_total = std::log(total);
    double value = 0;
    for (int l = 0; l < n_; ++l) {
      y[l] = std::max((y[l] - most) - log_total, -1e30);  // in this order: `most` may be huge
      p[l] = std::exp(y[l]);
      value += p[l] * (y[l] + e[l]);
    }
    for (int a = 0; a < n_; ++a) value -= 0.5 * p[a] * product(a, p);
    return value;
  }
  double product(int row, const std::vector<double>& p) const {
    double sum = 0;
    for (int b = 0; b < n_; ++b) sum += m[row * n_ + b] * p[b];
    return sum;
  }
  double direction(int l) const { return -(with_gradient_[l] + multiplier_ * with_one_[l]); }

  // d / q, and the directional derivative of the objective along d.
  double find_direction() {
    for (int a = 0; a < n_; ++a) {
      gradient_[a] = log_q[a] + e[a] - product(a, q);
      for (int b = 0; b <= a; ++b)
        factor_[a * n_ + b] = (a == b) - std::sqrt(q[a] * q[b]) * m[a * n_ + b];
    }
    for (int a = 0; a < n_; ++a)  // Cholesky factor of I - D M D, D = diag(sqrt q)
      for (int b = 0; b <= a; ++b) {
        double sum = factor_[a * n_ + b];
        for (int k = 0; k < b; ++k) sum -= factor_[a * n_ + k] * factor_[b * n_ + k];
        factor_[a * n_ + b] = a == b ? std::sqrt(std::max(sum, 1e-12)) : sum / factor_[b * n_ + b];
      }
    solve_scaled(gradient_, with_gradient_);
    solve_scaled(std::vector<double>(n_, 1.0), with_one_);
    double g = 0, one = 0, slope = 0;
    for (int l = 0; l < n_; ++l) {
      g += q[l] * with_gradient_[l];
      one += q[l] * with_one_[l];
    }
    multiplier_ = -g / one;
    for (int l = 0; l < n_; ++l) slope += q[l] * gradient_[l] * direction(l);
    return slope;
  }
  // x = (I - M D^2)^-1 b, which is D^-1 (I - D M D)^-1 D b computed without dividing by sqrt(q):
  // x = b + M D (I - D M D)^-1 D b.
  void solve_scaled(const std::vector<double>& b, std::vector<double>& x) {
    std::vector<double>& y = scaled_;
    y.resize(n_);
    for (int a = 0; a < n_; ++a) {
      double sum = std::sqrt(q[a]) * b[a];
      for (int k = 0; k < a; ++k) sum -= factor_[a * n_ + k] * y[k];
      y[a] = sum / factor_[a * n_ + a];
    }
    for (int a = n_ - 1; a >= 0; --a) {
      double sum = y[a];
      for (int k = a + 1; k < n_; ++k) sum -= factor_[k * n_ + a] * y[k];
      y[a] = sum / factor_[a * n_ + a];
    }
    for (int a = 0; a < n_; ++a) y[a] *= std::sqrt(q[a]);
    for (int a = 0; a < n_; ++a) x[a] = b[a] + product(a, y);
  }

  int n_;

 public:
  std::vector<double> m, e, log_q, q;

 private:
  std::vector<double> factor_, gradient_, with_gradient_, with_one_, trial_, trial_q_, scaled_;
  double multiplier_ = 0;
};

template <class T>
StepSums update_coupled(const T* unary, const T* pairwise, const T* old, const UpdateTerms<T>& terms,
                        std::size_t begin, std::size_t end, int n, T* q) {
  CoupledSolver solver(n);
  StepSums sums;
  for (std::size_t i = begin; i < end; ++i) {
    check_interrupt();
    std::fill(solver.m.begin(), solver.m.end(), 0.0);
    for (int t = 0; t < terms.n_terms; ++t) {
      const double s = terms.shift[t] + (terms.strength[t] ? terms.strength[t][i] : T(0));
      const T* mu = terms.compatibility + static_cast<std::size_t>(t) * n * n;
      for (int k = 0; k < n * n; ++k) solver.m[k] += s * mu[k];
    }
    const std::size_t row = i * n;
    for (int a = 0; a < n; ++a) {
      solver.e[a] = static_cast<double>(unary[row + a]) + pairwise[row + a];
      for (int b = 0; b < n; ++b) solver.e[a] += solver.m[a * n + b] * old[row + b];
    }
    solver.solve();
    for (int a = 0; a < n; ++a) {
      sums.negative_entropy += solver.q[a] * solver.log_q[a];
      sums.linear += solver.q[a] * unary[row + a];
      sums.change = std::max(sums.change, std::abs(solver.q[a] - old[row + a]));
      q[row + a] = static_cast<T>(solver.q[a]);
    }
  }
  return sums;
}

}  // namespace

template <class T>
void add_message(Compatibility kind, const T* values, const T* x, const T* row_scale, T factor,
                 bool overwrite, std::size_t n_rows, int n_columns, int threads, T* out) {
  const std::size_t rows = kind == Compatibility::matrix ? n_columns : 1;
  const std::vector<T> padded = kind == Compatibility::potts ? std::vector<T>{values[0]}
                                                             : pad_rows(values, rows, n_columns);
  parallel_ranges(n_rows, threads, grain, [&](int, std::size_t begin, std::size_t end) {
    in_pieces(begin, end, rows_per_check, [&](std::size_t first, std::size_t last) {
      kernels<T>().message(kind, padded.data(), x, row_scale, factor, overwrite, first, last, n_rows,
                           n_columns, out);
    });
  });
}

template <class T>
double center_rows(const T* x, std::size_t n_rows, int n_columns, int threads, T* out) {
  std::vector<double> sums(threads, 0.0);
  parallel_ranges(n_rows, threads, grain, [&](int part, std::size_t begin, std::size_t end) {
    const std::size_t rows = std::max<std::size_t>(1, numbers_per_check / n_columns);
    in_pieces(begin, end, rows, [&](std::size_t first, std::size_t last) {
      sums[part] += kernels<T>().center(x, first, last, n_columns, out);
    });
  });
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

template <class T> double largest(const T* x, std::size_t size, int threads) {
  std::vector<double> parts(threads, 0.0);
  parallel_ranges(size, threads, 1 << 14, [&](int part, std::size_t begin, std::size_t end) {
    in_pieces(begin, end, numbers_per_check, [&](std::size_t first, std::size_t last) {
      const double found = kernels<T>().largest(x, first, last);
      if (!std::isnan(parts[part]) && !(found <= parts[part])) parts[part] = found;
    });
  });
  for (const double part : parts)
    if (std::isnan(part)) return part;
  return *std::max_element(parts.begin(), parts.end());
}

template <class T> double dot(const T* a, const T* b, std::size_t size, int threads) {
  std::vector<double> sums(threads, 0.0);
  parallel_ranges(size, threads, 1 << 14, [&](int part, std::size_t begin, std::size_t end) {
    in_pieces(begin, end, numbers_per_check, [&](std::size_t first, std::size_t last) {
      sums[part] += kernels<T>().dot(a, b, first, last);
    });
  });
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

template <class T>
StepSums update_marginals(const T* unary, const T* pairwise, const T* old, const UpdateTerms<T>& terms,
                          std::size_t n_rows, int n_columns, int threads, T* q) {
  std::vector<StepSums> parts(threads);
  if (terms.full && terms.n_terms > 0) {
    parallel_ranges(n_rows, threads, 16, [&](int part, std::size_t begin, std::size_t end) {
      parts[part] = update_coupled(unary, pairwise, old, terms, begin, end, n_columns, q);
    });
    return combine(parts);
  }
  const std::vector<T> attraction = pad_rows(terms.compatibility, terms.n_terms, n_columns);
  const StepInput<T> input{unary, pairwise, old, terms.strength, terms.shift, attraction.data(),
                           terms.n_terms, n_rows, n_columns};
  parallel_ranges(n_rows, threads, grain, [&](int part, std::size_t begin, std::size_t end) {
    std::vector<T> scratch(5 * static_cast<std::size_t>(padded_columns<T>(n_columns)));
    std::vector<StepSums> pieces;
    in_pieces(begin, end, 1 << 16, [&](std::size_t first, std::size_t last) {
      pieces.push_back(kernels<T>().step(input, first, last, scratch.data(), q));
    });
    parts[part] = combine(pieces);
  });
  return combine(parts);
}

#define CRFIELD_INSTANTIATE(T)                                                                     \
  template void add_message(Compatibility, const T*, const T*, const T*, T, bool, std::size_t, int, \
                            int, T*);                                                               \
  template double center_rows(const T*, std::size_t, int, int, T*);                                 \
  template double largest(const T*, std::size_t, int);                                             \
  template double dot(const T*, const T*, std::size_t, int);                                       \
  template StepSums update_marginals(const T*, const T*, const T*, const UpdateTerms<T>&,          \
                                     std::size_t, int, int, T*);
CRFIELD_INSTANTIATE(float)
CRFIELD_INSTANTIATE(double)
#undef CRFIELD_INSTANTIATE

}  // namespace crfield

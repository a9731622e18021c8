// The hot loops of inference on chains, compiled once per instruction set; all in double precision.
//
// A row has an entry for each of n states, padded to `stride` of them; a table has n rows.
#pragma once

#include <cstddef>
#include <cstdint>

namespace crfield {

constexpr int padded_states(int n) { return (n + 3) / 4 * 4; }

struct ChainKernels {
  // out[r, c] = exp(least[r] - factor x[r, c]), padding 0, with least[r] = min_c factor x[r, c], or the
  // minimum of all rows if `common`.
  void (*weigh_single)(const float* x, double factor, std::size_t n_rows, int n, bool common,
                       double* out, double* least);
  void (*weigh_double)(const double* x, double factor, std::size_t n_rows, int n, bool common,
                       double* out, double* least);
  // out = weights * (before' table), or weights at the start of a chain (before null), divided by its
  // sum, which is returned.
  double (*forward)(const double* before, const double* table, const double* weights, int n,
                    double* out);
  // beta = after' table, or 1 at the end of a chain (after null); q = alpha * beta and
  // pull = weights * beta / scale. Returns max beta.
  double (*backward)(const double* after, const double* table, const double* alpha,
                     const double* weights, double scale, int n, double* q, double* pull);
  // out[a] += sum_r x[r, a] y[r]
  void (*add_products)(const double* x, const double* y, std::size_t n_rows, int n, double* out);
  // out[j] = min_i before[i] + table[i, j] and the least such i
  void (*min_plus)(const double* before, const double* table, int n, double* out,
                   std::int32_t* choice);
  // out[j] = log sum_i exp(before[i] - table[i, j])
  void (*log_sum)(const double* before, const double* table, int n, double* out);

  void weigh(const float* x, double factor, std::size_t n_rows, int n, bool common, double* out,
             double* least) const {
    weigh_single(x, factor, n_rows, n, common, out, least);
  }
  void weigh(const double* x, double factor, std::size_t n_rows, int n, bool common, double* out,
             double* least) const {
    weigh_double(x, factor, n_rows, n, common, out, least);
  }
};

}  // namespace crfield

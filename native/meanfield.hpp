// The pieces of one mean-field iteration, threaded over variables.
#pragma once

#include <cstddef>

#include "kernels.hpp"

namespace crfield {

// out_i = (overwrite ? 0 : out_i) + factor row_scale_i mu x_i. `values` has 1, n_columns or n_columns^2
// numbers by kind.
template <class T>
void add_message(Compatibility kind, const T* values, const T* x, const T* row_scale, T factor,
                 bool overwrite, std::size_t n_rows, int n_columns, int threads, T* out);

// out_i = x_i - min_l x_il, which changes no distribution and keeps float32 exact near the minimum;
// returns the sum of the minima.
template <class T>
double center_rows(const T* x, std::size_t n_rows, int n_columns, int threads, T* out);

// max |x|, NaN if an entry is not finite.
template <class T> double largest(const T* x, std::size_t size, int threads);

template <class T> double dot(const T* a, const T* b, std::size_t size, int threads);

// The update of KK13 eq. 8 and 10 with self-pair strengths s_i^(m) = strength[m][i] + shift[m]:
//   log q_i - M_i q_i + lambda + e_i = 0,  1'q_i = 1,  e_i = u_i + p_i + M_i q_old_i,
// M_i = sum_m s_i^(m) mu^(m).
template <class T> struct UpdateTerms {
  const T* const* strength;  // n_terms pointers to (n_rows,), null for zeros
  const T* shift;            // (n_terms,)
  const T* compatibility;    // -mu_ll (n_terms, n_columns) or P mu P (n_terms, n_columns, n_columns)
  bool full;                 // which of the two
  int n_terms;               // 0: q = softmax(-u - p)
};

template <class T>
StepSums update_marginals(const T* unary, const T* pairwise, const T* old, const UpdateTerms<T>& terms,
                          std::size_t n_rows, int n_columns, int threads, T* q);

}  // namespace crfield

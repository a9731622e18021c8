// Mean-field inference on one image as fused passes over its points (slice, update, splat), for terms
// of the form K = S B S' (TableOperator).
#pragma once

#include <memory>
#include <vector>

#include "buffers.hpp"
#include "table_operator.hpp"

namespace crfield {

// One term w mu (x) diag(after) K diag(before). mu is -diag(attraction) up to a constant, or a matrix.
template <class T> struct PlanTerm {
  TableOperator<T>* kernel;
  const T* before;    // (n_points,), null: ones
  const T* after;     // (n_points,), null: ones
  const T* diagonal;  // (n_points,), diag(after) K diag(before)'s own, null where self-pairs stay
  std::vector<T> mu;  // n_labels or n_labels^2 numbers
  bool is_matrix;     // which of the two; mu has its sign: -attraction or the matrix
};

enum class Update : int { softmax = 0, convex_self = 1, without_self = 2 };

struct PlanSums {
  double free_energy = 0;        // sum q (log q + u)
  double self = 0;               // sum_i k_ii q_i' (-mu) q_i over terms with a diagonal
  double change = 0;             // max |q - old|
  std::vector<double> pair;      // of each term: sum_ij k_ij q_i' mu q_j
  std::vector<double> row_sums;  // of each term, only at the start: sum_ij k_ij
};

template <class T> class Plan {
 public:
  // unary: (n_points, n_labels), kept by reference like everything in the terms.
  Plan(const T* unary, std::size_t n_points, int n_labels, std::vector<PlanTerm<T>> terms,
       Update update, int threads);

  // The marginals that follow from state `from`, or softmax(-u) for from < 0, become state `to`: their
  // blurred tables are kept under that number. `old` are the marginals of `from`, needed by
  // Update::without_self and for the change; q is where the new ones go. Both may be null.
  PlanSums step(int from, int to, const T* old, T* q);

  // One step back from the marginals q of a state (softmax updates only): b follows from what the call
  // before left behind, or is given, and is added to `total` (n_points, n_labels). With `before` >= 0,
  // the number of the state before, b goes on to it and by_mu (terms, n_labels, n_labels) gains
  // sum_i b_i (K q_before)_i'; the start has none before it.
  void step_back(int before, const T* q, const T* given, bool first, T* total, double* by_mu);

  // From here on steps back also sum up the derivatives by the features of the terms that are wanted.
  void want_features(const std::vector<bool>& wanted);
  // Those of one term: by the features (n_points, n_features) with the scales held fixed, and own_i =
  // sum_l (u_il (K v)_il + v_il (K u)_il) of all summands u'Kv, which says how the scales matter.
  void feature_gradient(int term, T* gradient, T* own) const;

 private:
  struct State {
    // of each term: B' S' q, and that times mu where mu is a matrix
    std::vector<AlignedArray<T>> blurred, folded;
  };
  State& state(int number);
  void allocate(State& fresh);
  void finish(State& fresh, bool with_row_sums, PlanSums& sums);
  void blur_into(State& fresh, std::size_t m);
  // Calls body(part, begin, count, terms, scratch) for every run of points, with tables to slice from `from`
  // (null: none) and, if `splat`, tables to splat to, which end up summed in splatted_.
  template <class Body> void for_runs(const State* from, bool splat, Body&& body);
  const T* table(const State& state, std::size_t m) const {  // with mu, but for factors, in it
    return terms_[m].is_matrix ? state.folded[m].get() : state.blurred[m].get();
  }
  // What one run of a step back adds to the derivatives by the features.
  class Views;
  std::size_t view_line_size() const;

  const T* unary_;
  std::size_t n_points_;
  int n_labels_, threads_;
  std::vector<PlanTerm<T>> terms_;
  Update update_;
  std::size_t line_length_, run_length_;
  std::vector<std::vector<T>> factor_;  // of each term: gain * mu, padded; empty for a matrix
  std::vector<T> uniform_;              // of each term: its factor if all labels have the same, or 0
  std::vector<std::vector<T>> attraction_;
  std::vector<std::vector<T>> matrix_;  // of each term: gain * mu, padded rows and columns
  std::vector<State> states_;
  State back_[2];  // of b, by turns
  int back_turn_ = 0;
  std::vector<std::vector<AlignedArray<T>>> dots_;  // of each term and view, empty where not wanted
  std::vector<AlignedArray<T>> splatted_;  // of each term: S' q of the state being made
  BufferPool<T> buffers_;
};

}  // namespace crfield

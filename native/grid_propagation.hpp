// Belief propagation on a 4-connected grid whose pixels all have the same states.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "graph_kernels.hpp"

namespace crfield {

// The cost of states k and l at the ends of an edge is weight * table[k, l], or weight [k != l].
template <class T> struct GridEdges {
  const T* weights[2];  // to the right (rows, columns - 1), and downwards (rows - 1, columns); >= 0 for Potts
  const T* tables[2];   // (n_states, n_states) or null
};

template <class T> class GridPropagation {
 public:
  // costs (rows, columns, n_states)
  GridPropagation(std::size_t rows, std::size_t columns, int n_states, const T* costs,
                  const GridEdges<T>& edges, double temperature, int threads);

  // Goes on from the messages on another grid of the same size.
  void start_from(const GridPropagation& other);
  // One iteration of all edges at once. The largest change of a message before damping.
  double flood(double damping);
  // (rows, columns, n_states): marginals, or for temperature 0 costs above the least.
  void beliefs(T* out) const;
  // (edges, n_states, n_states), edges to the right first: marginals, or costs above the least.
  void edge_beliefs(T* out) const;
  // Labels (rows, columns) that no change of a single one makes better: the colors of a chessboard in turn,
  // each given the other, from the labels that are given on.
  void improve(std::int32_t* labels) const;
  // Bethe's approximation of t log Z.
  double log_partition() const;

 private:
  std::size_t at(std::size_t row, std::size_t column) const { return origin_ + row * stride_ + column; }
  void replace(std::size_t direction, std::size_t row, std::size_t first, std::size_t last,
               const T* sent);
  // What a pixel would send over an edge: its costs and all that comes in but from `without`.
  void gather(std::size_t pixel, int without, double* out) const;
  // The costs of all states of both ends of an edge, with all that comes in, (n_states, n_states); here
  // and there get what each end would send.
  void join_ends(std::size_t pixel, int axis, double* here, double* there, double* joint) const;
  double message_total(std::size_t pixel, int axis, double* scratch) const;

  std::size_t rows_, columns_, stride_, plane_, origin_;
  int n_states_;
  T temperature_;
  bool steep_ = false;
  int threads_;
  std::vector<T> costs_, tables_[2], weights_[2], leaks_[2];
  std::array<std::vector<T>, 4> in_;
};

}  // namespace crfield

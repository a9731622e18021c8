// Binary labels of least energy on grids and graphs, and many labels by moves between two of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "maxflow.hpp"
#include "maxflow_grid.hpp"
#include "maxflow_sparse.hpp"

namespace crfield {

// A batch of energies sum_p costs[p] y_p + sum_pq (forward y_p (1 - y_q) + backward (1 - y_p) y_q) of
// binary labels y, q = p + offset. Costs are (n_images, n_cells), the others (n_images, n_offsets,
// n_cells), indexed by p; what belongs to a q that is not on the grid is not read.
template <class T> struct GridCuts {
  GridShape shape;
  std::size_t n_images;
  const T* costs;
  const T* forward;
  const T* backward;
  bool shares_weights;  // one image's worth of `forward` and `backward` serves all
};

// Writes the labels (n_images, n_cells) of least energy, of several those with the fewest ones, and
// their energies (n_images).
template <class T>
void cut_grids(const GridCuts<T>& cuts, int threads, std::uint8_t* labels, double* energies);

// The same for the nodes and edges of one graph; returns the flow, the energy less the negative costs.
template <class T>
CapacitySum<T> cut_graph(const EdgeList& edges, const T* costs, const T* forward, const T* backward,
                         std::uint8_t* labels);

// The energy sum_p unary[p, x_p] + sum_pq weights[pq] mu[x_p, x_q] of labels x, by cells (n, n_labels)
// and edges; mu (n_labels, n_labels).
template <class T> struct LabelEnergy {
  std::size_t n_labels;
  const T* unary;
  const T* weights;
  const T* mu;
};

enum class Move { expansion, swap };

// Tries every move once, in the order of the labels, and keeps those that lower the energy. Changes
// `labels` in place and returns their energies before and after.
template <class T, class Shape>
std::pair<double, double> run_cycle(const Shape& shape, const LabelEnergy<T>& energy, Move move,
                                    std::int32_t* labels);

}  // namespace crfield

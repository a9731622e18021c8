// Python bindings of graph cuts.
#include <nanobind/stl/array.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "bindings_common.hpp"
#include "maxflow_cuts.hpp"

namespace crfield {

namespace {

using nb::literals::operator""_a;
using Triple = std::array<std::int32_t, 3>;
template <class T> using Planes = nb::ndarray<const T, nb::ndim<3>, nb::c_contig, nb::device::cpu>;

GridShape grid_shape(const Triple& size, const std::vector<Triple>& offsets) {
  for (const std::int32_t length : size) require(length >= 1, "the grid has no cells");
  for (const Triple& offset : offsets) {
    for (const std::int32_t step : offset)
      require(step >= -1 && step <= 1, "neighbors are one cell away along each axis");
    require(offset > Triple{0, 0, 0}, "offsets must be lexicographically positive");
  }
  return {size, offsets};
}

EdgeList edge_list(std::size_t n_nodes, const Matrix<std::int32_t>& edges) {
  constexpr std::size_t most = std::numeric_limits<std::int32_t>::max();
  require(n_nodes <= most && edges.shape(0) <= most / 2, "too many nodes or edges");
  require(edges.shape(1) == 2, "an edge has two ends");
  const EdgeList list{n_nodes, edges.shape(0), edges.data()};
  list.for_each_edge([&](std::size_t, std::size_t p, std::size_t q) {
    require(p < n_nodes && q < n_nodes && p != q, "an edge joins two different nodes");
  });
  return list;
}

template <class T> void bind_grid_cuts(nb::module_& m) {
  m.def("cut_grids",
        [](Matrix<T> costs, Planes<T> forward, Planes<T> backward, const Triple& size,
           const std::vector<Triple>& offsets, OutMatrix<std::uint8_t> labels,
           OutVector<double> energies, int threads) {
          require_threads(threads);
          const GridShape shape = grid_shape(size, offsets);
          const std::size_t n_images = costs.shape(0), n = shape.n_cells();
          require(costs.shape(1) == n, "costs has the wrong number of cells");
          for (const auto& weights : {forward, backward})
            require(weights.shape(0) == forward.shape(0) && weights.shape(1) == offsets.size() &&
                        weights.shape(2) == n,
                    "weights have the wrong shape");
          require(forward.shape(0) == 1 || forward.shape(0) == n_images, "weights for 1 or all images");
          require(labels.shape(0) == n_images && labels.shape(1) == n && energies.shape(0) == n_images,
                  "results have the wrong shape");
          const GridCuts<T> cuts{shape, n_images, costs.data(), forward.data(), backward.data(),
                                 forward.shape(0) == 1};
          const Released release;
          cut_grids<T>(cuts, threads, labels.data(), energies.data());
        },
        "costs"_a.noconvert(), "forward"_a.noconvert(), "backward"_a.noconvert(), "size"_a, "offsets"_a,
        "labels"_a.noconvert(), "energies"_a.noconvert(), "threads"_a);
}

template <class T> void bind_graph_cut(nb::module_& m) {
  m.def("cut_graph",
        [](Vector<T> costs, Matrix<std::int32_t> edges, Vector<T> forward, Vector<T> backward,
           OutVector<std::uint8_t> labels) {
          const EdgeList list = edge_list(costs.shape(0), edges);
          require(forward.shape(0) == list.count && backward.shape(0) == list.count,
                  "capacities have the wrong length");
          require(labels.shape(0) == list.n_nodes, "labels has the wrong length");
          const Released release;
          return cut_graph<T>(list, costs.data(), forward.data(), backward.data(), labels.data());
        },
        "costs"_a.noconvert(), "edges"_a.noconvert(), "forward"_a.noconvert(),
        "backward"_a.noconvert(), "labels"_a.noconvert());
}

// One cycle of moves on a grid or a graph; weights are by edge, for grids (n_offsets * n_cells).
template <class T, class Shape>
std::pair<double, double> cycle(const Shape& shape, const Matrix<T>& unary, const Vector<T>& weights,
                                const Matrix<T>& mu, bool swap, const OutVector<std::int32_t>& labels) {
  const std::size_t n = shape.n_cells(), n_labels = unary.shape(1);
  require(unary.shape(0) == n && labels.shape(0) == n, "unary and labels must have a row a cell");
  require(weights.shape(0) == shape.n_edges(), "weights has the wrong length");
  require(mu.shape(0) == n_labels && mu.shape(1) == n_labels, "mu has the wrong shape");
  for (std::size_t p = 0; p < n; ++p)
    require(labels(p) >= 0 && static_cast<std::size_t>(labels(p)) < n_labels, "labels out of range");
  const LabelEnergy<T> energy{n_labels, unary.data(), weights.data(), mu.data()};
  const Released release;
  return run_cycle(shape, energy, swap ? Move::swap : Move::expansion, labels.data());
}

template <class T> void bind_grid_cycle(nb::module_& m) {
  m.def("grid_cycle",
        [](Matrix<T> unary, Vector<T> weights, Matrix<T> mu, const Triple& size,
           const std::vector<Triple>& offsets, bool swap, OutVector<std::int32_t> labels) {
          return cycle<T>(grid_shape(size, offsets), unary, weights, mu, swap, labels);
        },
        "unary"_a.noconvert(), "weights"_a.noconvert(), "mu"_a.noconvert(), "size"_a, "offsets"_a,
        "swap"_a, "labels"_a.noconvert());
}

}  // namespace

void bind_graphcuts(nb::module_& m) {
  bind_grid_cuts<float>(m);
  bind_grid_cuts<double>(m);
  bind_grid_cuts<std::int32_t>(m);
  bind_grid_cuts<std::int64_t>(m);
  bind_graph_cut<double>(m);
  bind_graph_cut<std::int64_t>(m);
  bind_grid_cycle<float>(m);
  bind_grid_cycle<double>(m);
  m.def("graph_cycle",
        [](Matrix<double> unary, Vector<double> weights, Matrix<double> mu, Matrix<std::int32_t> edges,
           bool swap, OutVector<std::int32_t> labels) {
          return cycle<double>(edge_list(unary.shape(0), edges), unary, weights, mu, swap, labels);
        },
        "unary"_a.noconvert(), "weights"_a.noconvert(), "mu"_a.noconvert(), "edges"_a.noconvert(),
        "swap"_a, "labels"_a.noconvert());
}

}  // namespace crfield

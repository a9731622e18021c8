// Grids of two or three axes, each cell joined to its neighbors at given offsets.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <stdexcept>
#include <type_traits>
#include <vector>

#include "buffers.hpp"
#include "interrupt.hpp"
#include "maxflow.hpp"

namespace crfield {

struct GridShape {
  std::array<std::int32_t, 3> size;                  // slices (1 for an image), rows, columns
  std::vector<std::array<std::int32_t, 3>> offsets;  // half of the neighborhood: 2, 4, 3 or 13

  std::size_t n_cells() const { return index(size[0], 0, 0); }
  std::size_t index(std::int32_t slice, std::int32_t row, std::int32_t column) const {
    return (static_cast<std::size_t>(slice) * static_cast<std::size_t>(size[1]) +
            static_cast<std::size_t>(row)) * static_cast<std::size_t>(size[2]) +
           static_cast<std::size_t>(column);
  }
  // How far the neighbor at offset k is from its cell among all cells.
  std::ptrdiff_t step(std::size_t k) const {
    return (static_cast<std::ptrdiff_t>(offsets[k][0]) * size[1] + offsets[k][1]) * size[2] +
           offsets[k][2];
  }
  // Calls body(k, slice, row, first, last): the cells [first, last) of a row have a neighbor at offset k.
  template <class Body> void for_each_edge_row(Body&& body) const {
    Pace pace;
    for (std::int32_t z = 0; z < size[0]; ++z)
      for (std::int32_t y = 0; y < size[1]; ++y)
        for (std::size_t k = 0; k < offsets.size(); ++k) {
          pace.step(4 * static_cast<std::size_t>(size[2]));
          const auto [dz, dy, dx] = offsets[k];
          if (z + dz < 0 || z + dz >= size[0] || y + dy < 0 || y + dy >= size[1]) continue;
          const std::int32_t first = std::max(0, -dx), last = size[2] - std::max(0, dx);
          if (first < last) body(k, z, y, first, last);
        }
  }
  // Calls body(edge, p, q) for all pairs of neighbors; numbers of edges have gaps.
  template <class Body> void for_each_edge(Body&& body) const {
    const std::size_t n = n_cells();
    for_each_edge_row([&](std::size_t k, std::int32_t z, std::int32_t y, std::int32_t first,
                          std::int32_t last) {
      const std::size_t begin = index(z, y, first), end = index(z, y, last);
      const std::ptrdiff_t to = step(k);
      for (std::size_t p = begin; p < end; ++p)
        body(n * k + p, p, static_cast<std::size_t>(static_cast<std::ptrdiff_t>(p) + to));
    });
  }
  std::size_t n_edges() const { return n_cells() * offsets.size(); }
};

// The cells of a grid with what they may still send to each neighbor. Arc 2k leads along offset k, arc
// 2k + 1 against it. A border of cells that nothing leads to saves asking where the grid ends; the cell
// after a row is the border of the next row too.
template <class T, int n_arcs> class GridGraph {
 public:
  using Capacity = T;
  using Arc = std::int8_t;

  explicit GridGraph(const GridShape& shape) : shape_(shape) {
    row_ = shape.size[2] + 1;
    slice_ = static_cast<std::int64_t>(row_) * (shape.size[1] + 1);
    std::int64_t reach = 0;
    for (std::size_t k = 0; k < shape.offsets.size(); ++k) {
      const auto [dz, dy, dx] = shape.offsets[k];
      const std::int64_t step = dz * slice_ + dy * row_ + dx;
      step_[2 * k] = static_cast<NodeIndex>(step);
      step_[2 * k + 1] = static_cast<NodeIndex>(-step);
      reach = std::max(reach, std::abs(step));
    }
    const std::int64_t n = 2 * reach + slice_ * shape.size[0];
    if (n > std::numeric_limits<NodeIndex>::max()) throw std::length_error("too many cells");
    begin_ = static_cast<NodeIndex>(reach);
    n_nodes_ = static_cast<NodeIndex>(n);
    cells_ = new_aligned<Cell>(static_cast<std::size_t>(n));
  }

  NodeIndex n_nodes() const { return n_nodes_; }
  SearchState<Arc>& state(NodeIndex node) { return cells_[node].state; }
  T& terminal(NodeIndex node) { return cells_[node].terminal; }
  NodeIndex head(NodeIndex node, Arc arc) const { return node + step_[arc]; }
  T& out(NodeIndex node, Arc arc) { return cells_[node].residual[arc]; }
  T& in(NodeIndex node, Arc arc) { return cells_[head(node, arc)].residual[arc ^ 1]; }
  static Arc reverse(Arc arc) { return static_cast<Arc>(arc ^ 1); }
  template <class Visit> static void find_arc(NodeIndex, Visit&& visit) {
    for (int arc = 0; arc < n_arcs; ++arc)
      if (visit(static_cast<Arc>(arc))) return;
  }

  // Takes costs of label 1 by cell and capacities by edge: `forward` is what p sends to q.
  void load(const T* costs, const T* forward, const T* backward) {
    fill_in_pieces(cells_.get(), cells_.get() + n_nodes_, Cell{});
    for_each_row([&](NodeIndex node, std::size_t cell) {
      for (std::int32_t x = 0; x < shape_.size[2]; ++x)
        cells_[node + x].terminal = static_cast<T>(-costs[cell + static_cast<std::size_t>(x)]);
    });
    const std::size_t n = shape_.n_cells();
    shape_.for_each_edge_row([&](std::size_t k, std::int32_t z, std::int32_t y, std::int32_t first,
                                 std::int32_t last) {
      Cell* from = &cells_[index(z, y)];
      Cell* to = from + step_[2 * k];
      const std::size_t at = n * k + shape_.index(z, y, 0);
      for (std::int32_t x = first; x < last; ++x) {
        from[x].residual[2 * k] = forward[at + static_cast<std::size_t>(x)];
        to[x].residual[2 * k + 1] = backward[at + static_cast<std::size_t>(x)];
      }
    });
  }

  // 1 for the cells on the source's side.
  void store(std::uint8_t* labels) {
    for_each_row([&](NodeIndex node, std::size_t cell) {
      for (std::int32_t x = 0; x < shape_.size[2]; ++x)
        labels[cell + static_cast<std::size_t>(x)] = state(node + x).tree == Tree::source;
    });
  }

 private:
  struct Cell {
    T residual[n_arcs] = {};
    T terminal = 0;
    SearchState<Arc> state;
  };
  NodeIndex index(std::int32_t z, std::int32_t y) const {
    return static_cast<NodeIndex>(begin_ + z * slice_ + y * row_);
  }
  template <class Body> void for_each_row(Body&& body) const {
    Pace pace;
    for (std::int32_t z = 0; z < shape_.size[0]; ++z)
      for (std::int32_t y = 0; y < shape_.size[1]; ++y) {
        pace.step(4 * static_cast<std::size_t>(shape_.size[2]));
        body(index(z, y), shape_.index(z, y, 0));
      }
  }

  const GridShape& shape_;
  std::int64_t row_, slice_;
  NodeIndex begin_, n_nodes_;
  NodeIndex step_[n_arcs];
  AlignedArray<Cell> cells_;
};

// Calls body with the number of arcs of a cell as a constant.
template <class Body> void with_n_arcs(const GridShape& shape, Body&& body) {
  switch (shape.offsets.size()) {
    case 2: return body(std::integral_constant<int, 4>{});
    case 3: return body(std::integral_constant<int, 6>{});
    case 4: return body(std::integral_constant<int, 8>{});
    case 13: return body(std::integral_constant<int, 26>{});
    default: throw std::invalid_argument("a cell has 4, 6, 8 or 26 neighbors");
  }
}

}  // namespace crfield

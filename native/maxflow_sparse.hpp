// Graphs given by a list of edges.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "interrupt.hpp"
#include "maxflow.hpp"

namespace crfield {

struct EdgeList {
  std::size_t n_nodes, count;
  const std::int32_t* ends;  // (count, 2), two different nodes each

  std::size_t n_cells() const { return n_nodes; }
  std::size_t n_edges() const { return count; }
  // Calls body(edge, p, q) for all edges.
  template <class Body> void for_each_edge(Body&& body) const {
    Pace pace;
    for (std::size_t e = 0; e < count; ++e) {
      pace.step(8);
      body(e, static_cast<std::size_t>(ends[2 * e]), static_cast<std::size_t>(ends[2 * e + 1]));
    }
  }
};

// The arcs of each node side by side, two for each edge; an arc knows its place among all arcs.
template <class T> class SparseGraph {
 public:
  using Capacity = T;
  using Arc = std::int32_t;

  explicit SparseGraph(const EdgeList& edges)
      : nodes_(edges.n_nodes), first_(edges.n_nodes + 1), arcs_(2 * edges.count), arc_of_(edges.count) {
    edges.for_each_edge([&](std::size_t, std::size_t p, std::size_t q) {
      ++first_[p];
      ++first_[q];
    });
    Arc total = 0;
    for (Arc& first : first_) total += std::exchange(first, total);
    std::vector<Arc> next(first_.begin(), first_.end() - 1);
    edges.for_each_edge([&](std::size_t e, std::size_t p, std::size_t q) {
      const Arc there = next[p]++, back = next[q]++;
      arcs_[there] = {static_cast<NodeIndex>(q), back, 0};
      arcs_[back] = {static_cast<NodeIndex>(p), there, 0};
      arc_of_[e] = there;
    });
  }

  NodeIndex n_nodes() const { return static_cast<NodeIndex>(nodes_.size()); }
  SearchState<Arc>& state(NodeIndex node) { return nodes_[node].state; }
  T& terminal(NodeIndex node) { return nodes_[node].terminal; }
  NodeIndex head(NodeIndex, Arc arc) const { return arcs_[arc].head; }
  T& out(NodeIndex, Arc arc) { return arcs_[arc].residual; }
  T& in(NodeIndex, Arc arc) { return arcs_[arcs_[arc].reverse].residual; }
  Arc reverse(Arc arc) const { return arcs_[arc].reverse; }
  template <class Visit> void find_arc(NodeIndex node, Visit&& visit) const {
    for (Arc arc = first_[node]; arc < first_[node + 1]; ++arc)
      if (visit(arc)) return;
  }

  // Takes costs of label 1 by node and capacities by edge: `forward` is what p sends to q.
  void load(const T* costs, const T* forward, const T* backward) {
    for (std::size_t node = 0; node < nodes_.size(); ++node)
      nodes_[node].terminal = static_cast<T>(-costs[node]);
    Pace pace;
    for (std::size_t e = 0; e < arc_of_.size(); ++e) {
      pace.step(8);
      arcs_[arc_of_[e]].residual = forward[e];
      arcs_[arcs_[arc_of_[e]].reverse].residual = backward[e];
    }
  }

  // 1 for the nodes on the source's side.
  void store(std::uint8_t* labels) {
    for (std::size_t node = 0; node < nodes_.size(); ++node)
      labels[node] = nodes_[node].state.tree == Tree::source;
  }

 private:
  struct Node {
    SearchState<Arc> state;
    T terminal;
  };
  struct HalfEdge {
    NodeIndex head;
    Arc reverse;
    T residual;
  };
  std::vector<Node> nodes_;
  std::vector<Arc> first_;
  std::vector<HalfEdge> arcs_;
  std::vector<Arc> arc_of_;
};

}  // namespace crfield

// Maximum flow by Boykov and Kolmogorov's two search trees (PAMI 2004), on any kind of graph.
//
// A tree grows from the source and one from the sink; where they touch, flow is pushed along the path,
// and the branches that lose their support look for another one. Both trees live on from one path to
// the next, which is what makes the method fast on images.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "interrupt.hpp"

namespace crfield {

using NodeIndex = std::int32_t;

enum class Tree : std::uint8_t { none, source, sink };

// What the search keeps of a node. `parent` is the arc towards the parent, or one of the two below.
template <class Arc> struct SearchState {
  std::int32_t distance = 0;  // to the terminal along the tree, true as of `stamp`
  std::int32_t stamp = 0;
  Arc parent = 0;
  Tree tree = Tree::none;
  bool is_queued = false;
};
constexpr int from_terminal = -1;
constexpr int no_parent = -2;

template <class Capacity>
using CapacitySum = std::conditional_t<std::is_integral_v<Capacity>, std::int64_t, double>;

// A Graph has
//   Capacity, Arc, n_nodes();
//   state(node), its SearchState<Arc>; terminal(node), what it may still take from the source if
//   positive, give to the sink if negative;
//   find_arc(node, f), which calls f(arc) for the arcs of a node until one gives true; head(node, arc);
//   out(node, arc) and in(node, arc), residual capacities from and to the node; reverse(arc), the
//   same arc as seen from its head.
template <class Graph> class MaxFlow {
 public:
  using Capacity = typename Graph::Capacity;
  using Arc = typename Graph::Arc;
  using Sum = CapacitySum<Capacity>;

  // Flow that can be pushed through the graph, whose residual capacities are left behind. The nodes that
  // the source still reaches, the smallest source side of a minimal cut, then have the tree `source`.
  Sum run(Graph& graph) {
    graph_ = &graph;
    flow_ = 0;
    time_ = 0;
    push_directly();
    start();
    for (NodeIndex node; (node = pop()) >= 0;) {
      pace_.step(8);
      if (state(node).tree == Tree::source) grow<Tree::source>(node);
      else if (state(node).tree == Tree::sink) grow<Tree::sink>(node);
    }
    return flow_;
  }

 private:
  static constexpr std::int32_t last_time = std::numeric_limits<std::int32_t>::max() - 1;
  static constexpr std::int32_t unreachable = std::numeric_limits<std::int32_t>::max();

  SearchState<Arc>& state(NodeIndex node) { return graph_->state(node); }
  // Capacity left in the direction of flow between a node of the tree and its child, seen from each.
  template <Tree tree> Capacity& to_child(NodeIndex node, Arc arc) {
    return tree == Tree::source ? graph_->out(node, arc) : graph_->in(node, arc);
  }
  template <Tree tree> Capacity& to_parent(NodeIndex node, Arc arc) {
    return tree == Tree::source ? graph_->in(node, arc) : graph_->out(node, arc);
  }

  // Most of the flow of an image passes between neighbors and needs no search.
  void push_directly() {
    for (NodeIndex node = 0; node < graph_->n_nodes(); ++node) {
      pace_.step();
      Capacity& supply = graph_->terminal(node);
      if (!(supply > 0)) continue;
      graph_->find_arc(node, [&](Arc arc) {
        Capacity& demand = graph_->terminal(graph_->head(node, arc));
        Capacity& between = graph_->out(node, arc);
        if (!(demand < 0) || !(between > 0)) return false;
        const Capacity amount = std::min({supply, static_cast<Capacity>(-demand), between});
        flow_ += amount;
        supply -= amount;
        demand += amount;
        between -= amount;
        graph_->in(node, arc) += amount;
        return supply == 0;
      });
    }
  }

  void start() {
    const NodeIndex n = graph_->n_nodes();
    queue_.resize(static_cast<std::size_t>(n));
    first_ = n_queued_ = 0;
    for (NodeIndex node = 0; node < n; ++node) {
      pace_.step();
      SearchState<Arc>& own = state(node);
      const Capacity left = graph_->terminal(node);
      own = {};
      own.parent = no_parent;
      if (left == 0) continue;
      own.tree = left > 0 ? Tree::source : Tree::sink;
      own.parent = from_terminal;
      own.distance = 1;
      push(node);
    }
  }

  // Nodes from which a tree may still grow, first in, first out; each at most once.
  void push(NodeIndex node) {
    if (state(node).is_queued) return;
    state(node).is_queued = true;
    std::size_t at = first_ + n_queued_++;
    if (at >= queue_.size()) at -= queue_.size();
    queue_[at] = node;
  }
  NodeIndex pop() {
    if (n_queued_ == 0) return -1;
    const NodeIndex node = queue_[first_];
    if (++first_ == queue_.size()) first_ = 0;
    --n_queued_;
    state(node).is_queued = false;
    return node;
  }

  template <Tree tree> void grow(NodeIndex node) {
    SearchState<Arc>& own = state(node);
    graph_->find_arc(node, [&](Arc arc) {
      while (to_child<tree>(node, arc) > 0) {
        const NodeIndex other = graph_->head(node, arc);
        SearchState<Arc>& its = state(other);
        if (its.tree == Tree::none) {
          its.tree = tree;
          its.parent = graph_->reverse(arc);
          its.stamp = own.stamp;
          its.distance = own.distance + 1;
          push(other);
        } else if (its.tree != tree) {
          if constexpr (tree == Tree::source) augment(node, arc, other);
          else augment(other, graph_->reverse(arc), node);
          if (own.tree != tree) return true;
          continue;  // the arc may take more
        } else if (its.stamp <= own.stamp && its.distance > own.distance + 1) {
          // No ancestor of the node passes: an equal stamp means that its distance is smaller.
          its.parent = graph_->reverse(arc);
          its.stamp = own.stamp;
          its.distance = own.distance + 1;
        }
        break;
      }
      return false;
    });
  }

  // Pushes flow along source ... from -> to ... sink and finds new parents for who was cut off.
  void augment(NodeIndex from, Arc arc, NodeIndex to) {
    if (time_ == last_time) restart_time();
    pace_.step(4 * static_cast<std::size_t>(state(from).distance + state(to).distance));
    Capacity& between = graph_->out(from, arc);
    const Capacity most = std::min({between, room<Tree::source>(from), room<Tree::sink>(to)});
    flow_ += most;
    between -= most;
    graph_->in(from, arc) += most;
    orphans_.clear();
    push_flow<Tree::source>(from, most);
    push_flow<Tree::sink>(to, most);
    ++time_;
    for (std::size_t next = 0; next < orphans_.size(); ++next) {
      const NodeIndex orphan = orphans_[next];
      if (state(orphan).tree == Tree::source) adopt<Tree::source>(orphan);
      else adopt<Tree::sink>(orphan);
    }
  }

  template <Tree tree> Capacity room(NodeIndex node) {
    Capacity least = std::numeric_limits<Capacity>::max();
    for (Arc arc; (arc = state(node).parent) != from_terminal; node = graph_->head(node, arc))
      least = std::min(least, to_parent<tree>(node, arc));
    const Capacity left = graph_->terminal(node);
    return std::min(least, tree == Tree::source ? left : static_cast<Capacity>(-left));
  }

  template <Tree tree> void push_flow(NodeIndex node, Capacity amount) {
    for (Arc arc; (arc = state(node).parent) != from_terminal;) {
      Capacity& left = to_parent<tree>(node, arc);
      left -= amount;
      to_child<tree>(node, arc) += amount;
      const NodeIndex parent = graph_->head(node, arc);
      if (!(left > 0)) leave(node);
      node = parent;
    }
    Capacity& left = graph_->terminal(node);
    left -= tree == Tree::source ? amount : static_cast<Capacity>(-amount);
    if (left == 0) leave(node);
  }

  void leave(NodeIndex node) {
    state(node).parent = no_parent;
    orphans_.push_back(node);
  }

  // Gives the orphan the parent that is nearest to the terminal, or makes orphans of its children.
  template <Tree tree> void adopt(NodeIndex orphan) {
    SearchState<Arc>& own = state(orphan);
    std::int32_t nearest = unreachable;
    graph_->find_arc(orphan, [&](Arc arc) {
      if (!(to_parent<tree>(orphan, arc) > 0)) return false;
      const NodeIndex other = graph_->head(orphan, arc);
      if (state(other).tree != tree) return false;
      const std::int32_t distance = find_distance(other);
      if (distance < nearest) {
        nearest = distance;
        own.parent = arc;
      }
      return false;
    });
    if (nearest != unreachable) {
      own.stamp = time_;
      own.distance = nearest + 1;
      return;
    }
    own.tree = Tree::none;
    graph_->find_arc(orphan, [&](Arc arc) {
      const NodeIndex other = graph_->head(orphan, arc);
      SearchState<Arc>& its = state(other);
      if (its.tree != tree) return false;
      if (to_parent<tree>(orphan, arc) > 0) push(other);
      if (its.parent >= 0 && graph_->head(other, its.parent) == orphan) leave(other);
      return false;
    });
  }

  // The length of the path to the terminal, which is noted in the nodes on it, or `unreachable`.
  std::int32_t find_distance(NodeIndex node) {
    std::int32_t distance = 0;
    NodeIndex end = node;
    for (;; end = graph_->head(end, state(end).parent), ++distance) {
      SearchState<Arc>& its = state(end);
      if (its.stamp == time_) {
        distance += its.distance;
        break;
      }
      if (its.parent == no_parent) return unreachable;
      if (its.parent == from_terminal) {
        its.stamp = time_;
        its.distance = 1;
        ++distance;
        break;
      }
    }
    pace_.step(4 * static_cast<std::size_t>(distance));
    std::int32_t left = distance;
    for (; node != end; node = graph_->head(node, state(node).parent)) {
      state(node).stamp = time_;
      state(node).distance = left--;
    }
    return distance;
  }

  // Starts counting again, with distances that are true now; there must be no orphan.
  void restart_time() {
    const NodeIndex n = graph_->n_nodes();
    for (NodeIndex node = 0; node < n; ++node) state(node).stamp = 0;
    time_ = 1;
    for (NodeIndex node = 0; node < n; ++node)
      if (state(node).tree != Tree::none) find_distance(node);
  }

  Graph* graph_ = nullptr;
  Pace pace_;
  Sum flow_ = 0;
  std::int32_t time_ = 0;
  std::vector<NodeIndex> queue_;  // a ring
  std::size_t first_ = 0, n_queued_ = 0;
  std::vector<NodeIndex> orphans_;
};

}  // namespace crfield

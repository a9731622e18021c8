// Moves of Boykov, Veksler and Zabih (PAMI 2001). Each is a choice between two labels at every cell:
// the present one or alpha for an expansion, alpha or beta where the present label is one of them for a
// swap.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "interrupt.hpp"
#include "maxflow_cuts.hpp"
#include "thread_pool.hpp"

namespace crfield {
namespace {

template <class T, class Shape, class Graph> class Mover {
 public:
  Mover(const Shape& shape, const LabelEnergy<T>& energy, std::int32_t* labels)
      : shape_(shape), energy_(energy), labels_(labels), graph_(shape), costs_(shape.n_cells()),
        pairs_(shape.n_edges()), zero_(shape.n_cells()), one_(shape.n_cells()),
        choice_(shape.n_cells()), current_(total(labels)) {}

  double energy() const { return current_; }

  void expand_all() {
    for (std::int32_t alpha = 0; alpha < n_labels(); ++alpha) {
      std::copy_n(labels_, zero_.size(), zero_.begin());
      std::fill(one_.begin(), one_.end(), alpha);
      choose();
    }
  }

  void swap_all() {
    for (std::int32_t alpha = 0; alpha < n_labels(); ++alpha)
      for (std::int32_t beta = alpha + 1; beta < n_labels(); ++beta) {
        check_interrupt();
        bool is_present = false;
        for (std::size_t p = 0; p < zero_.size(); ++p) {
          const bool takes_part = labels_[p] == alpha || labels_[p] == beta;
          zero_[p] = takes_part ? alpha : labels_[p];
          one_[p] = takes_part ? beta : labels_[p];
          is_present |= takes_part;
        }
        if (is_present) choose();
      }
  }

 private:
  std::int32_t n_labels() const { return static_cast<std::int32_t>(energy_.n_labels); }
  T unary(std::size_t p, std::int32_t label) const {
    return energy_.unary[p * energy_.n_labels + static_cast<std::size_t>(label)];
  }
  T mu(std::int32_t a, std::int32_t b) const {
    return energy_.mu[static_cast<std::size_t>(a) * energy_.n_labels + static_cast<std::size_t>(b)];
  }

  double total(const std::int32_t* labels) const {
    check_interrupt();
    double sum = 0;
    for (std::size_t p = 0; p < costs_.size(); ++p) sum += unary(p, labels[p]);
    shape_.for_each_edge([&](std::size_t edge, std::size_t p, std::size_t q) {
      sum += static_cast<double>(energy_.weights[edge]) * mu(labels[p], labels[q]);
    });
    return sum;
  }

  // Takes the best of all labelings with labels from `zero_` and `one_` if it is better.
  void choose() {
    check_interrupt();
    for (std::size_t p = 0; p < costs_.size(); ++p) costs_[p] = unary(p, one_[p]) - unary(p, zero_[p]);
    shape_.for_each_edge([&](std::size_t edge, std::size_t p, std::size_t q) {
      // The table of a pair is a constant, a cost of each end, and half of what equal choices save.
      const T none = mu(zero_[p], zero_[q]), first = mu(one_[p], zero_[q]);
      const T second = mu(zero_[p], one_[q]), both = mu(one_[p], one_[q]);
      const T weight = energy_.weights[edge];
      const T pair = std::max(T(0), (first + second - none - both) / 2);
      pairs_[edge] = weight * pair;
      costs_[p] += weight * (first - none - pair);
      costs_[q] += weight * (second - none - pair);
    });
    graph_.load(costs_.data(), pairs_.data(), pairs_.data());
    flow_.run(graph_);
    graph_.store(choice_.data());
    for (std::size_t p = 0; p < zero_.size(); ++p)
      if (choice_[p]) zero_[p] = one_[p];
    const double found = total(zero_.data());
    if (found < current_) {
      std::copy(zero_.begin(), zero_.end(), labels_);
      current_ = found;
    }
  }

  const Shape& shape_;
  const LabelEnergy<T>& energy_;
  std::int32_t* labels_;
  Graph graph_;
  MaxFlow<Graph> flow_;
  std::vector<T> costs_, pairs_;
  std::vector<std::int32_t> zero_, one_;
  std::vector<std::uint8_t> choice_;
  double current_;
};

template <class Graph, class T, class Shape>
std::pair<double, double> run_moves(const Shape& shape, const LabelEnergy<T>& energy, Move move,
                                    std::int32_t* labels) {
  std::pair<double, double> energies;
  run_parts(1, [&](int) {
    Mover<T, Shape, Graph> mover(shape, energy, labels);
    energies.first = mover.energy();
    if (move == Move::expansion) mover.expand_all();
    else mover.swap_all();
    energies.second = mover.energy();
  });
  return energies;
}

}  // namespace

template <class T, class Shape>
std::pair<double, double> run_cycle(const Shape& shape, const LabelEnergy<T>& energy, Move move,
                                    std::int32_t* labels) {
  if constexpr (std::is_same_v<Shape, EdgeList>) {
    return run_moves<SparseGraph<T>>(shape, energy, move, labels);
  } else {
    std::pair<double, double> energies;
    with_n_arcs(shape, [&](auto n_arcs) {
      energies = run_moves<GridGraph<T, n_arcs.value>>(shape, energy, move, labels);
    });
    return energies;
  }
}

template std::pair<double, double> run_cycle(const GridShape&, const LabelEnergy<float>&, Move,
                                             std::int32_t*);
template std::pair<double, double> run_cycle(const GridShape&, const LabelEnergy<double>&, Move,
                                             std::int32_t*);
template std::pair<double, double> run_cycle(const EdgeList&, const LabelEnergy<double>&, Move,
                                             std::int32_t*);

}  // namespace crfield

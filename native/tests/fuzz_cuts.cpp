// Maximum flow on grids and graphs, and moves.
#include "fuzz_input.hpp"
#include "maxflow_cuts.hpp"

namespace {

using namespace crfield;
using fuzz::Input;

GridShape shape_of(Input& input) {
  switch (input.between(0, 2)) {
    case 0: return {{1, input.between(1, 14), input.between(1, 14)}, {{0, 0, 1}, {0, 1, 0}}};
    case 1: return {{1, input.between(1, 14), input.between(1, 14)},
                    {{0, 0, 1}, {0, 1, 0}, {0, 1, 1}, {0, 1, -1}}};
    default: return {{input.between(1, 6), input.between(1, 6), input.between(1, 6)},
                     {{0, 0, 1}, {0, 1, 0}, {1, 0, 0}}};
  }
}

template <class T> void cut_grid(Input& input) {
  const GridShape shape = shape_of(input);
  const std::size_t n = shape.n_cells(), n_images = input.between(1, 3);
  const bool shares = input.flag();
  const auto costs = input.numbers<T>(n_images * n, 1e5);
  const std::size_t n_weights = (shares ? 1 : n_images) * shape.n_edges();
  const auto forward = input.positives<T>(n_weights, 1e5), backward = input.positives<T>(n_weights, 1e5);
  std::vector<std::uint8_t> labels(n_images * n, 7);
  std::vector<double> energies(n_images);
  cut_grids<T>({shape, n_images, costs.data(), forward.data(), backward.data(), shares}, input.threads(),
               labels.data(), energies.data());
  fuzz::require_below(labels, 2, "labels of a cut");
  for (const double energy : energies) fuzz::require(energy <= 1e-2, "a cut is no worse than none");
}

template <class T> EdgeList edges_of(Input& input, int n, std::vector<std::int32_t>& ends) {
  for (int edge = input.between(0, 80); edge-- > 0;) {
    const int p = input.between(0, n - 1), q = input.between(0, n - 2);
    ends.push_back(p);
    ends.push_back(q < p ? q : q + 1);
  }
  return {static_cast<std::size_t>(n), ends.size() / 2, ends.data()};
}

template <class T> void cut_any(Input& input) {
  const int n = input.between(2, 40);
  std::vector<std::int32_t> ends;
  const EdgeList list = edges_of<T>(input, n, ends);
  const auto costs = input.numbers<T>(n, 1e5);
  const auto forward = input.positives<T>(list.count, 1e5), backward = input.positives<T>(list.count, 1e5);
  std::vector<std::uint8_t> labels(n, 7);
  cut_graph<T>(list, costs.data(), forward.data(), backward.data(), labels.data());
  fuzz::require_below(labels, 2, "labels of a cut");
}

template <class T, class Shape> void move(const Shape& shape, Input& input) {
  const int n_labels = input.between(1, 6);
  const auto unary = input.numbers<T>(shape.n_cells() * n_labels, 1e3);
  const auto weights = input.positives<T>(shape.n_edges(), 1e3), mu = input.positives<T>(n_labels * n_labels, 10);
  auto labels = input.labels(shape.n_cells(), n_labels);
  const auto [before, after] =
      run_cycle(shape, LabelEnergy<T>{static_cast<std::size_t>(n_labels), unary.data(), weights.data(), mu.data()},
                input.flag() ? Move::swap : Move::expansion, labels.data());
  fuzz::require_below(labels, n_labels, "labels of moves");
  fuzz::require(after <= before, "moves do not raise the energy");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input(data, size);
  std::vector<std::int32_t> ends;
  switch (input.between(0, 7)) {
    case 0: cut_grid<float>(input); break;
    case 1: cut_grid<double>(input); break;
    case 2: cut_grid<std::int32_t>(input); break;
    case 3: cut_grid<std::int64_t>(input); break;
    case 4: cut_any<double>(input); break;
    case 5: cut_any<std::int64_t>(input); break;
    case 6: move<float>(shape_of(input), input); break;
    default: move<double>(edges_of<double>(input, input.between(2, 30), ends), input);
  }
  return 0;
}

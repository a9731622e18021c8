#include "maxflow_cuts.hpp"

#include <algorithm>
#include <atomic>

#include "thread_pool.hpp"

namespace crfield {
namespace {

template <class T>
CapacitySum<T> binary_energy(const GridShape& shape, const T* costs, const T* forward,
                             const T* backward, const std::uint8_t* labels) {
  using Sum = CapacitySum<T>;
  Sum total = 0;
  for (std::size_t cell = 0; cell < shape.n_cells(); ++cell)
    if (labels[cell]) total += static_cast<Sum>(costs[cell]);
  shape.for_each_edge([&](std::size_t edge, std::size_t p, std::size_t q) {
    if (labels[p] != labels[q]) total += static_cast<Sum>((labels[p] ? forward : backward)[edge]);
  });
  return total;
}

}  // namespace

template <class T>
void cut_grids(const GridCuts<T>& cuts, int threads, std::uint8_t* labels, double* energies) {
  const std::size_t n = cuts.shape.n_cells();
  const std::size_t per_image = cuts.shares_weights ? 0 : cuts.shape.n_edges();
  const auto n_parts = static_cast<int>(std::min(static_cast<std::size_t>(threads), cuts.n_images));
  std::atomic<std::size_t> next{0};
  with_n_arcs(cuts.shape, [&](auto n_arcs) {
    using Graph = GridGraph<T, n_arcs.value>;
    run_parts(n_parts, [&](int) {
      Graph graph(cuts.shape);
      MaxFlow<Graph> flow;
      for (std::size_t image; (image = next.fetch_add(1)) < cuts.n_images;) {
        const T* costs = cuts.costs + image * n;
        const T* forward = cuts.forward + image * per_image;
        const T* backward = cuts.backward + image * per_image;
        graph.load(costs, forward, backward);
        flow.run(graph);
        graph.store(labels + image * n);
        energies[image] = static_cast<double>(
            binary_energy(cuts.shape, costs, forward, backward, labels + image * n));
      }
    });
  });
}

template <class T>
CapacitySum<T> cut_graph(const EdgeList& edges, const T* costs, const T* forward, const T* backward,
                         std::uint8_t* labels) {
  SparseGraph<T> graph(edges);
  graph.load(costs, forward, backward);
  const CapacitySum<T> flow = MaxFlow<SparseGraph<T>>().run(graph);
  graph.store(labels);
  return flow;
}

#define CRFIELD_INSTANTIATE(T) \
  template void cut_grids(const GridCuts<T>&, int, std::uint8_t*, double*)
CRFIELD_INSTANTIATE(float);
CRFIELD_INSTANTIATE(double);
CRFIELD_INSTANTIATE(std::int32_t);
CRFIELD_INSTANTIATE(std::int64_t);
#undef CRFIELD_INSTANTIATE
template CapacitySum<double> cut_graph(const EdgeList&, const double*, const double*, const double*,
                                       std::uint8_t*);
template CapacitySum<std::int64_t> cut_graph(const EdgeList&, const std::int64_t*, const std::int64_t*,
                                             const std::int64_t*, std::uint8_t*);

}  // namespace crfield

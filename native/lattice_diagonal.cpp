// The diagonal of the lattice's operator, exactly, and its derivative by the features.
#include <algorithm>
#include <bit>

#include "lattice.hpp"
#include "thread_pool.hpp"

namespace crfield {

// The vertex reached from `start` by one step (forward or backward) along each axis of `axes` in
// increasing order; 0 if a vertex on the way is not occupied.
template <class T>
std::int32_t Lattice<T>::walk(std::int32_t start, std::uint32_t axes, bool forward) const {
  for (; axes != 0 && start != 0; axes &= axes - 1) {
    const auto axis = static_cast<std::size_t>(std::countr_zero(axes));
    start = neighbour_[(axis * (n_vertices_ + 1) + start) * 2 + forward];
  }
  return start;
}

// gram[a, b] = blur from vertex a to vertex b of one simplex. Vertex c + 1 (cyclically) lies one step
// forward of vertex c along one axis, and one step along every axis returns to the start. So b is
// reached from a in two ways: forward along the axes from a to b, or backward along all the others;
// and a from itself in three: not moving, or once along every axis, forward or backward. The reversed
// order of the axes gives the transpose, so only the quadratic form of one order is needed.
template <class T>
void Lattice<T>::simplex_gram(const std::int32_t* vertex, double* gram) const {
  const int corners = dim_ + 1;
  const std::uint32_t all = (1u << corners) - 1;
  std::uint32_t axis_after[max_lattice_dim + 1];  // bit of the axis from vertex c to c + 1
  std::uint32_t seen = 0;
  for (int c = 0; c < dim_; ++c) {
    int axis = 0;
    while (walk(vertex[c], 1u << axis, true) != vertex[c + 1]) ++axis;
    axis_after[c] = 1u << axis;
    seen |= axis_after[c];
  }
  axis_after[dim_] = all & ~seen;
  const auto path = [&](int a, std::uint32_t axes, bool forward) {
    // 1/4 a step, 1/2 an axis not moved along
    return walk(vertex[a], axes, forward) ? 1.0 / (1ull << (corners + std::popcount(axes))) : 0.0;
  };
  for (int a = 0; a < corners; ++a) {
    gram[a * corners + a] = path(a, 0, true) + path(a, all, true) + path(a, all, false);
    std::uint32_t between = 0;
    for (int k = 1; k < corners; ++k) {
      between |= axis_after[(a + k - 1) % corners];
      gram[a * corners + (a + k) % corners] = path(a, between, true) + path(a, all & ~between, false);
    }
  }
}

template <class T>
template <class Body>
void Lattice<T>::for_each_gram(int threads, Body&& body) const {
  const std::size_t corners = dim_ + 1, n_cached = 8192;
  parallel_ranges(n_points_, threads, 256, [&](int, std::size_t begin, std::size_t end) {
    // Many points share a simplex: remember the latest ones, by a hash of their vertices.
    std::vector<const std::int32_t*> owner(n_cached, nullptr);
    std::vector<double> grams(n_cached * corners * corners);
    for (std::size_t i = begin; i < end; ++i) {
      const std::int32_t* vertex = &vertex_[i * corners];
      std::uint64_t hash = 0;
      for (std::size_t c = 0; c < corners; ++c)
        hash = (hash ^ static_cast<std::uint64_t>(vertex[c])) * 0x9E3779B97F4A7C15ull;
      const std::size_t slot = (hash >> 40) % n_cached;
      double* gram = &grams[slot * corners * corners];
      if (!owner[slot] || !std::equal(vertex, vertex + corners, owner[slot]))
        simplex_gram(vertex, gram);
      owner[slot] = vertex;
      body(i, gram);
    }
  });
}

template <class T> void Lattice<T>::diagonal(int threads, T* out) const {
  const std::size_t corners = dim_ + 1;
  for_each_gram(threads, [&](std::size_t i, const double* gram) {
    double sum = 0;
    for (std::size_t a = 0; a < corners; ++a)
      for (std::size_t b = 0; b < corners; ++b)
        sum += static_cast<double>(weight_[i * corners + a]) * gram[a * corners + b] *
               static_cast<double>(weight_[i * corners + b]);
    out[i] = static_cast<T>(sum);
  });
}

template <class T>
void Lattice<T>::diagonal_gradient(const T* s, int threads, T* gradient) const {
  const std::size_t corners = dim_ + 1;
  for_each_gram(threads, [&](std::size_t i, const double* gram) {
    double by_weight[max_lattice_dim + 1] = {};
    for (std::size_t a = 0; a < corners; ++a)
      for (std::size_t b = 0; b < corners; ++b)
        by_weight[a] += static_cast<double>(s[i]) * (gram[a * corners + b] + gram[b * corners + a]) *
                        static_cast<double>(weight_[i * corners + b]);
    chain_to_features(i, by_weight, gradient + i * dim_);
  });
}

template void Lattice<float>::diagonal(int, float*) const;
template void Lattice<float>::diagonal_gradient(const float*, int, float*) const;
template void Lattice<double>::diagonal(int, double*) const;
template void Lattice<double>::diagonal_gradient(const double*, int, double*) const;

}  // namespace crfield

// The diagonal of the lattice's operator, exactly, and its derivative by the features.
#include <algorithm>
#include <array>
#include <bit>
#include <vector>

#include "interrupt.hpp"
#include "lattice.hpp"
#include "thread_pool.hpp"

namespace crfield {

// The vertex reached from `start` by one step (forward or backward) along each axis of `axes` in
// increasing order; 0 if a vertex on the way is not occupied.
template <class T>
std::int32_t Lattice<T>::walk(std::int32_t start, std::uint32_t axes, bool forward) const {
  for (; axes != 0 && start != 0; axes &= axes - 1) {
    const auto axis = static_cast<std::size_t>(std::countr_zero(axes));
    start = neighbor_[(axis * (n_vertices_ + 1) + start) * 2 + forward];
  }
  return start;
}

// For each vertex the sets of axes that `walk` can take from it, as bits: set s is bit s. With the axes
// from k on, those without k can be taken as with the axes from k + 1 on, and those with k where the
// neighbor along k can go on; adding axis k to set s makes it set s + 2^k.
template <class T> auto Lattice<T>::list_walks(int threads) const -> std::vector<Walks> {
  std::vector<Walks> walks, longer;
  resize_in_pieces(walks, n_vertices_ + 1, Walks{1, 1});
  resize_in_pieces(longer, n_vertices_ + 1, Walks{0, 0});
  walks[0] = longer[0] = {0, 0};
  for (int axis = dim_; axis >= 0; --axis) {
    const std::int32_t* pairs = &neighbor_[static_cast<std::size_t>(axis) * (n_vertices_ + 1) * 2];
    parallel_ranges(n_vertices_, threads, 4096, [&](int, std::size_t begin, std::size_t end) {
      in_pieces(begin + 1, end + 1, 1 << 12, [&](std::size_t first, std::size_t last) {
        for (std::size_t v = first; v < last; ++v)
          longer[v] = {walks[v].forward | walks[pairs[2 * v + 1]].forward << (1 << axis),
                       walks[v].backward | walks[pairs[2 * v]].backward << (1 << axis)};
      });
    });
    walks.swap(longer);
  }
  return walks;
}

// gram[a, b] = blur from vertex a to vertex b of point i's simplex, made symmetric. Vertex c + 1
// (cyclically) lies one step forward of vertex c along one axis, and one step along every axis returns
// to the start. So b is reached from a in two ways: forward along the axes from a to b, or backward
// along all the others; and a from itself in three: not moving, or once along every axis, forward or
// backward. The reversed order of the axes gives the transpose, so only the quadratic form of one order
// is needed.
template <class T> void Lattice<T>::simplex_gram(std::size_t i, T* gram) const {
  const int corners = dim_ + 1;
  const std::int32_t* vertex = &vertex_[i * corners];
  const std::uint32_t all = (1u << corners) - 1;
  std::uint32_t axis_after[max_lattice_dim + 1];  // bit of the axis from vertex c to c + 1
  for (int j = 0; j < corners; ++j) axis_after[dim_ - rank(i, j)] = 1u << j;
  const auto can_walk = [&](std::int32_t start, std::uint32_t axes, bool forward) {
    return walk(start, axes, forward) != 0;
  };
  T gain[max_lattice_dim + 2];  // for each number of steps: 1/4 per step, 1/2 per axis not moved along
  for (int steps = 0; steps <= corners; ++steps)
    gain[steps] = T(1.0 / static_cast<double>(1ull << (corners + steps)));
  std::fill_n(gram, corners * corners, T(0));
  for (int a = 0; a < corners; ++a) {
    gram[a * corners + a] += gain[0] + (can_walk(vertex[a], all, true) ? gain[corners] : T(0)) +
                             (can_walk(vertex[a], all, false) ? gain[corners] : T(0));
    std::uint32_t between = 0;
    for (int k = 1, b = a; k < corners; ++k) {
      between |= axis_after[b];
      b = b + 1 < corners ? b + 1 : 0;
      const T half = T(0.5) * ((can_walk(vertex[a], between, true) ? gain[k] : T(0)) +
                               (can_walk(vertex[a], all & ~between, false) ? gain[corners - k] : T(0)));
      gram[a * corners + b] += half;
      gram[b * corners + a] += half;
    }
  }
}

// The same where walks are listed, for a number of corners known at compile time. With P_c the axes from
// vertex 0 to c and D = P_a ^ P_b for a < b, b lies forward of a along D and a forward of b along the
// other axes.
template <class T>
template <int Corners>
void Lattice<T>::listed_gram(std::size_t i, const Walks* walks, T* gram) const {
  constexpr std::uint32_t all = (1u << Corners) - 1;
  constexpr T stay = T(1) / T(1 << Corners);
  const std::int32_t* vertex = &vertex_[i * Corners];
  std::uint32_t axis_after[Corners], until[Corners] = {};
  for (int j = 0; j < Corners; ++j) axis_after[Corners - 1 - rank(i, j)] = 1u << j;
  Walks of[Corners];
  for (int c = 0; c < Corners; ++c) {
    of[c] = walks[vertex[c]];
    if (c > 0) until[c] = until[c - 1] | axis_after[c - 1];
  }
  // How many of two walks exist, as an index; converting it to a number would take longer.
  const auto both = [](std::uint64_t x, std::uint64_t y, std::uint32_t axes) {
    return (x >> axes & 1) + (y >> axes & 1);
  };
  // Of so many steps, for none, one or two such walks.
  static constexpr auto gain = [] {
    std::array<std::array<T, 3>, Corners + 1> found{};
    for (int steps = 0; steps <= Corners; ++steps)
      for (int taken = 0; taken < 3; ++taken)
        found[steps][taken] = T(taken) / T(1 << (Corners + steps));
    return found;
  }();
  for (int a = 0; a < Corners; ++a) {
    gram[a * Corners + a] = stay + gain[Corners][both(of[a].forward, of[a].backward, all)];
    for (int b = a + 1; b < Corners; ++b) {
      const std::uint32_t between = until[a] ^ until[b];
      gram[a * Corners + b] = gram[b * Corners + a] =
          T(0.5) * (gain[b - a][both(of[a].forward, of[b].backward, between)] +
                    gain[Corners - (b - a)][both(of[a].backward, of[b].forward, all ^ between)]);
    }
  }
}

template <class T>
template <int Corners, class Body>
void Lattice<T>::for_each_listed_gram(int threads, Body&& body) const {
  const std::vector<Walks> walks = list_walks(threads);
  // Neighboring points share simplices: the latest are remembered by their first vertex and ranks.
  struct Known {
    std::int32_t vertex = 0;
    std::uint64_t ranks = 0;
    T gram[Corners * Corners];
  };
  constexpr std::size_t n_known = 2048;
  parallel_ranges(n_points_, threads, 256, [&](int, std::size_t begin, std::size_t end) {
    std::vector<Known> known(n_known);
    Pace pace;
    for (std::size_t i = begin; i < end; ++i) {
      pace.step(2 * Corners * Corners);
      const std::int32_t vertex = vertex_[i * Corners];
      const std::uint64_t mixed = (rank_[i] ^ static_cast<std::uint64_t>(vertex) << 40) * 0x9E3779B97F4A7C15ull;
      Known& simplex = known[(mixed >> 40) % n_known];
      if (simplex.vertex != vertex || simplex.ranks != rank_[i]) {
        simplex.vertex = vertex;
        simplex.ranks = rank_[i];
        listed_gram<Corners>(i, walks.data(), simplex.gram);
      }
      body(i, simplex.gram, Corners);
    }
  });
}

template <class T>
template <class Body>
void Lattice<T>::for_each_gram(int threads, Body&& body) const {
  switch (dim_) {
    case 1: return for_each_listed_gram<2>(threads, body);
    case 2: return for_each_listed_gram<3>(threads, body);
    case 3: return for_each_listed_gram<4>(threads, body);
    case 4: return for_each_listed_gram<5>(threads, body);
    case 5: return for_each_listed_gram<6>(threads, body);
    default: break;
  }
  const std::size_t corners = dim_ + 1, n_cached = 8192;
  parallel_ranges(n_points_, threads, 256, [&](int, std::size_t begin, std::size_t end) {
    // Many points share a simplex: remember the latest ones, by a hash of their vertices.
    std::vector<const std::int32_t*> owner(n_cached, nullptr);
    AlignedArray<T> grams = new_aligned<T>(n_cached * corners * corners);
    Pace pace;
    for (std::size_t i = begin; i < end; ++i) {
      pace.step(corners * corners * corners);
      const std::int32_t* vertex = &vertex_[i * corners];
      std::uint64_t hash = 0;
      for (std::size_t c = 0; c < corners; ++c)
        hash = (hash ^ static_cast<std::uint64_t>(vertex[c])) * 0x9E3779B97F4A7C15ull;
      const std::size_t slot = (hash >> 40) % n_cached;
      T* gram = &grams[slot * corners * corners];
      if (!owner[slot] || !std::equal(vertex, vertex + corners, owner[slot])) simplex_gram(i, gram);
      owner[slot] = vertex;
      body(i, gram, static_cast<int>(corners));
    }
  });
}

template <class T> void Lattice<T>::diagonal(int threads, T* out) const {
  for_each_gram(threads, [&](std::size_t i, const T* gram, int corners) {
    const T* weight = &weight_[i * corners];
    T sum = 0;
    for (int a = 0; a < corners; ++a) {
      T row = 0;
      for (int b = 0; b < corners; ++b) row += gram[a * corners + b] * weight[b];
      sum += weight[a] * row;
    }
    out[i] = sum;
  });
}

template <class T>
void Lattice<T>::diagonal_gradient(const T* s, int threads, T* gradient) const {
  for_each_gram(threads, [&](std::size_t i, const T* gram, int corners) {
    double by_weight[max_lattice_dim + 1] = {};
    for (int a = 0; a < corners; ++a)
      for (int b = 0; b < corners; ++b)
        by_weight[a] += 2.0 * static_cast<double>(s[i]) *
                        static_cast<double>(gram[a * corners + b] * weight_[i * corners + b]);
    chain_to_features(i, by_weight, gradient + i * dim_);
  });
}

template void Lattice<float>::diagonal(int, float*) const;
template void Lattice<float>::diagonal_gradient(const float*, int, float*) const;
template void Lattice<double>::diagonal(int, double*) const;
template void Lattice<double>::diagonal_gradient(const double*, int, double*) const;

}  // namespace crfield

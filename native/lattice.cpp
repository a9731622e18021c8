#include "lattice.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "cpu.hpp"
#include "thread_pool.hpp"

namespace crfield {

// A vertex's integer coordinates packed into words, each coordinate in a field wide enough for every
// point of this lattice and its neighbours: moving along an axis is one addition per word.
template <std::size_t Words> using Key = std::array<std::uint64_t, Words>;

template <std::size_t Words> Key<Words> operator+(Key<Words> a, const Key<Words>& b) {
  for (std::size_t w = 0; w < Words; ++w) a[w] += b[w];
  return a;
}
template <std::size_t Words> Key<Words> operator-(Key<Words> a, const Key<Words>& b) {
  for (std::size_t w = 0; w < Words; ++w) a[w] -= b[w];
  return a;
}

// Where each coordinate lives in the key.
struct KeyLayout {
  std::array<int, max_lattice_dim> word{}, shift{};
  std::array<std::int64_t, max_lattice_dim> offset{};
  int n_words = 1;

  template <std::size_t Words> Key<Words> pack(const std::int64_t* coordinates, int dim) const {
    Key<Words> key{};
    for (int j = 0; j < dim; ++j)
      key[word[j]] += static_cast<std::uint64_t>(coordinates[j]) << shift[j];
    return key;
  }
};

namespace {

// Open-addressing table from key to vertex number, 1 upwards.
template <std::size_t Words> class VertexTable {
 public:
  explicit VertexTable(std::size_t expected) {
    while (slots_.size() < 2 * expected) slots_.resize(slots_.size() * 2);
  }
  std::int32_t find(const Key<Words>& key) const {
    for (std::size_t s = hash(key) & (slots_.size() - 1);; s = (s + 1) & (slots_.size() - 1)) {
      if (slots_[s].vertex == 0 || slots_[s].key == key) return slots_[s].vertex;
    }
  }
  std::int32_t find_or_add(const Key<Words>& key) {
    std::size_t s = hash(key) & (slots_.size() - 1);
    for (; slots_[s].vertex != 0; s = (s + 1) & (slots_.size() - 1))
      if (slots_[s].key == key) return slots_[s].vertex;
    if (keys_.size() >= static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max()) - 1)
      throw std::length_error("the lattice has more than 2^31 vertices");
    keys_.push_back(key);
    slots_[s] = {key, static_cast<std::int32_t>(keys_.size())};
    if (keys_.size() * 2 > slots_.size()) grow();
    return static_cast<std::int32_t>(keys_.size());
  }
  const std::vector<Key<Words>>& keys() const { return keys_; }

 private:
  struct Slot {
    Key<Words> key{};
    std::int32_t vertex = 0;
  };
  static std::size_t hash(const Key<Words>& key) {
    std::uint64_t h = 0;
    for (const auto word : key) {
      h = (h ^ word) * 0x9E3779B97F4A7C15ull;
      h ^= h >> 29;
    }
    return static_cast<std::size_t>(h ^ (h >> 17));
  }
  void grow() {
    slots_.assign(slots_.size() * 2, Slot{});
    for (std::size_t v = 0; v < keys_.size(); ++v) {
      std::size_t s = hash(keys_[v]) & (slots_.size() - 1);
      while (slots_[s].vertex != 0) s = (s + 1) & (slots_.size() - 1);
      slots_[s] = {keys_[v], static_cast<std::int32_t>(v + 1)};
    }
  }
  std::vector<Slot> slots_ = std::vector<Slot>(1 << 12);
  std::vector<Key<Words>> keys_;
};

// The standard deviation of splat, blur and slice together is 1 after this scaling of coordinate j.
double axis_scale(int j, int dim) {
  return (dim + 1) * std::sqrt(2.0 / 3.0) / std::sqrt((j + 1.0) * (j + 2.0));
}

struct Range {
  double low = std::numeric_limits<double>::infinity(), high = -low;
};

// Bounds on each lattice coordinate from bounds on the (centred, scaled) features, and from them
// fields of the key. A coordinate strays from its elevated position by at most dim + 1, a simplex
// vertex by as much again, a neighbour once more.
KeyLayout lay_out_keys(const std::vector<Range>& features, int dim) {
  KeyLayout layout;
  double partial_low = 0, partial_high = 0;
  int word = 0, used = 0;
  for (int j = dim; j >= 0; --j) {
    double low = partial_low, high = partial_high;
    if (j > 0) {
      low -= j * features[j - 1].high;
      high -= j * features[j - 1].low;
      partial_low += features[j - 1].low;
      partial_high += features[j - 1].high;
    }
    if (j == dim) continue;  // the last coordinate is minus the sum of the others: not in the key
    const double margin = 4.0 * (dim + 1) + 4.0;
    const auto lowest = static_cast<std::int64_t>(std::floor(low - margin));
    const auto extent = static_cast<std::uint64_t>(std::ceil(high + margin)) -
                        static_cast<std::uint64_t>(lowest) + 1;
    int bits = 1;
    while (bits < 64 && (extent >> bits) != 0) ++bits;
    if (used + bits > 64) {
      ++word;
      used = 0;
    }
    layout.word[j] = word;
    layout.shift[j] = used;
    layout.offset[j] = -lowest;
    used += bits;
  }
  layout.n_words = word + 1;
  return layout;
}

}  // namespace

template <class T>
Lattice<T>::Lattice(const T* features, std::size_t n_points, int dim, int threads)
    : n_points_(n_points), dim_(dim), vertex_(n_points * (dim + 1)), weight_(n_points * (dim + 1)),
      rank_(n_points * (dim + 1)) {
  std::vector<Range> range(dim, n_points ? Range{} : Range{0, 0});
  for (std::size_t i = 0; i < n_points; ++i)
    for (int d = 0; d < dim; ++d) {
      const double f = features[i * dim + d];
      range[d].low = std::min(range[d].low, f);
      range[d].high = std::max(range[d].high, f);
    }
  for (int d = 0; d < dim; ++d) {
    range[d].low *= axis_scale(d, dim);
    range[d].high *= axis_scale(d, dim);
  }
  const KeyLayout layout = lay_out_keys(range, dim);
  if (layout.n_words == 1) build<1>(features, layout, threads);
  else if (layout.n_words <= 4) build<4>(features, layout, threads);
  else build<max_lattice_dim>(features, layout, threads);
}

template <class T>
template <std::size_t Words>
void Lattice<T>::build(const T* features, const KeyLayout& layout, int threads) {
  const int dim = dim_, corners = dim + 1;
  std::vector<Key<Words>> base(n_points_);  // each point's remainder-0 vertex
  parallel_ranges(n_points_, threads, 4096, [&](int, std::size_t begin, std::size_t end) {
    const auto embed = kernels<T>().embed;
    constexpr int B = embed_block;
    double scaled[max_lattice_dim * B] = {}, elevated[(max_lattice_dim + 1) * B],
        remainder[(max_lattice_dim + 1) * B], rank[(max_lattice_dim + 1) * B];
    double scale[max_lattice_dim];
    for (int d = 0; d < dim; ++d) scale[d] = axis_scale(d, dim);
    for (std::size_t first = begin; first < end; first += B) {
      const int count = static_cast<int>(std::min<std::size_t>(B, end - first));
      for (int t = 0; t < count; ++t)
        for (int d = 0; d < dim; ++d)
          scaled[d * B + t] = features[(first + t) * dim + d] * scale[d];
      embed(scaled, dim, elevated, remainder, rank);
      for (int t = 0; t < count; ++t) {
        const std::size_t i = first + t;
        double barycentric[max_lattice_dim + 2] = {};
        std::int64_t coordinates[max_lattice_dim] = {};
        for (int j = 0; j <= dim; ++j) {
          const int r = static_cast<int>(rank[j * B + t]);
          const double v = (elevated[j * B + t] - remainder[j * B + t]) / corners;
          barycentric[dim - r] += v;
          barycentric[corners - r] -= v;
          rank_[i * corners + j] = static_cast<std::uint8_t>(r);
          if (j < dim)
            coordinates[j] = static_cast<std::int64_t>(remainder[j * B + t]) + layout.offset[j];
        }
        barycentric[0] += 1.0 + barycentric[corners];
        base[i] = layout.pack<Words>(coordinates, dim);
        for (int c = 0; c < corners; ++c) weight_[i * corners + c] = static_cast<T>(barycentric[c]);
      }
    }
  });

  // Vertex c of a simplex lies at +c along coordinates of rank <= dim - c and at c - corners along
  // the others.
  std::vector<Key<Words>> step(static_cast<std::size_t>(corners) * corners * dim);
  for (int c = 0; c < corners; ++c)
    for (int r = 0; r < corners; ++r)
      for (int j = 0; j < dim; ++j) {
        std::int64_t offset[max_lattice_dim] = {};
        offset[j] = r <= dim - c ? c : c - corners;
        step[(static_cast<std::size_t>(c) * corners + r) * dim + j] = layout.pack<Words>(offset, dim);
      }
  VertexTable<Words> table(std::min<std::size_t>(n_points_, 1 << 16));
  for (std::size_t i = 0; i < n_points_; ++i) {
    const std::uint8_t* rank = &rank_[i * corners];
    std::int32_t* vertex = &vertex_[i * corners];
    if (i > 0 && base[i] == base[i - 1] && !std::memcmp(rank, rank - corners, corners)) {
      std::copy_n(vertex - corners, corners, vertex);
      continue;
    }
    for (int c = 0; c < corners; ++c) {
      Key<Words> key = base[i];
      for (int j = 0; j < dim; ++j)
        key = key + step[(static_cast<std::size_t>(c) * corners + rank[j]) * dim + j];
      vertex[c] = table.find_or_add(key);
    }
  }

  const auto& keys = table.keys();
  n_vertices_ = keys.size();
  neighbour_.assign(static_cast<std::size_t>(corners) * (n_vertices_ + 1) * 2, 0);
  for (int axis = 0; axis < corners; ++axis) {
    std::int64_t offset[max_lattice_dim];
    for (int j = 0; j < dim; ++j) offset[j] = j == axis ? 1 - corners : 1;
    const Key<Words> along = layout.pack<Words>(offset, dim);
    std::int32_t* pairs = &neighbour_[static_cast<std::size_t>(axis) * (n_vertices_ + 1) * 2];
    parallel_ranges(n_vertices_, threads, 4096, [&](int, std::size_t begin, std::size_t end) {
      for (std::size_t v = begin; v < end; ++v) {
        pairs[2 * (v + 1)] = table.find(keys[v] - along);
        pairs[2 * (v + 1) + 1] = table.find(keys[v] + along);
      }
    });
  }
}

template <class T>
void Lattice<T>::blur(const T* in, bool reversed, int n_columns, int threads, T* spare, T* out) const {
  const auto stride = static_cast<std::size_t>(padded_columns<T>(n_columns));
  // Ping-pong so that the last axis writes to `out`.
  const int corners = dim_ + 1;
  for (int k = 0; k < corners; ++k) {
    const int axis = reversed ? dim_ - k : k;
    T* target = (corners - k) % 2 ? out : spare;
    std::fill_n(target, stride, T(0));
    const std::int32_t* pairs = &neighbour_[static_cast<std::size_t>(axis) * (n_vertices_ + 1) * 2];
    parallel_ranges(n_vertices_, threads, 2048, [&](int, std::size_t begin, std::size_t end) {
      kernels<T>().blur(pairs, in, begin + 1, end + 1, n_columns, target);
    });
    in = target;
  }
}

template <class T>
void Lattice<T>::splat_and_blur(const T* x, const T* scale, int n_columns, int threads, T* out) {
  const auto& kernel = kernels<T>();
  const Simplices<T> points{vertex_.data(), weight_.data(), dim_ + 1};
  const std::size_t size = (n_vertices_ + 1) * padded_columns<T>(n_columns);
  // Each thread splats into a table of its own; with many vertices that costs more than it saves.
  const int tables = static_cast<int>(std::min<std::size_t>(
      threads, 1 + n_points_ / std::max<std::size_t>(1024, 2 * n_vertices_)));
  typename BufferPool<T>::Loan splatted(buffers_, size * tables), backward(buffers_, size),
      spare(buffers_, size);
  parallel_ranges(n_points_, tables, 1, [&](int part, std::size_t begin, std::size_t end) {
    T* table = splatted.data() + size * part;
    std::fill_n(table, size, T(0));
    kernel.splat(points, x, scale, begin, end, n_points_, n_columns, table);
  });
  parallel_ranges(size, threads, 1 << 14, [&](int, std::size_t begin, std::size_t end) {
    for (int part = 1; part < tables; ++part)
      kernel.add(splatted.data() + size * part, begin, end, splatted.data());
  });
  blur(splatted.data(), false, n_columns, threads, spare.data(), out);
  blur(splatted.data(), true, n_columns, threads, spare.data(), backward.data());
  parallel_ranges(size, threads, 1 << 14, [&](int, std::size_t begin, std::size_t end) {
    kernel.add(backward.data(), begin, end, out);
  });
}

template <class T>
void Lattice<T>::apply(const T* x, const T* pre, const T* post, int n_columns, int threads, T* out) {
  if (n_points_ == 0 || n_columns == 0) return;
  typename BufferPool<T>::Loan blurred(buffers_,
                                       (n_vertices_ + 1) * padded_columns<T>(n_columns));
  splat_and_blur(x, pre, n_columns, threads, blurred.data());
  const Simplices<T> points{vertex_.data(), weight_.data(), dim_ + 1};
  parallel_ranges(n_points_, threads, 1024, [&](int, std::size_t begin, std::size_t end) {
    kernels<T>().slice(points, blurred.data(), T(0.5), post, begin, end, n_columns, out);
  });
}

// Corner dim - r of the simplex gains (elevated_j - remainder_j) / (dim + 1) for coordinate j of rank r,
// and the corner after it, cyclically, loses as much; elevated coordinates are linear in the features.
template <class T>
void Lattice<T>::chain_to_features(std::size_t i, const double* by_weight, T* by_feature) const {
  const int corners = dim_ + 1;
  double by_elevated[max_lattice_dim + 1];
  for (int j = 0; j < corners; ++j) {
    const int rank = rank_[i * corners + j];
    by_elevated[j] = (by_weight[dim_ - rank] - by_weight[(corners - rank) % corners]) / corners;
  }
  double partial = 0;
  for (int d = 0; d < dim_; ++d) {
    partial += by_elevated[d];
    by_feature[d] = static_cast<T>(axis_scale(d, dim_) * (partial - (d + 1) * by_elevated[d + 1]));
  }
}

template <class T>
void Lattice<T>::feature_gradient(const T* u, const T* u_scale, const T* v, const T* v_scale,
                                  int n_columns, int threads, T* gradient, T* filtered_u) {
  if (n_points_ == 0) return;
  const auto& kernel = kernels<T>();
  const std::size_t corners = dim_ + 1;
  const std::size_t size = (n_vertices_ + 1) * padded_columns<T>(n_columns);
  typename BufferPool<T>::Loan from_u(buffers_, size), from_v(buffers_, size),
      by_weight(buffers_, n_points_ * corners);
  splat_and_blur(u, u_scale, n_columns, threads, from_u.data());
  splat_and_blur(v, v_scale, n_columns, threads, from_v.data());
  const Simplices<T> points{vertex_.data(), weight_.data(), dim_ + 1};
  parallel_ranges(n_points_, threads, 1024, [&](int, std::size_t begin, std::size_t end) {
    std::fill(by_weight.data() + begin * corners, by_weight.data() + end * corners, T(0));
    kernel.correlate(points, {u, u_scale, from_v.data()}, {v, v_scale, from_u.data()}, T(0.5), begin,
                     end, n_points_, n_columns, by_weight.data());
    double own[max_lattice_dim + 1] = {};
    for (std::size_t i = begin; i < end; ++i) {
      std::copy_n(by_weight.data() + i * corners, corners, own);
      chain_to_features(i, own, gradient + i * dim_);
    }
    if (filtered_u)
      kernel.slice(points, from_u.data(), T(0.5), v_scale, begin, end, n_columns, filtered_u);
  });
}

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

template class Lattice<float>;
template class Lattice<double>;

}  // namespace crfield

// Building the lattice: which simplex each point lies in, and how vertices neighbour each other.
#include "lattice.hpp"

#include <algorithm>
#include <array>
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
Lattice<T>::Lattice(const T* features, std::size_t n_points, int dim, bool one_order, int threads)
    : n_points_(n_points), dim_(dim), one_order_(one_order), vertex_(n_points * (dim + 1)), weight_(n_points * (dim + 1)),
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

template Lattice<float>::Lattice(const float*, std::size_t, int, bool, int);
template Lattice<double>::Lattice(const double*, std::size_t, int, bool, int);

}  // namespace crfield

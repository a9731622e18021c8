// Vertices of a lattice by their integer coordinates.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <vector>

#include "buffers.hpp"
#include "feature_source.hpp"
#include "interrupt.hpp"

namespace crfield {

// A vertex's integer coordinates packed into words, each coordinate in a field wide enough for every
// point of this lattice and its neighbors: moving along an axis is one addition per word.
template <std::size_t Words> using Key = std::array<std::uint64_t, Words>;

template <std::size_t Words> Key<Words> operator+(Key<Words> a, const Key<Words>& b) {
  for (std::size_t w = 0; w < Words; ++w) a[w] += b[w];
  return a;
}

// Compared word by word: the library's comparison becomes a call for what is one instruction here.
template <std::size_t Words> bool same(const std::array<std::uint64_t, Words>& a,
                                       const std::array<std::uint64_t, Words>& b) {
  std::uint64_t different = 0;
  for (std::size_t w = 0; w < Words; ++w) different |= a[w] ^ b[w];
  return different == 0;
}

template <std::size_t Words> std::size_t hash_words(const std::array<std::uint64_t, Words>& words) {
  std::uint64_t h = 0;
  for (const auto word : words) {
    h = (h ^ word) * 0x9E3779B97F4A7C15ull;
    h ^= h >> 29;
  }
  return static_cast<std::size_t>(h ^ (h >> 17));
}

// Where each coordinate lives in the key.
struct KeyLayout {
  std::array<int, max_lattice_dim> word{}, shift{};
  std::array<std::int64_t, max_lattice_dim> offset{};
  int n_words = 1;
  double largest = 0;  // bound on the coordinates' magnitude

  // Bounds on each lattice coordinate from bounds on the scaled features, and from them fields of the
  // key. A coordinate strays from its elevated position by at most dim + 1, a simplex vertex by as
  // much again, a neighbor once more.
  KeyLayout(const std::vector<Range>& features, int dim) {
    double partial_low = 0, partial_high = 0;
    int current = 0, used = 0;
    for (int j = dim; j >= 0; --j) {
      double low = partial_low, high = partial_high;
      if (j > 0) {
        low -= j * features[j - 1].high;
        high -= j * features[j - 1].low;
        partial_low += features[j - 1].low;
        partial_high += features[j - 1].high;
      }
      largest = std::max({largest, std::abs(low), std::abs(high)});
      if (j == dim) continue;  // the last coordinate is minus the sum of the others: not in the key
      const double margin = 4.0 * (dim + 1) + 4.0;
      const auto lowest = static_cast<std::int64_t>(std::floor(low - margin));
      const auto extent = static_cast<std::uint64_t>(std::ceil(high + margin)) -
                          static_cast<std::uint64_t>(lowest) + 1;
      int bits = 1;
      while (bits < 64 && (extent >> bits) != 0) ++bits;
      if (used + bits > 64) {
        ++current;
        used = 0;
      }
      word[j] = current;
      shift[j] = used;
      offset[j] = -lowest;
      used += bits;
    }
    n_words = current + 1;
  }

  template <std::size_t Words> Key<Words> pack(const std::int64_t* coordinates, int dim) const {
    Key<Words> key{};
    for (int j = 0; j < dim; ++j)
      key[word[j]] += static_cast<std::uint64_t>(coordinates[j]) << shift[j];
    return key;
  }
};

// Open-addressing table from key to vertex number, 1 upwards.
template <std::size_t Words> class VertexTable {
 public:
  explicit VertexTable(std::size_t expected) {
    std::size_t size = 1 << 8;
    while (size < 2 * expected) size *= 2;
    reset(size);
  }
  std::int32_t find(const Key<Words>& key) const {
    for (std::size_t s = hash_words(key) & mask_;; s = (s + 1) & mask_) {
      if (slots_[s].vertex == 0 || same(slots_[s].key, key)) return slots_[s].vertex;
    }
  }
  // Brings what `find` will look at on its way into the cache.
  void prefetch(const Key<Words>& key) const { __builtin_prefetch(&slots_[hash_words(key) & mask_]); }
  std::int32_t find_or_add(const Key<Words>& key) {
    std::size_t s = hash_words(key) & mask_;
    for (; slots_[s].vertex != 0; s = (s + 1) & mask_)
      if (same(slots_[s].key, key)) return slots_[s].vertex;
    if (keys_.size() >= static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max()) - 1)
      throw std::length_error("the lattice has more than 2^31 vertices");
    keys_.push_back(key);
    slots_[s] = {key, static_cast<std::int32_t>(keys_.size())};
    if (keys_.size() * 2 > mask_) grow();
    return static_cast<std::int32_t>(keys_.size());
  }
  const std::vector<Key<Words>>& keys() const { return keys_; }
  void clear() {
    keys_.clear();
    std::fill_n(slots_.get(), mask_ + 1, Slot{});
  }

 private:
  struct Slot {
    Key<Words> key{};
    std::int32_t vertex = 0;
  };
  void reset(std::size_t size) {
    slots_ = new_aligned<Slot>(size);
    fill_in_pieces(slots_.get(), slots_.get() + size, Slot{});
    mask_ = size - 1;
  }
  void grow() {
    reset(2 * (mask_ + 1));
    in_pieces(0, keys_.size(), 1 << 12, [&](std::size_t first, std::size_t last) {
      for (std::size_t v = first; v < last; ++v) {
        std::size_t s = hash_words(keys_[v]) & mask_;
        while (slots_[s].vertex != 0) s = (s + 1) & mask_;
        slots_[s] = {keys_[v], static_cast<std::int32_t>(v + 1)};
      }
    });
  }
  AlignedArray<Slot> slots_;
  std::size_t mask_ = 0;
  std::vector<Key<Words>> keys_;
};

}  // namespace crfield

// Building the lattice: which simplex each point lies in, and how vertices neighbor each other.
#include <algorithm>
#include <cstring>

#include "cpu.hpp"
#include "lattice.hpp"
#include "thread_pool.hpp"
#include "vertex_table.hpp"

namespace crfield {
namespace {

// float has room for the position within a simplex only while coordinates are small.
constexpr double largest_for_float = 2048.0;

// Large grids are embedded tile by tile, pieces of as many lines as make up so many points: a tile's
// vertices fit into a table that stays in the cache.
constexpr std::size_t tile_points = std::size_t(1) << 17;
// Whole blocks of them, between two looks at whether the call is to stop.
constexpr std::size_t points_per_check = 16 * embed_block;
constexpr std::size_t vertices_per_check = std::size_t(1) << 12;

// A simplex is its remainder-0 vertex and the order of the residuals, one byte a coordinate.
template <std::size_t Words, std::size_t Codes> struct Simplex {
  Key<Words> base{};
  std::array<std::uint64_t, Codes> ranks{};
};

// One thread's share of the points: a table of its own, and the simplices met last, because
// neighboring pixels of one color share theirs.
template <std::size_t Words, std::size_t Codes> class SimplexFinder {
 public:
  SimplexFinder(std::size_t expected, int dim, const std::vector<Key<Words>>& along)
      : table(expected), dim_(dim), along_(along), known_(new_aligned<Known>(n_known)) {
    clear();
  }

  // Where a simplex would be remembered, on its way into the cache.
  std::size_t slot(const Simplex<Words, Codes>& simplex) const {
    const std::uint64_t mixed = (simplex.base[0] ^ (simplex.ranks[0] << 7)) * 0x9E3779B97F4A7C15ull;
    const std::size_t found = (mixed >> 40) % n_known;
    __builtin_prefetch(&known_[found]);
    return found;
  }
  // Forget everything.
  void clear() {
    table.clear();
    std::fill_n(known_.get(), n_known, Known{});
  }
  const std::int32_t* find(const Simplex<Words, Codes>& simplex, std::size_t slot) {
    Known& known = known_[slot];
    if (known.vertex[0] == 0 || !same(known.simplex.base, simplex.base) ||
        !same(known.simplex.ranks, simplex.ranks)) {
      known.simplex = simplex;
      add(simplex, known.vertex);
    }
    return known.vertex;
  }

  VertexTable<Words> table;

 private:
  static constexpr std::size_t n_known = 1 << 14;
  struct Known {
    Simplex<Words, Codes> simplex;
    std::int32_t vertex[Codes == 1 ? 8 : max_lattice_dim + 1] = {};
  };

  // From vertex c the next lies one step forward along the coordinate whose residual has rank dim - c.
  void add(const Simplex<Words, Codes>& simplex, std::int32_t* vertex) {
    int coordinate_of[max_lattice_dim + 1];
    for (int j = 0; j <= dim_; ++j)
      coordinate_of[(simplex.ranks[j / 8] >> (8 * (j % 8))) & 255] = j;
    Key<Words> key = simplex.base;
    for (int c = 0; c <= dim_; ++c) {
      vertex[c] = table.find_or_add(key);
      key = key + along_[coordinate_of[dim_ - c]];
    }
  }

  int dim_;
  const std::vector<Key<Words>>& along_;
  AlignedArray<Known> known_;
};

}  // namespace

template <class T>
template <class Features>
Lattice<T>::Lattice(const Features& features, bool one_order, int threads)
    : n_points_(features.n_points), dim_(features.dim), one_order_(one_order),
      vertex_(new_aligned<std::int32_t>(n_points_ * (dim_ + 1))),
      weight_(new_aligned<T>(n_points_ * (dim_ + 1))),
      rank_(new_aligned<std::uint64_t>(n_points_ * codes())) {
  std::vector<Range> range = features.ranges();
  for (int d = 0; d < dim_; ++d) {
    range[d].low *= axis_scale(d, dim_);
    range[d].high *= axis_scale(d, dim_);
  }
  const KeyLayout layout(range, dim_);
  const bool small = layout.n_words == 1 && codes() == 1;
  if (small && layout.largest <= largest_for_float) build<1, 1, T>(features, layout, threads);
  else if (small) build<1, 1, double>(features, layout, threads);
  else if (layout.n_words <= 4) build<4, 3, double>(features, layout, threads);
  else build<max_lattice_dim, 3, double>(features, layout, threads);
}

template <class T>
template <std::size_t Words, std::size_t Codes, class Work, class Features>
void Lattice<T>::build(const Features& features, const KeyLayout& layout, int threads) {
  const int dim = dim_, corners = dim + 1;
  // One step forward along each coordinate: +1 along all others and -dim along it. The last
  // coordinate is not part of the key.
  std::vector<Key<Words>> along(corners);
  for (int axis = 0; axis < corners; ++axis) {
    std::int64_t offset[max_lattice_dim] = {};
    for (int j = 0; j < dim; ++j) offset[j] = j == axis ? -dim : 1;
    along[axis] = layout.pack<Words>(offset, dim);
  }
  struct Share {
    std::size_t begin = 0, end = 0;
    std::vector<std::int32_t> global;
    std::unique_ptr<VertexTable<Words>> table;
  };
  std::vector<Share> shares(threads);
  parallel_ranges(n_points_, threads, 4096, [&](int part, std::size_t begin, std::size_t end) {
    Share& share = shares[part];
    const std::size_t expected = std::clamp<std::size_t>((end - begin) / 16, 64, 1 << 14);
    share = {begin, end, {}, nullptr};
    SimplexFinder<Words, Codes> finder(expected, dim, along);
    constexpr int B = embed_block;
    Work position[max_lattice_dim * B] = {}, weight[(max_lattice_dim + 1) * B];
    Work scale[max_lattice_dim];
    std::uint64_t rank[Codes * B], key[Words * B];
    for (int d = 0; d < dim; ++d) scale[d] = static_cast<Work>(axis_scale(d, dim));
    const Embedding<Work> embedding{position, scale, layout.word.data(), layout.shift.data(),
                                    layout.offset.data(), dim, weight, rank, key,
                                    static_cast<int>(Codes), static_cast<int>(Words)};
    const std::size_t stored_codes = codes();
    Simplex<Words, Codes> simplex[B];
    std::size_t slot[B];
    const auto embed_block_of = [&](std::size_t first, int count) {
      features.block(first, count, B, position);
      kernels<Work>().embed(embedding);
      for (int t = 0; t < count; ++t) {
        for (std::size_t w = 0; w < Words; ++w) simplex[t].base[w] = key[w * B + t];
        for (std::size_t k = 0; k < Codes; ++k) simplex[t].ranks[k] = rank[k * B + t];
        for (std::size_t k = 0; k < stored_codes; ++k)
          rank_[(first + t) * stored_codes + k] = rank[k * B + t];
        slot[t] = finder.slot(simplex[t]);
      }
      for (int t = 0; t < count; ++t) {
        const std::int32_t* vertex = finder.find(simplex[t], slot[t]);
        const std::size_t row = (first + t) * corners;
        for (int c = 0; c < corners; ++c) {
          vertex_[row + c] = vertex[c];
          weight_[row + c] = static_cast<T>(weight[c * B + t]);
        }
      }
    };
    const auto embed_points = [&](std::size_t from, std::size_t to) {
      in_pieces(from, std::max(from, to), points_per_check, [&](std::size_t first, std::size_t last) {
        for (; first < last; first += B)
          embed_block_of(first, static_cast<int>(std::min<std::size_t>(B, last - first)));
      });
    };
    const std::size_t length = features.line_length();
    if (end - begin <= 2 * tile_points || length == n_points_) {
      embed_points(begin, end);
      share.table = std::make_unique<VertexTable<Words>>(std::move(finder.table));
      return;
    }
    share.table = std::make_unique<VertexTable<Words>>((end - begin) / 16);
    const std::size_t width = piece_length(length);
    const std::size_t height = std::max<std::size_t>(1, tile_points / width);
    std::vector<std::int32_t> number;  // in the share's table of each vertex of the tile
    for (std::size_t top = begin / length; top * length < end; top += height)
      for (std::size_t left = 0; left < length; left += width) {
        const auto for_pieces = [&](auto&& piece) {
          for (std::size_t line = top; line < top + height; ++line)
            piece(std::max(begin, line * length + left),
                  std::min(end, line * length + std::min(length, left + width)));
        };
        for_pieces(embed_points);
        number.assign(1, 0);
        const auto& found = finder.table.keys();
        in_pieces(0, found.size(), vertices_per_check, [&](std::size_t first, std::size_t last) {
          for (std::size_t v = first; v < last; ++v) {
            if (v + 8 < found.size()) share.table->prefetch(found[v + 8]);
            number.push_back(share.table->find_or_add(found[v]));
          }
        });
        finder.clear();
        for_pieces([&](std::size_t from, std::size_t to) {
          for (std::size_t k = from * corners; k < to * corners; ++k) vertex_[k] = number[vertex_[k]];
        });
      }
  });

  // The first share's numbers stay; the others' are translated.
  VertexTable<Words>& table = *shares[0].table;
  for (std::size_t part = 1; part < shares.size() && shares[part].table; ++part) {
    const auto& own = shares[part].table->keys();
    in_pieces(0, own.size(), vertices_per_check, [&](std::size_t first, std::size_t last) {
      for (std::size_t v = first; v < last; ++v)
        shares[part].global.push_back(table.find_or_add(own[v]));
    });
  }
  for (const Share& share : shares) {
    if (share.global.empty()) continue;
    std::int32_t* const vertex = &vertex_[share.begin * corners];
    parallel_ranges((share.end - share.begin) * corners, threads, 1 << 14,
                    [&](int, std::size_t begin, std::size_t end) {
      in_pieces(begin, end, 1 << 14, [&](std::size_t first, std::size_t last) {
        for (std::size_t k = first; k < last; ++k) vertex[k] = share.global[vertex[k] - 1];
      });
    });
  }

  const auto& keys = table.keys();
  n_vertices_ = keys.size();
  resize_in_pieces(neighbor_, static_cast<std::size_t>(corners) * (n_vertices_ + 1) * 2);
  parallel_ranges(n_vertices_, threads, 2048, [&](int, std::size_t begin, std::size_t end) {
    for (int axis = 0; axis < corners; ++axis) {
      std::int32_t* pairs = &neighbor_[static_cast<std::size_t>(axis) * (n_vertices_ + 1) * 2];
      constexpr std::size_t ahead = 8;
      in_pieces(begin, end, vertices_per_check, [&](std::size_t first, std::size_t last) {
        for (std::size_t v = first; v < last; ++v) {
          if (v + ahead < end) table.prefetch(keys[v + ahead] + along[axis]);
          const std::int32_t next = table.find(keys[v] + along[axis]);
          pairs[2 * (v + 1) + 1] = next;
          if (next) pairs[2 * static_cast<std::size_t>(next)] = static_cast<std::int32_t>(v + 1);
        }
      });
    }
  });
}

template Lattice<float>::Lattice(const DenseFeatures<float>&, bool, int);
template Lattice<float>::Lattice(const GridFeatures<float>&, bool, int);
template Lattice<double>::Lattice(const DenseFeatures<double>&, bool, int);
template Lattice<double>::Lattice(const GridFeatures<double>&, bool, int);

}  // namespace crfield

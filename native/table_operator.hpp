// Kernels of the form K = S B S': points splat onto the rows of a table, B blurs the table, points slice.
#pragma once

#include <cstddef>
#include <vector>

#include "kernels.hpp"

namespace crfield {

// Long lines of a grid are taken in pieces of so many points, each with those below it, so that the rows
// of the tables that belong to one place are used while they are in the cache.
constexpr std::size_t longest_piece = 512;
constexpr std::size_t piece_length(std::size_t line_length) {
  return line_length <= 2 * longest_piece ? line_length : longest_piece;
}

template <class T> class TableOperator {
 public:
  virtual ~TableOperator() = default;

  virtual std::size_t n_points() const = 0;
  virtual std::size_t table_rows() const = 0;
  // K = gain S B' S' with B' what `blur` computes.
  virtual T gain() const = 0;
  // out = B' x, both (table_rows, padded_columns).
  virtual void blur(const T* x, int n_columns, int threads, T* out) = 0;

  // out_i = sum_j K_ij
  virtual void row_sums(int threads, T* out) = 0;

  // Points come in lines of this length (0: of any length); a run, which is a piece of one line, may need
  // lines of the table.
  virtual std::size_t line_length() const = 0;
  virtual std::size_t line_rows() const = 0;
  // Rows of the table that the lines [begin, end) of points splat to.
  struct Rows {
    std::size_t begin, end;
  };
  virtual Rows rows_of_lines(std::size_t begin, std::size_t end) const = 0;
  // Fills vertex, weight and corners for `count` points from `begin` on, and from / to. `lines` has room
  // for 2 * line_rows padded rows.
  virtual void open_run(std::size_t begin, std::size_t count, const T* from, T* to, int n_columns,
                        T* lines, PassTerm<T>& term) const = 0;
  // Brings what was splatted to the table.
  virtual void close_run(std::size_t begin, std::size_t count, T* to, int n_columns,
                         const PassTerm<T>& term) const = 0;

  // Derivatives by the features go through the weights of the corners, seen in several views: with the
  // weights' own derivative in place of some of the weights. The last view has the weights themselves.
  virtual int n_features() const = 0;
  virtual int n_views() const = 0;
  virtual int view_corners() const = 0;
  // The corners of the run's points in a view, `from` being the table; `lines` has room for line_rows
  // padded rows.
  virtual void open_view(int view, std::size_t begin, std::size_t count, const T* from, int n_columns,
                         T* lines, PassTerm<T>& term) const = 0;
  // gradient (n_points, n_features) from the derivatives dots[view] (n_points, view_corners) by the
  // weights, and own_i = sum_c weight_ic dots_ic.
  virtual void chain_views(const std::vector<const T*>& dots, int threads, T* gradient,
                           T* own) const = 0;
};

}  // namespace crfield

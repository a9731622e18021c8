// Kernels of the form K = S B S': points splat onto the rows of a table, B blurs the table, points slice.
#pragma once

#include <cstddef>

#include "kernels.hpp"

namespace crfield {

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
};

}  // namespace crfield

// A Gaussian kernel on the points of a regular grid, through a coarser grid of nodes.
//
//   K = S (B_1 x ... x B_d) S'
//
// S interpolates linearly between nodes that lie `spacing` standard deviations apart, B_a blurs along
// axis a with (1, 4, 6, 4, 1) / 16. The factors commute and are positive semidefinite, so K is exactly
// symmetric and positive semidefinite. Nothing is stored for each point: a line of points along the
// last axis shares its nodes' positions with all other lines.
#pragma once

#include <vector>

#include "buffers.hpp"
#include "table_operator.hpp"

namespace crfield {

template <class T> class Grid : public TableOperator<T> {
 public:
  // axes: coordinates along each axis, in standard deviations, finite and increasing.
  explicit Grid(const std::vector<std::vector<double>>& axes);

  // out = diag(post) K diag(pre) x for x (n_points, n_columns); null scales are ones.
  void apply(const T* x, const T* pre, const T* post, int n_columns, int threads, T* out);
  void diagonal(int threads, T* out) const;
  // gradient (n_points, n_axes) of sum_il u_il (K v)_il with respect to the coordinates of each point,
  // as for Lattice.
  void feature_gradient(const T* u, const T* u_scale, const T* v, const T* v_scale, int n_columns,
                        int threads, T* gradient, T* filtered_u);
  void diagonal_gradient(const T* s, int threads, T* gradient) const;

  int dim() const { return static_cast<int>(axes_.size()); }
  std::size_t n_points() const override { return n_lines_ * line_length(); }
  std::size_t table_rows() const override { return n_nodes_; }
  T gain() const override { return T(1); }
  void blur(const T* x, int n_columns, int threads, T* out) override;
  void row_sums(int threads, T* out) override;
  std::size_t line_length() const override { return axes_.back().node.size(); }
  std::size_t line_rows() const override { return axes_.back().n_nodes; }
  typename TableOperator<T>::Rows rows_of_lines(std::size_t begin, std::size_t end) const override;
  void open_run(std::size_t begin, std::size_t count, const T* from, T* to, int n_columns, T* lines,
                PassTerm<T>& term) const override;
  void close_run(std::size_t begin, std::size_t count, T* to, int n_columns,
                 const PassTerm<T>& term) const override;
  // A view for each axis, with the derivative along all but the last.
  int n_features() const override { return dim(); }
  int n_views() const override { return dim(); }
  int view_corners() const override { return 2; }
  void open_view(int view, std::size_t begin, std::size_t count, const T* from, int n_columns, T* lines,
                 PassTerm<T>& term) const override;
  void chain_views(const std::vector<const T*>& dots, int threads, T* gradient, T* own) const override;

 private:
  struct Axis {
    std::vector<std::int32_t> node;  // of each point, the lower of its two
    std::vector<double> fraction;    // of the way to the upper one
    std::size_t n_nodes = 0;
  };
  // A line of points lies between 2^(d - 1) lines of nodes: where those begin, and their weights.
  struct Corners {
    int count = 1;
    std::size_t row[32];
    T weight[32];
  };
  // `derivative` names an axis along which the weights' derivative stands in for the weights, or -1.
  Corners corners_of_line(std::size_t line, int derivative = -1) const;
  // Nodes along the last axis that `count` points from `begin` on use.
  typename TableOperator<T>::Rows nodes_of_run(std::size_t begin, std::size_t count) const;
  void open_points(std::size_t begin, PassTerm<T>& term) const;
  // The line of nodes between those of the corners, as far as `count` points from `begin` on use it.
  void gather_run(const Corners& corners, std::size_t begin, std::size_t count, const T* table,
                  int n_columns, T* lines) const;
  void splat(const T* x, const T* scale, int n_columns, int threads, T* out);
  // out_i = product over axes of along[axis][i's place on it]
  void outer_product(const std::vector<std::vector<double>>& along, int threads, T* out) const;

  std::vector<Axis> axes_;
  std::size_t n_lines_ = 1, n_nodes_ = 1;
  std::vector<std::int32_t> vertex_;  // (line_length, 2), node numbers within a line
  std::vector<T> weight_;             // (line_length, 2)
  BufferPool<T> buffers_;
};

}  // namespace crfield

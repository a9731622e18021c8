// The permutohedral lattice (Adams, Baek and Davis 2010) as a symmetric operator.
//
//   K x = S 1/2 (B_0 ... B_d + B_d ... B_0) S' x
//
// S holds each point's barycentric weights in its simplex, B_j blurs along axis j with (1/4, 1/2, 1/4)
// over the occupied vertices. The blurs do not commute where vertices are missing, so the customary
// single order is not symmetric; the average of both orders is.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "buffers.hpp"
#include "feature_source.hpp"
#include "table_operator.hpp"

namespace crfield {

struct KeyLayout;

// The standard deviation of splat, blur and slice together is 1 after this scaling of coordinate j.
inline double axis_scale(int j, int dim) {
  return (dim + 1) * std::sqrt(2.0 / 3.0) / std::sqrt((j + 1.0) * (j + 2.0));
}

template <class T> class Lattice : public TableOperator<T> {
 public:
  // features: DenseFeatures or GridFeatures, scaled so that the kernel is exp(-|f - g|^2 / 2). The
  // caller has made sure that they are finite and at most 2^46 in magnitude. With `one_order` K is the
  // customary S B_d ... B_0 S', which is not symmetric, for comparison with other software.
  template <class Features> Lattice(const Features& features, bool one_order, int threads);

  // out = diag(post) K diag(pre) x for x (n_points, n_columns); null scales are ones.
  void apply(const T* x, const T* pre, const T* post, int n_columns, int threads, T* out);
  // diagonal[i] = K_ii
  void diagonal(int threads, T* diagonal) const;

  // gradient (n_points, dim) of sum_il u_il (K v)_il with respect to the features, u and v being
  // scaled by rows (null: ones). The lattice's own derivative: its weights are piecewise linear.
  // filtered_u = v_scale K(u_scale u), a by-product, unless it is null.
  void feature_gradient(const T* u, const T* u_scale, const T* v, const T* v_scale, int n_columns,
                        int threads, T* gradient, T* filtered_u);
  // gradient (n_points, dim) of sum_i s_i K_ii with respect to the features.
  void diagonal_gradient(const T* s, int threads, T* gradient) const;

  std::size_t n_points() const override { return n_points_; }
  std::size_t table_rows() const override { return n_vertices_ + 1; }
  T gain() const override { return T(0.5); }
  void blur(const T* x, int n_columns, int threads, T* out) override;
  void row_sums(int threads, T* out) override;
  std::size_t line_length() const override { return 0; }
  std::size_t line_rows() const override { return 0; }
  typename TableOperator<T>::Rows rows_of_lines(std::size_t, std::size_t) const override {
    return {0, n_vertices_ + 1};
  }
  void open_run(std::size_t begin, std::size_t count, const T* from, T* to, int n_columns, T* lines,
                PassTerm<T>& term) const override;
  void close_run(std::size_t, std::size_t, T*, int, const PassTerm<T>&) const override {}
  int n_features() const override { return dim_; }
  int n_views() const override { return 1; }
  int view_corners() const override { return dim_ + 1; }
  void open_view(int, std::size_t begin, std::size_t count, const T* from, int n_columns, T* lines,
                 PassTerm<T>& term) const override {
    open_run(begin, count, from, nullptr, n_columns, lines, term);
  }
  void chain_views(const std::vector<const T*>& dots, int threads, T* gradient, T* own) const override;
  std::size_t n_vertices() const { return n_vertices_; }
  int dim() const { return dim_; }

 private:
  template <std::size_t Words, std::size_t Codes, class Work, class Features>
  void build(const Features& features, const KeyLayout& layout, int threads);
  void splat_and_blur(const T* x, const T* scale, int n_columns, int threads, T* out);
  void blur_order(const T* in, bool reversed, int n_columns, int threads, T* spare, T* out) const;
  std::int32_t walk(std::int32_t start, std::uint32_t axes, bool forward) const;
  // The sets of axes that can be walked along from a vertex, a bit each.
  struct Walks {
    std::uint64_t forward, backward;
  };
  std::vector<Walks> list_walks(int threads) const;
  void simplex_gram(std::size_t i, T* gram) const;
  template <int Corners> void listed_gram(std::size_t i, const Walks* walks, T* gram) const;
  template <int Corners, class Body> void for_each_listed_gram(int threads, Body&& body) const;
  // Calls body(i, gram, corners) for every point with the blur between its simplex's vertices.
  template <class Body> void for_each_gram(int threads, Body&& body) const;
  std::size_t codes() const { return (dim_ + 8) / 8; }
  int rank(std::size_t i, int j) const {
    return static_cast<int>((rank_[i * codes() + j / 8] >> (8 * (j % 8))) & 255);
  }
  // From derivatives by the weights of point i's corners to derivatives by its features.
  void chain_to_features(std::size_t i, const double* by_weight, T* by_feature) const;

  std::size_t n_points_, n_vertices_ = 0;
  int dim_;
  bool one_order_;
  AlignedArray<std::int32_t> vertex_;  // (n_points, dim + 1), rows of the value table
  AlignedArray<T> weight_;             // (n_points, dim + 1)
  AlignedArray<std::uint64_t> rank_;   // (n_points, codes()), rank of each residual, a byte each
  std::vector<std::int32_t> neighbor_;  // (dim + 1, n_vertices + 1, 2)
  BufferPool<T> buffers_;
};

}  // namespace crfield

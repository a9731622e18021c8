// The hot loops, one table of functions per element type, compiled once per instruction set.
//
// Every function works on a range of rows so that the callers decide how to share work among threads.
// Rows of user arrays have `n_columns` entries without padding; rows of internal arrays are padded to
// a whole number of vectors, `padded_columns<T>(n_columns)`.
#pragma once

#include <cstddef>
#include <cstdint>

namespace crfield {

// Bytes per vector of a row with this many entries: short rows waste less in short vectors.
template <class T> constexpr int row_vector_bytes(int n_columns) {
  const int bytes = n_columns * static_cast<int>(sizeof(T));
  return bytes <= 8 && sizeof(T) == 4 ? 8 : bytes <= 16 ? 16 : 32;
}
template <class T> constexpr int padded_columns(int n_columns) {
  const int width = row_vector_bytes<T>(n_columns) / static_cast<int>(sizeof(T));
  return (n_columns + width - 1) / width * width;
}

constexpr std::size_t tile_size = 64;
constexpr int embed_block = 32;
constexpr int pass_block = 8, pass_scratch = 4 * pass_block;  // points, padded rows

enum class Shape : int { gaussian = 0, tent = 1, sinc = 2 };

// Points of a lattice: point i lies in the simplex with vertices `vertex[i * corners ...]` (row
// numbers, row 0 being an always-zero row for what is missing) and has barycentric `weight`s there.
template <class T> struct Simplices {
  const std::int32_t* vertex;
  const T* weight;
  int corners;
};

// Rows x (n_rows, n_columns), scaled by `scale` (null: ones), that meet the rows of a table of vertices.
template <class T> struct Correlated {
  const T* x;
  const T* scale;
  const T* values;
};

// Points in tiles for the exact sum; features are stored dimension by dimension.
template <class T> struct TiledPoints {
  const T* features;  // (dim, n_padded)
  std::size_t n_points, n_padded;
  int dim;
};

// A label compatibility mu: Potts w (1 - I), diagonal, or a full symmetric matrix.
enum class Compatibility : int { potts = 0, diagonal = 1, matrix = 2 };

// What an update of the marginals reports: sum q log q, sum q u, max |q - q_old|.
struct StepSums {
  double negative_entropy = 0, linear = 0, change = 0;
};

// One update of the marginals, q_i solving
//   log q_i + alpha_i q_i + lambda + e_i = 0,  1'q_i = 1,  e_i = u_i + p_i - alpha_i q_old_i,
// alpha_il = sum_m strength_i^(m) attraction_l^(m). With no terms this is q = softmax(-u - p).
template <class T> struct StepInput {
  const T* unary;
  const T* pairwise;
  const T* old;
  const T* const* strength;  // n_terms pointers to (n_rows,), each possibly null for all zero
  const T* shift;            // (n_terms,) added to the strengths
  const T* attraction;       // (n_terms, padded_columns): a_l = -mu_ll
  int n_terms;
  std::size_t n_rows;
  int n_columns;
};

// embed_block points on their way into a lattice; all arrays have embed_block columns.
template <class T> struct Embedding {
  const T* features;                // (dim, ...)
  const T* axis_scale;              // (dim,)
  const int *word, *shift;          // (dim,), the layout of keys
  const std::int64_t* offset;       // (dim,)
  int dim;
  T* weight;                        // (dim + 1, ...), barycentric, by corner
  std::uint64_t* rank;              // (n_codes, ...), of each residual, a byte each, the largest 0
  std::uint64_t* key;               // (n_words, ...), of the remainder-0 vertex
  int n_codes, n_words;
};

// One term of a fused pass over `count` points in a row: where they lie in the table of K = S B S' and
// the tables themselves, whose padded rows belong to vertices.
template <class T> struct PassTerm {
  const std::int32_t* vertex;  // (count, corners)
  const T* weight;             // (count, corners)
  int corners;
  const T *before, *after;     // (count,) scales of what is splatted and of what is sliced, null: ones
  const T* from;               // the table to slice, null: none
  const T* factor;             // (padded_columns,) what a sliced row is multiplied by, null: ones
  T uniform;                   // that factor if it is the same for all labels, 0 otherwise
  T* to;                       // the table to splat to, null: none
  const T* strength;           // (count,) K_ii, only where the update needs it
  const T* attraction;         // (padded_columns,) -mu_ll, only where the update needs it
};

// q_i from e_i = u_i + sum_m factor^(m) slice^(m)_i for `count` points. The self-pair strength is
// alpha_il = sum_m strength_i^(m) attraction_l^(m).
template <class T> struct PassInput {
  const T* unary;         // (count, n_columns)
  const T* old;           // (count, n_columns) the marginals before, for `change` and `without_self`
  T* q;                   // (count, n_columns) where the marginals go, null: nowhere
  PassTerm<T>* terms;
  int n_terms;
  std::size_t count;
  int n_columns;
  bool has_strength;      // whether alpha is needed at all
  bool convex_self;       // log q + alpha q + lambda + e = 0 instead of a softmax (cccp)
  bool without_self;      // e_i += alpha_i old_i (parallel)
  bool change;            // whether max |q - old| is wanted
};

// sum q (log q + u), sum alpha q^2, max |q - old|
struct PassSums {
  double free_energy = 0, self = 0, change = 0;
};

// What a step back adds to the derivatives by the weights that a term's points have at their corners:
//   dots_ic += after_i sum_l factor_l (b_il of_q[vertex_ic, l] + q_il of_b[vertex_ic, l]).
template <class T> struct BackView {
  const std::int32_t* vertex;  // (count, corners)
  int corners;
  const T *of_q, *of_b;  // tables of the marginals before and of the b after this step; null: none
  const T* after;        // (count,), null: ones
  const T* factor;       // (padded_columns,), null: ones
  T* dots;               // (count, corners)
};

// One step back (KK13 Algorithm 1) for `count` points: b_i = q_i (q_i'g_i - g_i) with g_i = sum_m
// factor^(m) slice^(m)_i, or b as given; b is added to a total and splatted.
template <class T> struct BackInput {
  const T* q;      // (count, n_columns)
  const T* given;  // (count, n_columns) b, null where it follows from the terms
  T* total;        // (count, n_columns)
  PassTerm<T>* terms;
  int n_terms;
  std::size_t count;
  int n_columns;
  bool first;      // whether the total starts here
  const BackView<T>* views;
  int n_views;
};

template <class T> struct Kernels {
  // out[vertex] += weight * (scale_i x_i), rows of out padded; the zero row 0 is left alone.
  void (*splat)(const Simplices<T>&, const T* x, const T* scale, std::size_t begin, std::size_t end,
                std::size_t n_rows, int n_columns, T* out);
  // out_i = factor scale_i sum weight * values[vertex].
  void (*slice)(const Simplices<T>&, const T* values, T factor, const T* scale, std::size_t begin,
                std::size_t end, int n_columns, T* out);
  // out_ic += factor sum_l (u.x_il u.values[vertex_ic, l] + v.x_il v.values[vertex_ic, l]), x scaled
  // by rows, for every corner c: the slice's derivative with respect to its weights.
  void (*correlate)(const Simplices<T>&, const Correlated<T>& u, const Correlated<T>& v, T factor,
                    std::size_t begin, std::size_t end, std::size_t n_rows, int n_columns, T* out);
  // out[v] = in[v] / 2 + (in[a] + in[b]) / 4 with neighbors[2 v] = a, neighbors[2 v + 1] = b.
  void (*blur)(const std::int32_t* neighbors, const T* in, std::size_t begin, std::size_t end,
               int n_columns, T* out);
  // total[k] += part[k]
  void (*add)(const T* part, std::size_t begin, std::size_t end, T* total);
  // Adds kernel(f_i - f_j) x_j over tile j to the padded rows out_i of tile i (tiles of tile_size).
  void (*exact_tile)(Shape, const TiledPoints<T>&, std::size_t tile_i, std::size_t tile_j,
                     const T* x, int n_columns, T* out);
  // out_i = (overwrite ? 0 : out_i) + factor row_scale_i mu x_i; values: 1, padded_columns, or
  // n_columns rows of padded_columns numbers.
  void (*message)(Compatibility, const T* values, const T* x, const T* row_scale, T factor,
                  bool overwrite, std::size_t begin, std::size_t end, std::size_t n_rows,
                  int n_columns, T* out);
  // out_i = x_i - min_l x_il; returns the sum of the minima.
  double (*center)(const T* x, std::size_t begin, std::size_t end, int n_columns, T* out);
  // max |x|, NaN if an entry is not finite
  double (*largest)(const T* x, std::size_t begin, std::size_t end);
  // sum a b in double precision
  double (*dot)(const T* a, const T* b, std::size_t begin, std::size_t end);
  // One update of rows [begin, end); scratch holds 5 padded rows.
  StepSums (*step)(const StepInput<T>&, std::size_t begin, std::size_t end, T* scratch, T* q);
  // scratch holds pass_scratch padded rows.
  PassSums (*pass)(const PassInput<T>&, T* scratch);
  void (*back)(const BackInput<T>&, T* scratch);  // the same scratch
  // out[k] = sum_r factors[r] rows[r][k]
  void (*combine)(const T* const* rows, const T* factors, int n, std::size_t length, T* out);
  // out[k] += factor x[k]
  void (*add_scaled)(const T* x, T factor, std::size_t length, T* out);
  // out[c] = sum_r x[r, c] y[r, c] of padded rows
  void (*column_dots)(const T* x, const T* y, std::size_t n_rows, int n_padded, double* out);
  // sum_r (sum_c x[r, c]) (sum_c y[r, c]) of padded rows
  double (*row_sum_dot)(const T* x, const T* y, std::size_t n_rows, int n_padded);
  // out[a * n_padded + b] = sum_r x[r, a] y[r, b] of padded rows; scratch holds n_padded of them.
  void (*gram)(const T* x, const T* y, std::size_t n_rows, int n_columns, T* scratch, double* out);
  // Rows [begin, end) of a blur with five symmetric taps along the middle axis of (outer, n, inner).
  void (*blur_axis)(const T* in, const T* taps, std::size_t n, std::size_t inner, std::size_t begin,
                    std::size_t end, T* out);
  // Finds the simplices of embed_block points on the permutohedral lattice (Adams et al. 2010).
  void (*embed)(const Embedding<T>&);
};

}  // namespace crfield

// Compiled once per instruction set with CRFIELD_ISA naming it. No standard-library templates here:
// the linker keeps one copy of such code, and it might be the one for the wrong processor.
#include "kernels.hpp"

#include <cmath>
#include <cstring>

namespace crfield::CRFIELD_ISA {
namespace {

#include "lanes.hpp"

// Rows of user arrays are read and written in whole vectors wherever that stays inside the array:
// what a read picks up from the next row lands in padding, and what a write spills over the next row
// is overwritten when that row's turn comes. Only the last rows take the careful path.

template <class V, int K>
void splat_columns(const Simplices<typename Traits<V>::element>& points,
                   const typename Traits<V>::element* x, const typename Traits<V>::element* scale,
                   std::size_t begin, std::size_t end, std::size_t n_rows, int n_columns,
                   int first_column, std::size_t stride, typename Traits<V>::element* out) {
  constexpr int width = Traits<V>::width;
  const int corners = points.corners;
  const int here = n_columns - first_column < K * width ? n_columns - first_column : K * width;
  const int tail = here - (K - 1) * width;
  for (std::size_t i = begin; i < end; ++i) {
    const auto* row = x + i * n_columns + first_column;
    const bool inside = i * n_columns + first_column + K * width <= n_rows * n_columns;
    V value[K];
    for (int k = 0; k < K - 1; ++k) value[k] = load<V>(row + k * width);
    value[K - 1] = inside ? load<V>(row + (K - 1) * width)
                          : load_first<V>(row + (K - 1) * width, tail);
    if (scale)
      for (int k = 0; k < K; ++k) value[k] *= scale[i];
    const auto* vertex = points.vertex + i * corners;
    const auto* weight = points.weight + i * corners;
    for (int c = 0; c < corners; ++c) {
      auto* target = out + static_cast<std::size_t>(vertex[c]) * stride + first_column;
      for (int k = 0; k < K; ++k)
        store<V>(target + k * width, load<V>(target + k * width) + weight[c] * value[k]);
    }
  }
}

template <class V, int K>
void slice_columns(const Simplices<typename Traits<V>::element>& points,
                   const typename Traits<V>::element* values, typename Traits<V>::element factor,
                   const typename Traits<V>::element* scale, std::size_t begin, std::size_t end,
                   int n_columns, int first_column, std::size_t stride,
                   typename Traits<V>::element* out) {
  constexpr int width = Traits<V>::width;
  const int corners = points.corners;
  const int here = n_columns - first_column < K * width ? n_columns - first_column : K * width;
  const int tail = here - (K - 1) * width;
  // Spilling over the next row is harmless only if this call writes those columns as well.
  const bool whole_row = first_column == 0 && here == n_columns;
  for (std::size_t i = begin; i < end; ++i) {
    const auto* vertex = points.vertex + i * corners;
    const auto* weight = points.weight + i * corners;
    V value[K] = {};
    for (int c = 0; c < corners; ++c) {
      const auto* source = values + static_cast<std::size_t>(vertex[c]) * stride + first_column;
      for (int k = 0; k < K; ++k) value[k] += weight[c] * load<V>(source + k * width);
    }
    const auto own = scale ? factor * scale[i] : factor;
    for (int k = 0; k < K; ++k) value[k] *= own;
    auto* row = out + i * n_columns + first_column;
    for (int k = 0; k < K - 1; ++k) store<V>(row + k * width, value[k]);
    if (tail == width || (whole_row && i * n_columns + K * width <= end * n_columns))
      store<V>(row + (K - 1) * width, value[K - 1]);
    else
      store_first<V>(row + (K - 1) * width, value[K - 1], tail);
  }
}

// Calls body(V{}, integer K) for groups of at most four vectors that cover n_columns.
template <int K> struct Count { static constexpr int value = K; };
template <class V, class Body> void for_column_groups(int n_columns, Body&& body) {
  constexpr int width = Traits<V>::width;
  for (int first = 0; first < n_columns; first += 4 * width) {
    const int left = (n_columns - first + width - 1) / width;
    if (left >= 4) body(Count<4>{}, first);
    else if (left == 3) body(Count<3>{}, first);
    else if (left == 2) body(Count<2>{}, first);
    else body(Count<1>{}, first);
  }
}
// Calls body(V{}) with the vector type that rows of n_columns entries are padded to.
template <class T, class Body> void with_row_vector(int n_columns, Body&& body) {
  if (row_vector_bytes<T>(n_columns) == 16) body(typename Lanes<T, 16>::type{});
  else body(typename Lanes<T, 32>::type{});
}

template <class T>
void splat(const Simplices<T>& points, const T* x, const T* scale, std::size_t begin,
           std::size_t end, std::size_t n_rows, int n_columns, T* out) {
  const auto stride = static_cast<std::size_t>(padded_columns<T>(n_columns));
  with_row_vector<T>(n_columns, [&](auto v) {
    for_column_groups<decltype(v)>(n_columns, [&](auto count, int first) {
      splat_columns<decltype(v), decltype(count)::value>(points, x, scale, begin, end, n_rows,
                                                         n_columns, first, stride, out);
    });
  });
}

template <class T>
void slice(const Simplices<T>& points, const T* values, T factor, const T* scale, std::size_t begin,
           std::size_t end, int n_columns, T* out) {
  const auto stride = static_cast<std::size_t>(padded_columns<T>(n_columns));
  with_row_vector<T>(n_columns, [&](auto v) {
    for_column_groups<decltype(v)>(n_columns, [&](auto count, int first) {
      slice_columns<decltype(v), decltype(count)::value>(points, values, factor, scale, begin,
                                                         end, n_columns, first, stride, out);
    });
  });
}

template <class T>
void correlate(const Simplices<T>& points, const T* x, const T* values, T factor, const T* scale,
               std::size_t begin, std::size_t end, std::size_t n_rows, int n_columns, T* out) {
  with_row_vector<T>(n_columns, [&](auto v) {
    using V = decltype(v);
    constexpr int width = Traits<V>::width;
    const int n_padded = padded_columns<T>(n_columns), last = n_padded - width;
    const int tail = n_columns - last;
    V real = {};  // the padding of a table holds what whole-vector reads picked up
    for (int k = 0; k < tail; ++k) real[k] = T(1);
    for (std::size_t i = begin; i < end; ++i) {
      const T* row = x + i * n_columns;
      const bool inside = i * n_columns + n_padded <= n_rows * n_columns;
      const V end_of_row = inside ? load<V>(row + last) : load_first<V>(row + last, tail);
      const V ending = real > V{} ? end_of_row : V{};
      const T own = scale ? factor * scale[i] : factor;
      for (int c = 0; c < points.corners; ++c) {
        const std::size_t corner = i * points.corners + c;
        const T* vertex = values + static_cast<std::size_t>(points.vertex[corner]) * n_padded;
        V sum = ending * (real > V{} ? load<V>(vertex + last) : V{});
        for (int k = 0; k < last; k += width) sum += load<V>(row + k) * load<V>(vertex + k);
        out[corner] += own * sum_lanes<V>(sum);
      }
    }
  });
}

template <class T>
void blur(const std::int32_t* neighbours, const T* in, std::size_t begin, std::size_t end,
          int n_columns, T* out) {
  const auto stride = static_cast<std::size_t>(padded_columns<T>(n_columns));
  with_row_vector<T>(n_columns, [&](auto v) {
    using V = decltype(v);
    for (std::size_t row = begin; row < end; ++row) {
      const T* centre = in + row * stride;
      const T* before = in + static_cast<std::size_t>(neighbours[2 * row]) * stride;
      const T* after = in + static_cast<std::size_t>(neighbours[2 * row + 1]) * stride;
      for (std::size_t c = 0; c < stride; c += Traits<V>::width)
        store<V>(out + row * stride + c,
                 T(0.5) * load<V>(centre + c) + T(0.25) * (load<V>(before + c) + load<V>(after + c)));
    }
  });
}

template <class T> void add(const T* part, std::size_t begin, std::size_t end, T* total) {
  for (std::size_t k = begin; k < end; ++k) total[k] += part[k];
}

template <class V> V absolute(V x) { return larger(x, -x); }

template <class T> T sinc(T x) { return std::abs(x) < T(1e-4) ? T(1) - x * x / 6 : std::sin(x) / x; }

// kernel(f_i - f_j) for one i and the whole tile of j.
template <class T>
void kernel_row(Shape shape, const TiledPoints<T>& points, std::size_t i, std::size_t first_j,
                T* row) {
  using V = typename Lanes<T, 64>::type;
  constexpr int width = Traits<V>::width;
  constexpr int n_vectors = static_cast<int>(tile_size) / width;
  V total[n_vectors] = {};
  if (shape == Shape::sinc)
    for (auto& t : total) t = V{} + T(1);
  for (int d = 0; d < points.dim; ++d) {
    const T* feature = points.features + static_cast<std::size_t>(d) * points.n_padded;
    const T own = feature[i];
    for (int k = 0; k < n_vectors; ++k) {
      const V difference = load<V>(feature + first_j + k * width) - own;
      if (shape == Shape::gaussian) total[k] += difference * difference;
      else if (shape == Shape::tent) total[k] += absolute(difference);
      else
        for (int c = 0; c < width; ++c) total[k][c] *= sinc(static_cast<T>(difference[c]));
    }
  }
  for (int k = 0; k < n_vectors; ++k) {
    V value = total[k];
    if (shape == Shape::gaussian) value = exp_nonpositive<V>(T(-0.5) * value);
    else if (shape == Shape::tent) value = larger(T(1) - value, V{});
    store<V>(row + k * width, value);
  }
}

template <class V, int K>
void multiply_rows(const typename Traits<V>::element* kernel, int n_rows,
                   const typename Traits<V>::element* x, std::size_t stride,
                   typename Traits<V>::element* out) {
  constexpr int width = Traits<V>::width;
  V total[4][K] = {};
  for (std::size_t j = 0; j < tile_size; ++j) {
    V value[K];
    for (int k = 0; k < K; ++k) value[k] = load<V>(x + j * stride + k * width);
    for (int r = 0; r < 4; ++r)
      for (int k = 0; k < K; ++k) total[r][k] += kernel[r * tile_size + j] * value[k];
  }
  for (int r = 0; r < n_rows; ++r)
    for (int k = 0; k < K; ++k) {
      auto* target = out + static_cast<std::size_t>(r) * stride + k * width;
      store<V>(target, load<V>(target) + total[r][k]);
    }
}

template <class T>
void exact_tile(Shape shape, const TiledPoints<T>& points, std::size_t tile_i, std::size_t tile_j,
                const T* x, int n_columns, T* out) {
  const auto stride = static_cast<std::size_t>(padded_columns<T>(n_columns));
  const std::size_t first_i = tile_i * tile_size, first_j = tile_j * tile_size;
  const std::size_t left = points.n_points - first_i;
  const std::size_t rows = left < tile_size ? left : tile_size;
  T kernel[4 * tile_size] = {};
  for (std::size_t i = 0; i < rows; i += 4) {
    const int group = static_cast<int>(rows - i < 4 ? rows - i : 4);
    for (int r = 0; r < group; ++r)
      kernel_row(shape, points, first_i + i + r, first_j, kernel + r * tile_size);
    with_row_vector<T>(n_columns, [&](auto v) {
      for_column_groups<decltype(v)>(n_columns, [&](auto count, int first) {
        multiply_rows<decltype(v), decltype(count)::value>(
            kernel, group, x + first_j * stride + first, stride, out + (first_i + i) * stride + first);
      });
    });
  }
}

// The products with mu are formed in double precision: Potts is a difference of nearly equal numbers
// wherever a label is certain.
template <class V>
void message_rows(Compatibility kind, const typename Traits<V>::element* values,
                  const typename Traits<V>::element* x,
                  const typename Traits<V>::element* row_scale,
                  typename Traits<V>::element factor, bool overwrite, std::size_t begin,
                  std::size_t end, std::size_t n_rows, int n_columns,
                  typename Traits<V>::element* out) {
  using T = typename Traits<V>::element;
  constexpr int width = Traits<V>::width;
  using Wide = typename Lanes<double, width * 8>::type;
  const int n_padded = padded_columns<T>(n_columns), last = n_padded - width;
  const int tail = n_columns - last;
  V real = {};
  for (int k = 0; k < tail; ++k) real[k] = T(1);
  for (std::size_t i = begin; i < end; ++i) {
    const std::size_t offset = i * n_columns;
    const bool inside = offset + n_padded <= n_rows * n_columns;
    const auto get = [&](const T* array, int c) {
      return c < last || inside ? load<V>(array + offset + c)
                                : load_first<V>(array + offset + c, tail);
    };
    const T scale = row_scale ? factor * row_scale[i] : factor;
    double total = 0;
    if (kind == Compatibility::potts) {
      Wide sum = {};
      for (int c = 0; c < n_padded; c += width) {
        const V value = get(x, c);
        sum += __builtin_convertvector(c < last ? value : value * real, Wide);
      }
      total = sum_lanes<Wide>(sum);
    }
    for (int c = 0; c < n_padded; c += width) {
      V result;
      if (kind == Compatibility::potts) {
        const Wide others = total - __builtin_convertvector(get(x, c), Wide);
        result = (scale * values[0]) * __builtin_convertvector(others, V);
      } else if (kind == Compatibility::diagonal) {
        result = scale * load<V>(values + c) * get(x, c);
      } else {
        V sum = {};
        for (int k = 0; k < n_columns; ++k)
          sum += x[offset + k] * load<V>(values + static_cast<std::size_t>(k) * n_padded + c);
        result = scale * sum;
      }
      T* target = out + offset + c;
      if (c < last) store<V>(target, overwrite ? result : load<V>(target) + result);
      else store_first<V>(target, overwrite ? result : load_first<V>(target, tail) + result, tail);
    }
  }
}

template <class T>
void message(Compatibility kind, const T* values, const T* x, const T* row_scale, T factor,
             bool overwrite, std::size_t begin, std::size_t end, std::size_t n_rows, int n_columns,
             T* out) {
  with_row_vector<T>(n_columns, [&](auto v) {
    message_rows<decltype(v)>(kind, values, x, row_scale, factor, overwrite, begin, end, n_rows,
                              n_columns, out);
  });
}

template <class T>
double center(const T* x, std::size_t begin, std::size_t end, int n_columns, T* out) {
  double sum = 0;
  for (std::size_t i = begin; i < end; ++i) {
    const T* row = x + i * n_columns;
    T least = row[0];
    for (int c = 1; c < n_columns; ++c) least = row[c] < least ? row[c] : least;
    for (int c = 0; c < n_columns; ++c) out[i * n_columns + c] = row[c] - least;
    sum += least;
  }
  return sum;
}

template <class T> double dot(const T* a, const T* b, std::size_t begin, std::size_t end) {
  using V = typename Lanes<T, 32>::type;
  constexpr int width = Traits<V>::width;
  using Wide = typename Lanes<double, width * 8>::type;
  Wide sum = {};
  std::size_t k = begin;
  for (; k + width <= end; k += width)
    sum += __builtin_convertvector(load<V>(a + k), Wide) * __builtin_convertvector(load<V>(b + k), Wide);
  double total = sum_lanes<Wide>(sum);
  for (; k < end; ++k) total += static_cast<double>(a[k]) * static_cast<double>(b[k]);
  return total;
}

// log q + alpha q + lambda + e = 0, 1'q = 1 for one variable, by Newton's method in y = log q and lambda;
// `energy` has minimum 0, log_mass = log sum exp(-energy), scratch holds two rows.
//
// With alpha <= 1/2 the softmax is close, and plain Newton steps from there converge at once. Otherwise:
// no q exceeds 1, so lambda >= max_l (-e_l - alpha_l). At that bound one q is 1 and all are at most 1; the
// total mass of q(lambda) is convex and decreasing in lambda, so that Newton's method climbs from there
// to the solution without overshooting, provided that each label's own equation y + alpha e^y = z,
// z = -lambda - e, is solved first. That one is convex and increasing in y, and Newton's method comes
// down to its solution from above: at first from min(0, z, log x - log alpha), x = z + log alpha > 1,
// later from the tangent at the previous solution, which lies above because y is concave in lambda.
template <class V>
void solve_separable(const typename Traits<V>::element* energy,
                     const typename Traits<V>::element* alpha, int n_padded,
                     typename Traits<V>::element log_mass, typename Traits<V>::element* scratch,
                     typename Traits<V>::element* y) {
  using T = typename Traits<V>::element;
  constexpr int width = Traits<V>::width;
  constexpr T enough = sizeof(T) == 4 ? T(1e-6) : T(1e-13);
  V bound = load<V>(energy) + load<V>(alpha), strongest = load<V>(alpha);
  for (int c = width; c < n_padded; c += width) {
    bound = smaller(bound, load<V>(energy + c) + load<V>(alpha + c));
    strongest = larger(strongest, load<V>(alpha + c));
  }
  const bool weak = max_lanes<V>(strongest) <= T(0.5);
  T multiplier = weak ? log_mass : max_lanes<V>(-bound);
  for (int c = 0; c < n_padded; c += width) {
    const V z = -multiplier - load<V>(energy + c);
    V start = smaller(z, V{});
    if (!weak) {
      const V log_alpha = log_estimate<V>(larger(load<V>(alpha + c), V{} + T(1e-30)));
      const V x = z + log_alpha;
      const V lower = log_estimate<V>(larger(x, V{} + T(1))) - log_alpha;
      start = x > V{} + T(1) ? smaller(start, lower) : start;
    }
    store<V>(y + c, start);
  }
  T* newton = scratch;            // the step of y at fixed lambda
  T* tangent = scratch + n_padded;  // -dy / dlambda
  for (int round = 0; round < 300; ++round) {
    V mass = {}, slope = {}, pending = {}, moved = {};
    for (int c = 0; c < n_padded; c += width) {
      const V from = load<V>(y + c), a = load<V>(alpha + c), q = exp_nonpositive<V>(from);
      const V h = T(1) / (T(1) + a * q);
      const V step = (from + a * q + multiplier + load<V>(energy + c)) * h;
      store<V>(newton + c, step);
      store<V>(tangent + c, h);
      mass += q;
      slope += q * h;
      pending += q * step;
      moved = larger(moved, q * absolute(step));
    }
    const bool solved = max_lanes<V>(moved) <= enough;
    const T excess = sum_lanes<V>(mass) - T(1);
    const T climb = weak || solved ? (excess - sum_lanes<V>(pending)) / sum_lanes<V>(slope) : T(0);
    multiplier += climb;
    for (int c = 0; c < n_padded; c += width) {
      const V to = load<V>(y + c) - load<V>(newton + c) - climb * load<V>(tangent + c);
      store<V>(y + c, smaller(to, V{}));
    }
    if (solved && std::abs(excess) <= enough) return;
  }
}

template <class V>
StepSums step_rows(const StepInput<typename Traits<V>::element>& in, std::size_t begin,
                   std::size_t end, typename Traits<V>::element* scratch,
                   typename Traits<V>::element* q) {
  using T = typename Traits<V>::element;
  constexpr int width = Traits<V>::width;
  constexpr T never = T(1e30);  // the cost of a label that only pads the row
  const int n_columns = in.n_columns, n_padded = padded_columns<T>(n_columns);
  const int last = n_padded - width, tail = n_columns - last;
  T* energy = scratch;
  T* alpha = scratch + n_padded;
  T* log_q = scratch + 2 * n_padded;
  V real = {};  // 1 in the lanes of the last vector that hold labels
  for (int k = 0; k < tail; ++k) real[k] = T(1);
  StepSums sums;
  T change = 0;
  for (std::size_t i = begin; i < end; ++i) {
    const std::size_t offset = i * n_columns;
    const bool inside = offset + n_padded <= in.n_rows * n_columns;
    const bool spill = offset + n_padded <= end * n_columns;
    const auto get = [&](const T* array, int c) {
      return c < last || inside ? load<V>(array + offset + c)
                                : load_first<V>(array + offset + c, tail);
    };
    bool separable = false;
    for (int m = 0; m < in.n_terms; ++m) {
      const T strength = in.shift[m] + (in.strength[m] ? in.strength[m][i] : T(0));
      for (int c = 0; c < n_padded; c += width) {
        const V more = strength * load<V>(in.attraction + m * n_padded + c);
        store<V>(alpha + c, m ? load<V>(alpha + c) + more : more);
      }
      separable = true;
    }
    V lowest = V{} + never;
    for (int c = 0; c < n_padded; c += width) {
      V e = get(in.unary, c) + get(in.pairwise, c);
      if (separable) e -= load<V>(alpha + c) * get(in.old, c);
      if (c == last) e = real > V{} ? e : V{} + never;
      lowest = smaller(lowest, e);
      store<V>(energy + c, e);
    }
    const T least = -max_lanes<V>(-lowest);
    V mass = {}, weighted = {};
    for (int c = 0; c < n_padded; c += width) {
      const V e = load<V>(energy + c) - least, p = exp_nonpositive<V>(-e);
      store<V>(energy + c, e);
      store<V>(log_q + c, p);
      mass += p;
      weighted += p * e;
    }
    T total = sum_lanes<V>(mass), log_total = std::log(total);
    if (separable) {
      solve_separable<V>(energy, alpha, n_padded, log_total, scratch + 3 * n_padded, log_q);
      mass = weighted = V{};
      for (int c = 0; c < n_padded; c += width) {
        const V y = load<V>(log_q + c), p = exp_nonpositive<V>(y);
        store<V>(log_q + c, p);
        mass += p;
        weighted -= p * y;
      }
      total = sum_lanes<V>(mass);
      log_total = std::log(total);
    }
    // sum q log q with q = p / total and log p = -weighted / p, without a logarithm per label.
    sums.negative_entropy -= static_cast<double>(sum_lanes<V>(weighted)) / total + log_total;
    const T scale = T(1) / total;
    V linear = {}, moved = {};
    for (int c = 0; c < n_padded; c += width) {
      V p = scale * load<V>(log_q + c), u = get(in.unary, c), old = get(in.old, c);
      if (c == last) {  // what a whole-vector read picked up from the next row must not count
        u = real > V{} ? u : V{};
        old = real > V{} ? old : V{};
      }
      linear += p * u;
      moved = larger(moved, absolute(p - old));
      if (c < last || spill) store<V>(q + offset + c, p);
      else store_first<V>(q + offset + c, p, tail);
    }
    sums.linear += static_cast<double>(sum_lanes<V>(linear));
    const T most = max_lanes<V>(moved);
    change = change > most ? change : most;
  }
  sums.change = change;
  return sums;
}

template <class T>
StepSums step(const StepInput<T>& in, std::size_t begin, std::size_t end, T* scratch, T* q) {
  StepSums sums;
  with_row_vector<T>(in.n_columns, [&](auto v) {
    sums = step_rows<decltype(v)>(in, begin, end, scratch, q);
  });
  return sums;
}

void embed(const double* features, int dim, double* elevated, double* remainder, double* rank) {
  constexpr int B = embed_block;
  double partial[B] = {}, sum[B] = {};
  for (int j = dim; j > 0; --j)
    for (int t = 0; t < B; ++t) {
      const double f = features[(j - 1) * B + t];
      elevated[j * B + t] = partial[t] - j * f;
      partial[t] += f;
    }
  for (int t = 0; t < B; ++t) elevated[t] = partial[t];
  const double n_corners = dim + 1, inverse = 1.0 / n_corners;
  constexpr double rounder = 6755399441055744.0;  // adding and subtracting 1.5 * 2^52 rounds
  for (int j = 0; j <= dim; ++j)
    for (int t = 0; t < B; ++t) {
      const double nearest = (elevated[j * B + t] * inverse + rounder) - rounder;
      sum[t] += nearest;
      remainder[j * B + t] = nearest * n_corners;
      rank[j * B + t] = 0;
    }
  for (int a = 0; a <= dim; ++a)
    for (int b = a + 1; b <= dim; ++b)
      for (int t = 0; t < B; ++t) {
        const double smaller_first = elevated[a * B + t] - remainder[a * B + t] <
                                             elevated[b * B + t] - remainder[b * B + t]
                                         ? 1.0 : 0.0;
        rank[a * B + t] += smaller_first;
        rank[b * B + t] += 1.0 - smaller_first;
      }
  // Points whose rounded coordinates do not sum to zero move to the neighbouring remainder-0 point.
  for (int j = 0; j <= dim; ++j)
    for (int t = 0; t < B; ++t) {
      const double shifted = rank[j * B + t] + sum[t];
      const double wrap = shifted < 0 ? n_corners : shifted > dim ? -n_corners : 0.0;
      rank[j * B + t] = shifted + wrap;
      remainder[j * B + t] += wrap;
    }
}

template <class T> constexpr Kernels<T> table() {
  return {splat<T>, slice<T>, correlate<T>, blur<T>, add<T>, exact_tile<T>, message<T>, center<T>, dot<T>, step<T>, embed};
}

}  // namespace

extern const Kernels<float> kernels_float;
extern const Kernels<double> kernels_double;
const Kernels<float> kernels_float = table<float>();
const Kernels<double> kernels_double = table<double>();

}  // namespace crfield::CRFIELD_ISA

// Compiled once per instruction set like kernels.cpp, whose rules hold here too.
#include "graph_kernels.hpp"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>

namespace crfield::CRFIELD_ISA {
namespace {

#include "lanes.hpp"

constexpr double infinity = __builtin_inf();

// log(x) for normal x > 0: absolute error 1e-7 beside that of rounding (float), 1e-15 (double).
template <class V> inline V log_positive(V x) {
  using T = typename Traits<V>::element;
  using I = typename Traits<V>::integer;
  constexpr bool single = sizeof(T) == 4;
  constexpr int mantissa_bits = single ? 23 : 52;
  using Whole = typename IntegerOf<T>::type;
  constexpr Whole root_half = single ? Whole(0x3f3504f3) : Whole(0x3fe6a09e667f3bcd);
  I bits;
  std::memcpy(&bits, &x, sizeof(V));
  const I exponent = (bits - root_half) >> mantissa_bits;  // x = 2^exponent (1 + f)
  bits -= exponent << mantissa_bits;
  V f;
  std::memcpy(&f, &bits, sizeof(V));
  f -= T(1);
  const V n = __builtin_convertvector(exponent, V);
  // log(1 + f) = 2 artanh(s), s = f / (2 + f)
  const V s = f / (T(2) + f), z = s * s;
  V p;
  if constexpr (single) {
    p = V{} + T(0.2222222222);
    p = p * z + T(0.2857142857);
    p = p * z + T(0.4);
    p = p * z + T(0.6666666667);
  } else {
    p = V{} + T(2.0 / 19);
    p = p * z + T(2.0 / 17);
    p = p * z + T(2.0 / 15);
    p = p * z + T(2.0 / 13);
    p = p * z + T(2.0 / 11);
    p = p * z + T(2.0 / 9);
    p = p * z + T(2.0 / 7);
    p = p * z + T(2.0 / 5);
    p = p * z + T(2.0 / 3);
  }
  return n * T(0.6931471805599453) + (f - s * (f - z * p));
}

template <class Body> inline void in_vectors(std::size_t n, Body&& body) {
  using V = Lanes<double, 32>::type;
  std::size_t b = 0;
  for (; b + Traits<V>::width <= n; b += Traits<V>::width) body(b, Traits<V>::width);
  if (b < n) body(b, static_cast<int>(n - b));
}

void fold_rows(const double* table, const double* in, std::size_t n_in, std::size_t n_out, double t,
               double* out) {
  using V = Lanes<double, 32>::type;
  const double inverse = t > 0 ? 1 / t : 0;
  in_vectors(n_out, [&](std::size_t b, int lanes) {
    const auto get = [&](std::size_t j) {
      const double* at = table + j * n_out + b;
      return (lanes == Traits<V>::width ? load<V>(at) : load_first<V>(at, lanes)) + in[j];
    };
    V least = V{} + infinity;
    for (std::size_t j = 0; j < n_in; ++j) least = smaller(get(j), least);
    if (t > 0) {
      const V from = least < V{} + infinity ? least : V{};
      V sum = {};
      for (std::size_t j = 0; j < n_in; ++j) sum += exp_nonpositive<V>((from - get(j)) * inverse);
      for (int k = 0; k < lanes; ++k) least[k] = from[k] - t * __builtin_log(sum[k]);
    }
    store_first<V>(out + b, least, lanes);
  });
}

void fold_columns(const double* table, const double* in, std::size_t n_in, std::size_t n_out, double t,
                  double* out) {
  using V = Lanes<double, 32>::type;
  const double inverse = t > 0 ? 1 / t : 0;
  for (std::size_t a = 0; a < n_out; ++a) {
    const double* row = table + a * n_in;
    const auto get = [&](std::size_t j, int lanes) {
      if (lanes == Traits<V>::width) return load<V>(row + j) + load<V>(in + j);
      V value = load_first<V>(row + j, lanes) + load_first<V>(in + j, lanes);
      for (int k = lanes; k < Traits<V>::width; ++k) value[k] = infinity;
      return value;
    };
    V low = V{} + infinity;
    in_vectors(n_in, [&](std::size_t j, int lanes) { low = smaller(get(j, lanes), low); });
    double least = min_lanes<V>(low);
    if (t > 0) {
      const double from = least < infinity ? least : 0;
      V sum = {};
      in_vectors(n_in, [&](std::size_t j, int lanes) {
        sum += exp_nonpositive<V>((from - get(j, lanes)) * inverse);
      });
      least = from - t * __builtin_log(sum_lanes<V>(sum));
    }
    out[a] = least;
  }
}

// Calls body(first, value of four entries) for all entries of n, the last ones twice if need be, or one
// by one where there are fewer than four.
template <class Get, class Put> inline void overlapping(std::size_t n, Get&& get, Put&& put) {
  using V = Lanes<double, 32>::type;
  constexpr std::size_t width = Traits<V>::width;
  if (n < width) {
    for (std::size_t b = 0; b < n; ++b) put(b, 1, get(b, 1));
    return;
  }
  for (std::size_t b = 0; b + width <= n; b += width) put(b, width, get(b, width));
  if (n % width) put(n - width, width, get(n - width, width));
}

bool cross_weights(const double* weights, bool transposed, const double* in, std::size_t n_in,
                   std::size_t n_out, double t, double shift, double* scratch, double* out) {
  using V = Lanes<double, 32>::type;
  constexpr std::size_t width = Traits<V>::width;
  const double inverse = 1 / t;
  const auto four = [](const double* p, std::size_t lanes) {
    return lanes == width ? load<V>(p) : V{} + *p;
  };
  const auto put = [](double* p, std::size_t lanes, V value) {
    if (lanes == width) store<V>(p, value);
    else *p = value[0];
  };
  V low = V{} + infinity;
  overlapping(n_in, [&](std::size_t j, std::size_t lanes) { return four(in + j, lanes); },
              [&](std::size_t, std::size_t, V value) { low = smaller(low, value); });
  const double least = min_lanes<V>(low);
  if (!(least < infinity)) return false;
  overlapping(n_in,
              [&](std::size_t j, std::size_t lanes) {
                return exp_nonpositive<V>((least - four(in + j, lanes)) * inverse);
              },
              [&](std::size_t j, std::size_t lanes, V value) { put(scratch + j, lanes, value); });
  constexpr double smallest = 1e-280;
  V smallest_sum = V{} + infinity;
  if (transposed) {
    for (std::size_t a = 0; a < n_out; ++a) {
      const double* row = weights + a * n_in;
      V sum = {};
      std::size_t j = 0;
      for (; j + width <= n_in; j += width) sum += load<V>(row + j) * load<V>(scratch + j);
      double total = sum_lanes<V>(sum);
      for (; j < n_in; ++j) total += row[j] * scratch[j];
      out[a] = total;
    }
  } else {
    overlapping(n_out,
                [&](std::size_t b, std::size_t lanes) {
                  V sum = {};
                  for (std::size_t j = 0; j < n_in; ++j)
                    sum += scratch[j] * four(weights + j * n_out + b, lanes);
                  return sum;
                },
                [&](std::size_t b, std::size_t lanes, V value) { put(out + b, lanes, value); });
  }
  // Every entry once: logarithms must not be taken of logarithms.
  const double start = least + shift;
  std::size_t b = 0;
  for (; b + width <= n_out; b += width) {
    const V sum = load<V>(out + b);
    smallest_sum = smaller(smallest_sum, sum);
    store<V>(out + b, start - t * log_positive<V>(larger(sum, V{} + smallest)));
  }
  for (; b < n_out; ++b) {
    smallest_sum = smaller(smallest_sum, V{} + out[b]);
    out[b] = start - t * __builtin_log(out[b]);
  }
  return min_lanes<V>(smallest_sum) > smallest;
}

// -t log(exp(-a / t) + exp(-b / t)), t > 0
template <class V, class T> inline V soft_smaller(V a, V b, T t, T inverse) {
  const V gap = absolute(a - b);
  return smaller(a, b) - t * log_positive<V>(T(1) + exp_for_sums<V>(-gap * inverse));
}

enum class Joining { least, soft, soft_steep };

// h: what a pixel would send; out: what arrives behind the edge, with a least cost of 0.
template <class V, Joining joining, class T = typename Traits<V>::element>
inline void cross_potts(const V* h, V weight, V leak, int n, T t, T inverse, V* out) {
  V least = h[0];
  for (int l = 1; l < n; ++l) least = smaller(least, h[l]);
  if constexpr (joining == Joining::least) {
    for (int l = 0; l < n; ++l) out[l] = smaller(h[l] - least, weight);
  } else if constexpr (joining == Joining::soft) {
    // exp(-out) = leak sum_k exp(-h_k) + (1 - leak) exp(-h_l), in units of t
    V sum = {};
    for (int l = 0; l < n; ++l) sum += out[l] = exp_for_sums<V>((least - h[l]) * inverse);
    const V others = leak * sum, own = T(1) - leak;
    const V most = log_positive<V>(others + own);
    for (int l = 0; l < n; ++l) out[l] = t * (most - log_positive<V>(others + own * out[l]));
  } else {
    V sum = {};
    for (int l = 0; l < n; ++l) sum += exp_for_sums<V>((least - h[l]) * inverse);
    // exp(-out) = exp(-weight) sum_k exp(-h_k) + (1 - exp(-weight)) exp(-h_l), in units of t
    const V any = weight - t * log_positive<V>(sum);
    V low = V{} + T(infinity);
    for (int l = 0; l < n; ++l) {
      out[l] = soft_smaller<V, T>(h[l] - least + leak, any, t, inverse);
      low = smaller(low, out[l]);
    }
    for (int l = 0; l < n; ++l) out[l] -= low;
  }
}

// The same with a table (n, n) whose entry for k here and l there is table[k * from + l * to].
template <class V, Joining joining, class T = typename Traits<V>::element>
inline void cross_table(const V* h, V weight, const T* table, int from, int to, int n, T t, T inverse,
                        V* out) {
  V low = V{} + T(infinity);
  for (int l = 0; l < n; ++l) {
    V least = V{} + T(infinity);
    for (int k = 0; k < n; ++k) least = smaller(least, h[k] + weight * table[k * from + l * to]);
    if constexpr (joining != Joining::least) {
      V sum = {};
      for (int k = 0; k < n; ++k)
        sum += exp_for_sums<V>((least - h[k] - weight * table[k * from + l * to]) * inverse);
      least -= t * log_positive<V>(sum);
    }
    out[l] = least;
    low = smaller(low, least);
  }
  for (int l = 0; l < n; ++l) out[l] -= low;
}

template <Joining joining, class T>
T send_row(const GridPass<T>& pass, std::size_t row, T* scratch) {
  using V = typename Lanes<T, 32>::type;
  constexpr int width = Traits<V>::width;
  const int n = pass.n_states;
  constexpr bool is_soft = joining != Joining::least;
  const T t = pass.temperature, inverse = is_soft ? 1 / t : T(0);
  const auto stride = static_cast<std::ptrdiff_t>(pass.stride);
  const auto plane = static_cast<std::ptrdiff_t>(pass.plane);
  V* h = reinterpret_cast<V*>(scratch);  // four of n, towards the right, left, lower and upper
  V* arrived = h + 4 * n;
  // Where what is sent in each of these directions goes, as what, over which edge.
  const std::ptrdiff_t steps[4] = {1, -1, stride, -stride};
  V change = {};
  for (std::size_t column = 0; column < pass.columns; column += width) {
    const auto here = static_cast<std::ptrdiff_t>(column);
    const std::ptrdiff_t pixel = static_cast<std::ptrdiff_t>(row) * stride + here;
    // More streams than the processor prefetches by itself: fetch the next row, once per cache line.
    if (here * sizeof(T) % 64 == 0) {
      for (int l = 0; l < n; ++l) {
        const std::ptrdiff_t next = l * plane + pixel + stride;
        for (const T* start : {pass.in[0], pass.in[1], pass.in[2] + stride, pass.in[3], pass.costs})
          __builtin_prefetch(start + next);
      }
    }
    for (int l = 0; l < n; ++l) {
      const std::ptrdiff_t at = l * plane + pixel;
      const V left = load<V>(pass.in[0] + at), right = load<V>(pass.in[1] + at);
      const V above = load<V>(pass.in[2] + at), below = load<V>(pass.in[3] + at);
      const V cost = load<V>(pass.costs + at);
      const V across = cost + (above + below), along = cost + (left + right);
      h[l] = across + left;
      h[n + l] = across + right;
      h[2 * n + l] = along + above;
      h[3 * n + l] = along + below;
    }
    for (int d = 0; d < 4; ++d) {
      const int axis = d / 2;
      const std::ptrdiff_t edge = d % 2 ? pixel + steps[d] : pixel;
      const V weight = load<V>(pass.weights[axis] + edge);
      if (!pass.tables[axis]) {
        const V leak = is_soft ? load<V>(pass.leaks[axis] + edge) : V{};
        cross_potts<V, joining>(h + d * n, weight, leak, n, t, inverse, arrived);
      } else {
        const bool forwards = d % 2 == 0;
        cross_table<V, joining>(h + d * n, weight, pass.tables[axis], forwards ? n : 1,
                                forwards ? 1 : n, n, t, inverse, arrived);
      }
      T* out = pass.out[d] + here + (axis ? 0 : steps[d]);
      for (int l = 0; l < n; ++l) {
        const V step = load<V>(pass.in[d] + l * plane + pixel + steps[d]) - arrived[l];
        change = larger(change, absolute(step));
        store<V>(out + l * static_cast<std::ptrdiff_t>(pass.out_plane), arrived[l] + pass.kept * step);
      }
    }
  }
  return max_lanes<V>(change);
}

template <class T> T grid_pass(const GridPass<T>& pass, std::size_t row, T* scratch) {
  if (pass.temperature == 0) return send_row<Joining::least, T>(pass, row, scratch);
  return pass.steep ? send_row<Joining::soft_steep, T>(pass, row, scratch)
                    : send_row<Joining::soft, T>(pass, row, scratch);
}

}  // namespace

extern const GraphKernels graph_kernels;
const GraphKernels graph_kernels{fold_rows, fold_columns, cross_weights, grid_pass<float>, grid_pass<double>};

}  // namespace crfield::CRFIELD_ISA

// Compiled once per instruction set like kernels.cpp, whose rules hold here too.
#include "chain_kernels.hpp"

#include <cmath>
#include <cstring>

namespace crfield::CRFIELD_ISA {
namespace {

#include "lanes.hpp"

using V = Lanes<double, 32>::type;
using I = Lanes<double, 32>::integer;
typedef std::int32_t Choices __attribute__((vector_size(16)));
constexpr int width = Traits<V>::width;

// Calls body(Count<K>, first column) for groups of at most eight vectors, whose sums stay in registers.
template <int K> struct Count { static constexpr int value = K; };
template <class Body> inline void for_groups(int stride, Body&& body) {
  int first = 0;
  for (; first + 8 * width <= stride; first += 8 * width) body(Count<8>{}, first);
  switch ((stride - first) / width) {
    case 7: return body(Count<7>{}, first);
    case 6: return body(Count<6>{}, first);
    case 5: return body(Count<5>{}, first);
    case 4: return body(Count<4>{}, first);
    case 3: return body(Count<3>{}, first);
    case 2: return body(Count<2>{}, first);
    case 1: return body(Count<1>{}, first);
    default: return;
  }
}

// sum[k] += sum_r factors[r * step] rows[r, k]
template <int K>
inline void add_rows(const double* factors, std::size_t step, const double* rows, std::size_t n_rows,
                     std::size_t stride, V* sum) {
  for (std::size_t r = 0; r < n_rows; ++r) {
    const V factor = V{} + factors[r * step];
    for (int k = 0; k < K; ++k) sum[k] += factor * load<V>(rows + r * stride + k * width);
  }
}

// Four entries of a row from column c on, in double precision; those behind its end are any numbers.
template <class T> inline V get(const T* row, int c, int n, bool has_next) {
  using Narrow = typename Lanes<T, width * sizeof(T)>::type;
  const bool whole = has_next || c + width <= n;
  return __builtin_convertvector(
      whole ? load<Narrow>(row + c) : load_first<Narrow>(row + c, n - c), V);
}

template <class T>
void weigh(const T* x, double factor, std::size_t n_rows, int n, bool common, double* out,
           double* least) {
  const int stride = padded_states(n), last = stride - width;
  I real = {};
  for (int k = 0; k < n - last; ++k) real[k] = -1;
  const auto has_next = [&](std::size_t r) { return r * n + stride <= n_rows * n; };
  for (std::size_t r = 0; r < n_rows; ++r) {
    const T* row = x + r * n;
    const V end = get(row, last, n, has_next(r));
    V low = real ? end : V{} + static_cast<double>(row[0]);
    for (int c = 0; c < last; c += width) low = smaller(low, get(row, c, n, true));
    least[r] = min_lanes<V>(low);
  }
  if (common)
    for (std::size_t r = 1; r < n_rows; ++r) least[0] = least[r] < least[0] ? least[r] : least[0];
  for (std::size_t r = 0; r < n_rows; ++r, out += stride) {
    const T* row = x + r * n;
    // Subtracted before it is multiplied, so that no rounding makes an exponent positive.
    const double from = least[common ? 0 : r];
    for (int c = 0; c < last; c += width)
      store<V>(out + c, exp_nonpositive<V>(factor * (from - get(row, c, n, true))));
    const V end = exp_nonpositive<V>(factor * (from - get(row, last, n, has_next(r))));
    store<V>(out + last, real ? end : V{});
  }
  for (std::size_t r = 0; r < n_rows; ++r) least[r] *= factor;
}

double forward(const double* before, const double* table, const double* weights, int n, double* out) {
  const int stride = padded_states(n);
  V mass = {};
  for_groups(stride, [&](auto count, int first) {
    constexpr int K = decltype(count)::value;
    V sum[K] = {};
    if (before) add_rows<K>(before, 1, table + first, n, stride, sum);
    for (int k = 0; k < K; ++k) {
      const V weight = load<V>(weights + first + k * width);
      const V value = before ? weight * sum[k] : weight;
      mass += value;
      store<V>(out + first + k * width, value);
    }
  });
  const double total = sum_lanes<V>(mass), scale = 1 / total;
  for (int c = 0; c < stride; c += width) store<V>(out + c, scale * load<V>(out + c));
  return total;
}

double backward(const double* after, const double* table, const double* alpha, const double* weights,
                double scale, int n, double* q, double* pull) {
  const int stride = padded_states(n);
  const double factor = 1 / scale;
  V most = {};
  for_groups(stride, [&](auto count, int first) {
    constexpr int K = decltype(count)::value;
    V beta[K] = {};
    if (after) add_rows<K>(after, 1, table + first, n, stride, beta);
    for (int k = 0; k < K; ++k) {
      const int c = first + k * width;
      if (!after) beta[k] += 1.0;
      most = larger(most, beta[k]);
      store<V>(q + c, load<V>(alpha + c) * beta[k]);
      store<V>(pull + c, factor * load<V>(weights + c) * beta[k]);
    }
  });
  return max_lanes<V>(most);
}

void add_products(const double* x, const double* y, std::size_t n_rows, int n, double* out) {
  constexpr std::size_t block = 64;  // rows that stay in the nearest cache
  const int stride = padded_states(n);
  for (std::size_t begin = 0; begin < n_rows; begin += block) {
    const std::size_t rows = n_rows - begin < block ? n_rows - begin : block;
    for (int a = 0; a < n; ++a)
      for_groups(stride, [&](auto count, int first) {
        constexpr int K = decltype(count)::value;
        double* target = out + static_cast<std::size_t>(a) * stride + first;
        V sum[K];
        for (int k = 0; k < K; ++k) sum[k] = load<V>(target + k * width);
        add_rows<K>(x + begin * stride + a, stride, y + begin * stride + first, rows, stride, sum);
        for (int k = 0; k < K; ++k) store<V>(target + k * width, sum[k]);
      });
  }
}

void min_plus(const double* before, const double* table, int n, double* out, std::int32_t* choice) {
  const int stride = padded_states(n);
  for_groups(stride, [&](auto count, int first) {
    constexpr int K = decltype(count)::value;
    V best[K];
    I from[K] = {};
    for (int k = 0; k < K; ++k) best[k] = before[0] + load<V>(table + first + k * width);
    for (int i = 1; i < n; ++i) {
      const double* row = table + static_cast<std::size_t>(i) * stride + first;
      for (int k = 0; k < K; ++k) {
        const V other = before[i] + load<V>(row + k * width);
        const I better = other < best[k];
        best[k] = smaller(other, best[k]);
        from[k] = better ? I{} + i : from[k];
      }
    }
    for (int k = 0; k < K; ++k) {
      store<V>(out + first + k * width, best[k]);
      const Choices narrow = __builtin_convertvector(from[k], Choices);
      std::memcpy(choice + first + k * width, &narrow, sizeof(narrow));
    }
  });
}

void log_sum(const double* before, const double* table, int n, double* out) {
  const int stride = padded_states(n);
  for (int c = 0; c < stride; c += width) {
    V most = before[0] - load<V>(table + c);
    for (int i = 1; i < n; ++i)
      most = larger(most, before[i] - load<V>(table + static_cast<std::size_t>(i) * stride + c));
    V sum = {};
    for (int i = 0; i < n; ++i)
      sum += exp_nonpositive<V>(before[i] - load<V>(table + static_cast<std::size_t>(i) * stride + c) -
                                most);
    for (int k = 0; k < width; ++k) out[c + k] = most[k] + std::log(sum[k]);
  }
}

}  // namespace

extern const ChainKernels chain_kernels;
const ChainKernels chain_kernels = {weigh<float>, weigh<double>, forward, backward,
                                    add_products, min_plus,      log_sum};

}  // namespace crfield::CRFIELD_ISA

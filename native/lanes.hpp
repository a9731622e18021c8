// Short fixed-width vectors for the hot loops, on the compiler's vector extension.
//
// Included only by kernels.cpp and the like, inside their per-target namespaces: nothing here
// may be shared between translation units that are compiled for different instruction sets.
#pragma once

template <class T> struct IntegerOf;
template <> struct IntegerOf<float> { using type = std::int32_t; };
template <> struct IntegerOf<double> { using type = std::int64_t; };

// `Bytes` wide vector of T that may be loaded from any address aligned for T.
template <class T, int Bytes> struct Lanes {
  typedef T type __attribute__((vector_size(Bytes)));
  typedef T unaligned __attribute__((vector_size(Bytes), aligned(alignof(T)), may_alias));
  typedef typename IntegerOf<T>::type integer __attribute__((vector_size(Bytes)));
  static constexpr int width = Bytes / static_cast<int>(sizeof(T));
};

template <class V> struct Traits;  // from a vector type back to its element and integer types
#define CRFIELD_TRAITS(T, Bytes)                                   \
  template <> struct Traits<typename Lanes<T, Bytes>::type> {      \
    using element = T;                                             \
    using integer = typename Lanes<T, Bytes>::integer;             \
    using unaligned = typename Lanes<T, Bytes>::unaligned;         \
    static constexpr int width = Lanes<T, Bytes>::width;           \
  };
CRFIELD_TRAITS(float, 8)
CRFIELD_TRAITS(float, 16)
CRFIELD_TRAITS(float, 32)
CRFIELD_TRAITS(float, 64)
CRFIELD_TRAITS(double, 16)
CRFIELD_TRAITS(double, 32)
CRFIELD_TRAITS(double, 64)
#undef CRFIELD_TRAITS

template <class V> inline V load(const typename Traits<V>::element* p) {
  return *reinterpret_cast<const typename Traits<V>::unaligned*>(p);
}
template <class V> inline void store(typename Traits<V>::element* p, V v) {
  *reinterpret_cast<typename Traits<V>::unaligned*>(p) = v;
}
// The first n lanes from memory, the others zero; never reads past p + n.
template <class V> inline V load_first(const typename Traits<V>::element* p, int n) {
  V v = {};
  std::memcpy(&v, p, static_cast<std::size_t>(n) * sizeof(typename Traits<V>::element));
  return v;
}
template <class V> inline void store_first(typename Traits<V>::element* p, V v, int n) {
  std::memcpy(p, &v, static_cast<std::size_t>(n) * sizeof(typename Traits<V>::element));
}
template <class V> inline V larger(V a, V b) { return a > b ? a : b; }
template <class V> inline V smaller(V a, V b) { return a < b ? a : b; }
template <class V> inline V absolute(V x) { return larger(x, -x); }
// The lanes turned by `By` places; horizontal sums are trees of these.
template <int By, class V> inline V rotate(V v) {
#if defined(__clang__)
  V turned;
  for (int k = 0; k < Traits<V>::width; ++k) turned[k] = v[(k + By) % Traits<V>::width];
  return turned;
#else
  typename Traits<V>::integer places;
  for (int k = 0; k < Traits<V>::width; ++k) places[k] = (k + By) % Traits<V>::width;
  return __builtin_shuffle(v, places);
#endif
}
// Horizontal sums and extrema: wide vectors are folded in halves, which is cheaper than turning them.
template <class V, class Fold>
inline typename Traits<V>::element fold_lanes(V v, Fold&& fold) {
  using T = typename Traits<V>::element;
  constexpr int width = Traits<V>::width;
  if constexpr (sizeof(V) > 16) {
    using Half = typename Lanes<T, sizeof(V) / 2>::type;
    Half low, high;
    std::memcpy(&low, &v, sizeof(Half));
    std::memcpy(&high, reinterpret_cast<const char*>(&v) + sizeof(Half), sizeof(Half));
    return fold_lanes<Half>(fold(low, high), fold);
  } else {
    if constexpr (width >= 4) v = fold(v, rotate<2>(v));
    return fold(v, rotate<1>(v))[0];
  }
}
template <class V> inline typename Traits<V>::element sum_lanes(V v) {
  return fold_lanes<V>(v, [](auto a, auto b) { return a + b; });
}
template <class V> inline typename Traits<V>::element max_lanes(V v) {
  return fold_lanes<V>(v, [](auto a, auto b) { return larger(a, b); });
}
template <class V> inline typename Traits<V>::element min_lanes(V v) {
  return fold_lanes<V>(v, [](auto a, auto b) { return smaller(a, b); });
}

// Lanes of a and b: of every 2 * Half places the first Half from a and the others from b, both taken
// from the block's first (`Upper` = false) or second half.
template <int Half, bool Upper, class V> inline V merge_halves(V a, V b) {
  constexpr int width = Traits<V>::width;
  typename Traits<V>::integer places;
  for (int k = 0; k < width; ++k) {
    const bool from_b = k % (2 * Half) >= Half;
    places[k] = k + (Upper ? Half : 0) + (from_b ? width - Half : 0);
  }
#if defined(__clang__)
  V merged;
  for (int k = 0; k < width; ++k)
    merged[k] = places[k] < width ? a[places[k]] : b[places[k] - width];
  return merged;
#else
  return __builtin_shuffle(a, b, places);
#endif
}
// Lane p of the result is rows[p] folded over its lanes, for as many rows as there are lanes: a tree
// that costs less than one fold after another. The rows are overwritten.
template <class V, int Half = Traits<V>::width / 2, class Fold>
[[gnu::always_inline]] inline V fold_rows(V* rows, Fold&& fold) {
  if constexpr (Half == 0) {
    return rows[0];
  } else {
    for (int p = 0; p < Half; ++p)
      rows[p] = fold(merge_halves<Half, false>(rows[p], rows[p + Half]),
                     merge_halves<Half, true>(rows[p], rows[p + Half]));
    return fold_rows<V, Half / 2>(rows, fold);
  }
}

// exp(x) for x <= 0, relative error 2e-7 (float) or 4e-16 (double); 0 where it would be denormal.
template <class V> inline V exp_nonpositive(V x) {
  using T = typename Traits<V>::element;
  using I = typename Traits<V>::integer;
  constexpr bool single = sizeof(T) == 4;
  constexpr T lowest = single ? T(-87.3) : T(-708.3);
  constexpr T rounder = single ? T(12582912.0) : T(6755399441055744.0);  // 1.5 * 2^(mantissa bits)
  // Lanes below the clamp come out as the smallest normal number: zero them afterwards.
  const V clamped = larger(x, V{} + lowest);
  const V rounded = clamped * T(1.4426950408889634) + rounder;  // its low bits are the whole part
  const V n = rounded - rounder;
  const V r = (clamped - n * (single ? T(0.693359375) : T(6.93147180369123816490e-01))) -
              n * (single ? T(-2.12194440e-4) : T(1.90821492927058770002e-10));
  V p;
  if constexpr (single) {
    p = V{} + T(1.9875691500e-4);
    p = p * r + T(1.3981999507e-3);
    p = p * r + T(8.3334519073e-3);
    p = p * r + T(4.1665795894e-2);
    p = p * r + T(1.6666665459e-1);
    p = p * r + T(5.0000001201e-1);
    p = p * r * r + r + T(1);
  } else {
    p = V{} + T(1.0 / 6227020800.0);
    p = p * r + T(1.0 / 479001600.0);
    p = p * r + T(1.0 / 39916800.0);
    p = p * r + T(1.0 / 3628800.0);
    p = p * r + T(1.0 / 362880.0);
    p = p * r + T(1.0 / 40320.0);
    p = p * r + T(1.0 / 5040.0);
    p = p * r + T(1.0 / 720.0);
    p = p * r + T(1.0 / 120.0);
    p = p * r + T(1.0 / 24.0);
    p = p * r + T(1.0 / 6.0);
    p = p * r + T(0.5);
    p = p * r + T(1);
    p = p * r + T(1);
  }
  I exponent;
  std::memcpy(&exponent, &rounded, sizeof(V));
  const I bits = single ? (exponent + 127) << 23 : (exponent + 1023) << 52;
  V power;
  std::memcpy(&power, &bits, sizeof(V));
  return x < V{} + lowest ? V{} : p * power;
}

// The same with an absolute instead of a relative error of 1e-7 for float, in half the instructions.
template <class V> inline V exp_for_sums(V x) {
  using T = typename Traits<V>::element;
  using I = typename Traits<V>::integer;
  if constexpr (sizeof(T) == 8) {
    return exp_nonpositive<V>(x);
  } else {
    constexpr T lowest = T(-87.0), log2_e = T(1.4426950408889634), rounder = T(12582912.0);
    const I kept = x >= V{} + lowest;
    I bits;
    std::memcpy(&bits, &x, sizeof(V));
    bits &= kept;
    V inside;
    std::memcpy(&inside, &bits, sizeof(V));
    const V rounded = inside * log2_e + rounder;  // its low bits are the whole part
    const V f = inside * log2_e - (rounded - rounder);
    V p = V{} + T(0.0013276460597799085);
    p = p * f + T(0.009675541243482494);
    p = p * f + T(0.055507133087456605);
    p = p * f + T(0.24022119726104768);
    p = p * f + T(0.6931469670431802);
    p = p * f + T(1.0000000716539865);
    I whole;
    std::memcpy(&whole, &rounded, sizeof(V));
    std::memcpy(&bits, &p, sizeof(V));
    bits = (bits + (whole << 23)) & kept;
    std::memcpy(&p, &bits, sizeof(V));
    return p;
  }
}

// Self-pairs up to here have short formulas.
constexpr double weak_self_pair = 0.5;
// exp(x) for |x| <= weak_self_pair, relative error 2e-7.
template <class V> inline V exp_small(V x) {
  using T = typename Traits<V>::element;
  V p = V{} + T(0.001404592249);
  p = p * x + T(0.008459117403);
  p = p * x + T(0.04166383582);
  p = p * x + T(0.1666439831);
  p = p * x + T(0.5000001275);
  p = p * x + T(1.000001021);
  p = p * x + T(1);
  return p;
}

// W(x) / x for Lambert's W and 0 <= x <= weak_self_pair exp(weak_self_pair), relative error 3e-7.
template <class V> inline V lambert_ratio(V x) {
  using T = typename Traits<V>::element;
  const V above = ((T(0.0467750729) * x + T(1.34706905)) * x + T(2.59906165)) * x + T(1);
  const V below = ((T(0.758188213) * x + T(3.44634818)) * x + T(3.59905509)) * x + T(1);
  return above / below;
}

// log(x) for normal x > 0 to about 0.01: a starting point for iterations.
template <class V> inline V log_estimate(V x) {
  using T = typename Traits<V>::element;
  using I = typename Traits<V>::integer;
  constexpr bool single = sizeof(T) == 4;
  constexpr int mantissa_bits = single ? 23 : 52, bias = single ? 127 : 1023;
  using Whole = typename IntegerOf<T>::type;
  constexpr Whole mantissa_mask = (Whole(1) << mantissa_bits) - 1;
  I bits;
  std::memcpy(&bits, &x, sizeof(V));
  const V exponent = __builtin_convertvector((bits >> mantissa_bits) - bias, V);
  bits = (bits & mantissa_mask) | (Whole(bias) << mantissa_bits);
  V m;
  std::memcpy(&m, &bits, sizeof(V));
  return (exponent + (T(-1.6491) + m * (T(1.9950) - m * T(0.3369)))) * T(0.6931471805599453);
}

// exp and log without branches or calls, which compilers turn into vector code in loops.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace crfield {

// exp(x) for x in [-80, 0], relative error 2e-7 for float (Cephes' polynomial).
inline float quick_exp(float x) {
  constexpr float rounder = 12582912.0f;  // 1.5 * 2^23: the low bits of the sum are the whole part
  const float rounded = x * 1.44269504f + rounder;
  const float n = rounded - rounder;
  const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  return p * std::bit_cast<float>((std::bit_cast<std::uint32_t>(rounded) + 127u) << 23);
}
inline double quick_exp(double x) { return std::exp(x); }

// log(x) for normal x > 0, absolute error 1e-7 beside that of rounding for float (likewise).
inline float quick_log(float x) {
  const auto bits = std::bit_cast<std::int32_t>(x);
  const std::int32_t exponent = (bits - 0x3f3504f3) >> 23;  // x = 2^exponent f, f from sqrt(1/2) on
  const float f = std::bit_cast<float>(bits - (exponent << 23)) - 1.0f;
  const auto n = static_cast<float>(exponent);
  float p = 7.0376836292e-2f;
  p = p * f - 1.1514610310e-1f;
  p = p * f + 1.1676998740e-1f;
  p = p * f - 1.2420140846e-1f;
  p = p * f + 1.4249322787e-1f;
  p = p * f - 1.6668057665e-1f;
  p = p * f + 2.0000714765e-1f;
  p = p * f - 2.4999993993e-1f;
  p = p * f + 3.3333331174e-1f;
  p = p * f * f * f + n * -2.12194440e-4f - 0.5f * f * f;
  return f + p + n * 0.693359375f;
}
inline double quick_log(double x) { return std::log(x); }

}  // namespace crfield

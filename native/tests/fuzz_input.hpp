// Turns the bytes of a fuzzer into arguments that keep what the core's headers ask of its callers.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <vector>

namespace crfield::fuzz {

class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : at_(data), end_(data + size) {}

  std::uint8_t byte() { return at_ < end_ ? *at_++ : static_cast<std::uint8_t>(state_ = state_ * 13 + 101); }
  bool flag() { return byte() & 1; }
  // A whole number between both, each included.
  int between(int low, int high) { return low + (byte() | byte() << 8) % (high - low + 1); }
  int threads() { return between(1, 3); }
  // Small ones, equal ones, large ones and zero; never NaN or infinity.
  double number(double largest) {
    const int kind = byte();
    const double share = between(-1000, 1000) / 1000.0;
    if (kind < 16) return 0;
    if (kind < 32) return share > 0 ? largest : -largest;
    if (kind < 48) return share * 1e-300;
    if (kind < 96) return std::round(share * 4);
    return share * (kind < 128 ? largest : std::min(largest, 10.0));
  }
  double positive(double largest) { return std::fabs(number(largest)); }
  template <class T> std::vector<T> numbers(std::size_t n, double largest) {
    std::vector<T> found(n);
    for (T& value : found) value = static_cast<T>(number(largest));
    return found;
  }
  template <class T> std::vector<T> positives(std::size_t n, double largest) {
    std::vector<T> found(n);
    for (T& value : found) value = static_cast<T>(positive(largest));
    return found;
  }
  // Costs, some of them infinite if they may be.
  std::vector<double> costs(std::size_t n, double largest, bool may_forbid) {
    std::vector<double> found = numbers<double>(n, largest);
    for (double& value : found)
      if (may_forbid && byte() < 24) value = std::numeric_limits<double>::infinity();
    return found;
  }
  std::vector<std::int32_t> labels(std::size_t n, int n_labels) {
    std::vector<std::int32_t> found(n);
    for (auto& label : found) label = between(0, n_labels - 1);
    return found;
  }

 private:
  const std::uint8_t *at_, *end_;
  std::uint8_t state_ = 7;  // where the bytes run out
};

inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "wrong: %s\n", what);
  std::abort();
}
template <class T> void require_finite(const std::vector<T>& values, const char* what) {
  for (const T value : values) require(std::isfinite(value), what);
}
// Between 0 and n - 1.
template <class T> void require_below(const std::vector<T>& values, std::int64_t n, const char* what) {
  for (const T value : values) require(value >= 0 && static_cast<std::int64_t>(value) < n, what);
}

}  // namespace crfield::fuzz

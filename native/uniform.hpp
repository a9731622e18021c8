// Random numbers that depend on counters alone, not on what was drawn elsewhere or by which thread.
#pragma once

#include <cstdint>

namespace crfield {

// SplitMix64: spreads counters over all 64 bits.
inline std::uint64_t mixed(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// xoshiro256+ (Blackman and Vigna), started from counters.
class Uniform {
 public:
  Uniform(std::uint64_t seed, std::uint64_t sweep, std::uint64_t stream) {
    std::uint64_t x = mixed(mixed(mixed(seed) ^ sweep) ^ stream);
    for (std::uint64_t& word : state_) word = x = mixed(x);
  }

  // In [0, 1).
  template <class T> T next() {
    const std::uint64_t result = state_[0] + state_[3];
    const std::uint64_t shifted = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= shifted;
    state_[3] = (state_[3] << 45) | (state_[3] >> 19);
    if constexpr (sizeof(T) == 4) return static_cast<T>(result >> 40) * T{0x1p-24};
    return static_cast<T>(result >> 11) * static_cast<T>(0x1p-53);
  }

 private:
  std::uint64_t state_[4];
};

}  // namespace crfield

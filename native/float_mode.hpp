// How the processor treats denormal numbers: the core flushes them to zero, Python does not.
#pragma once

#if defined(__x86_64__) || defined(_M_X64)
#include <xmmintrin.h>
#endif

namespace crfield {

// A mode, which can be set for a while.
class FloatMode {
 public:
  static FloatMode now() {
    FloatMode mode;
#if defined(__x86_64__) || defined(_M_X64)
    mode.bits_ = _mm_getcsr();
#elif defined(__aarch64__) && !defined(_MSC_VER)
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode.bits_));
#endif
    return mode;
  }
  void set() const {
#if defined(__x86_64__) || defined(_M_X64)
    _mm_setcsr(static_cast<unsigned>(bits_));
#elif defined(__aarch64__) && !defined(_MSC_VER)
    __asm__ volatile("msr fpcr, %0" : : "r"(bits_));
#endif
  }
  // The same, with denormals flushed to zero.
  FloatMode flushing() const {
    FloatMode mode = *this;
#if defined(__x86_64__) || defined(_M_X64)
    mode.bits_ |= 0x8040u;
#elif defined(__aarch64__) && !defined(_MSC_VER)
    mode.bits_ |= 1ull << 24;
#endif
    return mode;
  }

  class Scope;

 private:
  unsigned long long bits_ = 0;
};

// Sets a mode for its lifetime and then the one before.
class FloatMode::Scope {
 public:
  explicit Scope(FloatMode mode) : before_(now()) { mode.set(); }
  ~Scope() { before_.set(); }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  FloatMode before_;
};

}  // namespace crfield

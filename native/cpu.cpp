#include "cpu.hpp"

#include <cstdlib>
#include <cstring>

namespace crfield {

#define CRFIELD_DECLARE(isa)                                       \
  namespace isa {                                                  \
  extern const Kernels<float> kernels_float;                       \
  extern const Kernels<double> kernels_double;                     \
  }
CRFIELD_DECLARE(baseline)
#ifdef CRFIELD_X86_DISPATCH
CRFIELD_DECLARE(avx2)
CRFIELD_DECLARE(avx512)
#endif
#undef CRFIELD_DECLARE

namespace {

struct Build {
  const char* name;
  const Kernels<float>* single;
  const Kernels<double>* wide;
};

Build choose() {
  const Build base{"baseline", &baseline::kernels_float, &baseline::kernels_double};
#ifdef CRFIELD_X86_DISPATCH
  __builtin_cpu_init();
  const char* wish = std::getenv("CRFIELD_ISA");
  const auto wanted = [&](const char* name) { return !wish || !std::strcmp(wish, name); };
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512vl");
  if (has_avx512 && wanted("avx512"))
    return {"avx512", &avx512::kernels_float, &avx512::kernels_double};
  if (has_avx2 && wanted("avx2")) return {"avx2", &avx2::kernels_float, &avx2::kernels_double};
#endif
  return base;
}

const Build& build() {
  static const Build chosen = choose();
  return chosen;
}

}  // namespace

template <> const Kernels<float>& kernels<float>() { return *build().single; }
template <> const Kernels<double>& kernels<double>() { return *build().wide; }
const char* isa_name() { return build().name; }

}  // namespace crfield

#include "cpu.hpp"

#include <cstdlib>
#include <cstring>

namespace crfield {

#define CRFIELD_DECLARE(isa)                                       \
  namespace isa {                                                  \
  extern const Kernels<float> kernels_float;                       \
  extern const Kernels<double> kernels_double;                     \
  extern const ChainKernels chain_kernels;                         \
  extern const GraphKernels graph_kernels;                         \
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
  const ChainKernels* chains;
  const GraphKernels* graphs;
};
#define CRFIELD_BUILD(isa) \
  Build { #isa, &isa::kernels_float, &isa::kernels_double, &isa::chain_kernels, &isa::graph_kernels }

Build choose() {
#ifdef CRFIELD_X86_DISPATCH
  __builtin_cpu_init();
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512vl");
  const char* wish = std::getenv("CRFIELD_ISA");
  const auto wanted = [&](const char* name) { return wish && !std::strcmp(wish, name); };
  if (wanted("baseline")) return CRFIELD_BUILD(baseline);
  if (has_avx2 && wanted("avx2")) return CRFIELD_BUILD(avx2);
  if (has_avx512) return CRFIELD_BUILD(avx512);
  if (has_avx2) return CRFIELD_BUILD(avx2);
#endif
  return CRFIELD_BUILD(baseline);
}
#undef CRFIELD_BUILD

const Build& build() {
  static const Build chosen = choose();
  return chosen;
}

}  // namespace

template <> const Kernels<float>& kernels<float>() { return *build().single; }
template <> const Kernels<double>& kernels<double>() { return *build().wide; }
const ChainKernels& chain_kernels() { return *build().chains; }
const GraphKernels& graph_kernels() { return *build().graphs; }
const char* isa_name() { return build().name; }

}  // namespace crfield

// Which build of the hot loops this processor gets.
#pragma once

#include "chain_kernels.hpp"
#include "graph_kernels.hpp"
#include "kernels.hpp"

namespace crfield {

// The widest build the processor supports, or the one named by the environment variable CRFIELD_ISA
// ("baseline", "avx2", "avx512") if it is supported: for tests and for comparing results. Any other
// value, and a build that is not supported, mean the widest.
template <class T> const Kernels<T>& kernels();
const ChainKernels& chain_kernels();
const GraphKernels& graph_kernels();

const char* isa_name();

}  // namespace crfield

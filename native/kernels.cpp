// Compiled once per instruction set with CRFIELD_ISA naming it. No standard-library templates here:
// the linker keeps one copy of such code, and it might be the one for the wrong processor.
#include "kernels.hpp"

#include <cmath>
#include <cstring>

namespace crfield::CRFIELD_ISA {
namespace {

#include "lanes.hpp"
#include "rows.hpp"

#include "kernels_exact.hpp"
#include "kernels_lattice.hpp"
#include "kernels_update.hpp"
#include "kernels_self_pairs.hpp"
#include "kernels_tables.hpp"
#include "kernels_pass.hpp"
#include "kernels_back.hpp"

template <class T> constexpr Kernels<T> table() {
  return {splat<T>,      slice<T>,   correlate<T>, blur<T>, add<T>, exact_tile<T>,
          message<T>,    center<T>,  largest<T>, dot<T>,       step<T>, pass<T>,
          back<T>,       combine<T>,    add_scaled<T>, column_dots<T>, row_sum_dot<T>, gram<T>, blur_axis<T>, embed<T>};
}

}  // namespace

extern const Kernels<float> kernels_float;
extern const Kernels<double> kernels_double;
const Kernels<float> kernels_float = table<float>();
const Kernels<double> kernels_double = table<double>();

}  // namespace crfield::CRFIELD_ISA

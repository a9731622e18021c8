// What the files that bind the core to Python share: array types, checks, and work without the GIL.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <optional>
#include <stdexcept>

#include "float_mode.hpp"
#include "interrupt.hpp"

namespace crfield {

namespace nb = nanobind;

template <class T> using Vector = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T> using Matrix = nb::ndarray<const T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
template <class T> using OutVector = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T> using OutMatrix = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
template <class T> using Scale = std::optional<Vector<T>>;

inline void require(bool holds, const char* message) {
  if (!holds) throw std::invalid_argument(message);
}
inline void require_threads(int threads) { require(threads >= 1 && threads <= 1024, "threads out of range"); }

template <class T> const T* data_or_null(const Scale<T>& scale, std::size_t n) {
  if (!scale) return nullptr;
  require(scale->shape(0) == n, "scale has the wrong length");
  return scale->data();
}

// Gives up the GIL for its lifetime. In the main thread the signal handlers of Python run meanwhile, and
// the work ends with `Interrupted` if one raises an exception, which then goes on to Python.
class Released final : Watch {
 public:
  Released();
  ~Released();

 private:
  bool should_stop() override;

  FloatMode mode_;
  PyThreadState* state_;
};

void bind_chains(nb::module_& m);
void bind_distance(nb::module_& m);
void bind_factor_graphs(nb::module_& m);
void bind_gibbs(nb::module_& m);
void bind_plans(nb::module_& m);
void bind_graphcuts(nb::module_& m);
void bind_rays(nb::module_& m);
void bind_signals(nb::module_& m);

}  // namespace crfield

// A small pool of worker threads shared by all calls into the library.
//
// Not OpenMP: its runtime hangs in forked children and clashes with the copy that torch brings.
// Several Python threads may call in at once; a child made by fork starts with a fresh pool.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>

namespace crfield {

// Runs body(0) ... body(n_parts - 1), the caller and up to n_parts - 1 workers taking parts in turn,
// with denormals flushed to zero (they slow the splat 2.5 times). Rethrows the first exception; parts
// that have not begun when the call is to stop (interrupt.hpp) do not.
void run_parts(int n_parts, const std::function<void(int)>& body);

// Splits [0, size) into at most `threads` contiguous ranges, the same ones for the same arguments,
// and calls body(part, begin, end). Ranges shorter than `grain` are not split.
template <class Body>
void parallel_ranges(std::size_t size, int threads, std::size_t grain, Body&& body) {
  const std::size_t wanted = std::max<std::size_t>(1, size / std::max<std::size_t>(1, grain));
  const int parts = static_cast<int>(std::min<std::size_t>(wanted, static_cast<std::size_t>(threads)));
  run_parts(parts, [&](int part) {
    const auto p = static_cast<std::size_t>(part), n = static_cast<std::size_t>(parts);
    body(part, size / n * p + std::min(p, size % n), size / n * (p + 1) + std::min(p + 1, size % n));
  });
}

}  // namespace crfield

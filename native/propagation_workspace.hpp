// Scratch memory that passing messages and reading beliefs share.
#pragma once

#include "factor_graph.hpp"
#include "interrupt.hpp"

namespace crfield {

// Ranges of variables or factors below this are not split between threads.
inline constexpr std::size_t grain = 256;

struct Propagation::Workspace {
  Scratch scratch, fresh, shared;
  Pace pace;
  double* room(std::size_t n) {
    if (fresh.size() < n) fresh.resize(n);
    return fresh.data();
  }
};

}  // namespace crfield

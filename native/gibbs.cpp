#include "gibbs.hpp"

#include <cmath>

#include "interrupt.hpp"
#include "thread_pool.hpp"
#include "uniform.hpp"

namespace crfield {

namespace {

// In [0, 1), where a draw of 0, which would be below any probability, is drawn again among all numbers
// that the grid of draws rounds down to it.
template <class T> T fine_draw(Uniform& random) {
  constexpr T step = sizeof(T) == 4 ? static_cast<T>(0x1p-24) : static_cast<T>(0x1p-53);
  const T u = random.template next<T>();
  return u > 0 ? u : step * random.template next<T>();
}

template <class T> T signed_label(std::uint8_t label) { return static_cast<T>(2 * label - 1); }

template <class T>
void sweep_one(const GridChains<T>& chains, std::size_t chain, Uniform random, Pace& pace) {
  const std::size_t height = chains.height, width = chains.width, n = height * width;
  std::uint8_t* labels = chains.labels + chain * n;
  const T* log_odds = chains.log_odds + chain * n;
  const T* right = chains.weights + static_cast<std::size_t>(chains.image[chain]) * 2 * n;
  const T* down = right + n;
  for (std::size_t color = 0; color < 2; ++color)
    for (std::size_t row = 0; row < height; ++row) {
      pace.step(8 * width);
      for (std::size_t column = (row + color) % 2; column < width; column += 2) {
        const std::size_t i = row * width + column;
        T x = log_odds[i];
        if (column > 0) x += right[i - 1] * signed_label<T>(labels[i - 1]);
        if (column + 1 < width) x += right[i] * signed_label<T>(labels[i + 1]);
        if (row > 0) x += down[i - width] * signed_label<T>(labels[i - width]);
        if (row + 1 < height) x += down[i] * signed_label<T>(labels[i + width]);
        // u < sigmoid(x)
        labels[i] = fine_draw<T>(random) * (1 + std::exp(-x)) < 1;
      }
    }
}

}  // namespace

template <class T>
void sweep_grids(const GridChains<T>& chains, std::uint64_t seed, std::uint64_t sweep, int threads) {
  parallel_ranges(chains.n_chains, threads, 8, [&](int, std::size_t begin, std::size_t end) {
    Pace pace;
    for (std::size_t chain = begin; chain < end; ++chain)
      sweep_one(chains, chain, Uniform(seed, sweep, chains.stream[chain]), pace);
  });
}

template void sweep_grids(const GridChains<float>&, std::uint64_t, std::uint64_t, int);
template void sweep_grids(const GridChains<double>&, std::uint64_t, std::uint64_t, int);

}  // namespace crfield

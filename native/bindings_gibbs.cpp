// Python bindings of Gibbs sampling.
#include <cstdint>

#include "bindings_common.hpp"
#include "gibbs.hpp"

namespace crfield {

namespace {

using nb::literals::operator""_a;
template <class T> using Volume = nb::ndarray<const T, nb::ndim<4>, nb::c_contig, nb::device::cpu>;
template <class T> using Maps = nb::ndarray<T, nb::ndim<3>, nb::c_contig, nb::device::cpu>;

template <class T> void bind_sweeps(nb::module_& m) {
  m.def("sweep_grids",
        [](Maps<std::uint8_t> labels, Maps<const T> log_odds, Volume<T> weights,
           Vector<std::int32_t> image, Vector<std::uint64_t> stream, std::uint64_t seed,
           std::uint64_t sweep, int threads) {
          require_threads(threads);
          const std::size_t n = labels.shape(0), height = labels.shape(1), width = labels.shape(2);
          require(log_odds.shape(0) == n && log_odds.shape(1) == height && log_odds.shape(2) == width,
                  "log_odds has the wrong shape");
          require(weights.shape(1) == 2 && weights.shape(2) == height && weights.shape(3) == width,
                  "weights have the wrong shape");
          require(image.shape(0) == n && stream.shape(0) == n, "one image and stream a chain");
          for (std::size_t chain = 0; chain < n; ++chain)
            require(image.data()[chain] >= 0 &&
                        static_cast<std::size_t>(image.data()[chain]) < weights.shape(0),
                    "image out of range");
          const GridChains<T> chains{height,          width,        n,
                                     labels.data(),   log_odds.data(), weights.data(),
                                     image.data(),    stream.data()};
          const Released release;
          sweep_grids(chains, seed, sweep, threads);
        },
        "labels"_a.noconvert(), "log_odds"_a.noconvert(), "weights"_a.noconvert(),
        "image"_a.noconvert(), "stream"_a.noconvert(), "seed"_a, "sweep"_a, "threads"_a);
}

}  // namespace

void bind_gibbs(nb::module_& m) {
  bind_sweeps<float>(m);
  bind_sweeps<double>(m);
}

}  // namespace crfield

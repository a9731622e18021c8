// Python bindings of rays through voxels.
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>

#include "bindings_common.hpp"
#include "rays.hpp"

namespace crfield {

namespace {

using nb::literals::operator""_a;

RayLines lines_of(const Matrix<double>& origins, const Matrix<double>& directions) {
  require(origins.shape(1) == 3 && directions.shape(1) == 3 &&
              origins.shape(0) == directions.shape(0),
          "origins and directions must have shape (R, 3)");
  return {origins.shape(0), origins.data(), directions.data()};
}

VoxelBox box_of(const std::array<std::int64_t, 3>& shape, const std::array<double, 3>& origin,
                const std::array<double, 3>& spacing) {
  for (int axis = 0; axis < 3; ++axis)
    require(shape[axis] >= 1 && shape[axis] <= INT32_MAX && spacing[axis] > 0, "bad grid");
  require(shape[0] * shape[1] <= INT32_MAX && shape[0] * shape[1] * shape[2] <= INT32_MAX,
          "too many voxels");
  return {shape, origin, spacing};
}

void bind_traversal(nb::module_& m) {
  m.def("count_crossings",
        [](const std::array<std::int64_t, 3>& shape, const std::array<double, 3>& origin,
           const std::array<double, 3>& spacing, Matrix<double> origins, Matrix<double> directions,
           OutVector<std::int64_t> counts, int threads) {
          require_threads(threads);
          const VoxelBox box = box_of(shape, origin, spacing);
          const RayLines lines = lines_of(origins, directions);
          require(counts.shape(0) == lines.n_rays, "counts has the wrong length");
          const Released release;
          count_crossings(box, lines, counts.data(), threads);
        },
        "shape"_a, "origin"_a, "spacing"_a, "origins"_a.noconvert(), "directions"_a.noconvert(),
        "counts"_a.noconvert(), "threads"_a);

  m.def("list_crossings",
        [](const std::array<std::int64_t, 3>& shape, const std::array<double, 3>& origin,
           const std::array<double, 3>& spacing, Matrix<double> origins, Matrix<double> directions,
           Vector<std::int64_t> offsets, OutVector<std::int32_t> voxels,
           std::optional<OutVector<double>> entries, std::optional<OutVector<double>> exits,
           int threads) {
          require_threads(threads);
          const VoxelBox box = box_of(shape, origin, spacing);
          const RayLines lines = lines_of(origins, directions);
          require(offsets.shape(0) == lines.n_rays + 1, "offsets has the wrong length");
          require(entries.has_value() == exits.has_value(), "entries and exits come together");
          for (const auto* out : {&entries, &exits})
            require(!*out || (*out)->shape(0) == voxels.shape(0), "distances have the wrong length");
          require(offsets.data()[0] == 0 &&
                      offsets.data()[lines.n_rays] == static_cast<std::int64_t>(voxels.shape(0)),
                  "offsets must run from 0 to the number of voxels");
          const Released release;
          list_crossings(box, lines, offsets.data(), voxels.data(),
                         entries ? entries->data() : nullptr, exits ? exits->data() : nullptr,
                         threads);
        },
        "shape"_a, "origin"_a, "spacing"_a, "origins"_a.noconvert(), "directions"_a.noconvert(),
        "offsets"_a.noconvert(), "voxels"_a.noconvert(), "entries"_a.noconvert().none(),
        "exits"_a.noconvert().none(), "threads"_a);
}

// Offsets and voxels were checked by whoever made the lists, but may have been changed since.
void require_inside(const Vector<std::int64_t>& offsets, const Vector<std::int32_t>& voxels,
                    std::size_t n_voxels) {
  bool is_good = offsets.data()[0] == 0;
  for (std::size_t ray = 1; ray < offsets.shape(0); ++ray)
    is_good &= offsets.data()[ray - 1] <= offsets.data()[ray];
  std::uint32_t most = 0;  // negative ones are the largest of all
  for (std::size_t at = 0; at < voxels.shape(0); ++at)
    most = std::max(most, static_cast<std::uint32_t>(voxels.data()[at]));
  require(is_good && (voxels.shape(0) == 0 || most < n_voxels), "offsets or voxels out of range");
}

template <class T>
RayLists<T> lists_of(const Vector<std::int64_t>& offsets, const Vector<std::int32_t>& voxels,
                     const Vector<T>& scores, const Vector<double>& empty_scores,
                     std::size_t n_voxels) {
  require(offsets.shape(0) == empty_scores.shape(0) + 1, "offsets has the wrong length");
  const std::size_t n_rays = empty_scores.shape(0);
  require(offsets.data()[n_rays] == static_cast<std::int64_t>(voxels.shape(0)) &&
              scores.shape(0) == voxels.shape(0),
          "offsets, voxels and scores do not match");
  require_inside(offsets, voxels, n_voxels);
  return {n_rays, offsets.data(), voxels.data(), scores.data(), empty_scores.data()};
}

void require_bits(int bits) { require(bits >= 0 && bits <= 62, "bits out of range"); }

template <class T> void bind_propagation(nb::module_& m) {
  m.def("update_rays",
        [](Vector<std::int64_t> offsets, Vector<std::int32_t> voxels, Vector<T> scores,
           Vector<double> empty_scores, OutVector<std::int64_t> beliefs,
           OutVector<std::int64_t> sums, int bits, OutVector<T> messages, double damping,
           bool max_product, int threads) {
          require_threads(threads);
          require_bits(bits);
          const auto rays = lists_of<T>(offsets, voxels, scores, empty_scores, beliefs.shape(0));
          require(sums.shape(0) == beliefs.shape(0), "sums has the wrong length");
          require(messages.shape(0) == voxels.shape(0), "messages has the wrong length");
          const Released release;
          return update_rays<T>(rays, {beliefs.data(), bits}, sums.data(), messages.data(), damping,
                                max_product, threads);
        },
        "offsets"_a.noconvert(), "voxels"_a.noconvert(), "scores"_a.noconvert(),
        "empty_scores"_a.noconvert(), "beliefs"_a.noconvert(), "sums"_a.noconvert(), "bits"_a,
        "messages"_a.noconvert(), "damping"_a, "max_product"_a, "threads"_a);

  m.def("depth_posteriors",
        [](Vector<std::int64_t> offsets, Vector<std::int32_t> voxels, Vector<T> scores,
           Vector<double> empty_scores, OutVector<std::int64_t> beliefs, int bits,
           Vector<T> messages, bool max_product, OutVector<T> depths, OutVector<T> empty,
           int threads) {
          require_threads(threads);
          require_bits(bits);
          const auto rays = lists_of<T>(offsets, voxels, scores, empty_scores, beliefs.shape(0));
          require(messages.shape(0) == voxels.shape(0), "messages has the wrong length");
          require(depths.shape(0) == voxels.shape(0) && empty.shape(0) == rays.n_rays,
                  "depths or empty has the wrong length");
          const Released release;
          depth_posteriors<T>(rays, {beliefs.data(), bits}, messages.data(), max_product,
                              depths.data(), empty.data(), threads);
        },
        "offsets"_a.noconvert(), "voxels"_a.noconvert(), "scores"_a.noconvert(),
        "empty_scores"_a.noconvert(), "beliefs"_a.noconvert(), "bits"_a, "messages"_a.noconvert(),
        "max_product"_a, "depths"_a.noconvert(), "empty"_a.noconvert(), "threads"_a);

  m.def("fuse_depths",
        [](Vector<std::int64_t> offsets, Vector<std::int32_t> voxels, Vector<T> scores,
           Vector<double> empty_scores, Vector<double> prior, OutVector<std::int64_t> sums,
           int bits, int threads) {
          require_threads(threads);
          require_bits(bits);
          const auto rays = lists_of<T>(offsets, voxels, scores, empty_scores, sums.shape(0));
          require(prior.shape(0) == sums.shape(0), "sums has the wrong length");
          const Released release;
          fuse_depths<T>(rays, prior.data(), {sums.data(), bits}, threads);
        },
        "offsets"_a.noconvert(), "voxels"_a.noconvert(), "scores"_a.noconvert(),
        "empty_scores"_a.noconvert(), "prior"_a.noconvert(), "sums"_a.noconvert(), "bits"_a,
        "threads"_a);
}

}  // namespace

void bind_rays(nb::module_& m) {
  m.attr("LARGEST_LOG_ODDS") = largest_log_odds;
  bind_traversal(m);
  m.def("count_rays",
        [](Vector<std::int64_t> offsets, Vector<std::int32_t> voxels,
           OutVector<std::int32_t> last_ray, OutVector<std::int32_t> degrees) {
          require(offsets.shape(0) >= 1 && offsets.data()[offsets.shape(0) - 1] ==
                                               static_cast<std::int64_t>(voxels.shape(0)),
                  "offsets has the wrong length");
          require(last_ray.shape(0) == degrees.shape(0), "last_ray has the wrong length");
          require_inside(offsets, voxels, degrees.shape(0));
          const Released release;
          return count_rays(offsets.shape(0) - 1, offsets.data(), voxels.data(), degrees.shape(0),
                            last_ray.data(), degrees.data());
        },
        "offsets"_a.noconvert(), "voxels"_a.noconvert(), "last_ray"_a.noconvert(),
        "degrees"_a.noconvert());
  bind_propagation<float>(m);
  bind_propagation<double>(m);
  m.def("ray_messages",
        [](Matrix<double> incoming, Vector<double> scores, double empty_score, bool max_product,
           OutMatrix<double> outgoing) {
          require(incoming.shape(1) == 2 && outgoing.shape(1) == 2 &&
                      incoming.shape(0) == scores.shape(0) && outgoing.shape(0) == scores.shape(0),
                  "messages must have shape (N, 2)");
          const Released release;
          ray_messages(scores.shape(0), incoming.data(), scores.data(), empty_score, max_product,
                       outgoing.data());
        },
        "incoming"_a.noconvert(), "scores"_a.noconvert(), "empty_score"_a, "max_product"_a,
        "outgoing"_a.noconvert());
}

}  // namespace crfield

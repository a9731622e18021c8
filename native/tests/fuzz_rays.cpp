// Rays through voxels, and distance transforms.
#include "distance_transform.hpp"
#include "fuzz_input.hpp"
#include "rays.hpp"

namespace {

using namespace crfield;
using fuzz::Input;

template <class T> void use_rays(Input& input) {
  VoxelBox box;
  for (int axis = 0; axis < 3; ++axis) {
    box.shape[axis] = input.between(1, 8);
    box.origin[axis] = input.number(1e3);
    box.spacing[axis] = 1e-3 + input.positive(1e3);
  }
  const std::size_t n_rays = input.between(1, 30);
  const auto origins = input.numbers<double>(3 * n_rays, 1e6);
  auto directions = input.numbers<double>(3 * n_rays, 1e6);
  for (std::size_t ray = 0; ray < n_rays; ++ray)
    if (std::fabs(directions[3 * ray]) < 1e-6) directions[3 * ray] = 1;
  const RayLines lines{n_rays, origins.data(), directions.data()};
  const int threads = input.threads();
  std::vector<std::int64_t> offsets(n_rays + 1, 0);
  count_crossings(box, lines, offsets.data() + 1, threads);
  for (std::size_t ray = 0; ray < n_rays; ++ray) offsets[ray + 1] += offsets[ray];
  const std::size_t size = offsets.back(), n_voxels = box.shape[0] * box.shape[1] * box.shape[2];
  std::vector<std::int32_t> voxels(size), last(n_voxels), degrees(n_voxels);
  std::vector<double> entries(size), exits(size);
  list_crossings(box, lines, offsets.data(), voxels.data(), entries.data(), exits.data(), threads);
  fuzz::require_below(voxels, static_cast<std::int64_t>(n_voxels), "voxels of a ray");
  fuzz::require(count_rays(n_rays, offsets.data(), voxels.data(), n_voxels, last.data(), degrees.data()) == -1,
                "a ray meets a voxel once");

  const auto scores = input.positives<T>(size, 1e6);
  auto empty = input.positives<double>(n_rays, 1e6);
  for (double& score : empty) score += 1e-3;
  const RayLists<T> rays{n_rays, offsets.data(), voxels.data(), scores.data(), empty.data()};
  const int bits = input.between(0, 40);
  std::vector<std::int64_t> beliefs(n_voxels), sums(n_voxels);
  for (auto& belief : beliefs) belief = static_cast<std::int64_t>(input.number(60) * (1ll << bits));
  std::vector<T> messages(size), depths(size), none(n_rays);
  for (T& message : messages) message = static_cast<T>(input.number(60));
  const bool max_product = input.flag();
  depth_posteriors<T>(rays, {beliefs.data(), bits}, messages.data(), max_product, depths.data(), none.data(), threads);
  fuzz::require_finite(depths, "depths are finite");
  update_rays<T>(rays, {beliefs.data(), bits}, sums.data(), messages.data(), input.flag() ? 0.5 : 0.0,
                 max_product, threads);
  fuzz::require_finite(messages, "messages of rays are finite");
  const std::vector<double> prior(n_voxels, 0.25);
  fuse_depths<T>(rays, prior.data(), {sums.data(), bits}, threads);
}

void use_messages(Input& input) {
  const std::size_t n = input.between(1, 40);
  auto incoming = input.positives<double>(2 * n, 1);
  for (std::size_t i = 0; i < n; ++i) incoming[2 * i + input.flag()] = 1;
  const auto scores = input.positives<double>(n, 1);
  std::vector<double> outgoing(2 * n);
  ray_messages(n, incoming.data(), scores.data(), input.positive(1), input.flag(), outgoing.data());
  fuzz::require_finite(outgoing, "messages of a ray are finite");
}

void use_distances(Input& input) {
  const std::size_t n = input.between(1, 3), height = input.between(1, 20), width = input.between(1, 20);
  const std::size_t size = n * height * width;
  const auto costs = input.costs(size, 1e6, input.flag());
  const auto weights = input.positives<double>(2 * n, 1e3), offsets = input.numbers<double>(2 * n, 1e3);
  std::vector<double> values(size);
  std::vector<std::int32_t> argmins(size);
  const DistanceProblem problem{n, height, width, costs.data(), weights.data(), offsets.data()};
  distance_transform(problem, values.data(), argmins.data(), input.threads());
  fuzz::require_below(argmins, static_cast<std::int64_t>(height * width), "where minima are");
  for (const double value : values) fuzz::require(!std::isnan(value), "minima are numbers");
  soft_distance_transform(problem, values.data(), input.threads());
  for (const double value : values) fuzz::require(!std::isnan(value), "soft minima are numbers");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input(data, size);
  switch (input.between(0, 3)) {
    case 0: use_rays<float>(input); break;
    case 1: use_rays<double>(input); break;
    case 2: use_messages(input); break;
    default: use_distances(input);
  }
  return 0;
}

// Rays through a voxel grid: traversal, and belief propagation with one factor for each ray.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace crfield {

// Axis-aligned boxes; the last axis varies fastest in a voxel's number.
struct VoxelBox {
  std::array<std::int64_t, 3> shape;
  std::array<double, 3> origin, spacing;
};

struct RayLines {
  std::size_t n_rays;
  const double *origins, *directions;  // (n_rays, 3)
};

// How many voxels each ray crosses on a positive length, from its origin onwards.
void count_crossings(const VoxelBox& box, const RayLines& lines, std::int64_t* counts, int threads);

// The same voxels in order, ray r's from offsets[r] on, with the parameters at which the ray enters
// and leaves each, in units of its direction's length; both or none may be null.
void list_crossings(const VoxelBox& box, const RayLines& lines, const std::int64_t* offsets,
                    std::int32_t* voxels, double* entries, double* exits, int threads);

// Rays as lists of voxels with a score for each, and one for meeting none of them.
template <class T> struct RayLists {
  std::size_t n_rays;
  const std::int64_t* offsets;  // (n_rays + 1,)
  const std::int32_t* voxels;   // (offsets[n_rays],)
  const T* scores;              // like voxels
  const double* empty_scores;   // (n_rays,)
};

// Log-odds of occupancy in units of 2^-bits. Whole numbers add up to the same sum in any order, so
// that results do not depend on how rays are spread over threads.
struct FixedLogOdds {
  std::int64_t* values;  // (n_voxels,)
  int bits;
};

// Messages from rays never leave [-largest_log_odds, largest_log_odds].
inline constexpr double largest_log_odds = 60;

// Position in `voxels` of the first that its ray has met before, or -1; degrees (n_voxels,) gets the
// number of rays through each voxel; last_ray (n_voxels,) is scratch.
std::int64_t count_rays(std::size_t n_rays, const std::int64_t* offsets, const std::int32_t* voxels,
                        std::size_t n_voxels, std::int32_t* last_ray, std::int32_t* degrees);

// One round of messages: each ray reads `beliefs`, takes out its own old message, replaces it and
// adds the new one to `sums`. Gives the largest change of a message before damping.
template <class T>
double update_rays(const RayLists<T>& rays, const FixedLogOdds& beliefs, std::int64_t* sums,
                   T* messages, double damping, bool max_product, int threads);

// Posterior of the first occupied voxel of each ray, and of there being none; for max-product its
// max-marginals, the largest being 1.
template <class T>
void depth_posteriors(const RayLists<T>& rays, const FixedLogOdds& beliefs, const T* messages,
                      bool max_product, T* depths, T* empty, int threads);

// Adds to `sums` what each ray says of its voxels where its depth has the scores as distribution and
// voxels behind it have their prior.
template <class T>
void fuse_depths(const RayLists<T>& rays, const double* prior, const FixedLogOdds& sums, int threads);

// Messages of one factor: incoming and outgoing (n, 2), of states 0 and 1; outgoing pairs sum to 1
// (max-product: their maximum is 1), a pair of zeros stays so.
void ray_messages(std::size_t n, const double* incoming, const double* scores, double empty_score,
                  bool max_product, double* outgoing);

}  // namespace crfield

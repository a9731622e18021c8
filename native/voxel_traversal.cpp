#include <algorithm>
#include <cmath>
#include <limits>

#include "interrupt.hpp"
#include "rays.hpp"
#include "thread_pool.hpp"

namespace crfield {

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

// Amanatides and Woo (1987). Crossings with planes are computed from the plane's number, not summed
// up, so that rounding does not grow along the ray.
class Walk {
 public:
  Walk(const VoxelBox& box, const double* origin, const double* direction) : box_(box) {
    double last = infinity;
    for (int axis = 0; axis < 3; ++axis) {
      start_[axis] = (origin[axis] - box.origin[axis]) / box.spacing[axis];
      step_[axis] = direction[axis] / box.spacing[axis];
      const auto n = static_cast<double>(box.shape[axis]);
      if (step_[axis] == 0) {
        if (!(start_[axis] >= 0 && start_[axis] < n)) last = -infinity;
        continue;
      }
      now_ = std::fmax(now_, crossing(axis, step_[axis] > 0 ? 0 : n));
      last = std::fmin(last, crossing(axis, step_[axis] > 0 ? n : 0));
    }
    is_inside_ = now_ < last;
    if (!is_inside_) return;
    for (int axis = 0; axis < 3; ++axis) {
      const double at = start_[axis] + (step_[axis] == 0 ? 0 : now_ * step_[axis]);
      const auto largest = static_cast<double>(box.shape[axis] - 1);
      cell_[axis] = static_cast<std::int64_t>(std::fmin(std::fmax(std::floor(at), 0), largest));
      next_[axis] = next_plane(axis);
    }
  }

  // Moves on to the next voxel that is crossed on a positive length; others come up where the walk
  // starts on a plane or passes an edge.
  bool advance() {
    while (is_inside_) {
      int axis = next_[1] < next_[0] ? 1 : 0;
      if (next_[2] < next_[axis]) axis = 2;
      const double out = next_[axis];
      const bool is_crossed = out > now_;
      if (is_crossed) {
        entry_ = now_;
        exit_ = now_ = out;
        voxel_ = static_cast<std::int32_t>((cell_[0] * box_.shape[1] + cell_[1]) * box_.shape[2] +
                                           cell_[2]);
      }
      cell_[axis] += step_[axis] > 0 ? 1 : -1;
      is_inside_ = cell_[axis] >= 0 && cell_[axis] < box_.shape[axis];
      next_[axis] = next_plane(axis);
      if (is_crossed) return true;
    }
    return false;
  }

  std::int32_t voxel() const { return voxel_; }
  double entry() const { return entry_; }
  double exit() const { return exit_; }

 private:
  double crossing(int axis, double plane) const { return (plane - start_[axis]) / step_[axis]; }
  double next_plane(int axis) const {
    if (step_[axis] == 0) return infinity;
    return crossing(axis, static_cast<double>(cell_[axis] + (step_[axis] > 0 ? 1 : 0)));
  }

  const VoxelBox& box_;
  double start_[3], step_[3], next_[3];
  std::int64_t cell_[3];
  double now_ = 0, entry_ = 0, exit_ = 0;
  std::int32_t voxel_ = 0;
  bool is_inside_ = false;
};

constexpr std::size_t grain = 256;

}  // namespace

void count_crossings(const VoxelBox& box, const RayLines& lines, std::int64_t* counts, int threads) {
  parallel_ranges(lines.n_rays, threads, grain, [&](int, std::size_t begin, std::size_t end) {
    Pace pace;
    for (std::size_t ray = begin; ray < end; ++ray) {
      Walk walk(box, lines.origins + 3 * ray, lines.directions + 3 * ray);
      counts[ray] = 0;
      while (walk.advance()) ++counts[ray];
      pace.step(8 * static_cast<std::size_t>(counts[ray]) + 8);
    }
  });
}

void list_crossings(const VoxelBox& box, const RayLines& lines, const std::int64_t* offsets,
                    std::int32_t* voxels, double* entries, double* exits, int threads) {
  parallel_ranges(lines.n_rays, threads, grain, [&](int, std::size_t begin, std::size_t end) {
    Pace pace;
    for (std::size_t ray = begin; ray < end; ++ray) {
      Walk walk(box, lines.origins + 3 * ray, lines.directions + 3 * ray);
      pace.step(8 * static_cast<std::size_t>(std::max<std::int64_t>(1, offsets[ray + 1] - offsets[ray])));
      for (std::int64_t at = offsets[ray]; at < offsets[ray + 1] && walk.advance(); ++at) {
        voxels[at] = walk.voxel();
        if (entries != nullptr) {
          entries[at] = walk.entry();
          exits[at] = walk.exit();
        }
      }
    }
  });
}

}  // namespace crfield

#include "rays.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <vector>

#include "interrupt.hpp"
#include "quick_math.hpp"
#include "thread_pool.hpp"

namespace crfield {

namespace {

// Scores below this share of the ray's largest count as 0, so that products with messages and with
// the scaled transmittance stay in range.
constexpr double least_share = 1e-200;
// Transmittance and what was collected are scaled up together below this; one step shrinks them by
// exp(-largest_log_odds), about 2^-87, at most.
constexpr double small = 0x1p-128, enlarge = 0x1p+128;
constexpr std::size_t rays_a_turn = 128;

// What is summed, or maximized, along a ray.
struct Sum {
  static double join(double a, double b) { return a + b; }
  template <class T> static T larger_state(T smaller) { return 1 / (1 + smaller); }
};
struct Max {
  static double join(double a, double b) { return std::max(a, b); }
  template <class T> static T larger_state(T) { return 1; }
};

template <class Body> void with_product(bool max_product, Body&& body) {
  if (max_product) body(Max{});
  else body(Sum{});
}

// One ray's incoming messages and scores; grows with the longest ray of its thread.
template <class T> struct RayScratch {
  std::vector<T> log_odds, free, occupied;
  std::vector<double> score, beyond, weight;
  void resize(std::size_t n) {
    if (score.size() >= n) return;
    for (auto* values : {&log_odds, &free, &occupied}) values->resize(n);
    for (auto* values : {&score, &beyond, &weight}) values->resize(n);
  }
};

// Scores divided by the largest of the ray; gives the score of the empty ray likewise.
template <class T>
double scale_scores(std::size_t n, const T* scores, double empty_score, RayScratch<T>& scratch) {
  T most = 0;
  for (std::size_t i = 0; i < n; ++i) most = std::max(most, scores[i]);
  const double largest = std::max(static_cast<double>(most), empty_score);
  const double factor = largest > 0 ? 1 / largest : 0;
  const auto scaled = [factor](double score) {
    const double share = score * factor;
    return share < least_share ? 0 : share;
  };
  for (std::size_t i = 0; i < n; ++i) scratch.score[i] = scaled(static_cast<double>(scores[i]));
  return scaled(empty_score);
}

// The state of the recursion over the voxels before i: C_i and T_i, up to a common factor.
struct Front {
  double collected = 0, transmitted = 1;

  template <class Product> void pass(double free, double occupied, double score) {
    collected = Product::join(collected, occupied * transmitted * score);
    transmitted *= free;
  }
  // Gives the factor by which both have grown.
  double enlarge_if_small() {
    double factor = 1;
    while (collected < small && transmitted < small && collected + transmitted > 0) {
      collected *= enlarge;
      transmitted *= enlarge;
      factor *= enlarge;
    }
    return factor;
  }
};

// V_{i+1} for every voxel. Where it underflows, C_i / T_i is 0 or larger by far: nothing is lost.
template <class Product, class T>
void scan_back(std::size_t n, double empty_score, RayScratch<T>& scratch) {
  double beyond = empty_score;
  for (std::size_t i = n; i-- > 0;) {
    scratch.beyond[i] = beyond;
    beyond = Product::join(scratch.occupied[i] * scratch.score[i], scratch.free[i] * beyond);
  }
}

// Calls emit(i, mu_i(0), mu_i(1)), each pair up to a factor.
template <class Product, class T, class Emit>
void scan_messages(std::size_t n, double empty_score, RayScratch<T>& scratch, Emit&& emit) {
  scan_back<Product>(n, empty_score, scratch);
  Front front;
  for (std::size_t i = 0; i < n; ++i) {
    emit(i, Product::join(front.collected, front.transmitted * scratch.beyond[i]),
         Product::join(front.collected, front.transmitted * scratch.score[i]));
    front.pass<Product>(scratch.free[i], scratch.occupied[i], scratch.score[i]);
    front.enlarge_if_small();
  }
}

// What all others say of the voxels of one ray, as messages of both states. The look-ups are a loop
// of their own, so that many of them are under way at once.
template <class Product, class T>
void read_messages(std::size_t n, const std::int32_t* voxels, const T* messages,
                   const FixedLogOdds& beliefs, RayScratch<T>& scratch) {
  const double up = std::ldexp(1.0, beliefs.bits), down = std::ldexp(1.0, -beliefs.bits);
  T *log_odds = scratch.log_odds.data();
  T *free = scratch.free.data(), *occupied = scratch.occupied.data();
  for (std::size_t i = 0; i < n; ++i) {
    const std::int64_t own = std::llrint(static_cast<double>(messages[i]) * up);
    log_odds[i] = static_cast<T>(static_cast<double>(beliefs.values[voxels[i]] - own) * down);
  }
  constexpr auto limit = static_cast<T>(largest_log_odds);
  for (std::size_t i = 0; i < n; ++i) {
    const T x = log_odds[i], distance = std::fabs(x);
    const T ratio = quick_exp(distance < limit ? -distance : -limit);
    const T larger = Product::larger_state(ratio), smaller = ratio * larger;
    occupied[i] = x >= 0 ? larger : smaller;
    free[i] = x >= 0 ? smaller : larger;
  }
}

const double least_ratio = std::exp(-largest_log_odds);

// Within what messages may be.
double bounded_ratio(double occupied, double free) {
  if (occupied <= free * least_ratio) return least_ratio;
  if (free <= occupied * least_ratio) return 1 / least_ratio;
  return occupied / free;
}

// The order in which rays add to a voxel differs between runs; the sum of whole numbers does not.
void add_shared(std::int64_t& sum, std::int64_t value) {
  __atomic_fetch_add(&sum, value, __ATOMIC_RELAXED);
}

// Threads take turns of a few rays each, since rays differ in length. body(part, ray, scratch).
template <class T, class Body> void for_each_ray(std::size_t n_rays, int threads, Body&& body) {
  const std::size_t turns = (n_rays + rays_a_turn - 1) / rays_a_turn;
  std::atomic<std::size_t> next{0};
  const auto parts = std::clamp<std::size_t>(turns, 1, static_cast<std::size_t>(threads));
  run_parts(static_cast<int>(parts), [&](int part) {
    RayScratch<T> scratch;
    for (std::size_t turn; (turn = next.fetch_add(1)) < turns;) {
      const std::size_t end = std::min(n_rays, (turn + 1) * rays_a_turn);
      for (std::size_t ray = turn * rays_a_turn; ray < end; ++ray) {
        check_interrupt();
        body(part, ray, scratch);
      }
    }
  });
}

}  // namespace

std::int64_t count_rays(std::size_t n_rays, const std::int64_t* offsets, const std::int32_t* voxels,
                        std::size_t n_voxels, std::int32_t* last_ray, std::int32_t* degrees) {
  std::fill(last_ray, last_ray + n_voxels, -1);
  std::fill(degrees, degrees + n_voxels, 0);
  Pace pace;
  for (std::size_t ray = 0; ray < n_rays; ++ray)
    for (std::int64_t at = offsets[ray]; at < offsets[ray + 1]; ++at) {
      pace.step(4);
      const std::int32_t voxel = voxels[at];
      if (last_ray[voxel] == static_cast<std::int32_t>(ray)) return at;
      last_ray[voxel] = static_cast<std::int32_t>(ray);
      ++degrees[voxel];
    }
  return -1;
}

template <class T>
double update_rays(const RayLists<T>& rays, const FixedLogOdds& beliefs, std::int64_t* sums,
                   T* messages, double damping, bool max_product, int threads) {
  std::vector<double> changes(static_cast<std::size_t>(threads), 0.0);
  const double up = std::ldexp(1.0, beliefs.bits);
  constexpr auto limit = static_cast<T>(largest_log_odds);
  with_product(max_product, [&]<class Product>(Product) {
    for_each_ray<T>(rays.n_rays, threads, [&](int part, std::size_t ray, RayScratch<T>& scratch) {
      const auto begin = static_cast<std::size_t>(rays.offsets[ray]);
      const std::size_t n = static_cast<std::size_t>(rays.offsets[ray + 1]) - begin;
      const std::int32_t* voxels = rays.voxels + begin;
      T* own = messages + begin;
      scratch.resize(n);
      for (std::size_t i = 0; i < n; ++i) __builtin_prefetch(sums + voxels[i], 1);
      const double empty = scale_scores(n, rays.scores + begin, rays.empty_scores[ray], scratch);
      read_messages<Product>(n, voxels, own, beliefs, scratch);
      T* found = scratch.log_odds.data();
      scan_messages<Product>(n, empty, scratch, [&](std::size_t i, double free, double occupied) {
        found[i] = static_cast<T>(bounded_ratio(occupied, free));
      });
      for (std::size_t i = 0; i < n; ++i) found[i] = quick_log(found[i]);
      double change = changes[static_cast<std::size_t>(part)];
      for (std::size_t i = 0; i < n; ++i) {
        const T step = std::clamp(found[i], -limit, limit) - own[i];
        change = std::max(change, static_cast<double>(std::fabs(step)));
        own[i] += static_cast<T>(1 - damping) * step;
        add_shared(sums[voxels[i]], std::llrint(static_cast<double>(own[i]) * up));
      }
      changes[static_cast<std::size_t>(part)] = change;
    });
  });
  return *std::max_element(changes.begin(), changes.end());
}

template <class T>
void depth_posteriors(const RayLists<T>& rays, const FixedLogOdds& beliefs, const T* messages,
                      bool max_product, T* depths, T* empty, int threads) {
  with_product(max_product, [&]<class Product>(Product) {
    for_each_ray<T>(rays.n_rays, threads, [&](int, std::size_t ray, RayScratch<T>& scratch) {
      const auto begin = static_cast<std::size_t>(rays.offsets[ray]);
      const std::size_t n = static_cast<std::size_t>(rays.offsets[ray + 1]) - begin;
      if (n == 0) {
        empty[ray] = 1;
        return;
      }
      scratch.resize(n);
      const double none = scale_scores(n, rays.scores + begin, rays.empty_scores[ray], scratch);
      read_messages<Product>(n, rays.voxels + begin, messages + begin, beliefs, scratch);
      Front front;
      std::size_t first = n;  // whose weight is not 0: only a few enlargements come after it
      for (std::size_t i = 0; i < n; ++i) {
        scratch.weight[i] = scratch.occupied[i] * front.transmitted * scratch.score[i];
        if (first == n && scratch.weight[i] > 0) first = i;
        front.pass<Product>(scratch.free[i], scratch.occupied[i], scratch.score[i]);
        const double factor = front.enlarge_if_small();
        if (factor > 1)
          for (std::size_t j = first; j <= i; ++j) scratch.weight[j] *= factor;
      }
      const double last = front.transmitted * none;
      const double total = Product::join(front.collected, last);
      for (std::size_t i = 0; i < n; ++i) depths[begin + i] = static_cast<T>(scratch.weight[i] / total);
      empty[ray] = static_cast<T>(last / total);
    });
  });
}

template <class T>
void fuse_depths(const RayLists<T>& rays, const double* prior, const FixedLogOdds& sums, int threads) {
  const double up = std::ldexp(1.0, sums.bits);
  for_each_ray<T>(rays.n_rays, threads, [&](int, std::size_t ray, RayScratch<T>& scratch) {
    const auto begin = static_cast<std::size_t>(rays.offsets[ray]);
    const std::size_t n = static_cast<std::size_t>(rays.offsets[ray + 1]) - begin;
    scratch.resize(n);
    double after = scale_scores(n, rays.scores + begin, rays.empty_scores[ray], scratch);
    for (std::size_t i = n; i-- > 0; after += scratch.score[i]) scratch.beyond[i] = after;
    double before = 0;
    for (std::size_t i = 0; i < n; before += scratch.score[i], ++i) {
      const std::int32_t voxel = rays.voxels[begin + i];
      const double p = prior[voxel];
      // Both relative to the prior, which the caller adds once.
      const double ratio =
          bounded_ratio(scratch.score[i] / p + before, scratch.beyond[i] / (1 - p) + before);
      add_shared(sums.values[voxel], std::llrint(std::log(ratio) * up));
    }
  });
}

void ray_messages(std::size_t n, const double* incoming, const double* scores, double empty_score,
                  bool max_product, double* outgoing) {
  RayScratch<double> scratch;
  scratch.resize(n);
  const double empty = scale_scores(n, scores, empty_score, scratch);
  with_product(max_product, [&]<class Product>(Product) {
    for (std::size_t i = 0; i < n; ++i) {
      const double total = Product::join(incoming[2 * i], incoming[2 * i + 1]);
      scratch.free[i] = incoming[2 * i] / total;
      scratch.occupied[i] = incoming[2 * i + 1] / total;
    }
    scan_messages<Product>(n, empty, scratch, [&](std::size_t i, double free, double occupied) {
      const double total = Product::join(free, occupied);
      outgoing[2 * i] = total > 0 ? free / total : 0;
      outgoing[2 * i + 1] = total > 0 ? occupied / total : 0;
    });
  });
}

#define CRFIELD_RAYS(T)                                                                             \
  template double update_rays(const RayLists<T>&, const FixedLogOdds&, std::int64_t*, T*, double,   \
                              bool, int);                                                           \
  template void depth_posteriors(const RayLists<T>&, const FixedLogOdds&, const T*, bool, T*, T*,   \
                                 int);                                                              \
  template void fuse_depths(const RayLists<T>&, const double*, const FixedLogOdds&, int);
CRFIELD_RAYS(float)
CRFIELD_RAYS(double)
#undef CRFIELD_RAYS

}  // namespace crfield

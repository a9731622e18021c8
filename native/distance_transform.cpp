#include "distance_transform.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "interrupt.hpp"
#include "thread_pool.hpp"

namespace crfield {

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
// Columns are copied to lines so many at a time: a cache line of each row.
constexpr std::size_t columns_a_block = 8;
constexpr std::size_t pixels_a_part = 4096;

// w (x + d - y)^2 along one axis.
struct Spring {
  double weight, offset;
  // Less than a normal number counts as 0, as it would by the flushing of denormals.
  bool is_slack() const { return weight < std::numeric_limits<double>::min(); }
};

struct Envelope {
  std::vector<std::int32_t> centers;
  std::vector<double> starts;  // from where on each of them is the lowest
  void resize(std::size_t n) {
    centers.resize(n);
    starts.resize(n);
  }
};

// The lower envelope of parabolas, left to right (Felzenszwalb & Huttenlocher 2012). Where two are
// equal the one on the left is taken, so that of equal minima the first is found.
void transform_line(std::size_t n, const double* f, Spring spring, Envelope& envelope,
                    double* values, std::int32_t* argmins) {
  if (spring.is_slack()) {
    const auto least = static_cast<std::size_t>(std::min_element(f, f + n) - f);
    std::fill(values, values + n, f[least]);
    std::fill(argmins, argmins + n, static_cast<std::int32_t>(least));
    return;
  }
  envelope.resize(n);
  std::int32_t* centers = envelope.centers.data();
  double* starts = envelope.starts.data();
  std::size_t count = 0;
  for (std::size_t q = 0; q < n; ++q) {
    if (!(f[q] < infinity)) continue;
    double start = -infinity;
    for (; count > 0; --count) {
      const auto p = static_cast<std::size_t>(centers[count - 1]);
      const double steps = static_cast<double>(q - p);
      start = (f[q] - f[p]) / (2 * spring.weight * steps) + static_cast<double>(p + q) / 2;
      if (start > starts[count - 1]) break;
    }
    if (count == 0) start = -infinity;
    centers[count] = static_cast<std::int32_t>(q);
    starts[count++] = start;
  }
  if (count == 0) {
    std::fill(values, values + n, infinity);
    std::fill(argmins, argmins + n, 0);
    return;
  }
  for (std::size_t x = 0, k = 0; x < n; ++x) {
    const double place = static_cast<double>(x) + spring.offset;
    while (k + 1 < count && starts[k + 1] < place) ++k;
    const double distance = place - centers[k];
    values[x] = f[centers[k]] + spring.weight * distance * distance;
    argmins[x] = centers[k];
  }
}

// exp(-w (j + d)^2) for all steps j = x - y, up to a factor that makes the largest 1.
class Weights {
 public:
  void prepare(std::size_t n, Spring spring) {
    n_ = static_cast<std::ptrdiff_t>(n);
    spring_ = spring.is_slack() ? Spring{0, 0} : spring;
    values_.resize(2 * n - 1);
    least_ = infinity;
    for (std::ptrdiff_t j = 1 - n_; j < n_; ++j) least_ = std::min(least_, cost(j));
    // Those that are too small to count form the two ends.
    first_ = n_;
    last_ = -n_;
    for (std::ptrdiff_t j = 1 - n_; j < n_; ++j) {
      const double exponent = least_ - cost(j);
      if (exponent < least_exponent) continue;
      at(j) = std::exp(exponent);
      first_ = std::min(first_, j);
      last_ = j;
    }
  }

  // A sum of scaled exponentials where it has not underflowed, else relative to its own least term.
  void sum_line(const double* f, Envelope& envelope, std::vector<std::int32_t>& argmins,
                std::vector<double>& terms, double* values) {
    const auto n = static_cast<std::size_t>(n_);
    const double bottom = *std::min_element(f, f + n);
    if (!(bottom < infinity)) {
      std::fill(values, values + n, infinity);
      return;
    }
    terms.resize(n);
    double* sums = terms.data();
    std::fill(sums, sums + n, 0.0);
    for (std::ptrdiff_t y = 0; y < n_; ++y) {
      pace_.step(n / 4);
      const double share = std::exp(bottom - f[y]);
      if (share == 0) continue;
      const std::ptrdiff_t begin = std::max<std::ptrdiff_t>(0, y + first_);
      const std::ptrdiff_t end = std::min(n_, y + last_ + 1);
      const double* row = values_.data() + (n_ - 1 - y);
      for (std::ptrdiff_t x = begin; x < end; ++x) sums[x] += share * row[x];
    }
    bool is_whole = true;
    for (std::size_t x = 0; x < n; ++x) is_whole &= sums[x] > least_sum;
    if (!is_whole) {
      argmins.resize(n);
      transform_line(n, f, spring_, envelope, values, argmins.data());
    }
    for (std::ptrdiff_t x = 0; x < n_; ++x) {
      if (sums[x] > least_sum) {
        values[x] = bottom + least_ - std::log(sums[x]);
        continue;
      }
      double sum = 0;
      pace_.step(8 * n);
      for (std::ptrdiff_t y = 0; y < n_; ++y)
        sum += std::exp(std::min(0.0, values[x] - (f[y] + cost(x - y))));
      values[x] -= std::log(std::max(1.0, sum));  // the least term itself may have been rounded
    }
  }

 private:
  static constexpr double least_exponent = -690;  // exp of it is about 1e-300
  static constexpr double least_sum = 1e-280;

  double cost(std::ptrdiff_t j) const {
    const double distance = static_cast<double>(j) + spring_.offset;
    return spring_.weight * distance * distance;
  }
  double& at(std::ptrdiff_t j) { return values_[static_cast<std::size_t>(j + n_ - 1)]; }

  Pace pace_;
  std::ptrdiff_t n_ = 0, first_ = 0, last_ = 0;
  Spring spring_{0, 0};
  double least_ = 0;
  std::vector<double> values_;
};

Spring spring_of(const DistanceProblem& problem, std::size_t image, std::size_t axis) {
  return {problem.weights[2 * image + axis], problem.offsets[2 * image + axis]};
}

// body(state, image, first pixel) for each row of each image; each part makes a state of its own.
template <class State, class Body>
void for_each_row(const DistanceProblem& problem, int threads, Body&& body) {
  const std::size_t grain = std::max<std::size_t>(1, pixels_a_part / problem.width);
  parallel_ranges(problem.n_images * problem.height, threads, grain,
                  [&](int, std::size_t begin, std::size_t end) {
                    State state;
                    Pace pace;
                    for (std::size_t row = begin; row < end; ++row) {
                      pace.step(8 * problem.width);
                      body(state, row / problem.height, row * problem.width);
                    }
                  });
}

// body(state, image, first pixel, columns) for blocks of columns of each image.
template <class State, class Body>
void for_each_block(const DistanceProblem& problem, int threads, Body&& body) {
  const std::size_t blocks = (problem.width + columns_a_block - 1) / columns_a_block;
  const std::size_t grain =
      std::max<std::size_t>(1, pixels_a_part / (columns_a_block * problem.height));
  parallel_ranges(problem.n_images * blocks, threads, grain,
                  [&](int, std::size_t begin, std::size_t end) {
                    State state;
                    Pace pace;
                    for (std::size_t block = begin; block < end; ++block) {
                      pace.step(8 * columns_a_block * problem.height);
                      const std::size_t image = block / blocks;
                      const std::size_t column = block % blocks * columns_a_block;
                      body(state, image, image * problem.height * problem.width + column,
                           std::min(columns_a_block, problem.width - column));
                    }
                  });
}

// Copies a block of columns to lines, or back.
template <class T>
void gather(const T* from, std::size_t height, std::size_t width, std::size_t n, T* lines) {
  for (std::size_t y = 0; y < height; ++y)
    for (std::size_t c = 0; c < n; ++c) lines[c * height + y] = from[y * width + c];
}
template <class T>
void scatter(const T* lines, std::size_t height, std::size_t width, std::size_t n, T* to) {
  for (std::size_t y = 0; y < height; ++y)
    for (std::size_t c = 0; c < n; ++c) to[y * width + c] = lines[c * height + y];
}

struct HardState {
  Envelope envelope;
  std::vector<double> costs, values;
  std::vector<std::int32_t> columns, rows;
};

struct SoftState {
  Envelope envelope;
  std::vector<std::int32_t> argmins;
  std::vector<double> terms, costs, values;
  Weights weights;
  std::size_t image = static_cast<std::size_t>(-1);  // that the weights are of
  void prepare(const DistanceProblem& problem, std::size_t wanted, std::size_t axis) {
    if (wanted == image) return;
    image = wanted;
    weights.prepare(axis == 0 ? problem.height : problem.width, spring_of(problem, image, axis));
  }
};

}  // namespace

void distance_transform(const DistanceProblem& problem, double* values, std::int32_t* argmins,
                        int threads) {
  const std::size_t height = problem.height, width = problem.width;
  if (problem.n_images * height * width == 0) return;
  for_each_row<HardState>(
      problem, threads, [&](HardState& state, std::size_t image, std::size_t pixel) {
        transform_line(width, problem.costs + pixel, spring_of(problem, image, 1), state.envelope,
                       values + pixel, argmins + pixel);
      });
  for_each_block<HardState>(
      problem, threads,
      [&](HardState& state, std::size_t image, std::size_t pixel, std::size_t n) {
        for (auto* lines : {&state.costs, &state.values}) lines->resize(n * height);
        for (auto* lines : {&state.columns, &state.rows}) lines->resize(n * height);
        gather(values + pixel, height, width, n, state.costs.data());
        gather(argmins + pixel, height, width, n, state.columns.data());
        for (std::size_t c = 0; c < n; ++c) {
          std::int32_t* rows = state.rows.data() + c * height;
          const std::int32_t* columns = state.columns.data() + c * height;
          transform_line(height, state.costs.data() + c * height, spring_of(problem, image, 0),
                         state.envelope, state.values.data() + c * height, rows);
          for (std::size_t y = 0; y < height; ++y)
            rows[y] = rows[y] * static_cast<std::int32_t>(width) + columns[rows[y]];
        }
        scatter(state.values.data(), height, width, n, values + pixel);
        scatter(state.rows.data(), height, width, n, argmins + pixel);
      });
}

void soft_distance_transform(const DistanceProblem& problem, double* values, int threads) {
  const std::size_t height = problem.height, width = problem.width;
  if (problem.n_images * height * width == 0) return;
  for_each_row<SoftState>(
      problem, threads, [&](SoftState& state, std::size_t image, std::size_t pixel) {
        state.prepare(problem, image, 1);
        state.weights.sum_line(problem.costs + pixel, state.envelope, state.argmins, state.terms,
                               values + pixel);
      });
  for_each_block<SoftState>(
      problem, threads,
      [&](SoftState& state, std::size_t image, std::size_t pixel, std::size_t n) {
        state.prepare(problem, image, 0);
        for (auto* lines : {&state.costs, &state.values}) lines->resize(n * height);
        gather(values + pixel, height, width, n, state.costs.data());
        for (std::size_t c = 0; c < n; ++c)
          state.weights.sum_line(state.costs.data() + c * height, state.envelope, state.argmins,
                                 state.terms, state.values.data() + c * height);
        scatter(state.values.data(), height, width, n, values + pixel);
      });
}

}  // namespace crfield

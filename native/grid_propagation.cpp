#include "grid_propagation.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <utility>

#include "cpu.hpp"
#include "factor_graph.hpp"
#include "interrupt.hpp"
#include "thread_pool.hpp"

namespace crfield {

template <class T>
GridPropagation<T>::GridPropagation(std::size_t rows, std::size_t columns, int n_states,
                                    const T* costs, const GridEdges<T>& edges, double temperature,
                                    int threads)
    : rows_(rows), columns_(columns), n_states_(n_states), temperature_(static_cast<T>(temperature)),
      threads_(threads) {
  // Vectors reach past the last pixel of a row, and one place before its first; what is fetched ahead of its
  // use, two rows past the last.
  const auto lanes = static_cast<std::size_t>(grid_lanes(sizeof(T)));
  stride_ = (columns + lanes - 1) / lanes * lanes + lanes;
  origin_ = stride_ + lanes;
  plane_ = (rows + 3) * stride_ + 2 * lanes;
  const auto n = static_cast<std::size_t>(n_states);
  resize_in_pieces(costs_, n * plane_);
  for (auto& planes : in_) resize_in_pieces(planes, n * plane_);
  parallel_ranges(rows, threads, 16, [&](int, std::size_t begin, std::size_t end) {
    Pace pace;
    for (std::size_t row = begin; row < end; ++row)
      for (std::size_t column = 0; column < columns; ++column) {
        pace.step(4 * n);
        for (std::size_t l = 0; l < n; ++l)
          costs_[l * plane_ + at(row, column)] = costs[(row * columns + column) * n + l];
      }
  });
  Pace pace;
  for (std::size_t axis = 0; axis < 2; ++axis)
    for (std::size_t i = 0; i < (rows - axis) * (columns - (1 - axis)); ++i) {
      pace.step();
      steep_ = steep_ || static_cast<double>(edges.weights[axis][i]) > steep_weight * temperature;
    }
  for (std::size_t axis = 0; axis < 2; ++axis) {
    if (edges.tables[axis]) tables_[axis].assign(edges.tables[axis], edges.tables[axis] + n * n);
    weights_[axis].assign(plane_, T{0});
    leaks_[axis].assign(plane_, steep_ ? static_cast<T>(forbidden) : T{1});
    const std::size_t height = rows - axis, width = columns - (1 - axis);
    for (std::size_t row = 0; row < height; ++row)
      for (std::size_t column = 0; column < width; ++column) {
        pace.step(8);
        const T weight = edges.weights[axis][row * width + column];
        weights_[axis][at(row, column)] = weight;
        if (temperature == 0) continue;
        const double through = std::exp(-static_cast<double>(weight) / temperature);
        leaks_[axis][at(row, column)] =
            static_cast<T>(steep_ ? -temperature * std::log1p(-through) : through);
      }
  }
}

template <class T> void GridPropagation<T>::start_from(const GridPropagation& other) {
  for (std::size_t d = 0; d < 4; ++d) {
    check_interrupt();
    in_[d] = other.in_[d];
  }
}

// Messages are replaced in place: halving the memory that an iteration goes through is worth more on large
// grids than anything else. What a row sends is held back until nobody needs what it replaces.
template <class T> double GridPropagation<T>::flood(double damping) {
  GridPass<T> pass{columns_, stride_, plane_, n_states_, temperature_, static_cast<T>(damping),
                   costs_.data() + origin_, {}, {}, stride_, {}, {}, steep_, {}};
  for (std::size_t d = 0; d < 4; ++d) pass.in[d] = in_[d].data() + origin_;
  for (std::size_t axis = 0; axis < 2; ++axis) {
    pass.weights[axis] = weights_[axis].data() + origin_;
    pass.leaks[axis] = leaks_[axis].data() + origin_;
    pass.tables[axis] = tables_[axis].empty() ? nullptr : tables_[axis].data();
  }
  const auto n = static_cast<std::size_t>(n_states_);
  const auto lanes = static_cast<std::size_t>(grid_lanes(sizeof(T)));
  struct Part {
    std::size_t begin = 0, end = 0;
    T change = 0;
    std::vector<T> up, down;  // to the rows before and behind, which are another part's
  };
  std::vector<Part> parts(static_cast<std::size_t>(threads_));
  parallel_ranges(rows_, threads_, 4, [&](int number, std::size_t begin, std::size_t end) {
    Part& part = parts[static_cast<std::size_t>(number)];
    part.begin = begin;
    part.end = end;
    // Aligned for whole vectors.
    std::vector<T> room(grid_scratch(n_states_, sizeof(T)) + 64 / sizeof(T));
    void* start = room.data();
    std::size_t space = room.size() * sizeof(T);
    std::align(64, grid_scratch(n_states_, sizeof(T)) * sizeof(T), start, space);
    std::array<std::vector<T>, 4> sent;
    for (auto& rows : sent) rows.assign(n * stride_ + 2 * lanes, T{0});
    std::vector<T> down_before(sent[2].size(), T{0});
    Pace pace;
    const std::size_t work = 4 * columns_ * (tables_[0].empty() && tables_[1].empty() ? n : n * n);
    for (std::size_t row = begin; row < end; ++row) {
      pace.step(work);
      GridPass<T> own = pass;
      for (std::size_t d = 0; d < 4; ++d) own.out[d] = sent[d].data() + lanes;
      part.change = std::max(part.change, graph_kernels().grid(own, row, static_cast<T*>(start)));
      replace(0, row, 1, columns_, own.out[0]);
      replace(1, row, 0, columns_ - 1, own.out[1]);
      if (row > begin) {
        replace(2, row, 0, columns_, down_before.data() + lanes);
        replace(3, row - 1, 0, columns_, own.out[3]);
      } else {
        part.up = sent[3];
      }
      std::swap(down_before, sent[2]);
    }
    part.down = std::move(down_before);
  });
  T change = 0;
  for (const Part& part : parts) {
    if (part.begin == part.end) continue;
    if (part.begin > 0) replace(3, part.begin - 1, 0, columns_, part.up.data() + lanes);
    if (part.end < rows_) replace(2, part.end, 0, columns_, part.down.data() + lanes);
    change = std::max(change, part.change);
  }
  return static_cast<double>(change);
}

// The messages to columns [first, last) of a row, from rows (n_states, stride).
template <class T>
void GridPropagation<T>::replace(std::size_t direction, std::size_t row, std::size_t first,
                                 std::size_t last, const T* sent) {
  for (std::size_t l = 0; l < static_cast<std::size_t>(n_states_); ++l)
    std::copy(sent + l * stride_ + first, sent + l * stride_ + last,
              in_[direction].data() + l * plane_ + at(row, first));
}

template <class T> void GridPropagation<T>::gather(std::size_t pixel, int without, double* out) const {
  for (std::size_t l = 0; l < static_cast<std::size_t>(n_states_); ++l) {
    out[l] = static_cast<double>(costs_[l * plane_ + pixel]);
    for (int d = 0; d < 4; ++d)
      if (d != without) out[l] += static_cast<double>(in_[static_cast<std::size_t>(d)][l * plane_ + pixel]);
  }
}

template <class T> void GridPropagation<T>::beliefs(T* out) const {
  const auto n = static_cast<std::size_t>(n_states_);
  parallel_ranges(rows_, threads_, 4, [&](int, std::size_t begin, std::size_t end) {
    std::vector<double> values(n);
    Pace pace;
    for (std::size_t row = begin; row < end; ++row)
      for (std::size_t column = 0; column < columns_; ++column) {
        pace.step(8 * n);
        gather(at(row, column), -1, values.data());
        const double least = *std::min_element(values.begin(), values.end());
        double sum = 0;
        for (double& value : values) {
          value -= least;
          if (temperature_ > 0) sum += value = std::exp(-value / static_cast<double>(temperature_));
        }
        for (std::size_t l = 0; l < n; ++l)
          out[(row * columns_ + column) * n + l] =
              static_cast<T>(temperature_ > 0 ? values[l] / sum : values[l]);
      }
  });
}

template <class T>
void GridPropagation<T>::join_ends(std::size_t pixel, int axis, double* here, double* there,
                                   double* joint) const {
  const auto n = static_cast<std::size_t>(n_states_);
  // What goes to the right leaves out what comes from there (1), what goes down what comes from
  // below (3).
  gather(pixel, 2 * axis + 1, here);
  gather(pixel + (axis ? stride_ : 1), 2 * axis, there);
  const auto weight = static_cast<double>(weights_[axis][pixel]);
  const auto& table = tables_[axis];
  for (std::size_t k = 0; k < n; ++k)
    for (std::size_t l = 0; l < n; ++l)
      joint[k * n + l] = here[k] + there[l] +
                         weight * (table.empty() ? static_cast<double>(k != l)
                                                 : static_cast<double>(table[k * n + l]));
}

// -t (log Z_f - log Z_fu - log Z_fv) of one edge, see Propagation::log_partition.
template <class T>
double GridPropagation<T>::message_total(std::size_t pixel, int axis, double* scratch) const {
  const auto n = static_cast<std::size_t>(n_states_);
  const auto t = static_cast<double>(temperature_);
  double *here = scratch, *there = scratch + n, *joint = scratch + 2 * n;
  join_ends(pixel, axis, here, there, joint);
  const auto& to_here = in_[static_cast<std::size_t>(2 * axis + 1)];
  const auto& to_there = in_[static_cast<std::size_t>(2 * axis)];
  const std::size_t other = pixel + (axis ? stride_ : 1);
  for (std::size_t l = 0; l < n; ++l) {
    here[l] += static_cast<double>(to_here[l * plane_ + pixel]);
    there[l] += static_cast<double>(to_there[l * plane_ + other]);
  }
  return soft_min(joint, n * n, t) - soft_min(here, n, t) - soft_min(there, n, t);
}

template <class T> void GridPropagation<T>::edge_beliefs(T* out) const {
  const auto n = static_cast<std::size_t>(n_states_);
  const auto t = static_cast<double>(temperature_);
  for (std::size_t axis = 0; axis < 2; ++axis) {
    const std::size_t height = rows_ - axis, width = columns_ - (1 - axis);
    parallel_ranges(height, threads_, 4, [&](int, std::size_t begin, std::size_t end) {
      std::vector<double> scratch((n + 2) * n);
      double *here = scratch.data(), *there = here + n, *joint = there + n;
      Pace pace;
      for (std::size_t row = begin; row < end; ++row)
        for (std::size_t column = 0; column < width; ++column) {
          pace.step(8 * n * n);
          join_ends(at(row, column), static_cast<int>(axis), here, there, joint);
          const double least = t > 0 ? soft_min(joint, n * n, t) : *std::min_element(joint, joint + n * n);
          T* edge = out + (row * width + column) * n * n;
          for (std::size_t i = 0; i < n * n; ++i)
            edge[i] = static_cast<T>(t > 0 ? std::exp((least - joint[i]) / t) : joint[i] - least);
        }
    });
    out += height * width * n * n;
  }
}

template <class T> void GridPropagation<T>::improve(std::int32_t* labels) const {
  // The energy falls with every change; rounding alone could make it go on for ever.
  constexpr int most_turns = 1000;
  const auto n = static_cast<std::size_t>(n_states_);
  for (int turn = 0, idle = 0; turn < most_turns && idle < 2; ++turn) {
    std::atomic<bool> has_changed = false;
    parallel_ranges(rows_, threads_, 4, [&](int, std::size_t begin, std::size_t end) {
      std::vector<double> costs(n);
      // What the label at the other end of an edge adds, which is the end before or behind it.
      const auto add = [&](std::size_t axis, std::size_t edge, std::int32_t label, bool is_before) {
        const auto other = static_cast<std::size_t>(label);
        const auto weight = static_cast<double>(weights_[axis][edge]);
        const auto& table = tables_[axis];
        if (table.empty()) {
          costs[other] -= weight;  // all others cost that much more
          return;
        }
        for (std::size_t l = 0; l < n; ++l)
          costs[l] += weight * static_cast<double>(is_before ? table[other * n + l] : table[l * n + other]);
      };
      Pace pace;
      for (std::size_t row = begin; row < end; ++row)
        for (std::size_t column = (row + static_cast<std::size_t>(turn)) % 2; column < columns_; column += 2) {
          pace.step(8 * n);
          const std::size_t pixel = at(row, column);
          std::int32_t& label = labels[row * columns_ + column];
          for (std::size_t l = 0; l < n; ++l) costs[l] = static_cast<double>(costs_[l * plane_ + pixel]);
          if (column > 0) add(0, pixel - 1, (&label)[-1], true);
          if (column + 1 < columns_) add(0, pixel, (&label)[1], false);
          if (row > 0) add(1, pixel - stride_, *(&label - columns_), true);
          if (row + 1 < rows_) add(1, pixel, *(&label + columns_), false);
          const auto best = std::min_element(costs.begin(), costs.end());
          if (!(*best < costs[static_cast<std::size_t>(label)])) continue;
          label = static_cast<std::int32_t>(best - costs.begin());
          has_changed.store(true, std::memory_order_relaxed);
        }
    });
    idle = has_changed ? 0 : idle + 1;
  }
}

template <class T> double GridPropagation<T>::log_partition() const {
  std::vector<double> sums(rows_, 0.0);  // of each row, so that the total does not depend on threads
  const auto n = static_cast<std::size_t>(n_states_);
  parallel_ranges(rows_, threads_, 4, [&](int, std::size_t begin, std::size_t end) {
    std::vector<double> scratch((n + 2) * n);
    Pace pace;
    for (std::size_t row = begin; row < end; ++row) {
      double& sum = sums[row];
      for (std::size_t column = 0; column < columns_; ++column) {
        pace.step(16 * n * n);
        const std::size_t pixel = at(row, column);
        gather(pixel, -1, scratch.data());
        sum += soft_min(scratch.data(), n, static_cast<double>(temperature_));
        if (column + 1 < columns_) sum += message_total(pixel, 0, scratch.data());
        if (row + 1 < rows_) sum += message_total(pixel, 1, scratch.data());
      }
    }
  });
  double sum = 0;
  for (const double part : sums) sum += part;
  return -sum;
}

template class GridPropagation<float>;
template class GridPropagation<double>;

}  // namespace crfield

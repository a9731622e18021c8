// Lattice, grid, exact sums and plans.
#include <memory>

#include "exact.hpp"
#include "fuzz_input.hpp"
#include "grid.hpp"
#include "lattice.hpp"
#include "meanfield.hpp"
#include "plan.hpp"

namespace {

using namespace crfield;
using fuzz::Input;

template <class T, class Operator> void use(Operator& kernel, Input& input) {
  const std::size_t n = kernel.n_points(), columns = input.between(1, 40);
  const auto dim = static_cast<std::size_t>(kernel.dim());
  const auto x = input.numbers<T>(n * columns, 1e3), scale = input.positives<T>(n, 10);
  std::vector<T> out(n * columns), sums(n), gradient(n * dim);
  const int threads = input.threads();
  const T* given = input.flag() ? scale.data() : nullptr;
  kernel.apply(x.data(), given, given, static_cast<int>(columns), threads, out.data());
  fuzz::require_finite(out, "what a kernel sums is finite");
  kernel.row_sums(threads, sums.data());
  kernel.diagonal(threads, sums.data());
  fuzz::require_finite(sums, "the diagonal is finite");
  kernel.feature_gradient(x.data(), given, out.data(), given, static_cast<int>(columns), threads,
                          gradient.data(), input.flag() ? out.data() : nullptr);
  kernel.diagonal_gradient(sums.data(), threads, gradient.data());
}

std::vector<std::vector<double>> axes_of(Input& input, int most) {
  std::vector<std::vector<double>> axes(input.between(1, most));
  for (auto& axis : axes) {
    double at = 0;
    axis.resize(input.between(1, 12));
    const double step = 1e-3 + input.positive(4);
    for (double& x : axis) x = at += step;
  }
  return axes;
}

template <class T> void use_lattice(Input& input) {
  const int threads = input.threads();
  if (input.flag()) {
    const auto axes = axes_of(input, 3);
    const std::vector<double> factors = input.numbers<double>(input.between(0, 3), 1e3);
    std::size_t n = 1;
    for (const auto& axis : axes) n *= axis.size();
    std::vector<std::uint8_t> bytes(n * factors.size());
    for (auto& byte : bytes) byte = input.byte();
    const auto colors = input.numbers<float>(n * factors.size(), 300);
    const bool whole = input.flag();
    typename GridFeatures<T>::Colors values = colors.data();
    if (whole) values = bytes.data();
    if (factors.empty()) values = static_cast<const double*>(nullptr);
    Lattice<T> lattice(GridFeatures<T>(axes, values, factors), false, threads);
    return use<T>(lattice, input);
  }
  const std::size_t n = input.between(0, 300);
  const int dim = input.between(1, 16);
  const auto features = input.numbers<T>(n * dim, input.flag() ? 1e13 : 50);
  Lattice<T> lattice(DenseFeatures<T>{features.data(), n, dim}, input.flag(), threads);
  use<T>(lattice, input);
}

template <class T> void use_exact(Input& input) {
  const std::size_t n = input.between(0, 300), columns = input.between(1, 40);
  const int dim = input.between(1, 6), threads = input.threads();
  const auto features = input.numbers<T>(n * dim, 1e6);
  ExactSum<T> sum(features.data(), n, dim, static_cast<Shape>(input.between(0, 2)),
                  input.flag() ? 1e-6 : 0.0, threads);
  const auto x = input.numbers<T>(n * columns, 1e3);
  std::vector<T> out(n * columns);
  sum.apply(x.data(), nullptr, nullptr, static_cast<int>(columns), threads, out.data());
  fuzz::require_finite(out, "exact sums are finite");
}

template <class T> void use_plan(Input& input) {
  const auto axes = axes_of(input, 2);
  std::size_t n = 1;
  for (const auto& axis : axes) n *= axis.size();
  const int n_labels = input.between(1, 12), threads = input.threads();
  Grid<T> grid(axes);
  const auto features = input.numbers<T>(n * 3, 20);
  Lattice<T> lattice(DenseFeatures<T>{features.data(), n, 3}, false, threads);
  const auto update = static_cast<Update>(input.between(0, 2));
  const auto unary = input.numbers<T>(n * n_labels, 100), scale = input.positives<T>(n, 2);
  const std::vector<T> diagonal(n, T(0.5));
  std::vector<PlanTerm<T>> terms;
  for (TableOperator<T>* kernel : std::initializer_list<TableOperator<T>*>{&grid, &lattice}) {
    const bool is_matrix = update == Update::softmax && n_labels > 1 && input.flag();
    auto mu = input.positives<T>(is_matrix ? n_labels * n_labels : n_labels, 5);
    for (T& value : mu) value = -value;
    const T* given = input.flag() ? scale.data() : nullptr;
    terms.push_back({kernel, given, given, update == Update::softmax ? nullptr : diagonal.data(),
                     mu, is_matrix});
  }
  Plan<T> plan(unary.data(), n, n_labels, terms, update, threads);
  std::vector<T> q(n * n_labels), fresh(q), total(q);
  plan.step(-1, 0, nullptr, q.data());
  fuzz::require_finite(q, "marginals are finite");
  plan.step(0, 1, q.data(), fresh.data());
  fuzz::require_finite(fresh, "marginals are finite");
  if (update != Update::softmax) return;
  plan.want_features({true, input.flag()});
  std::vector<double> by_mu(2 * n_labels * n_labels);
  plan.step_back(0, fresh.data(), fresh.data(), true, total.data(), by_mu.data());
  plan.step_back(-1, q.data(), nullptr, false, total.data(), by_mu.data());
  std::vector<T> gradient(n * 2 + n * 3), own(n);
  plan.feature_gradient(0, gradient.data(), own.data());
}

template <class T> void use_one(Input& input, int kind) {
  if (kind == 0) return use_lattice<T>(input);
  if (kind == 1) return use_exact<T>(input);
  if (kind == 2) return use_plan<T>(input);
  Grid<T> grid(axes_of(input, 4));
  use<T>(grid, input);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input(data, size);
  const int kind = input.between(0, 3);
  if (input.flag()) use_one<float>(input, kind);
  else use_one<double>(input, kind);
  return 0;
}

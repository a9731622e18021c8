// Python bindings of distance transforms.
#include <cstdint>

#include "bindings_common.hpp"
#include "distance_transform.hpp"

namespace crfield {

namespace {

using nb::literals::operator""_a;

template <class T> using Images = nb::ndarray<T, nb::ndim<3>, nb::c_contig, nb::device::cpu>;

DistanceProblem problem_of(const Images<const double>& costs, const Matrix<double>& weights,
                           const Matrix<double>& offsets) {
  const std::size_t n = costs.shape(0), height = costs.shape(1), width = costs.shape(2);
  require(height <= INT32_MAX && width <= INT32_MAX && height * width <= INT32_MAX,
          "images are too large");
  for (const auto* values : {&weights, &offsets})
    require(values->shape(0) == n && values->shape(1) == 2,
            "weights and offsets must have two numbers for each image");
  return {n, height, width, costs.data(), weights.data(), offsets.data()};
}

template <class A, class B> void require_same_shape(const A& a, const B& b) {
  for (std::size_t axis = 0; axis < 3; ++axis)
    require(a.shape(axis) == b.shape(axis), "results must have the shape of costs");
}

}  // namespace

void bind_distance(nb::module_& m) {
  m.def("distance_transform",
        [](Images<const double> costs, Matrix<double> weights, Matrix<double> offsets,
           Images<double> values, Images<std::int32_t> argmins, int threads) {
          require_threads(threads);
          const DistanceProblem problem = problem_of(costs, weights, offsets);
          require_same_shape(costs, values);
          require_same_shape(costs, argmins);
          const Released release;
          distance_transform(problem, values.data(), argmins.data(), threads);
        },
        "costs"_a.noconvert(), "weights"_a.noconvert(), "offsets"_a.noconvert(),
        "values"_a.noconvert(), "argmins"_a.noconvert(), "threads"_a);
  m.def("soft_distance_transform",
        [](Images<const double> costs, Matrix<double> weights, Matrix<double> offsets,
           Images<double> values, int threads) {
          require_threads(threads);
          const DistanceProblem problem = problem_of(costs, weights, offsets);
          require_same_shape(costs, values);
          const Released release;
          soft_distance_transform(problem, values.data(), threads);
        },
        "costs"_a.noconvert(), "weights"_a.noconvert(), "offsets"_a.noconvert(),
        "values"_a.noconvert(), "threads"_a);
}

}  // namespace crfield

// Python bindings of plans.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings_common.hpp"
#include "plan.hpp"

namespace crfield {

namespace {

// A plan and the Python objects whose memory it reads.
template <class T> struct BoundPlan {
  std::vector<nb::object> kept;
  std::size_t n_points, n_labels;
  std::size_t kept_terms;  // and one
  bool needs_old, needs_strength;
  int n_states = 0;
  bool is_back = false;  // whether a step back has left something to go on from
  std::vector<std::size_t> n_features;  // of each term
  std::vector<bool> wanted;             // whose derivatives by the features steps back sum up
  Plan<T> plan;
};

template <class T> void bind_plan(nb::module_& m, const char* name) {
  using nb::literals::operator""_a;
  using Term = std::tuple<nb::object, Scale<T>, Scale<T>, Scale<T>, Vector<T>>;
  nb::class_<BoundPlan<T>>(m, name)
      .def("__init__",
           [](BoundPlan<T>* self, Matrix<T> unary, const std::vector<Term>& terms, int update,
              int threads) {
             require_threads(threads);
             require(update >= 0 && update <= 2, "unknown update");
             const std::size_t n = unary.shape(0), n_labels = unary.shape(1);
             require(n_labels > 0, "unary has no columns");
             std::vector<nb::object> kept{nb::cast(unary)};
             std::vector<PlanTerm<T>> given;
             std::vector<std::size_t> n_features;
             for (const auto& [kernel, before, after, diagonal, mu] : terms) {
               auto* native = nb::cast<TableOperator<T>*>(kernel);
               require(native->n_points() == n, "a kernel has the wrong number of points");
               const bool is_matrix = mu.shape(0) == n_labels * n_labels && n_labels > 1;
               require(is_matrix || mu.shape(0) == n_labels, "mu has the wrong length");
               require(!is_matrix || update == 0, "a matrix goes with the softmax update only");
               require((update == 0) == !diagonal, "diagonals go with updates that need them");
               given.push_back({native, data_or_null<T>(before, n), data_or_null<T>(after, n),
                                data_or_null<T>(diagonal, n),
                                std::vector<T>(mu.data(), mu.data() + mu.shape(0)), is_matrix});
               n_features.push_back(static_cast<std::size_t>(native->n_features()));
               kept.push_back(kernel);
               for (const auto& scale : {before, after, diagonal})
                 if (scale) kept.push_back(nb::cast(*scale));
             }
             new (self) BoundPlan<T>{std::move(kept), n, n_labels, terms.size() + 1,
                                     static_cast<Update>(update) == Update::without_self,
                                     static_cast<Update>(update) != Update::softmax, 0, false,
                                     std::move(n_features), {},
                                     Plan<T>(unary.data(), n, static_cast<int>(n_labels),
                                             std::move(given), static_cast<Update>(update), threads)};
           },
           "unary"_a.noconvert(), "terms"_a, "update"_a, "threads"_a)
      .def("step",
           [](BoundPlan<T>& self, int from, int to, std::optional<Matrix<T>> old,
              std::optional<OutMatrix<T>> q) {
             require(from >= -1 && from < self.n_states && to >= 0 && to <= self.n_states && from != to,
                     "unknown state");
             const auto fits = [&](const auto& array) {
               return !array || (array->shape(0) == self.n_points && array->shape(1) == self.n_labels);
             };
             require(fits(old), "old has the wrong shape");
             require(old || from < 0 || !self.needs_old, "this update needs the old marginals");
             require(fits(q), "q has the wrong shape");
             const T* before = old ? old->data() : nullptr;
             T* after = q ? q->data() : nullptr;
             PlanSums sums;
             {
               const Released release;
               sums = self.plan.step(from, to, before, after);
             }
             self.n_states = std::max(self.n_states, to + 1);
             return nb::make_tuple(sums.free_energy, sums.self, sums.change, sums.pair, sums.row_sums);
           },
           "from_state"_a, "to_state"_a, "old"_a.noconvert().none(), "q"_a.noconvert().none())
      .def("step_back",
           [](BoundPlan<T>& self, int before, Matrix<T> q, std::optional<Matrix<T>> given, bool first,
              OutMatrix<T> total, nb::ndarray<double, nb::ndim<3>, nb::c_contig, nb::device::cpu> by_mu) {
             require(before >= -1 && before < self.n_states, "unknown state");
             require(!self.needs_strength, "only softmax updates can be gone back through");
             require(given || self.is_back, "there is nothing to go back from");
             const auto fits = [&](const auto& array) {
               return array.shape(0) == self.n_points && array.shape(1) == self.n_labels;
             };
             require(fits(q) && fits(total) && (!given || fits(*given)), "shapes differ");
             require(by_mu.shape(0) + 1 == self.kept_terms && by_mu.shape(1) == self.n_labels &&
                         by_mu.shape(2) == self.n_labels,
                     "by_mu has the wrong shape");
             const Released release;
             self.plan.step_back(before, q.data(), given ? given->data() : nullptr, first, total.data(),
                                 by_mu.data());
             self.is_back = before >= 0;
           },
           "before"_a, "q"_a.noconvert(), "given"_a.noconvert().none(), "first"_a,
           "total"_a.noconvert(), "by_mu"_a.noconvert())
      .def("want_features",
           [](BoundPlan<T>& self, const std::vector<bool>& wanted) {
             require(wanted.size() + 1 == self.kept_terms, "one answer a term");
             const Released release;
             self.plan.want_features(wanted);
             self.wanted = wanted;
           },
           "wanted"_a)
      .def("feature_gradient",
           [](BoundPlan<T>& self, std::size_t term, OutMatrix<T> gradient, OutVector<T> own) {
             require(term < self.wanted.size() && self.wanted[term], "not wanted");
             require(gradient.shape(0) == self.n_points &&
                         gradient.shape(1) == self.n_features[term] && own.shape(0) == self.n_points,
                     "shapes differ");
             const Released release;
             self.plan.feature_gradient(static_cast<int>(term), gradient.data(), own.data());
           },
           "term"_a, "gradient"_a.noconvert(), "own"_a.noconvert());
}

}  // namespace

void bind_plans(nb::module_& m) {
  bind_plan<float>(m, "Plan32");
  bind_plan<double>(m, "Plan64");
}

}  // namespace crfield

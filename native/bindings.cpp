// The Python face of the core: checks shapes, releases the GIL, allocates nothing.
#include <cstdlib>  // defines __GLIBC__

#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <stdexcept>
#include <tuple>
#include <vector>

#include "cpu.hpp"
#include "exact.hpp"
#include "grid.hpp"
#include "lattice.hpp"
#include "meanfield.hpp"
#include "plan.hpp"

namespace nb = nanobind;
using namespace crfield;

namespace {

template <class T> using Vector = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T> using Matrix = nb::ndarray<const T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
template <class T> using Tensor = nb::ndarray<const T, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
template <class T> using OutVector = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T> using OutMatrix = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
template <class T> using Scale = std::optional<Vector<T>>;

void require(bool holds, const char* message) {
  if (!holds) throw std::invalid_argument(message);
}
void require_threads(int threads) { require(threads >= 1 && threads <= 1024, "threads out of range"); }

template <class T> const T* data_or_null(const Scale<T>& scale, std::size_t n) {
  if (!scale) return nullptr;
  require(scale->shape(0) == n, "scale has the wrong length");
  return scale->data();
}

template <class T, class Operator>
void apply(Operator& self, Matrix<T> x, Scale<T> pre, Scale<T> post, OutMatrix<T> out, int threads) {
  require_threads(threads);
  require(x.shape(0) == self.n_points(), "x has the wrong number of rows");
  require(out.shape(0) == x.shape(0) && out.shape(1) == x.shape(1), "out has the wrong shape");
  const T* before = data_or_null<T>(pre, self.n_points());
  const T* after = data_or_null<T>(post, self.n_points());
  const T* from = x.data();
  T* to = out.data();
  const int n_columns = static_cast<int>(x.shape(1));
  nb::gil_scoped_release release;
  self.apply(from, before, after, n_columns, threads, to);
}

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

// The methods that lattices and grids share.
template <class T, class Operator, class Class> void bind_operator(Class& bound) {
  using nb::literals::operator""_a;
  bound
      .def("apply", &apply<T, Operator>, "x"_a.noconvert(), "pre"_a.noconvert().none(),
           "post"_a.noconvert().none(), "out"_a.noconvert(), "threads"_a)
      .def("diagonal",
           [](const Operator& self, OutVector<T> out, int threads) {
             require_threads(threads);
             require(out.shape(0) == self.n_points(), "out has the wrong length");
             T* data = out.data();
             nb::gil_scoped_release release;
             self.diagonal(threads, data);
           },
           "out"_a.noconvert(), "threads"_a)
      .def("row_sums",
           [](Operator& self, OutVector<T> out, int threads) {
             require_threads(threads);
             require(out.shape(0) == self.n_points(), "out has the wrong length");
             T* data = out.data();
             nb::gil_scoped_release release;
             self.row_sums(threads, data);
           },
           "out"_a.noconvert(), "threads"_a)
      .def("feature_gradient",
           [](Operator& self, Matrix<T> u, Scale<T> u_scale, Matrix<T> v, Scale<T> v_scale,
              OutMatrix<T> out, std::optional<OutMatrix<T>> filtered_u, int threads) {
             require_threads(threads);
             const std::size_t n = self.n_points();
             require(u.shape(0) == n && v.shape(0) == n && u.shape(1) == v.shape(1) &&
                         u.shape(1) > 0,
                     "u and v must have one row a point and the same columns");
             require(out.shape(0) == n && out.shape(1) == static_cast<std::size_t>(self.dim()),
                     "out has the wrong shape");
             require(!filtered_u || (filtered_u->shape(0) == n && filtered_u->shape(1) == u.shape(1)),
                     "filtered_u has the wrong shape");
             const T* su = data_or_null<T>(u_scale, n);
             const T* sv = data_or_null<T>(v_scale, n);
             nb::gil_scoped_release release;
             self.feature_gradient(u.data(), su, v.data(), sv, static_cast<int>(u.shape(1)), threads,
                                   out.data(), filtered_u ? filtered_u->data() : nullptr);
           },
           "u"_a.noconvert(), "u_scale"_a.noconvert().none(), "v"_a.noconvert(),
           "v_scale"_a.noconvert().none(), "out"_a.noconvert(), "filtered_u"_a.noconvert().none(),
           "threads"_a)
      .def("diagonal_gradient",
           [](const Operator& self, Vector<T> s, OutMatrix<T> out, int threads) {
             require_threads(threads);
             require(s.shape(0) == self.n_points(), "s has the wrong length");
             require(out.shape(0) == self.n_points() &&
                         out.shape(1) == static_cast<std::size_t>(self.dim()),
                     "out has the wrong shape");
             nb::gil_scoped_release release;
             self.diagonal_gradient(s.data(), threads, out.data());
           },
           "s"_a.noconvert(), "out"_a.noconvert(), "threads"_a);
}

// Grid features of a lattice: coordinates along each axis, and an array of colours (n_points, C).
template <class T>
GridFeatures<T> grid_features(const std::vector<std::vector<double>>& axes, nb::ndarray<nb::ro> colours,
                              const std::vector<double>& factors) {
  require(!axes.empty(), "there must be an axis");
  require(axes.size() + factors.size() <= max_lattice_dim,
          "the lattice takes 1 to 16 feature dimensions");
  std::size_t n = 1;
  for (const auto& axis : axes) n *= axis.size();
  typename GridFeatures<T>::Colours values = static_cast<const double*>(nullptr);
  if (!factors.empty()) {
    require(colours.ndim() == 2 && colours.shape(0) == n && colours.shape(1) == factors.size(),
            "colours has the wrong shape");
    require(colours.stride(1) == 1 && colours.stride(0) == static_cast<std::int64_t>(factors.size()),
            "colours must be contiguous");
    if (colours.dtype() == nb::dtype<std::uint8_t>())
      values = static_cast<const std::uint8_t*>(colours.data());
    else if (colours.dtype() == nb::dtype<float>()) values = static_cast<const float*>(colours.data());
    else if (colours.dtype() == nb::dtype<double>()) values = static_cast<const double*>(colours.data());
    else throw std::invalid_argument("colours must be uint8, float32 or float64");
  }
  return GridFeatures<T>(axes, values, factors);
}

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
               nb::gil_scoped_release release;
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
             nb::gil_scoped_release release;
             self.plan.step_back(before, q.data(), given ? given->data() : nullptr, first, total.data(),
                                 by_mu.data());
             self.is_back = before >= 0;
           },
           "before"_a, "q"_a.noconvert(), "given"_a.noconvert().none(), "first"_a,
           "total"_a.noconvert(), "by_mu"_a.noconvert())
      .def("want_features",
           [](BoundPlan<T>& self, const std::vector<bool>& wanted) {
             require(wanted.size() + 1 == self.kept_terms, "one answer a term");
             nb::gil_scoped_release release;
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
             nb::gil_scoped_release release;
             self.plan.feature_gradient(static_cast<int>(term), gradient.data(), own.data());
           },
           "term"_a, "gradient"_a.noconvert(), "own"_a.noconvert());
}

template <class T> void bind_type(nb::module_& m, const char* suffix) {
  using nb::literals::operator""_a;
  const auto name = [&](const char* stem) { return std::string(stem) + suffix; };

  nb::class_<TableOperator<T>>(m, name("TableOperator").c_str());
  nb::class_<Lattice<T>, TableOperator<T>> lattice(m, name("Lattice").c_str());
  lattice
      .def("__init__",
           [](Lattice<T>* self, Matrix<T> features, bool one_order, int threads) {
             require_threads(threads);
             require(features.shape(1) >= 1 && features.shape(1) <= max_lattice_dim,
                     "the lattice takes 1 to 16 feature dimensions");
             const T* data = features.data();
             const std::size_t n = features.shape(0);
             const int dim = static_cast<int>(features.shape(1));
             nb::gil_scoped_release release;
             new (self) Lattice<T>(DenseFeatures<T>{data, n, dim}, one_order, threads);
           },
           "features"_a.noconvert(), "one_order"_a, "threads"_a)
      .def("__init__",
           [](Lattice<T>* self, const std::vector<std::vector<double>>& axes, nb::ndarray<nb::ro> colours,
              const std::vector<double>& factors, int threads) {
             require_threads(threads);
             const auto features = grid_features<T>(axes, colours, factors);
             nb::gil_scoped_release release;
             new (self) Lattice<T>(features, false, threads);
           },
           "axes"_a, "colours"_a, "factors"_a, "threads"_a)
      .def_prop_ro("n_vertices", &Lattice<T>::n_vertices);
  bind_operator<T, Lattice<T>>(lattice);

  nb::class_<Grid<T>, TableOperator<T>> grid(m, name("Grid").c_str());
  grid.def("__init__",
           [](Grid<T>* self, const std::vector<std::vector<double>>& axes) {
             require(!axes.empty() && axes.size() <= 6, "a grid has 1 to 6 axes");
             new (self) Grid<T>(axes);
           },
           "axes"_a)
      .def_prop_ro("n_vertices", &Grid<T>::table_rows);
  bind_operator<T, Grid<T>>(grid);

  nb::class_<ExactSum<T>>(m, name("ExactSum").c_str())
      .def("__init__",
           [](ExactSum<T>* self, Matrix<T> features, int shape, double tolerance, int threads) {
             require_threads(threads);
             require(shape >= 0 && shape <= 2, "unknown kernel shape");
             const T* data = features.data();
             const std::size_t n = features.shape(0);
             const int dim = static_cast<int>(features.shape(1));
             nb::gil_scoped_release release;
             new (self) ExactSum<T>(data, n, dim, static_cast<Shape>(shape), tolerance, threads);
           },
           "features"_a.noconvert(), "shape"_a, "tolerance"_a, "threads"_a)
      .def("apply", &apply<T, ExactSum<T>>, "x"_a.noconvert(), "pre"_a.noconvert().none(), "post"_a.noconvert().none(), "out"_a.noconvert(),
           "threads"_a)
      .def_prop_ro("active_fraction", &ExactSum<T>::active_fraction);

  m.def("add_message",
        [](int kind, Vector<T> values, Matrix<T> x, Scale<T> row_scale, double factor,
           bool overwrite, OutMatrix<T> out, int threads) {
          require_threads(threads);
          require(kind >= 0 && kind <= 2, "unknown compatibility");
          const std::size_t n = x.shape(1);
          require(values.shape(0) == (kind == 0 ? 1 : kind == 1 ? n : n * n),
                  "values has the wrong length");
          require(out.shape(0) == x.shape(0) && out.shape(1) == n, "out has the wrong shape");
          const T* scale = data_or_null<T>(row_scale, x.shape(0));
          const T *mu = values.data(), *from = x.data();
          T* to = out.data();
          nb::gil_scoped_release release;
          add_message<T>(static_cast<Compatibility>(kind), mu, from, scale, static_cast<T>(factor),
                         overwrite, x.shape(0), static_cast<int>(n), threads, to);
        },
        "kind"_a, "values"_a.noconvert(), "x"_a.noconvert(), "row_scale"_a.noconvert().none(), "factor"_a, "overwrite"_a,
        "out"_a.noconvert(), "threads"_a);

  m.def("center_rows",
        [](Matrix<T> x, OutMatrix<T> out, int threads) {
          require_threads(threads);
          require(x.shape(1) > 0, "x has no columns");
          require(out.shape(0) == x.shape(0) && out.shape(1) == x.shape(1),
                  "out has the wrong shape");
          nb::gil_scoped_release release;
          return center_rows<T>(x.data(), x.shape(0), static_cast<int>(x.shape(1)), threads,
                                out.data());
        },
        "x"_a.noconvert(), "out"_a.noconvert(), "threads"_a);

  m.def("largest",
        [](Matrix<T> x, int threads) {
          require_threads(threads);
          nb::gil_scoped_release release;
          return largest<T>(x.data(), x.size(), threads);
        },
        "x"_a.noconvert(), "threads"_a);

  m.def("dot",
        [](Matrix<T> a, Matrix<T> b, int threads) {
          require_threads(threads);
          require(a.shape(0) == b.shape(0) && a.shape(1) == b.shape(1), "shapes differ");
          nb::gil_scoped_release release;
          return dot<T>(a.data(), b.data(), a.size(), threads);
        },
        "a"_a.noconvert(), "b"_a.noconvert(), "threads"_a);

  m.def("update_marginals",
        [](Matrix<T> unary, Matrix<T> pairwise, Matrix<T> old, std::vector<Scale<T>> strength,
           Vector<T> shift, Vector<T> compatibility, bool full, OutMatrix<T> out, int threads) {
          require_threads(threads);
          const std::size_t rows = unary.shape(0), n = unary.shape(1), terms = strength.size();
          for (const auto& other : {pairwise, old})
            require(other.shape(0) == rows && other.shape(1) == n, "shapes differ");
          require(out.shape(0) == rows && out.shape(1) == n, "out has the wrong shape");
          require(shift.shape(0) == terms, "shift has the wrong length");
          require(compatibility.shape(0) == terms * (full ? n * n : n),
                  "compatibility has the wrong length");
          std::vector<const T*> pointers;
          for (const auto& s : strength) pointers.push_back(data_or_null<T>(s, rows));
          const UpdateTerms<T> update{pointers.data(), shift.data(), compatibility.data(), full,
                                      static_cast<int>(terms)};
          StepSums sums;
          {
            nb::gil_scoped_release release;
            sums = update_marginals<T>(unary.data(), pairwise.data(), old.data(), update, rows,
                                       static_cast<int>(n), threads, out.data());
          }
          return nb::make_tuple(sums.negative_entropy, sums.linear, sums.change);
        },
        "unary"_a.noconvert(), "pairwise"_a.noconvert(), "old"_a.noconvert(), "strength"_a.noconvert(), "shift"_a.noconvert(), "compatibility"_a.noconvert(), "full"_a,
        "out"_a.noconvert(), "threads"_a);
}

// glibc gives every thread a heap of its own and seldom hands memory from one to another: with images
// of several sizes on several threads, more is kept idle than is in use.
bool share_one_heap() {
#ifdef __GLIBC__
  return mallopt(M_ARENA_MAX, 1) == 1;
#else
  return false;
#endif
}

}  // namespace

NB_MODULE(_native, m) {
  m.def("drop_idle_blocks", [] { IdleBlocks::shared().drop_all(); });
  m.doc() = "Compiled core of crfield.";
  m.def("isa", &isa_name, "The instruction set that the hot loops were compiled for.");
  m.def("share_one_heap", &share_one_heap,
        "Let all threads that start from now on allocate from one heap; False where the system's "
        "allocator has no such setting.");
  bind_type<float>(m, "32");
  bind_type<double>(m, "64");
  bind_plan<float>(m, "Plan32");
  bind_plan<double>(m, "Plan64");
}

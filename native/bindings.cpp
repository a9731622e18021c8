// Python bindings of the core: checks shapes, releases the GIL, allocates nothing.
#include <cstdlib>  // defines __GLIBC__

#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "bindings_common.hpp"
#include "buffers.hpp"
#include "cpu.hpp"
#include "exact.hpp"
#include "grid.hpp"
#include "lattice.hpp"
#include "meanfield.hpp"

using namespace crfield;

namespace {

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
  const Released release;
  self.apply(from, before, after, n_columns, threads, to);
}

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
             const Released release;
             self.diagonal(threads, data);
           },
           "out"_a.noconvert(), "threads"_a)
      .def("row_sums",
           [](Operator& self, OutVector<T> out, int threads) {
             require_threads(threads);
             require(out.shape(0) == self.n_points(), "out has the wrong length");
             T* data = out.data();
             const Released release;
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
             const Released release;
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
             const Released release;
             self.diagonal_gradient(s.data(), threads, out.data());
           },
           "s"_a.noconvert(), "out"_a.noconvert(), "threads"_a);
}

// Grid features of a lattice: coordinates along each axis, and an array of colors (n_points, C).
template <class T>
GridFeatures<T> grid_features(const std::vector<std::vector<double>>& axes, nb::ndarray<nb::ro> colors,
                              const std::vector<double>& factors) {
  require(!axes.empty(), "there must be an axis");
  require(axes.size() + factors.size() <= max_lattice_dim,
          "the lattice takes 1 to 16 feature dimensions");
  std::size_t n = 1;
  for (const auto& axis : axes) n *= axis.size();
  typename GridFeatures<T>::Colors values = static_cast<const double*>(nullptr);
  if (!factors.empty()) {
    require(colors.ndim() == 2 && colors.shape(0) == n && colors.shape(1) == factors.size(),
            "colors has the wrong shape");
    require(colors.stride(1) == 1 && colors.stride(0) == static_cast<std::int64_t>(factors.size()),
            "colors must be contiguous");
    if (colors.dtype() == nb::dtype<std::uint8_t>())
      values = static_cast<const std::uint8_t*>(colors.data());
    else if (colors.dtype() == nb::dtype<float>()) values = static_cast<const float*>(colors.data());
    else if (colors.dtype() == nb::dtype<double>()) values = static_cast<const double*>(colors.data());
    else throw std::invalid_argument("colors must be uint8, float32 or float64");
  }
  return GridFeatures<T>(axes, values, factors);
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
             const Released release;
             new (self) Lattice<T>(DenseFeatures<T>{data, n, dim}, one_order, threads);
           },
           "features"_a.noconvert(), "one_order"_a, "threads"_a)
      .def("__init__",
           [](Lattice<T>* self, const std::vector<std::vector<double>>& axes, nb::ndarray<nb::ro> colors,
              const std::vector<double>& factors, int threads) {
             require_threads(threads);
             const auto features = grid_features<T>(axes, colors, factors);
             const Released release;
             new (self) Lattice<T>(features, false, threads);
           },
           "axes"_a, "colors"_a, "factors"_a, "threads"_a)
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
             const Released release;
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
          const Released release;
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
          const Released release;
          return center_rows<T>(x.data(), x.shape(0), static_cast<int>(x.shape(1)), threads,
                                out.data());
        },
        "x"_a.noconvert(), "out"_a.noconvert(), "threads"_a);

  m.def("largest",
        [](Matrix<T> x, int threads) {
          require_threads(threads);
          const Released release;
          return largest<T>(x.data(), x.size(), threads);
        },
        "x"_a.noconvert(), "threads"_a);

  m.def("dot",
        [](Matrix<T> a, Matrix<T> b, int threads) {
          require_threads(threads);
          require(a.shape(0) == b.shape(0) && a.shape(1) == b.shape(1), "shapes differ");
          const Released release;
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
            const Released release;
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
  // What lives until the interpreter goes (in the graph of a network, say) is not lost.
  nb::set_leak_warnings(false);
  using nb::literals::operator""_a;
  m.doc() = "Compiled core of crfield.";
  m.def("isa", &isa_name, "The instruction set that the hot loops were compiled for.");
  m.def("share_one_heap", &share_one_heap,
        "Let all threads that start from now on allocate from one heap; False where the system's "
        "allocator has no such setting.");
  m.def("limit_idle_blocks", [](std::size_t n_bytes) { IdleBlocks::shared().limit(n_bytes); },
        "n_bytes"_a, "Let the core hold on to so many bytes between images.");
  m.def("drop_idle_blocks", [] { IdleBlocks::shared().drop_all(); },
        "Give back to the system what the core holds on to.");
  bind_signals(m);
  bind_type<float>(m, "32");
  bind_type<double>(m, "64");
  bind_plans(m);
  bind_graphcuts(m);
  bind_gibbs(m);
  bind_chains(m);
  bind_factor_graphs(m);
  bind_rays(m);
  bind_distance(m);
}

#include "plan.hpp"

#include <algorithm>
#include <numeric>

#include "cpu.hpp"
#include "interrupt.hpp"
#include "thread_pool.hpp"

namespace crfield {
namespace {

// Points of a line where no term knows of lines.
constexpr std::size_t default_line = 1024;
// Rows of tables between two looks at whether the call is to stop. Sums over rows are formed piece by
// piece, so those pieces are long.
constexpr std::size_t rows_per_check = 1 << 12, summed_rows_per_check = 1 << 20;

}  // namespace

template <class T>
Plan<T>::Plan(const T* unary, std::size_t n_points, int n_labels, std::vector<PlanTerm<T>> terms,
              Update update, int threads)
    : unary_(unary), n_points_(n_points), n_labels_(n_labels), threads_(threads),
      terms_(std::move(terms)), update_(update), line_length_(0) {
  const std::size_t stride = padded_columns<T>(n_labels), n = n_labels;
  for (const auto& term : terms_) {
    splatted_.push_back(new_aligned<T>(term.kernel->table_rows() * stride));
    line_length_ = std::max(line_length_, term.kernel->line_length());
    const T gain = term.kernel->gain();
    factor_.emplace_back();
    attraction_.emplace_back();
    matrix_.emplace_back();
    uniform_.push_back(T(0));
    if (term.is_matrix) {
      matrix_.back().assign(stride * stride, T(0));
      for (std::size_t a = 0; a < n; ++a)
        for (std::size_t b = 0; b < n; ++b) matrix_.back()[a * stride + b] = gain * term.mu[a * n + b];
      continue;
    }
    factor_.back().assign(stride, T(0));
    attraction_.back().assign(stride, T(0));
    for (std::size_t l = 0; l < n; ++l) {
      factor_.back()[l] = gain * term.mu[l];
      attraction_.back()[l] = -term.mu[l];
    }
    const auto same = [&](T mu) { return mu == term.mu[0]; };
    if (std::all_of(term.mu.begin(), term.mu.end(), same)) uniform_.back() = factor_.back()[0];
  }
  if (line_length_ == 0) line_length_ = default_line;
  run_length_ = piece_length(line_length_);
}

template <class T> void Plan<T>::allocate(State& fresh) {
  if (!fresh.blurred.empty()) return;
  for (const auto& term : terms_) {
    const std::size_t size = term.kernel->table_rows() * padded_columns<T>(n_labels_);
    fresh.blurred.push_back(new_aligned<T>(size));
    fresh.folded.push_back(term.is_matrix ? new_aligned<T>(size) : AlignedArray<T>());
  }
}

template <class T> typename Plan<T>::State& Plan<T>::state(int number) {
  while (states_.size() <= static_cast<std::size_t>(number)) states_.emplace_back();
  allocate(states_[number]);
  return states_[number];
}

template <class T>
template <class Body>
void Plan<T>::for_runs(const State* from, bool splat, Body&& body) {
  const int n_terms = static_cast<int>(terms_.size());
  const std::size_t stride = padded_columns<T>(n_labels_);
  const std::size_t n_lines = (n_points_ + line_length_ - 1) / line_length_;
  // Every part but the first splats into tables of its own.
  std::vector<std::unique_ptr<typename BufferPool<T>::Loan>> loans;
  std::vector<T*> tables(static_cast<std::size_t>(threads_) * n_terms, nullptr);
  std::vector<typename TableOperator<T>::Rows> touched(tables.size(), {0, 0});
  std::size_t line_rows = 0;
  for (int m = 0; m < n_terms; ++m) {
    const std::size_t size = terms_[m].kernel->table_rows() * stride;
    line_rows += 2 * terms_[m].kernel->line_rows();
    if (!splat) continue;
    for (int part = 0; part < threads_; ++part) {
      if (part > 0) loans.push_back(std::make_unique<typename BufferPool<T>::Loan>(buffers_, size));
      tables[part * n_terms + m] = part > 0 ? loans.back()->data() : splatted_[m].get();
    }
    T* table = splatted_[m].get();
    parallel_ranges(size, threads_, 1 << 15, [&](int, std::size_t begin, std::size_t end) {
      fill_in_pieces(table + begin, table + end, T(0));
    });
  }
  parallel_ranges(n_lines, threads_, std::max<std::size_t>(1, 512 / line_length_),
                  [&](int part, std::size_t begin, std::size_t end) {
    typename BufferPool<T>::Loan scratch(buffers_, (pass_scratch + line_rows) * stride);
    T* const* own = &tables[part * n_terms];
    for (int m = 0; splat && m < n_terms; ++m) {
      auto& rows = touched[part * n_terms + m] = terms_[m].kernel->rows_of_lines(begin, end);
      if (part > 0) fill_in_pieces(own[m] + rows.begin * stride, own[m] + rows.end * stride, T(0));
    }
    std::vector<PassTerm<T>> terms(n_terms);
    Pace pace;
    const auto run = [&](std::size_t first, std::size_t count) {
      pace.step(count * stride * (n_terms + 1));
      T* lines = scratch.data() + pass_scratch * stride;
      for (int m = 0; m < n_terms; ++m) {
        const PlanTerm<T>& term = terms_[m];
        PassTerm<T>& now = terms[m];
        term.kernel->open_run(first, count, from ? table(*from, m) : nullptr, own[m], n_labels_, lines,
                              now);
        lines += 2 * term.kernel->line_rows() * stride;
        now.before = term.before ? term.before + first : nullptr;
        now.after = term.after ? term.after + first : nullptr;
        now.factor = term.is_matrix ? nullptr : factor_[m].data();
        now.uniform = uniform_[m];
        now.strength = term.diagonal ? term.diagonal + first : nullptr;
        now.attraction = attraction_[m].data();
      }
      body(part, first, count, terms.data(), scratch.data());
      for (int m = 0; m < n_terms; ++m)
        terms_[m].kernel->close_run(first, count, own[m], n_labels_, terms[m]);
    };
    for (std::size_t left = 0; left < line_length_; left += run_length_)
      for (std::size_t line = begin; line < end; ++line) {
        const std::size_t first = line * line_length_ + left;
        const std::size_t line_end = std::min((line + 1) * line_length_, n_points_);
        if (first < line_end) run(first, std::min(run_length_, line_end - first));
      }
  });
  for (int m = 0; splat && m < n_terms; ++m)
    for (int part = 1; part < threads_; ++part) {
      const auto rows = touched[part * n_terms + m];
      T *total = splatted_[m].get(), *more = tables[part * n_terms + m];
      parallel_ranges((rows.end - rows.begin) * stride, threads_, 1 << 15,
                      [&](int, std::size_t begin, std::size_t end) {
        in_pieces(rows.begin * stride + begin, rows.begin * stride + end, 1 << 18,
                  [&](std::size_t first, std::size_t last) {
          kernels<T>().add(more, first, last, total);
        });
      });
    }
}

template <class T> PlanSums Plan<T>::step(int from, int to, const T* old, T* q) {
  state(std::max(from, to));  // so that references stay valid
  const State* before = from < 0 ? nullptr : &state(from);
  State& fresh = state(to);
  std::vector<PassSums> parts(threads_);
  for_runs(before, true, [&](int part, std::size_t first, std::size_t count, PassTerm<T>* terms,
                             T* scratch) {
    const std::size_t offset = first * n_labels_;
    PassInput<T> input{};
    input.unary = unary_ + offset;
    input.old = old ? old + offset : nullptr;
    input.q = q ? q + offset : nullptr;
    input.terms = terms;
    input.n_terms = static_cast<int>(terms_.size());
    input.count = count;
    input.n_columns = n_labels_;
    input.has_strength = update_ != Update::softmax;
    input.convex_self = update_ == Update::convex_self && before;
    input.without_self = update_ == Update::without_self && before;
    input.change = old && before;
    const PassSums sums = kernels<T>().pass(input, scratch);
    parts[part].free_energy += sums.free_energy;
    parts[part].self += sums.self;
    parts[part].change = std::max(parts[part].change, sums.change);
  });
  PlanSums sums;
  for (const auto& part : parts) {
    sums.free_energy += part.free_energy;
    sums.self += part.self;
    sums.change = std::max(sums.change, part.change);
  }
  finish(fresh, from < 0, sums);
  return sums;
}

// Where the points of a run lie in the tables of q and of b, view by view.
template <class T> class Plan<T>::Views {
 public:
  Views(Plan& plan, const State* of_q, const State* of_b)
      : plan_(plan), of_q_(of_q), of_b_(of_b), lines_(plan.buffers_, plan.view_line_size()) {}

  const std::vector<BackView<T>>& open(std::size_t begin, std::size_t count) {
    views_.clear();
    T* lines = lines_.data();
    const std::size_t stride = padded_columns<T>(plan_.n_labels_);
    for (std::size_t m = 0; m < plan_.dots_.size(); ++m) {
      const PlanTerm<T>& term = plan_.terms_[m];
      for (std::size_t v = 0; v < plan_.dots_[m].size(); ++v) {
        PassTerm<T> points{};
        const auto look = [&](const State* state) -> const T* {
          if (!state) return nullptr;
          term.kernel->open_view(static_cast<int>(v), begin, count, plan_.table(*state, m),
                                 plan_.n_labels_, lines, points);
          lines += term.kernel->line_rows() * stride;
          return points.from;
        };
        const T *q_table = look(of_q_), *b_table = look(of_b_);
        if (!q_table && !b_table) continue;
        views_.push_back({points.vertex, points.corners, q_table, b_table,
                          term.after ? term.after + begin : nullptr,
                          term.is_matrix ? nullptr : plan_.factor_[m].data(),
                          plan_.dots_[m][v].get() + begin * points.corners});
      }
    }
    return views_;
  }

 private:
  Plan& plan_;
  const State *of_q_, *of_b_;
  typename BufferPool<T>::Loan lines_;
  std::vector<BackView<T>> views_;
};

template <class T> std::size_t Plan<T>::view_line_size() const {
  std::size_t rows = 0;
  for (std::size_t m = 0; m < dots_.size(); ++m) rows += 2 * dots_[m].size() * terms_[m].kernel->line_rows();
  return rows * padded_columns<T>(n_labels_);
}

template <class T> void Plan<T>::want_features(const std::vector<bool>& wanted) {
  dots_.clear();
  dots_.resize(terms_.size());
  for (std::size_t m = 0; m < terms_.size(); ++m)
    for (int v = 0; wanted[m] && v < terms_[m].kernel->n_views(); ++v) {
      const std::size_t size = n_points_ * terms_[m].kernel->view_corners();
      dots_[m].push_back(new_aligned<T>(size));
      T* dots = dots_[m].back().get();
      parallel_ranges(size, threads_, 1 << 15, [&](int, std::size_t begin, std::size_t end) {
        fill_in_pieces(dots + begin, dots + end, T(0));
      });
    }
}

template <class T> void Plan<T>::feature_gradient(int term, T* gradient, T* own) const {
  std::vector<const T*> dots;
  for (const auto& view : dots_[term]) dots.push_back(view.get());
  terms_[term].kernel->chain_views(dots, threads_, gradient, own);
}

template <class T>
void Plan<T>::step_back(int before, const T* q, const T* given, bool first, T* total, double* by_mu) {
  const bool goes_on = before >= 0;
  const State* const after = given ? nullptr : &back_[back_turn_];
  std::vector<std::unique_ptr<Views>> views(threads_);
  for_runs(after, goes_on, [&](int part, std::size_t begin, std::size_t count, PassTerm<T>* terms,
                               T* scratch) {
    if (!views[part])
      views[part] = std::make_unique<Views>(*this, goes_on ? &states_[before] : nullptr, after);
    const auto& seen = views[part]->open(begin, count);
    const std::size_t offset = begin * n_labels_;
    kernels<T>().back({q + offset, given ? given + offset : nullptr, total + offset, terms,
                       static_cast<int>(terms_.size()), count, n_labels_, first, seen.data(),
                       static_cast<int>(seen.size())}, scratch);
  });
  if (!goes_on) return;
  back_turn_ = 1 - back_turn_;
  State& fresh = back_[back_turn_];
  allocate(fresh);
  const std::size_t stride = padded_columns<T>(n_labels_), n = n_labels_;
  for (std::size_t m = 0; m < terms_.size(); ++m) {
    const T *x = splatted_[m].get(), *y = state(before).blurred[m].get();
    std::vector<std::vector<double>> parts(threads_);
    parallel_ranges(terms_[m].kernel->table_rows(), threads_, 256,
                    [&](int part, std::size_t begin, std::size_t end) {
      typename BufferPool<T>::Loan scratch(buffers_, n * stride);
      std::vector<double> piece(n * stride);
      parts[part].resize(n * stride);
      in_pieces(begin, end, 1 << 16, [&](std::size_t first, std::size_t last) {
        kernels<T>().gram(x + first * stride, y + first * stride, last - first, n_labels_,
                          scratch.data(), piece.data());
        for (std::size_t k = 0; k < piece.size(); ++k) parts[part][k] += piece[k];
      });
    });
    for (const auto& part : parts)
      for (std::size_t a = 0; a < n && !part.empty(); ++a)
        for (std::size_t b = 0; b < n; ++b)
          by_mu[(m * n + a) * n + b] += terms_[m].kernel->gain() * part[a * stride + b];
    blur_into(fresh, m);
  }
}

// The tables of a state from what was splatted.
template <class T> void Plan<T>::blur_into(State& fresh, std::size_t m) {
  const PlanTerm<T>& term = terms_[m];
  const std::size_t rows = term.kernel->table_rows();
  const T* y = fresh.blurred[m].get();
  term.kernel->blur(splatted_[m].get(), n_labels_, threads_, fresh.blurred[m].get());
  if (!term.is_matrix) return;
  const int padded = padded_columns<T>(n_labels_);
  parallel_ranges(rows, threads_, 64, [&](int, std::size_t begin, std::size_t end) {
    in_pieces(begin, end, rows_per_check, [&](std::size_t first, std::size_t last) {
      kernels<T>().message(Compatibility::matrix, matrix_[m].data(), y, nullptr, T(1), true, first,
                           last, rows, padded, fresh.folded[m].get());
    });
  });
}

// Blurs the fresh tables, and the pair energies from them: q'Kq = (S'q)' B (S'q).
template <class T> void Plan<T>::finish(State& fresh, bool with_row_sums, PlanSums& sums) {
  const std::size_t stride = padded_columns<T>(n_labels_);
  for (std::size_t m = 0; m < terms_.size(); ++m) {
    const PlanTerm<T>& term = terms_[m];
    const double gain = term.kernel->gain();
    const T *x = splatted_[m].get(), *y = fresh.blurred[m].get();
    blur_into(fresh, m);
    const T* z = term.is_matrix ? fresh.folded[m].get() : y;
    std::vector<double> pairs(threads_), totals(threads_);
    parallel_ranges(term.kernel->table_rows(), threads_, 1024,
                    [&](int part, std::size_t begin, std::size_t end) {
      std::vector<double> dots(stride);
      in_pieces(begin, end, summed_rows_per_check, [&](std::size_t row, std::size_t last) {
        const std::size_t first = row * stride, count = last - row;
        kernels<T>().column_dots(x + first, z + first, count, static_cast<int>(stride), dots.data());
        for (int l = 0; l < n_labels_; ++l)
          pairs[part] += term.is_matrix ? dots[l] : gain * static_cast<double>(term.mu[l]) * dots[l];
        if (with_row_sums)
          totals[part] += gain * kernels<T>().row_sum_dot(x + first, y + first, count,
                                                          static_cast<int>(stride));
      });
    });
    sums.pair.push_back(std::accumulate(pairs.begin(), pairs.end(), 0.0));
    sums.row_sums.push_back(std::accumulate(totals.begin(), totals.end(), 0.0));
  }
}

template class Plan<float>;
template class Plan<double>;

}  // namespace crfield

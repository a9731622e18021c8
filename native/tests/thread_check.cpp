// Hammers the thread pool and the lattice from many threads at once; made to run under
// ThreadSanitizer, which reports what two threads touch without order. Exit status 0: results were
// right and nothing was reported.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "lattice.hpp"
#include "thread_pool.hpp"

// The sanitizer asks for its settings by this name: a forked child is meant to start threads of its
// own. Visible, because the whole project hides its symbols otherwise.
extern "C" __attribute__((visibility("default"))) const char* __tsan_default_options() {
  return "die_after_fork=0:second_deadlock_stack=1";
}

namespace {

using crfield::DenseFeatures;
using crfield::Lattice;
using crfield::run_parts;

std::atomic<int> n_failures{0};

void require(bool condition, const std::string& what) {
  if (condition) return;
  ++n_failures;
  std::fprintf(stderr, "wrong: %s\n", what.c_str());
}

// Runs body(k) in n threads at once.
template <class Body> void at_once(int n, Body&& body) {
  std::vector<std::thread> threads;
  for (int k = 0; k < n; ++k) threads.emplace_back([&body, k] { body(k); });
  for (auto& thread : threads) thread.join();
}

// Every part runs once, whoever takes it, and what parts wrote is visible to the caller.
void check_parts(int n_parts) {
  std::vector<int> visits(n_parts, 0);
  run_parts(n_parts, [&](int part) { ++visits[part]; });
  int total = 0;
  for (const int count : visits) total += count == 1;
  require(total == n_parts, "each of " + std::to_string(n_parts) + " parts runs once");
}

void check_nested(int n_outer, int n_inner) {
  std::vector<std::vector<int>> visits(n_outer, std::vector<int>(n_inner, 0));
  run_parts(n_outer, [&](int outer) {
    run_parts(n_inner, [&, outer](int inner) { ++visits[outer][inner]; });
  });
  for (const auto& inner : visits)
    for (const int count : inner) require(count == 1, "each nested part runs once");
}

// The first exception comes back to the caller after all parts are done, and the pool goes on.
void check_exceptions(int n_parts) {
  std::atomic<int> n_run{0};
  bool caught = false;
  try {
    run_parts(n_parts, [&](int part) {
      ++n_run;
      if (part % 2 == 0) throw std::runtime_error("part " + std::to_string(part));
    });
  } catch (const std::runtime_error& error) {
    caught = std::string(error.what()).rfind("part ", 0) == 0;
  }
  require(caught && n_run == n_parts, "an exception comes back when all parts have run");
  check_parts(n_parts);
}

struct Problem {
  std::size_t n;
  int dim, n_columns;
  std::vector<float> features, x;

  Problem(std::size_t n_points, int n_dims, int n_labels, unsigned seed)
      : n(n_points), dim(n_dims), n_columns(n_labels), features(n * dim), x(n * n_columns) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<float> place(0.0f, 12.0f), value(0.0f, 1.0f);
    for (auto& f : features) f = place(random);
    for (auto& entry : x) entry = value(random);
  }
  std::unique_ptr<Lattice<float>> build(int threads) const {
    return std::make_unique<Lattice<float>>(DenseFeatures<float>{features.data(), n, dim}, false,
                                            threads);
  }
};

struct Answer {
  std::vector<float> filtered, diagonal, gradient, other, by_diagonal;

  Answer(const Problem& problem, Lattice<float>& lattice, int threads)
      : filtered(problem.x.size()), diagonal(problem.n), gradient(problem.features.size()),
        other(problem.x.size()), by_diagonal(problem.features.size()) {
    const float* x = problem.x.data();
    lattice.apply(x, nullptr, nullptr, problem.n_columns, threads, filtered.data());
    lattice.diagonal(threads, diagonal.data());
    lattice.feature_gradient(x, nullptr, filtered.data(), nullptr, problem.n_columns, threads,
                             gradient.data(), other.data());
    lattice.diagonal_gradient(diagonal.data(), threads, by_diagonal.data());
  }
  bool operator==(const Answer&) const = default;
  bool is_finite() const {
    for (const auto* numbers : {&filtered, &diagonal, &gradient, &other, &by_diagonal})
      for (const float number : *numbers)
        if (!std::isfinite(number)) return false;
    return true;
  }
};

// Several threads on one lattice, each with threads of its own: what one alone gets, bit by bit.
void check_shared_lattice(const Problem& problem) {
  for (int threads = 1; threads <= 4; ++threads) {
    const auto lattice = problem.build(threads);
    const Answer alone(problem, *lattice, threads);
    require(alone.is_finite(), "a lattice gives finite numbers");
    at_once(3, [&](int) {
      require(Answer(problem, *lattice, threads) == alone, "a shared lattice answers as alone");
    });
  }
}

// Lattices that are built and used at the same time.
void check_own_lattices() {
  at_once(4, [](int k) {
    const Problem problem(9000 + 500 * k, 2 + k, 3 + 2 * k, 100 + k);
    const int threads = 1 + k;
    const auto first = problem.build(threads), second = problem.build(threads);
    require(Answer(problem, *first, threads) == Answer(problem, *second, threads),
            "the same lattice built twice answers alike");
  });
}

// A child made by fork has none of the parent's workers and must start its own.
void check_fork(const Problem& problem, const Answer& expected) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);  // alarms are not inherited
    check_parts(4);
    const auto lattice = problem.build(3);
    _exit(Answer(problem, *lattice, 3) == expected && n_failures == 0 ? 0 : 1);
  }
  int status = 0;
  const bool ended = child > 0 && waitpid(child, &status, 0) == child;
  require(ended && status == 0,
          "a forked child computes the same (wait status " + std::to_string(status) + ")");
}

}  // namespace

int main() {
  alarm(300);  // a deadlock ends the program
  at_once(6, [](int k) {
    for (int round = 0; round < 200; ++round) check_parts(1 + (k + round) % 9);
  });
  at_once(4, [](int k) {
    for (int round = 0; round < 50; ++round) check_nested(2 + k, 1 + round % 5);
  });
  at_once(4, [](int k) {
    for (int round = 0; round < 50; ++round) check_exceptions(1 + (k + round) % 6);
  });
  check_parts(0);
  check_parts(40);

  const Problem problem(12000, 5, 7, 1);
  check_shared_lattice(problem);
  check_shared_lattice(Problem(3000, 2, 21, 2));
  check_own_lattices();
  const auto lattice = problem.build(3);
  const Answer expected(problem, *lattice, 3);
  for (int round = 0; round < 3; ++round) check_fork(problem, expected);
  check_parts(4);  // the parent's pool still works

  if (n_failures == 0) std::puts("thread check: all answers right");
  return n_failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

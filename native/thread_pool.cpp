#include "thread_pool.hpp"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "float_mode.hpp"
#include "interrupt.hpp"

#if defined(__x86_64__) || defined(_M_X64)
#include <xmmintrin.h>
#endif
#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif

namespace crfield {
namespace {

// One call of run_parts. Parts are claimed by number, so a worker that comes late claims nothing and
// never touches `body`, which lives only as long as the caller waits.
struct Job {
  const std::function<void(int)>* body;
  int n_parts;
  Watch* watch;  // of the caller
  std::atomic<int> next{0};
  std::atomic<bool> is_done{false};
  int finished = 0;          // guarded by Pool::mutex_
  std::exception_ptr error;  // guarded by Pool::mutex_
};

class Pool {
 public:
  void run(const std::shared_ptr<Job>& job, int helpers) {
    {
      std::lock_guard lock(mutex_);
      try {
        for (; n_workers_ < helpers; ++n_workers_) std::thread([this] { work(); }).detach();
      } catch (const std::system_error&) {
        // There are no more to be had: the caller and the workers there are take all parts.
      }
      jobs_.push_back(job);
      ++n_jobs_;
    }
    wake_.notify_all();
    take_parts(*job);
    spin_until([&] { return job->is_done.load(); });
    std::unique_lock lock(mutex_);
    wait(lock, *job);
    std::erase(jobs_, job);
    std::exception_ptr error = std::move(job->error);
    lock.unlock();
    if (error) std::rethrow_exception(std::move(error));
    check_interrupt();  // the workers may not have looked after `wait` did
  }

 private:
  // The next job often follows at once, and waking a sleeping thread takes longer than many jobs do.
  template <class Condition> static void spin_until(Condition&& holds) {
    const auto limit = std::chrono::steady_clock::now() + std::chrono::microseconds(40);
    while (!holds() && std::chrono::steady_clock::now() < limit)
      for (int pause = 0; pause < 16; ++pause) relax();
  }
  static void relax() {
#if defined(__x86_64__) || defined(_M_X64)
    _mm_pause();
#elif defined(__aarch64__) && !defined(_MSC_VER)
    __asm__ volatile("yield");
#endif
  }

  // Until all parts are done. Signal handlers run without the lock: they may call into the library.
  void wait(std::unique_lock<std::mutex>& lock, const Job& job) {
    const auto is_done = [&] { return job.finished == job.n_parts; };
    if (!job.watch || !job.watch->belongs_to_this_thread()) return done_.wait(lock, is_done);
    while (!done_.wait_for(lock, Watch::period, is_done)) {
      lock.unlock();
      job.watch->ask();
      lock.lock();
    }
  }

  void work() {
    for (;;) {
      std::shared_ptr<Job> job;
      const std::uint64_t seen = n_jobs_.load();
      spin_until([&] { return n_jobs_.load() != seen; });
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [&] { return (job = open_job()) != nullptr; });
      }
      take_parts(*job);
    }
  }

  std::shared_ptr<Job> open_job() const {
    for (const auto& job : jobs_)
      if (job->next.load() < job->n_parts) return job;
    return nullptr;
  }

  void take_parts(Job& job) {
    const FloatMode::Scope flush(FloatMode::now().flushing());
    const Watch::Share share(job.watch);
    for (int part; (part = job.next.fetch_add(1)) < job.n_parts;) {
      std::exception_ptr error;
      try {
        check_interrupt();
        (*job.body)(part);
      } catch (...) {
        error = std::current_exception();
      }
      std::lock_guard lock(mutex_);
      if (error && !job.error) job.error = std::move(error);
      if (++job.finished == job.n_parts) {
        job.is_done.store(true);
        done_.notify_all();
      }
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::deque<std::shared_ptr<Job>> jobs_;
  int n_workers_ = 0;
  std::atomic<std::uint64_t> n_jobs_{0};
};

// Never destroyed: the workers sleep until the process ends. A forked child has no workers and may
// have inherited a locked mutex, so it forgets the parent's pool and starts its own.
std::atomic<Pool*> current_pool{nullptr};

Pool& pool() {
  static const bool registered = [] {
#if defined(__unix__) || defined(__APPLE__)
    pthread_atfork(nullptr, nullptr, [] { current_pool.store(nullptr); });
#endif
    return true;
  }();
  (void)registered;
  Pool* found = current_pool.load();
  if (!found) {
    auto fresh = std::make_unique<Pool>();
    if (current_pool.compare_exchange_strong(found, fresh.get())) found = fresh.release();
  }
  return *found;
}

}  // namespace

void run_parts(int n_parts, const std::function<void(int)>& body) {
  if (n_parts <= 1) {
    const FloatMode::Scope flush(FloatMode::now().flushing());
    check_interrupt();
    if (n_parts == 1) body(0);
    return;
  }
  auto job = std::make_shared<Job>();
  job->body = &body;
  job->n_parts = n_parts;
  job->watch = Watch::current();
  pool().run(job, n_parts - 1);
}

}  // namespace crfield

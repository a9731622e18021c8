// Lets a long call be stopped while it is under way.
//
// The thread that called into the library asks now and then whether to stop; the workers that help it
// only look at a flag, so that nothing but the calling thread ever meets Python. Both throw
// `Interrupted`, and whatever was being written is left incomplete.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <exception>
#include <thread>

namespace crfield {

struct Interrupted : std::exception {
  const char* what() const noexcept override { return "interrupted"; }
};

// A call that may be stopped, from its making to its end on the stack of the thread that made it.
class Watch {
 public:
  // How often the calling thread asks: often enough for somebody who waits, seldom enough that other
  // Python threads, which have to make room for it, do not slow the call down.
  static constexpr std::chrono::milliseconds period{100};

  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  // What the work of this thread is part of; null: nothing that may be stopped.
  static Watch* current() noexcept { return current_; }

  // Throws if the call is to stop. The calling thread asks, if it is time to.
  void check() {
    if (owner_ == std::this_thread::get_id()) ask();
    if (is_stopped_.load(std::memory_order_relaxed)) throw Interrupted();
  }
  // Asks as `check` does; for those who wait for others and must not leave before them.
  void ask() {
    if (is_stopped_.load(std::memory_order_relaxed) || Clock::now() < due_) return;
    if (should_stop()) is_stopped_.store(true, std::memory_order_relaxed);
    due_ = Clock::now() + period;
  }
  bool belongs_to_this_thread() const { return owner_ == std::this_thread::get_id(); }

  // Makes a worker's thread part of a call for the time being.
  class Share {
   public:
    explicit Share(Watch* watch) noexcept : before_(current_) { current_ = watch; }
    ~Share() { current_ = before_; }
    Share(const Share&) = delete;
    Share& operator=(const Share&) = delete;

   private:
    Watch* before_;
  };

 protected:
  // A call that is not `watched` cannot be stopped, and neither can what it calls.
  explicit Watch(bool watched) noexcept : share_(watched ? this : nullptr) {}
  ~Watch() = default;
  virtual bool should_stop() = 0;

 private:
  using Clock = std::chrono::steady_clock;

  static inline constinit thread_local Watch* current_ = nullptr;

  Share share_;
  std::thread::id owner_ = std::this_thread::get_id();
  Clock::time_point due_ = Clock::now() + period;
  std::atomic<bool> is_stopped_{false};
};

// For loops whose steps take microseconds or more.
inline void check_interrupt() {
  if (Watch* watch = Watch::current()) watch->check();
}

// For loops with shorter steps: checks after every so many units of work, each about as long as a few
// multiplications.
class Pace {
 public:
  void step(std::size_t work = 1) {
    done_ += work;
    if (done_ < most) return;
    done_ = 0;
    check_interrupt();
  }

 private:
  static constexpr std::size_t most = std::size_t(1) << 16;
  std::size_t done_ = 0;
};

// Calls body(first, last) for one piece of [begin, end) after the other, with a check before each.
template <class Body>
void in_pieces(std::size_t begin, std::size_t end, std::size_t length, Body&& body) {
  for (std::size_t first = begin; first < end; first += length) {
    check_interrupt();
    body(first, std::min(end, first + length));
  }
}

// std::fill for gigabytes: most of the time goes into pages that the system has to clear.
template <class T> void fill_in_pieces(T* begin, T* end, const T& value) {
  constexpr std::size_t length = std::max<std::size_t>(1, (std::size_t(1) << 22) / sizeof(T));
  in_pieces(0, static_cast<std::size_t>(end - begin), length,
            [&](std::size_t first, std::size_t last) { std::fill(begin + first, begin + last, value); });
}
// vector.resize(size, value) likewise.
template <class Vector>
void resize_in_pieces(Vector& vector, std::size_t size, const typename Vector::value_type& value = {}) {
  constexpr std::size_t length =
      std::max<std::size_t>(1, (std::size_t(1) << 22) / sizeof(typename Vector::value_type));
  vector.reserve(size);
  while (vector.size() < size) {
    check_interrupt();
    vector.resize(std::min(size, vector.size() + length), value);
  }
}

}  // namespace crfield

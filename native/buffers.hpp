// Scratch memory that outlives a call, so that repeated filtering does not fault in fresh pages.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

namespace crfield {

// Lends uninitialised arrays of at least the asked size; safe to use from several threads.
template <class T> class BufferPool {
 public:
  class Loan {
   public:
    Loan(BufferPool& home, std::size_t size) : home_(home), size_(size) {
      {
        std::lock_guard lock(home_.mutex_);
        for (auto& idle : home_.idle_)
          if (idle.size >= size) {
            memory_ = std::move(idle.memory);
            size_ = idle.size;
            idle = std::move(home_.idle_.back());
            home_.idle_.pop_back();
            break;
          }
      }
      if (!memory_) memory_.reset(new T[size]);
    }
    Loan(const Loan&) = delete;
    Loan& operator=(const Loan&) = delete;
    ~Loan() {
      std::lock_guard lock(home_.mutex_);
      home_.idle_.push_back({std::move(memory_), size_});
    }
    T* data() { return memory_.get(); }

   private:
    BufferPool& home_;
    std::unique_ptr<T[]> memory_;
    std::size_t size_;
  };

 private:
  struct Idle {
    std::unique_ptr<T[]> memory;
    std::size_t size;
  };
  std::mutex mutex_;
  std::vector<Idle> idle_;
};

}  // namespace crfield

// Scratch memory that outlives a call, so that repeated filtering does not fault in fresh pages.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace crfield {

constexpr std::size_t cache_line = 64, huge_page = std::size_t(1) << 21;

// Uninitialised numbers from a whole cache line on, because a vector that straddles two lines costs
// several; large arrays in huge pages where the system has them, because the tables are read all over.
struct FreeAligned {
  std::size_t alignment = cache_line;
  void operator()(void* memory) const { ::operator delete(memory, std::align_val_t{alignment}); }
};
template <class T> using AlignedArray = std::unique_ptr<T[], FreeAligned>;
template <class T> AlignedArray<T> new_aligned(std::size_t size) {
  std::size_t bytes = size * sizeof(T);
  const bool large = bytes >= huge_page / 4;
  const std::size_t alignment = large ? huge_page : cache_line;
  bytes = (bytes + alignment - 1) / alignment * alignment;
  void* memory = ::operator new(bytes, std::align_val_t{alignment});
#ifdef MADV_HUGEPAGE
  if (large) madvise(memory, bytes, MADV_HUGEPAGE);  // a wish, not a condition
#endif
  return AlignedArray<T>(static_cast<T*>(memory), FreeAligned{alignment});
}

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
      if (!memory_) memory_ = new_aligned<T>(size);
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
    AlignedArray<T> memory_;
    std::size_t size_;
  };

 private:
  struct Idle {
    AlignedArray<T> memory;
    std::size_t size;
  };
  std::mutex mutex_;
  std::vector<Idle> idle_;
};

}  // namespace crfield

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

// Large blocks that were given back, up to a limit, for the next image: the system would have to clear
// their pages again. Whoever cannot have the lock at once, such as a child of fork whose parent held
// it, does without.
class IdleBlocks {
 public:
  static IdleBlocks& shared() {
    static IdleBlocks* const blocks = new IdleBlocks;  // outlives every static array
    return *blocks;
  }
  void* take(std::size_t bytes) {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock) return nullptr;
    for (auto& block : idle_)
      if (block.bytes == bytes) {
        void* const memory = block.memory;
        block = idle_.back();
        idle_.pop_back();
        total_ -= bytes;
        return memory;
      }
    return nullptr;
  }
  bool keep(void* memory, std::size_t bytes) {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock || total_ + bytes > most) return false;
    idle_.push_back({memory, bytes});
    total_ += bytes;
    return true;
  }

 private:
  static constexpr std::size_t most = std::size_t(64) << 20;
  struct Block {
    void* memory;
    std::size_t bytes;
  };
  IdleBlocks() { idle_.reserve(most / huge_page); }  // so that giving back allocates nothing
  std::mutex mutex_;
  std::vector<Block> idle_;
  std::size_t total_ = 0;
};

// Uninitialised numbers from a whole cache line on, because a vector that straddles two lines costs
// several; large arrays in huge pages where the system has them, because the tables are read all over.
struct FreeAligned {
  std::size_t bytes = 0;
  void operator()(void* memory) const {
    if (bytes >= huge_page && IdleBlocks::shared().keep(memory, bytes)) return;
    ::operator delete(memory, std::align_val_t{alignment(bytes)});
  }
  static std::size_t alignment(std::size_t bytes) { return bytes >= huge_page ? huge_page : cache_line; }
};
template <class T> using AlignedArray = std::unique_ptr<T[], FreeAligned>;
template <class T> AlignedArray<T> new_aligned(std::size_t size) {
  std::size_t bytes = size * sizeof(T);
  const std::size_t unit = bytes >= huge_page / 4 ? huge_page : cache_line;
  bytes = (bytes + unit - 1) / unit * unit;
  void* memory = unit == huge_page ? IdleBlocks::shared().take(bytes) : nullptr;
  if (!memory) {
    memory = ::operator new(bytes, std::align_val_t{unit});
#ifdef MADV_HUGEPAGE
    if (unit == huge_page) madvise(memory, bytes, MADV_HUGEPAGE);  // a wish, not a condition
#endif
  }
  return AlignedArray<T>(static_cast<T*>(memory), FreeAligned{bytes});
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

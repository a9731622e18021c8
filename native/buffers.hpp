// Scratch memory that outlives a call, so that repeated filtering does not fault in fresh pages.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace crfield {

constexpr std::size_t cache_line = 64, huge_page = std::size_t(1) << 21;

constexpr std::size_t block_alignment(std::size_t bytes) {
  return bytes >= huge_page ? huge_page : cache_line;
}

// Large blocks that were given back, kept for the next image: the system would have to clear the pages
// of new ones. A few are kept forever, others until `patience` more have come back. A caller that cannot
// take the lock at once, such as a forked child whose parent held it, goes without.
class IdleBlocks {
 public:
  struct Block {
    void* memory;
    std::size_t bytes;
    std::uint64_t since = 0;
  };
  static IdleBlocks& shared() {
    static IdleBlocks* const blocks = new IdleBlocks;  // outlives every static array
    return *blocks;
  }
  // A block of at least so many bytes and not many more, or none.
  Block take(std::size_t bytes) {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (lock)
      for (auto at = idle_.rbegin(); at != idle_.rend(); ++at)
        if (at->bytes >= bytes && at->bytes <= bytes + bytes / 4) {
          const Block found = *at;
          idle_.erase(std::next(at).base());
          total_ -= found.bytes;
          return found;
        }
    return {nullptr, 0};
  }
  void give(Block block) {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock || block.bytes > most_ || idle_.size() == idle_.capacity()) return release(block);
    block.since = ++clock_;
    total_ += block.bytes;
    std::size_t n_dropped = 0;
    for (; total_ > most_ || (total_ > few && n_dropped < idle_.size() &&
                              idle_[n_dropped].since + patience < clock_); ++n_dropped) {
      total_ -= idle_[n_dropped].bytes;
      release(idle_[n_dropped]);
    }
    idle_.erase(idle_.begin(), idle_.begin() + static_cast<std::ptrdiff_t>(n_dropped));
    idle_.push_back(block);
  }
  // Up to so many bytes may be kept for a while.
  void limit(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    most_ = std::max(few, bytes);
  }
  void drop_all() {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock) return;
    for (const Block& block : idle_) release(block);
    idle_.clear();
    total_ = 0;
  }
  static void release(Block block) {
    ::operator delete(block.memory, std::align_val_t{block_alignment(block.bytes)});
  }

 private:
  static constexpr std::size_t few = std::size_t(128) << 20;
  static constexpr std::uint64_t patience = 96;  // a few images' worth
  IdleBlocks() { idle_.reserve(1024); }  // so that giving back allocates nothing
  std::size_t most_ = few;
  std::mutex mutex_;
  std::vector<Block> idle_;  // the oldest first
  std::size_t total_ = 0;
  std::uint64_t clock_ = 0;
};

// Uninitialized numbers from a whole cache line on, because a vector that straddles two lines costs
// several; large arrays in huge pages where the system has them, because the tables are read all over.
struct FreeAligned {
  std::size_t bytes = 0;
  void operator()(void* memory) const {
    if (bytes >= huge_page) IdleBlocks::shared().give({memory, bytes});
    else IdleBlocks::release({memory, bytes});
  }
};
template <class T> using AlignedArray = std::unique_ptr<T[], FreeAligned>;
template <class T> AlignedArray<T> new_aligned(std::size_t size) {
  std::size_t bytes = size * sizeof(T);
  const bool large = bytes >= huge_page / 4;
  const std::size_t unit = large ? huge_page : cache_line;
  bytes = (bytes + unit - 1) / unit * unit;
  IdleBlocks::Block block = large ? IdleBlocks::shared().take(bytes) : IdleBlocks::Block{nullptr, 0};
  if (!block.memory) {
    block = {::operator new(bytes, std::align_val_t{unit}), bytes};
#ifdef MADV_HUGEPAGE
    if (large) madvise(block.memory, bytes, MADV_HUGEPAGE);  // a hint, which may fail
#endif
  }
  return AlignedArray<T>(static_cast<T*>(block.memory), FreeAligned{block.bytes});
}

// Lends uninitialized arrays of at least the asked size; safe to use from several threads.
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

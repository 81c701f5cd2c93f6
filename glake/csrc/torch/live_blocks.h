// The emulation's live blocks. A forked child must copy them, and must never free them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <unordered_map>

namespace glake::adapter {

class LiveBlocks {
 public:
  void add(void* block, size_t bytes) {
    Shard& shard = shard_of(block);
    std::lock_guard<std::mutex> guard(shard.mutex);
    shard.bytes[block] = bytes;
  }
  void remove(void* block) {
    Shard& shard = shard_of(block);
    std::lock_guard<std::mutex> guard(shard.mutex);
    shard.bytes.erase(block);
  }
  bool contains(void* block) {
    Shard& shard = shard_of(block);
    std::lock_guard<std::mutex> guard(shard.mutex);
    return shard.bytes.count(block) != 0;
  }

  // These are called around a fork, so that the child inherits whole tables. They cannot deadlock,
  // because nobody calls anything else with a shard's lock held.
  void lock() {
    for (Shard& shard : shards_) shard.mutex.lock();
  }
  void unlock() {
    for (Shard& shard : shards_) shard.mutex.unlock();
  }

  // Called between lock() and unlock(). Allocates nothing.
  template <class F>
  void for_each(F&& visit) const {
    for (const Shard& shard : shards_) {
      for (const auto& [block, bytes] : shard.bytes) visit(block, bytes);
    }
  }

 private:
  struct Shard {
    std::mutex mutex;
    std::unordered_map<void*, size_t> bytes;
  };
  Shard& shard_of(void* block) {
    auto unit = reinterpret_cast<uintptr_t>(block) / 512;  // glake's alignment
    return shards_[(unit ^ unit >> 12) % shards_.size()];
  }

  std::array<Shard, 16> shards_;
};

}  // namespace glake::adapter

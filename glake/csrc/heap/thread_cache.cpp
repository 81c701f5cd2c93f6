#include "heap/thread_cache.h"

namespace glake {
namespace {

void move_bytes(std::atomic<Bytes>& counter, Bytes n, bool add) {
  // It is only written under the cache's lock, so a plain read and write are enough. It is atomic
  // for other readers.
  Bytes now = counter.load(std::memory_order_relaxed);
  counter.store(add ? now + n : now - n, std::memory_order_relaxed);
}

}  // namespace

Block* ThreadCache::take(Bytes size, Bytes requested, StreamHandle stream) {
  const size_t home = shelf_of(size, stream);
  std::lock_guard<SpinLock> guard(lock_);
  Shelf* shelf = find(home, [&](const Shelf& s) { return s.holds(size, stream); });
  if (shelf == nullptr) return nullptr;
  Block* b = shelf->blocks[--shelf->count];
  bool small = size <= kSmallLimit;
  move_bytes(small ? small_bytes_ : large_bytes_, size, false);
  (small ? small_ : large_).allocate(size, requested);
  changed_.store(true, std::memory_order_relaxed);
  b->requested = requested;
  b->state.store(BlockState::kLive, std::memory_order_relaxed);
  return b;
}

bool ThreadCache::put(Block* b) {
  const size_t home = shelf_of(b->size, b->stream);
  bool small = b->small();
  std::atomic<Bytes>& kept = small ? small_bytes_ : large_bytes_;
  std::lock_guard<SpinLock> guard(lock_);
  Shelf* shelf = find(home, [b](const Shelf& s) {
    return s.holds(b->size, b->stream) && s.count != Tuning::kCacheDepth;
  });
  if (shelf == nullptr) shelf = find(home, [](const Shelf& s) { return s.count == 0; });
  if (shelf == nullptr) return false;
  if (kept.load(std::memory_order_relaxed) + b->size >
      (small ? small_capacity_ : large_capacity_)) {
    return false;
  }
  shelf->size = b->size;
  shelf->stream = b->stream;
  shelf->blocks[shelf->count++] = b;
  move_bytes(kept, b->size, true);
  (small ? small_ : large_).free(b->size, b->requested);
  changed_.store(true, std::memory_order_relaxed);
  return true;
}

void ThreadCache::drain(bool small_too, std::vector<Block*>& out) {
  std::lock_guard<SpinLock> guard(lock_);
  for (Shelf& shelf : shelves_) {
    if (shelf.count == 0 || (shelf.size <= kSmallLimit && !small_too)) continue;
    for (int i = 0; i < shelf.count; ++i) {
      out.push_back(shelf.blocks[i]);
      move_bytes(shelf.size <= kSmallLimit ? small_bytes_ : large_bytes_, shelf.size, false);
    }
    shelf.count = 0;
  }
}

void ThreadCache::publish_locked(Stats& stats) {
  changed_.store(false, std::memory_order_relaxed);
  if (!small_.empty()) stats.merge(true, small_);
  if (!large_.empty()) stats.merge(false, large_);
  small_ = StatDelta{};
  large_ = StatDelta{};
}

}  // namespace glake

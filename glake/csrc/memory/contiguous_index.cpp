#include "memory/contiguous_index.h"

namespace glake {

ContiguousIndex& ContiguousIndex::instance() {
  static auto* index = new ContiguousIndex;  // never destroyed: threads may outlive main
  return *index;
}

void ContiguousIndex::add(Chunk* chunk) {
  ContiguousIndex& index = instance();
  std::lock_guard<std::mutex> guard(index.mutex_);
  index.chunks_[chunk->base] = {chunk->bytes, chunk->block};
}

void ContiguousIndex::remove(Chunk* chunk) {
  ContiguousIndex& index = instance();
  std::lock_guard<std::mutex> guard(index.mutex_);
  index.chunks_.erase(chunk->base);
}

Block* ContiguousIndex::find(Address ptr, bool* inside) {
  ContiguousIndex& index = instance();
  std::lock_guard<std::mutex> guard(index.mutex_);
  auto after = index.chunks_.upper_bound(ptr);
  if (after == index.chunks_.begin()) return nullptr;
  const auto& [base, chunk] = *std::prev(after);
  *inside = ptr - base < chunk.first;
  return ptr == base ? chunk.second : nullptr;
}

Block* ContiguousIndex::around(Address ptr) {
  ContiguousIndex& index = instance();
  std::lock_guard<std::mutex> guard(index.mutex_);
  auto after = index.chunks_.upper_bound(ptr);
  if (after == index.chunks_.begin()) return nullptr;
  const auto& [base, chunk] = *std::prev(after);
  return ptr - base < chunk.first ? chunk.second : nullptr;
}

}  // namespace glake

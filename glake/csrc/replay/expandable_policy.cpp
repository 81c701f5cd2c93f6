// Growth, unmapping and search of expandable segments.
#include "expandable_policy.h"

#include <algorithm>

namespace glake::replay {
namespace {

// The size of the block if the unmapped stretch behind it were mapped.
uint64_t expandable_bytes(const Block* block) {
  const Block* next = block->next;
  return block->bytes + (next != nullptr && !next->mapped ? next->bytes : 0);
}

bool enough_space(const Block* block, uint64_t bytes) {
  uint64_t found = 0;
  for (; block != nullptr && block->idle() && found < bytes; block = block->next) {
    found += block->bytes;
  }
  return found >= bytes;
}

}  // namespace

bool ExpandablePolicy::should_split(const Pool&, uint64_t remaining) const {
  return remaining >= kMinBlock;
}

CachingPolicy::IdleIterator ExpandablePolicy::choose(Pool& pool, IdleIterator first) {
  IdleIterator chosen = first;
  for (IdleIterator next = std::next(chosen); next != pool.idle.end(); ++next) {
    if ((*next)->stream != (*chosen)->stream) break;
    if (expandable_bytes(*next) >= expandable_bytes(*chosen)) break;
    chosen = next;
  }
  return chosen;
}

Block* ExpandablePolicy::grow(Pool& pool, uint32_t stream, uint64_t bytes) {
  Block* block = find_space(pool, stream, bytes);
  if (!block->mapped && !map_front(pool, block, std::min(block->bytes, bytes))) return nullptr;
  // From here on `block` is idle and mapped. Behind it unmapped and idle blocks alternate.
  while (block->bytes < bytes) {
    Block* next = block->next;
    if (!map_front(pool, next, std::min(bytes - block->bytes, next->bytes))) return nullptr;
    block = next;
  }
  pool.erase(block);
  return block;
}

// The first block of the lowest run of unmapped and idle blocks that has room for the request.
Block* ExpandablePolicy::find_space(Pool& pool, uint32_t stream, uint64_t bytes) {
  Block key;
  key.stream = stream;
  for (auto it = pool.unmapped.lower_bound(&key); it != pool.unmapped.end(); ++it) {
    Block* block = *it;
    if (block->stream != stream) break;
    if (block->prev != nullptr && block->prev->idle()) block = block->prev;
    if (enough_space(block, bytes)) return block;
  }
  return reserve_segment(pool, stream, bytes);
}

Block* ExpandablePolicy::reserve_segment(Pool& pool, uint32_t stream, uint64_t bytes) {
  const uint64_t handle = pool.small ? kSmallSegment : kLargeSegment;
  // A request may be larger than the device. It gets addresses too, so that its mapping is tried
  // and fails.
  const uint64_t span = round_up(std::max(capacity_ + capacity_ / 8, bytes), handle);
  segments_.push_back({next_base_, handle, span});
  next_base_ += round_up(span, kLargeSegment);
  calls_.add(Call::kReserve, span);
  Block* block = new_block(stream, pool.small, segments_.back().base, span);
  block->mapped = false;
  block->segment = &segments_.back();
  pool.unmapped.insert(block);
  return block;
}

// Maps new handles at the front of an unmapped block. That part becomes an idle block. Handles are
// created one by one. If one is refused, those created before it are counted and released.
bool ExpandablePolicy::map_front(Pool& pool, Block* block, uint64_t bytes) {
  const uint64_t handle = block->segment->handle_bytes;
  const uint64_t mapped = round_up(bytes, handle);
  const uint64_t wanted = mapped / handle;
  const uint64_t created = std::min(wanted, (capacity_ - physical_) / handle);
  calls_.add(Call::kCreate, handle, created);
  if (created < wanted) {
    calls_.add(Call::kCreate, handle);  // the refused one
    calls_.add(Call::kRelease, handle, created);
    return false;
  }
  calls_.add(Call::kMap, handle, wanted);
  calls_.add_range(Call::kAccess, mapped, wanted);
  physical_ += mapped;
  pool.unmapped.erase(block);
  if (mapped < block->bytes) pool.unmapped.insert(split_off(block, mapped));
  block->mapped = true;
  merge(pool, block, block->prev);
  merge(pool, block, block->next);
  pool.insert(block);
  return true;
}

void ExpandablePolicy::release_idle(Pool& pool) {
  const std::vector<Block*> idle(pool.idle.begin(), pool.idle.end());
  for (Block* block : idle) {
    Block* unmapped = unmap(pool, block);
    if (unmapped == nullptr || !unmapped->whole_segment()) continue;
    // Nothing of the segment is mapped any more, so its address space goes back too.
    pool.unmapped.erase(unmapped);
    segments_.remove_if([&](const Segment& each) { return &each == unmapped->segment; });
    delete_block(unmapped);
  }
}

// Unmaps the handles that are wholly inside an idle block. Returns the unmapped block that they
// become part of, or null.
Block* ExpandablePolicy::unmap(Pool& pool, Block* block) {
  const uint64_t handle = block->segment->handle_bytes;
  const uint64_t base = block->segment->base;
  const uint64_t begin = base + round_up(block->address - base, handle);
  const uint64_t end = base + (block->address + block->bytes - base) / handle * handle;
  if (begin >= end) return nullptr;
  wait_for_stream();
  calls_.add(Call::kUnmap, handle, (end - begin) / handle);
  calls_.add(Call::kRelease, handle, (end - begin) / handle);
  physical_ -= end - begin;
  pool.erase(block);
  if (begin > block->address) {
    Block* middle = split_off(block, begin - block->address);
    pool.insert(block);
    block = middle;
  }
  if (block->address + block->bytes > end) pool.insert(split_off(block, end - block->address));
  block->mapped = false;
  merge(pool, block, block->prev);
  merge(pool, block, block->next);
  pool.unmapped.insert(block);
  return block;
}

}  // namespace glake::replay

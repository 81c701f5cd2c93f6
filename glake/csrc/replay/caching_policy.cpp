// The common part of the models of PyTorch's caching allocator.
#include "caching_policy.h"

#include <algorithm>
#include <iterator>

#include "base/numbers.h"

namespace glake::replay {

CachingPolicy::CachingPolicy(const PolicyConfig& config)
    : capacity_(config.capacity), complete_after_(config.complete_after) {}

uint64_t CachingPolicy::allocate(uint64_t bytes, uint32_t stream) {
  process_markers();
  const uint64_t size = rounded(bytes);
  Pool& pool = size <= kSmallLimit ? small_ : large_;
  Block* block = find_or_make(pool, stream, size);
  if (block == nullptr) {
    oom_message_ = describe_oom(size, stream);
    return 0;
  }
  block = carve(pool, block, size);
  block->held = true;
  held_bytes_ += block->bytes;
  return handle_of(block);
}

Block* CachingPolicy::find_or_make(Pool& pool, uint32_t stream, uint64_t bytes) {
  if (Block* block = find(pool, stream, bytes)) return block;
  if (Block* block = assemble(pool, stream, bytes, 0)) return block;
  if (Block* block = grow(pool, stream, bytes)) return block;
  if (Block* block = assemble(pool, stream, bytes, 1)) return block;
  release_cached();
  if (Block* block = grow(pool, stream, bytes)) return block;
  return assemble(pool, stream, bytes, 2);
}

Block* CachingPolicy::find(Pool& pool, uint32_t stream, uint64_t bytes) {
  Block key;
  key.stream = stream;
  key.bytes = bytes;
  const IdleIterator first = pool.idle.lower_bound(&key);
  if (first == pool.idle.end() || (*first)->stream != stream) return nullptr;
  const IdleIterator chosen = choose(pool, first);
  Block* block = *chosen;
  pool.idle.erase(chosen);
  if (pool.by_address) pool.places.erase(block);
  return block;
}

// Cuts the request from the low end of the block.
Block* CachingPolicy::carve(Pool& pool, Block* block, uint64_t bytes) {
  if (!should_split(pool, block->bytes - bytes)) return block;
  Block* front = new_block(block->stream, block->small, block->address, bytes);
  front->segment = block->segment;
  front->prev = block->prev;
  front->next = block;
  if (front->prev != nullptr) front->prev->next = front;
  block->prev = front;
  block->address += bytes;
  block->bytes -= bytes;
  pool.insert(block);
  return front;
}

void CachingPolicy::release(uint64_t handle) {
  Block* block = block_of(handle);
  block->held = false;
  held_bytes_ -= block->bytes;
  if (block->used_by.empty()) return make_idle(block);
  for (const uint32_t stream : block->used_by) {
    calls_.add(Call::kRecord);
    markers_[stream].push_back({now_, block});
  }
  block->pending = static_cast<uint32_t>(block->used_by.size());
  block->used_by.clear();
}

void CachingPolicy::record_stream(uint64_t handle, uint32_t stream) {
  Block* block = block_of(handle);
  if (stream == block->stream) return;
  std::vector<uint32_t>& used_by = block->used_by;
  if (std::find(used_by.begin(), used_by.end(), stream) == used_by.end()) used_by.push_back(stream);
}

void CachingPolicy::make_idle(Block* block) {
  Pool& pool = pool_of(block);
  merge(pool, block, block->prev);
  merge(pool, block, block->next);
  pool.insert(block);
}

void CachingPolicy::merge(Pool& pool, Block* block, Block* other) {
  if (other == nullptr || !other->idle() || other->mapped != block->mapped) return;
  if (other->mapped) {
    pool.erase(other);
  } else {
    pool.unmapped.erase(other);
  }
  if (block->prev == other) {
    block->address = other->address;
    block->prev = other->prev;
    if (block->prev != nullptr) block->prev->next = block;
  } else {
    block->next = other->next;
    if (block->next != nullptr) block->next->prev = block;
  }
  block->bytes += other->bytes;
  delete_block(other);
}

Block* CachingPolicy::new_block(uint32_t stream, bool small, uint64_t address, uint64_t bytes) {
  Block* block;
  if (spare_blocks_.empty()) {
    block = &blocks_.emplace_back();
  } else {
    block = spare_blocks_.back();
    spare_blocks_.pop_back();
    *block = Block();
  }
  block->stream = stream;
  block->small = small;
  block->address = address;
  block->bytes = bytes;
  return block;
}

void CachingPolicy::delete_block(Block* block) {
  block->bytes = 0;
  spare_blocks_.push_back(block);
}

Block* CachingPolicy::split_off(Block* block, uint64_t front_bytes) {
  Block* back = new_block(block->stream, block->small, block->address + front_bytes,
                          block->bytes - front_bytes);
  back->segment = block->segment;
  back->mapped = block->mapped;
  back->prev = block;
  back->next = block->next;
  if (back->next != nullptr) back->next->prev = back;
  block->next = back;
  block->bytes = front_bytes;
  return back;
}

bool CachingPolicy::complete(uint64_t tick) const {
  return complete_after_ != kNever && now_ - tick >= static_cast<uint64_t>(complete_after_);
}

void CachingPolicy::retire(const Marker& marker) {
  if (--marker.block->pending == 0) make_idle(marker.block);
}

// Each stream's markers complete in order, so the first incomplete one ends the search.
void CachingPolicy::process_markers() {
  for (auto& [stream, queue] : markers_) {
    while (!queue.empty()) {
      calls_.add(Call::kQuery);
      if (!complete(queue.front().enqueued)) break;
      const Marker marker = queue.front();
      queue.pop_front();
      retire(marker);
    }
  }
}

void CachingPolicy::synchronize_markers() {
  for (auto& [stream, queue] : markers_) {
    while (!queue.empty()) {
      const Marker marker = queue.front();
      queue.pop_front();
      if (!complete(marker.enqueued)) calls_.add(Call::kEventWait);
      retire(marker);
    }
  }
}

// The host waits for a stream before memory is unmapped. If work completes at once, that is no
// call.
void CachingPolicy::wait_for_stream() {
  if (complete_after_ != 0) calls_.add(Call::kEventWait);
}

void CachingPolicy::release_cached() {
  synchronize_markers();
  release_idle(large_);
  release_idle(small_);
}

std::string CachingPolicy::describe_oom(uint64_t bytes, uint32_t stream) const {
  uint64_t idle = 0;
  uint64_t other_streams = 0;
  uint64_t largest = 0;
  for (const Pool* pool : {&small_, &large_}) {
    for (const Block* block : pool->idle) {
      idle += block->bytes;
      if (block->stream != stream) other_streams += block->bytes;
      if (block->stream == stream) largest = std::max(largest, block->bytes);
    }
  }
  return "out of memory: " + size_text(bytes) + " asked for on stream " + std::to_string(stream) +
         "; of a capacity of " + size_text(capacity_) + ", " + size_text(physical_) +
         " are taken: " + size_text(held_bytes_) + " held by the job, " + size_text(idle) +
         " idle (" + size_text(other_streams) +
         " of it on other streams), the largest idle block of this stream " + size_text(largest);
}

// Makes a segment for each stretch of mapped memory.
Layout CachingPolicy::layout() const {
  Layout out;
  for (const Block& first : blocks_) {
    if (first.bytes == 0 || first.prev != nullptr || first.range != nullptr) continue;
    bool open = false;
    for (const Block* block = &first; block != nullptr; block = block->next) {
      if (!block->mapped) {
        open = false;
        continue;
      }
      if (!open) out.push_back({block->address, block->small ? "small" : "large", 0, {}});
      open = true;
      LayoutSegment& segment = out.back();
      const Block* owner = block->part_of != nullptr ? block->part_of : block;
      const BlockState state = owner->held     ? BlockState::kLive
                               : owner->idle() ? BlockState::kFree
                                               : BlockState::kPending;
      segment.blocks.push_back({segment.bytes, block->bytes, state, block->stream});
      segment.bytes += block->bytes;
    }
  }
  std::sort(out.begin(), out.end(),
            [](const LayoutSegment& a, const LayoutSegment& b) { return a.address < b.address; });
  return out;
}

// Checks that every physical byte is exactly once held, waiting for a stream, or idle in a pool.
void CachingPolicy::check() const {
  uint64_t idle = 0;
  uint64_t awaiting = 0;
  for (const Pool* pool : {&small_, &large_}) {
    for (const Block* block : pool->idle) {
      if (!block->idle() || !block->mapped) throw ReplayError("a pool holds a block in use");
      idle += block->bytes;
    }
  }
  std::set<const Block*> seen;
  for (const auto& [stream, queue] : markers_) {
    for (const Marker& marker : queue) {
      if (seen.insert(marker.block).second) awaiting += marker.block->bytes;
    }
  }
  if (held_bytes_ + awaiting + idle != physical_) {
    throw ReplayError("books do not add up: held " + std::to_string(held_bytes_) + ", awaiting " +
                      std::to_string(awaiting) + ", idle " + std::to_string(idle) + ", physical " +
                      std::to_string(physical_));
  }
}

}  // namespace glake::replay

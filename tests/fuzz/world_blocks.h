// Blocks of the fuzzer's world: asked for, stamped, read before they are freed.
#pragma once

#include "world.h"

namespace fuzz {

inline void World::get(size_t bytes, int stream, int device) {
  note("get", {static_cast<int64_t>(bytes), stream, device});
  plain(bytes, static_cast<int>(stream_of(stream)), device_of(device));
  identities();
}

inline void World::fill(size_t bytes, int stream, int device) {
  note("fill", {static_cast<int64_t>(bytes), stream, device});
  for (int i = 0; i < 64; ++i) {
    if (!plain(bytes, static_cast<int>(stream_of(stream)), device_of(device))) break;
  }
  identities();
}

inline glake_pool name_of(int pool) {
  return {pool == 1 ? uint64_t{1} : 0, pool == 2 ? uint64_t{7} : 0};
}

inline bool World::plain(size_t bytes, int stream, int device) {
  return allocate(bytes, stream, device, 0, kind_of(bytes), glake_malloc);
}

inline bool World::allocate(size_t bytes, int stream, int device, int pool, int kind,
                            const Allocate& by) {
  if (ended_[static_cast<size_t>(stream)] || device != 0) stream = 0;
  void* ptr = nullptr;
  int code = call([&] {
    ptr = by(bytes, device, handle(stream));
    return glake_last_error(nullptr, 0);
  });
  if (ptr == nullptr) {
    CHECK(code == GLAKE_OUT_OF_MEMORY || code == GLAKE_DRIVER_ERROR);
    CHECK_TEXT(armed_ || code == GLAKE_OUT_OF_MEMORY, "refused with no fault armed");
    if (!armed_ && pool == 0 && kind == GLAKE_STITCHED) refused(bytes, device);
    return false;
  }
  born({ptr, bytes, device, stream, pool}, kind);
  size_t asked = 0;
  int where = -1;
  void* on = nullptr;
  OK(glake_block_info(ptr, &asked, &where, &on));
  CHECK(asked == bytes && where == device && on == handle(stream));
  return true;
}

// Enters the size and place that the allocator says it has given.
inline void World::settle_in(Live& block, const glake::Block& given, int kind) {
  const bool guards = guarded() && block.pool == 0 && kind == GLAKE_STITCHED;
  block.requested = block.bytes;
  block.size = given.size;
  block.begin = given.ptr;
  block.room = checked() ? block.bytes : block.size;
  CHECK(block.begin + (guards ? 512 : 0) == reinterpret_cast<uintptr_t>(block.ptr));
  const size_t rounded = (block.bytes + (guards ? 1024 : 0) + 511) / 512 * 512;
  const bool longer = books_[block.device].pooled && block.size > rounded;  // NO_SPLIT
  CHECK(block.size == rounded || longer);
  CHECK((given.allocation == nullptr) == (kind == GLAKE_STITCHED));
  if (given.allocation == nullptr) return;
  CHECK(given.allocation->kind == kind && given.allocation->live);
  CHECK(given.allocation->base == block.begin && given.allocation->bytes >= block.size);
  block.behind = given.allocation->bytes - block.size;
}

// Enters a block that the allocator has just given out.
inline void World::born(const Live& made, int kind) {
  Live block = made;
  const glake::Block& given = glake::Process::instance().block(block.ptr, false);
  settle_in(block, given, kind);
  CHECK(block.begin % 512 == 0);
  auto after = addresses_.lower_bound({block.begin, 0});
  CHECK(after == addresses_.end() || block.begin + block.size <= after->first);
  CHECK(after == addresses_.begin() || std::prev(after)->second <= block.begin);
  addresses_.emplace(block.begin, block.begin + block.size);
  owned_.add(given);
  note_captured(block, given);
  Books& b = books_[block.device];
  b.used = true;
  ++b.count;
  ++b.allocations;
  b.requested += static_cast<int64_t>(block.requested);
  b.allocated += static_cast<int64_t>(block.size);
  b.behind += static_cast<int64_t>(block.behind);
  b.peak = std::max(b.peak, b.allocated);
  write(block);
  live_.push_back(block);
}

// Gives the block new contents. Captured work does not run, so a fill that is captured leaves no
// contents to check.
inline void World::write(Live& block) {
  block.stamp = ++stamp_;
  block.stamped = setup_.bytes != 0 && block.device == 0 && !capturing(block.stream);
  if (!block.stamped) return;
  Stamps::write(block.ptr, block.room, block.stamp, handle(block.stream));
  if (ended_[static_cast<size_t>(block.stream)]) stamps_.verify();
}

inline void World::read(const Live& block, int stream) {
  if (!block.stamped || capturing(stream)) return;
  stamps_.read(block.ptr, block.room, block.stamp, handle(stream));
}

// Out of memory is true only if neither whole free granules nor the limit had room.
inline void World::refused(size_t bytes, int device) {
  if (!exact_full_ || !books_[device].used || !pins_.empty()) return;
  const std::string text = test::stats(device);
  int64_t physical = test::number_in(text, "glake.physical_bytes");
  int64_t room = std::max<int64_t>(0, books_[device].limit - physical) +
                 test::number_in(text, "glake.contiguous_cached_bytes") +
                 test::number_in(text, "glake.whole_free_bytes");
  CHECK_TEXT(room < static_cast<int64_t>((bytes + kGranule - 1) / kGranule * kGranule), text);
}

inline void World::release(size_t n) {
  const Live block = live_[n];
  read(block, block.stream);
  // If the block's stream has ended, the block is used on the default stream now. glake does not
  // know that, so this waits for the read.
  if (block.stamped && ended_[static_cast<size_t>(block.stream)]) stamps_.verify();
  owned_.remove(glake::Process::instance().block(block.ptr, false));
  gone(n);
  OK(call([&] { return glake_free(block.ptr); }));
}

// Takes a block off the books. The last block takes its place.
inline void World::gone(size_t n) {
  const Live block = live_[n];
  live_[n] = live_.back();
  live_.pop_back();
  addresses_.erase({block.begin, block.begin + block.size});
  Books& b = books_[block.device];
  --b.count;
  b.requested -= static_cast<int64_t>(block.requested);
  b.allocated -= static_cast<int64_t>(block.size);
  b.behind -= static_cast<int64_t>(block.behind);
  freed_ = block.ptr;
  if (block.pool == 0) return;
  if (gaps_.size() == 16) gaps_.erase(gaps_.begin());
  gaps_.emplace_back(block.ptr, block.pool);
}

inline void World::drop(int n) {
  if (live_.empty()) return;
  note("drop", {n});
  release(pick(n));
  identities();
}

// A release moves the last block into the gap. Blocks are released from the end, so that the others
// keep their numbers.
inline void World::drop_every(int step, int from) {
  note("drop_every", {step, from});
  for (size_t i = live_.size(); i-- > 0;) {
    if (static_cast<int>(i) % step == from % step) release(i);
  }
  identities();
}

}  // namespace fuzz

// Stitching by aliases, as GMLake does it.
#include "gmlake_policy.h"

#include <algorithm>

namespace glake::replay {

GmlakePolicy::GmlakePolicy(const PolicyConfig& config, const GmlakeKnobs& knobs)
    : NativePolicy(config), knobs_(knobs) {
  large_.by_address = true;
}

uint64_t GmlakePolicy::rounded(uint64_t bytes) const {
  const uint64_t size = CachingPolicy::rounded(bytes);
  return size <= kSmallLimit ? size : round_up(size, kGranule);
}

bool GmlakePolicy::should_split(const Pool& pool, uint64_t remaining) const {
  return remaining >= (pool.small ? kMinBlock : kGranule);
}

uint64_t GmlakePolicy::allocate(uint64_t bytes, uint32_t stream) {
  const uint64_t handle = NativePolicy::allocate(bytes, stream);
  const Block* block = block_of(handle);
  if (block != nullptr && !block->small && block->range == nullptr) mark(block, Granule::kBusy);
  return handle;
}

void GmlakePolicy::mark(const Block* block, Granule state) {
  const auto first = granules_.begin() + static_cast<std::ptrdiff_t>(block->address / kGranule);
  std::fill_n(first, block->bytes / kGranule, state);
}

Block* GmlakePolicy::assemble(Pool& pool, uint32_t stream, uint64_t bytes, int attempt) {
  if (pool.small) return nullptr;
  if (attempt == 0) {
    if (Block* block = reuse(pool, stream, bytes)) return block;
  }
  if (attempt < knobs_.defrag_level || bytes < knobs_.frag_limit) return nullptr;
  return stitch(pool, stream, bytes);
}

bool GmlakePolicy::wholly_idle(StitchedRange& range) const {
  if (granules_[range.busy] == Granule::kBusy) return false;
  for (const GranuleRun& run : range.runs) {
    for (uint64_t number = run.first; number < run.first + run.count; ++number) {
      if (granules_[number] != Granule::kBusy) continue;
      range.busy = number;
      return false;
    }
  }
  return true;
}

// Serves the request with the front of the smallest wholly idle range that is long enough.
Block* GmlakePolicy::reuse(Pool& pool, uint32_t stream, uint64_t bytes) {
  auto it = ranges_.lower_bound(Key(stream, bytes, 0));
  for (; it != ranges_.end(); ++it) {
    const auto& [of_stream, length, serial] = it->first;
    const uint64_t least = (length + knobs_.reuse_limit - 1) / knobs_.reuse_limit;
    if (of_stream != stream || least > bytes) return nullptr;
    if (!it->second.doomed && wholly_idle(it->second)) break;
  }
  if (it == ranges_.end()) return nullptr;
  StitchedRange& range = it->second;
  uint64_t missing = bytes;
  for (const GranuleRun& run : range.runs) {
    const uint64_t begin = run.first * kGranule;
    const uint64_t length = std::min(missing, run.count * kGranule);
    if (length == 0) break;
    Block key;
    key.stream = stream;
    key.address = begin;
    // Idle neighbours are always joined. So one idle block holds the whole run.
    Block* idle = *std::prev(pool.places.upper_bound(&key));
    range.pieces.push_back(take(pool, idle, begin, begin + length));
    missing -= length;
  }
  return hand_out(range, stream, bytes);
}

Block* GmlakePolicy::stitch(Pool& pool, uint32_t stream, uint64_t bytes) {
  Block key;
  key.stream = stream;
  const auto first = pool.idle.lower_bound(&key);
  key.bytes = UINT64_MAX;
  auto it = pool.idle.lower_bound(&key);
  if (first == it || std::next(first) == it)
    return nullptr;  // find() has shown that one block is not enough
  std::vector<Block*> chosen;
  uint64_t found = 0;
  while (it != first && found < bytes) {
    chosen.push_back(*--it);
    found += chosen.back()->bytes;
  }
  if (found < bytes) return nullptr;
  StitchedRange& range = ranges_[Key(stream, bytes, ranges_made_++)];
  range.bytes = bytes;
  uint64_t missing = bytes;
  for (Block* idle : chosen) {
    const uint64_t length = std::min(missing, idle->bytes);
    range.runs.push_back({idle->address / kGranule, length / kGranule});
    range.pieces.push_back(take(pool, idle, idle->address, idle->address + length));
    missing -= length;
  }
  calls_.add(Call::kReserve, bytes);
  calls_.add(Call::kMap, kGranule, bytes / kGranule);
  calls_.add(Call::kAccess, kGranule, bytes / kGranule);
  Block* block = hand_out(range, stream, bytes);
  stitched_bytes_ += bytes;
  if (stitched_bytes_ > knobs_.auto_gc) drop_idle_ranges();
  return block;
}

// Takes [begin, end) out of an idle block.
Block* GmlakePolicy::take(Pool& pool, Block* idle, uint64_t begin, uint64_t end) {
  pool.erase(idle);
  Block* piece = idle;
  if (begin > idle->address) {
    piece = split_off(idle, begin - idle->address);
    pool.insert(idle);
  }
  if (piece->address + piece->bytes > end) pool.insert(split_off(piece, end - piece->address));
  piece->held = true;
  mark(piece, Granule::kBusy);
  return piece;
}

// Makes the caller's block. It is not in the chains of segments, but its pieces are.
Block* GmlakePolicy::hand_out(StitchedRange& range, uint32_t stream, uint64_t bytes) {
  Block* block = new_block(stream, false, 0, bytes);
  block->range = &range;
  range.busy = range.runs.front().first;
  for (Block* piece : range.pieces) piece->part_of = block;
  return block;
}

void GmlakePolicy::make_idle(Block* block) {
  if (block->range == nullptr) {
    if (!block->small) mark(block, Granule::kIdle);
    return NativePolicy::make_idle(block);
  }
  StitchedRange& range = *block->range;
  const std::vector<Block*> pieces = std::move(range.pieces);
  range.pieces.clear();
  for (Block* piece : pieces) {
    piece->held = false;
    piece->part_of = nullptr;
    mark(piece, Granule::kIdle);
    NativePolicy::make_idle(piece);
  }
  range.freed_at = now();
  if (range.doomed) {
    drop(std::find_if(ranges_.begin(), ranges_.end(),
                      [&](const Ranges::value_type& each) { return &each.second == &range; }));
  }
  delete_block(block);
}

// Creates a handle for each granule. If the capacity is reached before the last one, all are
// released again.
Block* GmlakePolicy::grow(Pool& pool, uint32_t stream, uint64_t bytes) {
  if (pool.small) {
    Block* block = NativePolicy::grow(pool, stream, bytes);
    granules_.resize(next_address_ / kGranule, Granule::kBusy);
    return block;
  }
  const uint64_t size = segment_bytes(bytes);
  const uint64_t wanted = size / kGranule;
  const uint64_t room = (capacity_ - physical_) / kGranule;
  if (room < wanted) {
    calls_.add(Call::kCreate, kGranule, room + 1);  // the last one is refused
    calls_.add(Call::kRelease, kGranule, room);
    return nullptr;
  }
  calls_.add(Call::kCreate, kGranule, wanted);
  calls_.add(Call::kReserve, size);
  calls_.add(Call::kMap, kGranule, wanted);
  calls_.add(Call::kAccess, kGranule, wanted);
  physical_ += size;
  Block* block = new_block(stream, false, next_address_, size);
  next_address_ += size;
  granules_.resize(next_address_ / kGranule, Granule::kIdle);
  return block;
}

void GmlakePolicy::release_idle(Pool& pool) {
  if (pool.small) return NativePolicy::release_idle(pool);
  const std::vector<Block*> idle(pool.idle.begin(), pool.idle.end());
  bool released = false;
  for (Block* block : idle) {
    if (!block->whole_segment()) continue;
    calls_.add_range(Call::kUnmap, block->bytes, block->bytes / kGranule);
    calls_.add(Call::kRelease, kGranule, block->bytes / kGranule);
    physical_ -= block->bytes;
    mark(block, Granule::kGone);
    pool.erase(block);
    delete_block(block);
    released = true;
  }
  if (released) drop_ranges_over_gone();
}

GmlakePolicy::Ranges::iterator GmlakePolicy::drop(Ranges::iterator range) {
  calls_.add_range(Call::kUnmap, range->second.bytes, range->second.bytes / kGranule);
  return ranges_.erase(range);
}

// A run is in one segment, and segments are released as a whole. So the first granule tells for
// all.
void GmlakePolicy::drop_ranges_over_gone() {
  for (auto it = ranges_.begin(); it != ranges_.end();) {
    StitchedRange& range = it->second;
    const bool gone = std::any_of(range.runs.begin(), range.runs.end(), [&](const GranuleRun& run) {
      return granules_[run.first] == Granule::kGone;
    });
    if (gone && range.live()) range.doomed = true;
    it = gone && !range.live() ? drop(it) : std::next(it);
  }
}

void GmlakePolicy::drop_idle_ranges() {
  for (auto it = ranges_.begin(); it != ranges_.end();) {
    if (it->second.live() || !complete(it->second.freed_at)) {
      ++it;
      continue;
    }
    stitched_bytes_ -= it->second.bytes;
    it = drop(it);
  }
}

// Checks that the states of granules are those of the blocks that hold them.
void GmlakePolicy::check() const {
  NativePolicy::check();
  const auto all_are = [this](const Block* block, Granule state) {
    for (uint64_t at = block->address; at < block->address + block->bytes; at += kGranule) {
      if (granules_[at / kGranule] != state) return false;
    }
    return true;
  };
  for (const Block* block : large_.idle) {
    if (!all_are(block, Granule::kIdle)) throw ReplayError("an idle block holds a busy granule");
  }
  if (large_.places.size() != large_.idle.size()) throw ReplayError("idle blocks have no place");
  for (const auto& [key, range] : ranges_) {
    for (const Block* piece : range.pieces) {
      if (!all_are(piece, Granule::kBusy)) throw ReplayError("a stitched block holds idle memory");
    }
  }
}

}  // namespace glake::replay

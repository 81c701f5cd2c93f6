// The device's part of the escape pool: where a contiguous block comes from, and what goes before
// it does. Chunks count against the limit, and wait for streams, as granules do.
#include <algorithm>

#include "heap/device_allocator.h"
#include "watch/watch.h"

namespace glake {

// Makes a chunk a live block. Its record lists its own stream as a recorded one: a free then passes
// free_locked(), never a thread's cache, which would give it to ordinary requests.
Block* DeviceAllocator::hand_out(Chunk* chunk, const Request& r, StreamHandle stream) {
  Block* b = chunk->block;
  b->ptr.store(chunk->base, std::memory_order_relaxed);
  b->size = r.size;
  b->requested = r.requested;
  b->stream = stream;
  b->stream_id = r.stream;
  b->device = this;
  b->chunk = chunk;
  chunk->live = true;
  b->recorded.clear();
  b->recorded.add(r.stream);
  ++live_;
  b->small_pool = false;
  stats_.allocate(b->small_pool, b->size, b->requested);
  b->state.store(BlockState::kLive, std::memory_order_release);
  return b;
}

// By how much contiguous blocks may grow. Owed granules are part of room() for the arenas only.
Granules DeviceAllocator::chunk_room() const {
  Granules held = physical() + Granules::ceil(shared_.outside);
  return held < limit_ ? limit_ - held : Granules{0};
}

// So much is held beyond a limit that was lowered, for them.
Granules DeviceAllocator::chunks_above_limit() const {
  Granules held = physical() + Granules::ceil(shared_.outside);
  return limit_ < held ? held - limit_ : Granules{0};
}

// Asks the driver, hot_ let go. Null when it has no more, or refuses.
std::unique_ptr<Chunk> DeviceAllocator::make_chunk(int kind, Bytes bytes, HotGuard& hot,
                                                   Status* refused) {
  std::unique_ptr<Chunk> chunk;
  if (chunk_room() < Granules::floor(bytes) && !contiguous_.owes(kind, bytes)) return chunk;
  hot.unlock();
  *refused = contiguous_.make(kind, bytes, granules_.grants(), &chunk);
  if (refused->out_of_memory()) shared_.chunk_refused[ContiguousPool::number(kind)] = true;
  hot.lock();
  if (chunk == nullptr) return chunk;
  chunk->block = blocks_.make();
  stats_.segment.add(false, 1);
  stats_.reserved_bytes.add(false, static_cast<int64_t>(bytes));
  Watch::event(GLAKE_SEGMENT_ALLOC, device_, chunk->base, bytes);
  return chunk;
}

Block* DeviceAllocator::allocate_contiguous(Bytes bytes, StreamHandle stream, const Asked& asked) {
  const int kind = asked.kind;
  Bytes whole = round_up(bytes, kGranule);
  {
    HotGuard hot(hot_);
    Request r = request(bytes, stream);
    Chunk* c = contiguous_.reuse(kind, whole, r.stream, clock_, false);
    if (c != nullptr) return hand_out(c, r, stream);
  }
  std::lock_guard<FairMutex> slow(slow_);
  DeviceScope scope(driver_, device_);
  require(scope.status(), "to make its context current");
  contiguous_.settle();
  HotGuard hot(hot_);
  shared_.refused_now = false;
  settle(hot);
  clock_.poll();
  Request r = request(bytes, stream);
  auto again = [&](bool may_wait) {
    return contiguous_.reuse(kind, whole, r.stream, clock_, may_wait);
  };
  Status refused;
  std::unique_ptr<Chunk> made;
  Chunk* c = again(options_.policy == PolicyKind::kCompact);
  if (c == nullptr) made = make_chunk(kind, whole, hot, &refused);
  if (c == nullptr && made == nullptr) c = again(true);
  if (c == nullptr && made == nullptr && trim_contiguous(hot)) {
    made = make_chunk(kind, whole, hot, &refused);
  }
  if (c == nullptr && made == nullptr && (refused.ok() || refused.out_of_memory())) {
    // Then the granules nobody holds: whatever else of the limit is free is in them.
    give_back_idle(hot);
    made = make_chunk(kind, whole, hot, &refused);
    ++stats_.alloc_retries;
  }
  if (made != nullptr) {
    c = made.get();
    hand_out(c, r, stream);
    contiguous_.add(std::move(made));
    return c->block;
  }
  if (c == nullptr) throw no_contiguous(r, asked, refused, hot);
  return hand_out(c, r, stream);
}

Error DeviceAllocator::no_contiguous(const Request& r, const Asked& asked, Status refused,
                                     HotGuard& hot) {
  if (!refused.ok() && !refused.out_of_memory()) {
    return Error(GLAKE_DRIVER_ERROR, "the driver refused a contiguous block of " +
                                         std::to_string(r.requested) + " bytes on " +
                                         device_text(device_) + ": " + driver_.describe(refused));
  }
  ++stats_.ooms;
  Error plain = out_of_memory(r, asked, hot);
  return Error(GLAKE_OUT_OF_MEMORY, "no room for a contiguous block: " + std::string(plain.what()));
}

void DeviceAllocator::free_contiguous(Block* b) {
  Chunk* chunk = b->chunk;
  chunk->live = false;
  chunk->tickets.assign(1, clock_.stamp(b->stream_id));
  for (StreamId s : b->recorded) {
    if (s != b->stream_id) chunk->tickets.push_back(clock_.stamp(s));
  }
  b->recorded.clear();
  contiguous_.cache(chunk);
  --live_;
}

// Gives cached chunks back to the driver, waiting for their work. True if any memory came of it.
bool DeviceAllocator::trim_contiguous(HotGuard& hot) {
  if (!contiguous_.any_cached()) return false;
  Granules given{0};
  clock_.poll();
  std::vector<std::unique_ptr<Chunk>> going;
  for (Chunk* c : contiguous_.cached()) {
    bool idle = c->pins == 0;
    for (Ticket t : c->tickets) {
      idle = idle && (clock_.complete(Tickets(t)) || clock_.wait_host(Tickets(t)));
    }
    if (!idle) continue;
    going.push_back(contiguous_.remove(c));
    blocks_.recycle(c->block);
    c->block = nullptr;
  }
  hot.unlock();
  std::vector<std::pair<Address, Bytes>> gone;
  for (auto& chunk : going) {
    gone.emplace_back(chunk->base, chunk->bytes);
    const Granules whole = Granules::floor(chunk->bytes);
    if (contiguous_.unmake(std::move(chunk))) given = given + whole;
  }
  hot.lock();
  for (auto [base, bytes] : gone) {
    Watch::event(GLAKE_SEGMENT_FREE, device_, base, bytes);
    stats_.segment.subtract(false, 1);
    stats_.reserved_bytes.subtract(false, static_cast<int64_t>(bytes));
  }
  if (given.count == 0) return false;
  forget_refusals(given);
  return true;
}

std::vector<int> DeviceAllocator::grants() {
  std::lock_guard<FairMutex> slow(slow_);
  return granules_.grants();
}

}  // namespace glake

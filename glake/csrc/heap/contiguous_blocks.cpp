#include "heap/contiguous_blocks.h"

#include "heap/mapping_turn.h"
#include "heap/neighbours.h"
#include "heap/out_of_memory.h"
#include "heap/reclaim.h"
#include "watch/watch.h"

namespace glake {

Block* ContiguousBlocks::allocate(Bytes bytes, StreamHandle stream, const Asked& asked) {
  const StreamLives::Named named(device_.driver.streams(), stream);
  const int kind = asked.kind;
  Bytes whole = round_up(bytes, kGranule);
  {
    HotGuard hot(device_.hot);
    Request r = device_.request(bytes, stream);
    Allocation* c = device_.contiguous.reuse(kind, whole, r.stream, device_.clock, false);
    if (c != nullptr) return hand_out(c, r, stream);
  }
  return Neighbours::helped(device_, [&] { return find_or_make(bytes, stream, asked); });
}

Block* ContiguousBlocks::find_or_make(Bytes bytes, StreamHandle stream, const Asked& asked) {
  const int kind = asked.kind;
  const Bytes whole = round_up(bytes, kGranule);
  MappingTurn turn(device_);
  device_.contiguous.settle();
  HotGuard hot(device_.hot);
  device_.shortage.request_begins();
  device_.settle(hot);
  device_.clock.poll();
  Request r = device_.request(bytes, stream);
  auto again = [&](bool may_wait) {
    return device_.contiguous.reuse(kind, whole, r.stream, device_.clock, may_wait);
  };
  Status refused;
  std::unique_ptr<Allocation> made;
  Allocation* c = again(device_.options.policy == PolicyKind::kCompact);
  if (c == nullptr) made = make(kind, whole, hot, &refused);
  if (c == nullptr && made == nullptr) c = again(true);
  if (c == nullptr && made == nullptr && trim(hot)) {
    made = make(kind, whole, hot, &refused);
  }
  if (c == nullptr && made == nullptr && (refused.ok() || refused.out_of_memory())) {
    // Then the granules that nobody holds are given back. All other free memory of the limit is in
    // them.
    Reclaim(device_).give_back_idle(hot);
    made = make(kind, whole, hot, &refused);
    ++device_.stats.alloc_retries;
  }
  if (made != nullptr) {
    c = made.get();
    hand_out(c, r, stream);
    device_.contiguous.add(std::move(made));
    return c->block;
  }
  if (c == nullptr) throw no_room(r, asked, refused, hot);
  return hand_out(c, r, stream);
}

// Makes an allocation a live block. Its record lists its own stream as a recorded one. So its free
// goes to Frees::free() and not to a thread's cache, which would give the block to ordinary
// requests.
Block* ContiguousBlocks::hand_out(Allocation* allocation, const Request& r, StreamHandle stream) {
  Block* b = allocation->block;
  b->ptr.store(allocation->base, std::memory_order_relaxed);
  b->size = r.size;
  b->requested = r.requested;
  b->stream = stream;
  b->stream_id = r.stream;
  b->heap = &device_.heaps.own();
  b->allocation = allocation;
  allocation->live = true;
  b->recorded.clear();
  b->recorded.add(r.stream);
  ++device_.heaps.own().live;
  b->small_pool = false;
  device_.stats.allocate(b->small_pool, b->size, b->requested);
  b->state.store(BlockState::kLive, std::memory_order_release);
  return b;
}

// Asks the driver, with hot released. Null if the driver has no more, or refuses.
std::unique_ptr<Allocation> ContiguousBlocks::make(int kind, Bytes bytes, HotGuard& hot,
                                                   Status* refused) {
  std::unique_ptr<Allocation> allocation;
  if (device_.memory.allocation_room() < Granules::floor(bytes) &&
      !device_.contiguous.owes(kind, bytes))
    return allocation;
  hot.unlock();
  *refused = device_.contiguous.make(kind, bytes, device_.grants, &allocation);
  if (refused->out_of_memory()) device_.shortage.refuse_allocation(kind);
  hot.lock();
  if (allocation == nullptr) return allocation;
  allocation->block = device_.blocks.make();
  device_.stats.segment.add(false, 1);
  device_.stats.reserved_bytes.add(false, static_cast<int64_t>(bytes));
  Watch::event(GLAKE_SEGMENT_ALLOC, device_.number, allocation->base, bytes);
  return allocation;
}

Error ContiguousBlocks::no_room(const Request& r, const Asked& asked, Status refused,
                                HotGuard& hot) {
  if (!refused.ok() && !refused.out_of_memory()) {
    return Error(GLAKE_DRIVER_ERROR, "the driver refused a contiguous block of " +
                                         std::to_string(r.requested) + " bytes on " +
                                         device_text(device_.number) + ": " +
                                         device_.driver.describe(refused));
  }
  ++device_.stats.ooms;
  const Error error = OutOfMemory(device_.heaps.own()).error(r, asked, hot);
  std::string text = error.what();
  text.insert(text.find('\n'), OutOfMemory::line("no room for a contiguous block"));
  return Error(GLAKE_OUT_OF_MEMORY, text, error.missing());
}

void ContiguousBlocks::free(Block* b) {
  Allocation* allocation = b->allocation;
  allocation->live = false;
  allocation->tickets.assign(1, device_.clock.stamp(b->stream_id));
  for (StreamId s : b->recorded) {
    if (s != b->stream_id) allocation->tickets.push_back(device_.clock.stamp(s));
  }
  b->recorded.clear();
  device_.contiguous.cache(allocation);
  --device_.heaps.own().live;
}

bool ContiguousBlocks::trim(HotGuard& hot) {
  if (!device_.contiguous.any_cached()) return false;
  Granules given{0};
  device_.clock.poll();
  std::vector<std::unique_ptr<Allocation>> going;
  for (Allocation* c : device_.contiguous.cached()) {
    bool idle = c->pins == 0;
    for (Ticket t : c->tickets) {
      idle = idle && (device_.clock.complete(Tickets(t)) || device_.clock.wait_host(Tickets(t)));
    }
    if (!idle) continue;
    going.push_back(device_.contiguous.remove(c));
    device_.blocks.recycle(c->block);
    c->block = nullptr;
  }
  hot.unlock();
  std::vector<std::pair<Address, Bytes>> gone;
  for (auto& allocation : going) {
    gone.emplace_back(allocation->base, allocation->bytes);
    const Granules whole = Granules::floor(allocation->bytes);
    if (device_.contiguous.unmake(std::move(allocation))) given = given + whole;
  }
  hot.lock();
  for (auto [base, bytes] : gone) {
    Watch::event(GLAKE_SEGMENT_FREE, device_.number, base, bytes);
    device_.stats.segment.subtract(false, 1);
    device_.stats.reserved_bytes.subtract(false, static_cast<int64_t>(bytes));
  }
  if (given.count == 0) return false;
  device_.shortage.forget(given);
  return true;
}

}  // namespace glake

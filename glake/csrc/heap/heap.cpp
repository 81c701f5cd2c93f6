#include "heap/heap.h"

#include <algorithm>

#include "base/tuning.h"
#include "heap/device.h"
#include "heap/frees.h"
#include "memory/block_table.h"
#include "memory/reservation.h"

namespace glake {

Heap::Heap(Device& the_device, std::unique_ptr<Pool> the_pool)
    : device(the_device),
      number(device.number),
      rule(device.clock, the_pool == nullptr),
      pool(std::move(the_pool)),
      granules(device.driver, device.deferred, device.refusals, number, device.memory.backed(),
               device.grants),
      pins(granules),
      history(rule.follows_steps()) {}

Heap::~Heap() = default;

void Heap::reserve() {
  const Bytes total = device.memory.total();
  const Bytes part = total / Tuning::kPoolSmallShare;
  const bool own = pool == nullptr;
  const Bytes home = own ? total * Tuning::kArenaFactor : total;
  if (small_range == nullptr) {
    small_range =
        std::make_unique<Reservation>(device.driver, this, own ? total : part, kAlignment);
  }
  if (large_range == nullptr) {
    large_range = std::make_unique<Reservation>(device.driver, this, home, kMiB);
  }
  if (view_space == nullptr) {
    view_space = std::make_unique<ViewSpace>(device.driver, this, own ? home : part);
  }
  small = std::make_unique<Arena>(0, small_range->base(), small_range->size(), spans);
  large = std::make_unique<Arena>(1, large_range->base(), large_range->size(), spans);
  granules.add(*small);
  granules.add(*large);
}

Status Heap::release_ranges() {
  Status s;
  auto release = [&s](auto& owner) {
    if (s.ok() && owner != nullptr) s = owner->release();
    if (s.ok()) owner.reset();
  };
  release(view_space);
  release(small_range);
  release(large_range);
  return s;
}

Block* Heap::make_block(const Request& r, const Found& found, StreamHandle stream) {
  Block* b = device.blocks.make();
  b->ptr.store(found.ptr, std::memory_order_relaxed);
  b->size = r.size;
  b->requested = r.requested;
  b->stream = stream;
  b->stream_id = r.stream;
  b->heap = this;
  b->pieces = found.pieces;
  b->view = found.view;
  b->small_pool = found.view == nullptr && small->contains(found.ptr);
  PointerMap::find(b->ptr)->insert(b);
  ++live;
  if (pool != nullptr) pool->blocks.emplace(b->ptr, b);
  device.stats.allocate(b->small_pool, b->size, b->requested);
  b->state.store(BlockState::kLive, std::memory_order_release);
  return b;
}

void Heap::free(Block* block, ThreadCache& cache) {
  // A small block that had to go to the large arena counts in the large pool. A cache counts its
  // small blocks in the small pool, so it does not keep such a block.
  bool cached = block->small() ? block->small_pool : device.keeping.now() || device.hot.contended();
  if (cached && block->recorded.empty() && cache.heap() == this && cache.put(block)) {
    return;
  }
  HotGuard hot(device.hot);
  cache.collect(device.stats);
  device.stats.free(block->small_pool, block->size, block->requested);
  Frees(*this).free(block);
}

void Heap::record_stream(Block* block, StreamHandle stream) {
  const StreamLives::Named named(device.driver.streams(), stream);
  HotGuard hot(device.hot);
  StreamId id = device.clock.id_of(stream);
  if (id == block->stream_id) return;
  block->recorded.add(id);
}

Block* Heap::find(const BlockTable& table, Address ptr) {
  HotGuard hot(device.hot);
  return table.find(ptr);
}

Block* Heap::around(const BlockTable& table, Address ptr, bool* paused) {
  HotGuard hot(device.hot);
  *paused = is_paused();
  if (!reserved()) return nullptr;
  if (large->contains(ptr)) return table.around(ptr, large->base());
  if (small->contains(ptr)) return table.around(ptr, ptr - std::min(ptr, kSmallLimit));
  const View* view = views.find(ptr);
  return view != nullptr ? table.around(ptr, view->base) : nullptr;
}

std::string Heap::explain_pointer(Address ptr) {
  HotGuard hot(device.hot);
  auto inside = [ptr](Address begin, Bytes size) { return ptr - begin < size; };
  const View* view = nullptr;
  for (const View* v : views.recent_first()) {
    if (inside(v->base, v->length.bytes())) view = v;
  }
  if (const VirtualRange* range = virtuals.around(ptr)) {
    return " lies in the virtual range at " + hex(range->base()) +
           ", which is no block: glake_virtual_unback() gives memory of it back";
  }
  if (!reserved() || (view == nullptr && !small->contains(ptr) && !large->contains(ptr))) {
    return " lies in glake's addresses but no block is there";
  }
  // At home the span tells whether somebody holds these bytes. In a view the runs tell it.
  Address home = ptr;
  if (view != nullptr) {
    for_each_run(*view, ptr - view->base, 1, [&](Arena&, Address a, Bytes) {
      home = a;
      return false;
    });
  }
  for (const Span* s = arena_of(home).first_span(); s != nullptr; s = s->next) {
    if (home < s->begin || home >= s->end()) continue;
    if (s->state == SpanState::kBusy && (home != s->begin || view != nullptr)) {
      return " lies inside a block; glake knows it by its first byte's address only";
    }
  }
  return " is no live block's address: freed already, or never given out";
}

void Heap::keep_from_reuse(Block* block) {
  HotGuard hot(device.hot);
  device.stats.free(block->small_pool, block->size, block->requested);
  device.stats.wait(block->small_pool, block->size, block->requested);
  kept_blocks.push_back(block);
}

void Heap::end_keeping(Block* block) {
  HotGuard hot(device.hot);
  kept_blocks.erase(std::find(kept_blocks.begin(), kept_blocks.end(), block));
  device.stats.done_waiting(block->small_pool, block->size, block->requested);
  Frees(*this).free(block);
}

bool Heap::order_after_recorded(Block* block) {
  HotGuard hot(device.hot);
  for (StreamId s : block->recorded) {
    if (!device.clock.wait(block->stream_id, Tickets(device.clock.stamp(s)))) return false;
  }
  // A shared block keeps its own stream recorded, which keeps the block out of a thread's cache.
  const bool kept = own_recorded(*block) != 0;
  block->recorded.clear();
  if (kept) block->recorded.add(block->stream_id);
  return true;
}

Granules Heap::room() const { return std::min(device.memory.room(), budget_room()); }

// Only the device's own memory has contiguous blocks and guards.
Bytes Heap::contiguous_from() const { return pool == nullptr ? device.options.contiguous.from : 0; }

Bytes Heap::guard_bytes() const {
  return pool == nullptr && device.debug != nullptr ? device.debug->overhead() : 0;
}

Granules Heap::budget_room() const {
  const Bytes budget = pool != nullptr && pool->region != nullptr ? pool->region->budget.load() : 0;
  if (budget == 0) return Granules::floor(UINT64_MAX);
  const Granules most = Granules::floor(budget), has = granules.own();
  return has < most ? most - has : Granules{0};
}

}  // namespace glake

#include "heap/pins.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <string>

#include "heap/device_allocator.h"

namespace glake {
namespace {

template <typename T>
bool has(const std::vector<T>& all, const T& one) {
  return std::find(all.begin(), all.end(), one) != all.end();
}

}  // namespace

void PinTable::pin(const Block& block, Address ptr, const std::vector<Arena*>& arenas,
                   PinOwner owner) {
  Pin next;
  if (block.chunk != nullptr) next.chunks.push_back(block.chunk);
  if (block.view != nullptr) next.views.push_back(block.view);
  for (const Span* p = block.pieces; p != nullptr; p = p->piece_next) {
    Arena* arena = nullptr;
    for (Arena* a : arenas) arena = a->contains(p->begin) ? a : arena;
    uint64_t last = arena->granule_of(p->end() - 1);
    for (uint64_t g = arena->granule_of(p->begin); g <= last; ++g)
      next.granules.emplace_back(arena, g);
  }
  Pin& pin = pins_[ptr];
  // Mostly nothing, or the same block again; or a later one at its address: what is new is added.
  std::vector<std::pair<Arena*, uint64_t>> fresh;
  std::sort(next.granules.begin(), next.granules.end());
  std::set_difference(next.granules.begin(), next.granules.end(), pin.granules.begin(),
                      pin.granules.end(), std::back_inserter(fresh));
  next.granules.swap(fresh);
  for (auto& [arena, g] : next.granules) pinned_ += granules_.pins(*arena, g)++ == 0 ? 1 : 0;
  size_t middle = pin.granules.size();
  pin.granules.insert(pin.granules.end(), next.granules.begin(), next.granules.end());
  std::inplace_merge(pin.granules.begin(),
                     pin.granules.begin() + static_cast<std::ptrdiff_t>(middle),
                     pin.granules.end());
  for (View* v : next.views) {
    if (has(pin.views, v)) continue;
    pin.views.push_back(v);
    ++v->pins;
  }
  for (Chunk* c : next.chunks) {
    if (has(pin.chunks, c)) continue;
    pin.chunks.push_back(c);
    ++c->pins;
  }
  ++index(pin, owner);
}

bool PinTable::unpin(Address ptr, PinOwner owner) {
  auto found = pins_.find(ptr);
  if (found == pins_.end() || index(found->second, owner) == 0) return false;
  Pin& pin = found->second;
  --index(pin, owner);
  if (pin.counts[0] + pin.counts[1] != 0) return true;
  for (auto& [arena, g] : pin.granules) pinned_ -= --granules_.pins(*arena, g) == 0 ? 1 : 0;
  for (View* v : pin.views) --v->pins;
  for (Chunk* c : pin.chunks) --c->pins;
  pins_.erase(found);
  return true;
}

uint64_t PinTable::count(PinOwner owner) const {
  uint64_t sum = 0;
  for (const auto& [ptr, pin] : pins_) sum += pin.counts[owner == PinOwner::kCaller ? 0 : 1];
  return sum;
}

std::string PinTable::check() const {
  std::map<std::pair<Arena*, uint64_t>, uint32_t> counted;
  std::map<const View*, uint32_t> views;
  for (const auto& [ptr, pin] : pins_) {
    if (pin.counts[0] + pin.counts[1] == 0) return "a pin nobody holds is kept";
    for (const auto& granule : pin.granules) ++counted[granule];
    for (const View* v : pin.views) ++views[v];
  }
  if (counted.size() != pinned_) return "pinned granules are miscounted";
  for (const auto& [granule, n] : counted) {
    if (granules_.pins(*granule.first, granule.second) != n) return "a granule's pins are wrong";
    if (granules_.handle(*granule.first, granule.second) == 0) return "a pinned granule is gone";
  }
  for (const auto& [view, n] : views) {
    if (view->pins != n) return "a view's pins are wrong";
  }
  return "";
}

// The device's part.

// The live block again, now that the books are held still: another thread may have freed it.
void DeviceAllocator::require_live(const Block& block, Address begin) const {
  bool live = block.state.load() == BlockState::kLive && block.ptr == begin &&
              (block.pieces != nullptr || block.chunk != nullptr);
  if (!live) throw Error(GLAKE_INVALID_POINTER, "the block was freed while it was being pinned");
}

void DeviceAllocator::pin(const Block& block, const CallerBlock& called, PinOwner owner) {
  HotGuard hot(hot_);
  require_live(block, called.begin);
  require_resumed();
  pins_.pin(block, called.ptr, {small_.get(), large_.get()}, owner);
}

// Asked of the device's own heap, like what follows: pins are kept with the heap of their block.
bool DeviceAllocator::unpin(Address ptr, PinOwner owner) {
  HotGuard hot(hot_);
  for (DeviceAllocator* heap : heaps()) {
    if (heap->pins_.unpin(ptr, owner)) return true;
  }
  return false;
}

uint64_t DeviceAllocator::pins(PinOwner owner) {
  HotGuard hot(hot_);
  uint64_t sum = 0;
  for (DeviceAllocator* heap : heaps()) sum += heap->pins_.count(owner);
  return sum;
}

uint64_t DeviceAllocator::pinned_granules() {
  uint64_t sum = 0;
  for (DeviceAllocator* heap : heaps()) sum += heap->pins_.granules();
  return sum;
}

// Lets other processes open the block under this number, until it is freed: `id` if it has none.
uint64_t DeviceAllocator::share(Block& block, const CallerBlock& called, uint64_t id) {
  HotGuard hot(hot_);
  require_live(block, called.begin);
  require_resumed();
  if (block.share != 0) return block.share;
  shared_.shares.emplace(id, Share{&block, called.ptr, called.bytes});
  block.share = id;
  // As if its own stream were recorded: a free then passes free_locked(), which ends the share.
  if (block.recorded.empty()) block.recorded.add(block.stream_id);
  return id;
}

// Pins a shared block for another process and says how it is made. False once it is freed.
bool DeviceAllocator::open_share(uint64_t id, SharedBlock* shared) {
  HotGuard hot(hot_);
  auto found = shared_.shares.find(id);
  if (found == shared_.shares.end()) return false;
  const Share& share = found->second;
  const Block& block = *share.block;
  if (block.state.load() != BlockState::kLive) return false;
  DeviceAllocator& heap = *block.device;
  heap.pins_.pin(block, share.ptr, {heap.small_.get(), heap.large_.get()}, PinOwner::kProcess);
  shared->ptr = share.ptr;
  shared->bytes = share.bytes;
  shared->handle_bytes = kGranule;
  shared->legacy = false;
  if (block.chunk != nullptr) {
    shared->legacy = block.chunk->kind == GLAKE_CONTIGUOUS_LEGACY;
    shared->handle_bytes = block.chunk->bytes;
    if (!shared->legacy) shared->handles.push_back(block.chunk->handle);
    return true;
  }
  shared->offset = block.view != nullptr ? (block.ptr - block.view->base) % kGranule
                                         : (block.ptr - heap.arena_of(block.ptr).base()) % kGranule;
  for (const Span* p = block.pieces; p != nullptr; p = p->piece_next) {
    const Arena& arena = heap.arena_of(p->begin);
    for (uint64_t g = arena.granule_of(p->begin); g <= arena.granule_of(p->end() - 1); ++g) {
      shared->handles.push_back(heap.granules_.handle(arena, g));
    }
  }
  // A guard before the caller's first byte may fill the first granule's end.
  shared->offset += share.ptr - block.ptr;
  if (shared->offset >= kGranule) shared->handles.erase(shared->handles.begin());
  shared->offset %= kGranule;
  return true;
}

}  // namespace glake

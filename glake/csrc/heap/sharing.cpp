#include "heap/sharing.h"

#include "heap/pause.h"
#include "memory/fair_mutex.h"

namespace glake {

namespace {

// Checks again that the block is live, because another thread may have freed it before the lock was
// taken.
void require_live(const Block& block, Address begin) {
  bool live = block.state.load() == BlockState::kLive && block.ptr == begin &&
              (block.pieces != nullptr || block.allocation != nullptr);
  if (!live) throw Error(GLAKE_INVALID_POINTER, "the block was freed while it was being pinned");
}

}  // namespace

void Sharing::pin(const Block& block, const CallerBlock& called, PinOwner owner) {
  HotGuard hot(device_.hot);
  require_live(block, called.begin);
  Heap& heap = *block.heap;
  Pause(heap).require_resumed();
  heap.pins.pin(block, called.ptr, {heap.small.get(), heap.large.get()}, owner);
}

bool Sharing::unpin(Address ptr, PinOwner owner) {
  HotGuard hot(device_.hot);
  for (Heap* heap : device_.heaps.started()) {
    if (heap->pins.unpin(ptr, owner)) return true;
  }
  return false;
}

uint64_t Sharing::pins(PinOwner owner) {
  HotGuard hot(device_.hot);
  uint64_t sum = 0;
  for (Heap* heap : device_.heaps.started()) sum += heap->pins.count(owner);
  return sum;
}

uint64_t Sharing::pinned_granules() {
  uint64_t sum = 0;
  for (Heap* heap : device_.heaps.started()) sum += heap->pins.granules();
  return sum;
}

uint64_t Sharing::share(Block& block, const CallerBlock& called, uint64_t id) {
  HotGuard hot(device_.hot);
  require_live(block, called.begin);
  Pause(*block.heap).require_resumed();
  if (block.share != 0) return block.share;
  device_.shares.emplace(id, Share{&block, called.ptr, called.bytes});
  block.share = id;
  // Records its own stream, too. A free then passes Frees::free(), which ends the share.
  if (block.recorded.empty()) block.recorded.add(block.stream_id);
  return id;
}

bool Sharing::open(uint64_t id, SharedBlock* shared) {
  HotGuard hot(device_.hot);
  auto found = device_.shares.find(id);
  if (found == device_.shares.end()) return false;
  const Share& share = found->second;
  const Block& block = *share.block;
  if (block.state.load() != BlockState::kLive) return false;
  Heap& heap = *block.heap;
  heap.pins.pin(block, share.ptr, {heap.small.get(), heap.large.get()}, PinOwner::kProcess);
  shared->ptr = share.ptr;
  shared->bytes = share.bytes;
  shared->handle_bytes = kGranule;
  shared->legacy = false;
  if (block.allocation != nullptr) {
    shared->legacy = block.allocation->kind == GLAKE_CONTIGUOUS_LEGACY;
    shared->handle_bytes = block.allocation->bytes;
    if (!shared->legacy) shared->handles.push_back(block.allocation->handle);
    return true;
  }
  shared->offset = block.view != nullptr ? (block.ptr - block.view->base) % kGranule
                                         : (block.ptr - heap.arena_of(block.ptr).base()) % kGranule;
  for (const Span* p = block.pieces; p != nullptr; p = p->piece_next) {
    const Arena& arena = heap.arena_of(p->begin);
    for (uint64_t g = arena.granule_of(p->begin); g <= arena.granule_of(p->end() - 1); ++g) {
      shared->handles.push_back(heap.granules.handle(arena, g));
    }
  }
  // A guard before the caller's first byte may fill the rest of the first granule.
  shared->offset += share.ptr - block.ptr;
  if (shared->offset >= kGranule) shared->handles.erase(shared->handles.begin());
  shared->offset %= kGranule;
  return true;
}

void Sharing::owe_imported(Bytes memory, Bytes addresses, const std::string& said) {
  device_.memory.owe_imported(memory, addresses);
  std::lock_guard<FairMutex> slow_guard(device_.slow);
  device_.refusals.note(said);
}

void Sharing::pay_imported(Bytes memory, Bytes addresses) {
  device_.memory.pay_imported(memory, addresses);
}

}  // namespace glake

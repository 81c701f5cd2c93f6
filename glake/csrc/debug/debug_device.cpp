#include "debug/debug_device.h"

#include <algorithm>

#include "base/tuning.h"
#include "base/utf8.h"
#include "driver/device_scope.h"
#include "heap/device_allocator.h"
#include "memory/fair_mutex.h"

namespace glake {

DebugDevice::DebugDevice(Driver& driver, DeviceAllocator& device, int number,
                         const DebugModes& modes)
    : driver_(driver),
      device_(device),
      number_(number),
      modes_(modes),
      checks_(driver, number, kGuardByte, modes.sync) {}

void DebugDevice::require(Status s, const char* what) const {
  if (s.ok()) return;
  throw Error(GLAKE_DRIVER_ERROR, "the driver refused " + device_text(number_) + " " + what +
                                      " for a check: " + driver_.describe(s));
}

// A stream under capture does not run what is enqueued. A stream that may be destroyed must not be
// named to the driver.
bool DebugDevice::may_touch(StreamHandle stream) {
  if (!driver_.streams().askable(stream)) return false;
  bool capturing = false;
  return driver_.is_capturing(number_, stream, &capturing).ok() && !capturing;
}

void* DebugDevice::allocated(Block* block, Bytes requested, const char* tag,
                             const ContextRef& context) {
  auto h = std::make_shared<Holding>();
  h->ptr = block->ptr + overhead() / 2;
  h->requested = requested;
  h->begin = block->ptr;
  h->size = block->size;
  h->stream = block->stream;
  h->device = number_;
  h->tag = tag;
  h->allocated = context;
  const StreamLives::Named named(driver_.streams(), h->stream);
  std::lock_guard<std::mutex> guard(mutex_);
  DeviceScope scope(driver_, number_);
  bool touch = scope.status().ok() && may_touch(h->stream);
  PendingChecks::Batch batch;
  copy_filled(batch, *block, touch);
  if (touch) {
    bool filled = !modes_.poison || driver_.fill(h->ptr, kFreshByte, requested, h->stream).ok();
    h->guarded = modes_.guard && fill_guards(*h, h->stream);
    if (!filled || h->guarded != modes_.guard) skip();
  } else {
    skip();
  }
  checks_.finish(std::move(batch), h->stream);
  live_[h->ptr] = h;
  return reinterpret_cast<void*>(h->ptr);
}

HoldingPtr DebugDevice::take(Address ptr) {
  std::lock_guard<std::mutex> guard(mutex_);
  auto found = live_.find(ptr);
  if (found == live_.end()) return nullptr;
  HoldingPtr h = std::move(found->second);
  live_.erase(found);
  return h;
}

Address DebugDevice::inner(Address ptr) {
  {
    std::lock_guard<std::mutex> guard(mutex_);
    auto found = live_.find(ptr);
    if (found != live_.end()) return found->second->begin;
  }
  refuse_guard(ptr);
  return ptr;
}

void DebugDevice::refuse_guard(Address ptr) {
  if (!modes_.guard) return;
  std::lock_guard<std::mutex> guard(mutex_);
  auto behind = live_.find(ptr + kGuard);
  if (behind == live_.end() || behind->second->begin != ptr) return;
  throw Error(GLAKE_INVALID_POINTER,
              hex(ptr) + " is not a block: it is the guard in front of " + hex(behind->first));
}

void DebugDevice::free(Block* block, const HoldingPtr& h, const ContextRef& context,
                       ThreadCache& cache) {
  bool kept = false;
  {
    std::lock_guard<std::mutex> guard(mutex_);
    h->freed = context;
    DeviceScope scope(driver_, number_);
    // Work on recorded streams may still use the block. What is enqueued here must come after that
    // work.
    bool touch =
        scope.status().ok() && may_touch(h->stream) && block->heap->order_after_recorded(block);
    PendingChecks::Batch batch;
    if (touch) {
      if (h->guarded && !checks_.copy_guards(batch, h, h->stream)) skip();
      kept = modes_.poison && driver_.fill(h->begin, kFreedByte, h->size, h->stream).ok();
    }
    if (!touch || kept != modes_.poison) skip();
    checks_.finish(std::move(batch), h->stream);
    checks_.collect();
    if (kept) {
      block->heap->keep_from_reuse(block);
      kept_.push_back({block, h});
      kept_bytes_ += h->size;
      while (kept_bytes_ > Tuning::kDebugKept) {
        give(kept_.front());
        kept_.pop_front();
      }
    }
  }
  if (!kept) block->heap->free(block, cache);
}

void DebugDevice::give(const Kept& kept) {
  // A pool may have lent the memory. Then it goes back to that pool, whose blocks are not checked.
  if (kept.block->heap->pool_id() == PoolId{}) {
    auto offset = static_cast<int64_t>(kept.holding->begin - kept.holding->ptr);
    for (const Span* p = kept.block->pieces; p != nullptr; p = p->piece_next) {
      filled_.add(p->begin, {p->end(), kept.holding, offset});
      offset += static_cast<int64_t>(p->size);
    }
  }
  kept_bytes_ -= kept.holding->size;
  kept.block->heap->end_keeping(kept.block);
}

bool DebugDevice::release_kept() {
  std::lock_guard<std::mutex> guard(mutex_);
  bool any = !kept_.empty();
  for (; !kept_.empty(); kept_.pop_front()) give(kept_.front());
  return any;
}

std::string DebugDevice::explain(Address ptr) {
  HoldingPtr freed;
  {
    std::lock_guard<std::mutex> guard(mutex_);
    for (const Kept& kept : kept_) {
      if (kept.holding->ptr == ptr) freed = kept.holding;
    }
    if (freed == nullptr) freed = filled_.freed_at(ptr);
  }
  if (freed == nullptr) return "";
  std::string text = " has been freed already: a block of " + std::to_string(freed->requested) +
                     " bytes" +
                     (freed->tag != nullptr ? ", tag \"" + printable(freed->tag) + "\"" : "");
  return text + freed->allocated.described("\n  allocated at:") +
         freed->freed.described("\n  freed at:");
}

void DebugDevice::forget(Address home, Bytes bytes) { filled_.cut(home, home + bytes); }

bool DebugDevice::fill_guards(const Holding& h, StreamHandle stream) {
  Address after = h.ptr + h.requested;
  return driver_.fill(h.begin, kGuardByte, h.ptr - h.begin, stream).ok() &&
         driver_.fill(after, kGuardByte, h.begin + h.size - after, stream).ok();
}

// Copies the bytes of a new block that were filled when other blocks were freed, from their present
// addresses.
void DebugDevice::copy_filled(PendingChecks::Batch& batch, const Block& block, bool touch) {
  Address at = block.ptr;
  for (const Span* p = block.pieces; p != nullptr; p = p->piece_next) {
    for (auto& [begin, f] : filled_.cut(p->begin, p->end())) {
      bool copied = touch && checks_.copy(batch, block.stream,
                                          {nullptr, nullptr, f.end - begin, at + (begin - p->begin),
                                           kFreedByte, Damage::kAfterFree, f.offset, f.block});
      if (!copied) skip();
    }
    at += p->size;
  }
}

Status DebugDevice::close() {
  std::lock_guard<std::mutex> guard(mutex_);
  DeviceScope scope(driver_, number_);
  if (!scope.status().ok()) return scope.status();
  Status s = driver_.synchronize(number_);
  if (!s.ok()) return s;
  checks_.read_all();
  return checks_.close();
}

void DebugDevice::poll() {
  std::lock_guard<std::mutex> guard(mutex_);
  DeviceScope scope(driver_, number_);
  if (scope.status().ok()) checks_.collect();
}

bool DebugDevice::check_live(PendingChecks::Batch& batch) {
  for (const auto& [ptr, h] : live_) {
    if (h->guarded && !checks_.copy_guards(batch, h, 0)) return false;
  }
  return true;
}

bool DebugDevice::check_filled(PendingChecks::Batch& batch) {
  auto whole = [&](const HoldingPtr& h, Address from, Bytes n, int64_t offset) {
    return checks_.copy(batch, 0,
                        {nullptr, nullptr, n, from, kFreedByte, Damage::kAfterFree, offset, h});
  };
  for (const Kept& k : kept_) {
    const Holding& h = *k.holding;
    if (!whole(k.holding, h.begin, h.size, static_cast<int64_t>(h.begin - h.ptr))) return false;
  }
  for (const auto& [begin, f] : filled_.all()) {
    if (!whole(f.block, begin, f.end - begin, f.offset)) return false;
  }
  return true;
}

void DebugDevice::check() {
  std::lock_guard<std::mutex> guard(mutex_);
  DeviceScope scope(driver_, number_);
  require(scope.status(), "to make its context current");
  if (device_.capturing()) {  // during a capture nothing may be waited for
    skip();
    return;
  }
  // Idle memory must not be unmapped while it is read.
  std::lock_guard<FairMutex> mapping(device_.mapping_lock());
  require(driver_.synchronize(number_), "to be synchronised");
  checks_.read_all();
  PendingChecks::Batch batch;
  batch.repairs = true;
  bool copied = check_live(batch) && check_filled(batch);
  checks_.finish(std::move(batch), 0);
  // This waits for the copies. The synchronisation at the end waits for their repairs.
  Status s = driver_.synchronize(number_);
  // The copies have no order with later work of any stream. If they have not run by now, they may
  // run after the memory has a new owner. So the memory must stay mapped until they have run.
  if (!s.ok()) {
    device_.note_unticketed();
    checks_.disregard_repairs();
  }
  require(s, "to be synchronised");
  checks_.read_all();
  s = driver_.synchronize(number_);
  if (!s.ok()) device_.note_unticketed();
  require(s, "to be synchronised");
  if (!copied) {
    throw Error(GLAKE_DRIVER_ERROR, "not all of " + device_text(number_) +
                                        "'s memory could be checked: the driver refused a copy, or "
                                        "pinned host memory for it; check again");
  }
}

}  // namespace glake

// The debug modes of one device (option `debug`, docs/debugging.md): guard bytes around every
// block, freed memory filled and looked after, each in the order of the block's stream.
//
// What is checked is copied to the host behind the work that may have damaged it, and compared once
// an event says the copy has run: nothing waits, but check() and the mode `sync`. A driver call
// that is refused, or that a capture forbids, costs that one check (`skipped`), never a request.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "base/options.h"
#include "debug/filled_memory.h"
#include "debug/findings.h"
#include "debug/pending_checks.h"
#include "driver/driver.h"
#include "heap/device_allocator.h"
#include "memory/block.h"

namespace glake {

class ThreadCache;

class DebugDevice final : public DebugHooks {
 public:
  DebugDevice(Driver& driver, DeviceAllocator& device, int number, const DebugModes& modes);

  // What a block is allocated longer than its caller asked.
  Bytes overhead() const override { return modes_.guard ? 2 * kGuard : 0; }

  // Takes over a block just allocated with that overhead; returns the pointer for its caller.
  void* allocated(Block* block, Bytes requested, const char* tag, const ContextRef& context);
  // The live block at a caller's pointer, which is from now on not live; null: not one of ours.
  HoldingPtr take(Address ptr);
  // Checks and frees what take() gave.
  void free(Block* block, const HoldingPtr& holding, const ContextRef& context, ThreadCache& cache);

  // The block's own first byte for a caller's pointer, itself if it is not one of ours. Throws as
  // refuse_guard().
  Address inner(Address ptr);
  // Throws Error where a live block has its front guard: the block begins there, but no caller has
  // been given that pointer.
  void refuse_guard(Address ptr);
  // How a freed pointer was freed, for an error message; "" if that is not known any more.
  std::string explain(Address ptr);

  // Gives back the freed blocks kept from reuse; true if there were any.
  bool release_kept() override;
  // The driver takes these bytes of an arena back: what was to be checked there is gone.
  void forget(Address home, Bytes bytes) override;

  // Compares what has landed. Waits for nothing.
  void poll();
  // Waits for the device, and checks every copy on its way, every guard and all memory that is
  // still filled. What it finds is in the FindingBook. Throws Error if the driver refuses.
  void check();
  // Before the device closes. The first refusal stops it, to be tried again.
  Status close() override;

  uint64_t checks() const override { return checks_.checks(); }
  uint64_t skipped() const override { return checks_.skipped(); }
  Bytes kept_bytes() const override { return kept_bytes_.load(); }

 private:
  static constexpr Bytes kGuard = kAlignment;
  static constexpr uint8_t kGuardByte = 0xfb, kFreedByte = 0xdd, kFreshByte = 0xcb;

  struct Kept {
    Block* block;
    HoldingPtr holding;
  };

  bool may_touch(StreamHandle stream);
  bool fill_guards(const Holding& h, StreamHandle stream);
  void copy_filled(PendingChecks::Batch& batch, const Block& block, bool touch);
  void give(const Kept& kept);
  bool check_live(PendingChecks::Batch& batch);
  bool check_filled(PendingChecks::Batch& batch);
  void require(Status s, const char* what) const;
  void skip() { checks_.count_skipped(); }

  Driver& driver_;
  DeviceAllocator& device_;
  int number_;
  DebugModes modes_;

  std::mutex mutex_;  // of all that follows; taken before the device's locks
  PendingChecks checks_;
  std::unordered_map<Address, HoldingPtr> live_;  // by the caller's pointer
  std::deque<Kept> kept_;                         // freed and filled, oldest first
  std::atomic<Bytes> kept_bytes_{0};

  FilledMemory filled_;
};

// The device's debug modes; null without them.
inline DebugDevice* debug_of(DeviceAllocator& device) {
  return static_cast<DebugDevice*>(device.debug_hooks());
}
inline DebugDevice* debug_of(const Heap& heap) {
  return static_cast<DebugDevice*>(heap.device.debug.get());
}

}  // namespace glake

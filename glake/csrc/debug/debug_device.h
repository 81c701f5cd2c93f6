// The debug modes of one device (option `debug`, docs/debugging.md). They put guard bytes around
// every block, and fill freed memory and watch it, in the order of the block's stream.
//
// Bytes to be checked are copied to the host, behind the work that may have damaged them. They are
// compared once an event says that the copy has run. Only check() and the mode `sync` wait. If the
// driver refuses a call, or a capture forbids it, only that check is left out (`skipped`). No
// request fails.
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

  // How many bytes a block has in addition to those that its caller asked for.
  Bytes overhead() const override { return modes_.guard ? 2 * kGuard : 0; }

  // Takes over a block that was just allocated with that overhead. Returns the pointer for its
  // caller.
  void* allocated(Block* block, Bytes requested, const char* tag, const ContextRef& context);
  // Removes the block at a caller's pointer from the live blocks, and returns it. Null if no live
  // block of this device has that pointer.
  HoldingPtr take(Address ptr);
  // Checks and frees a block that take() gave.
  void free(Block* block, const HoldingPtr& holding, const ContextRef& context, ThreadCache& cache);

  // The first byte of the block itself, for a caller's pointer. If no block of this device has the
  // pointer, it is returned as it is. Throws what refuse_guard() throws.
  Address inner(Address ptr);
  // Throws Error if a live block has its front guard at `ptr`. The block begins there, but no
  // caller has that pointer.
  void refuse_guard(Address ptr);
  // Says where a pointer was allocated and freed, for an error message; "" if that is not known any
  // more.
  std::string explain(Address ptr);

  // Gives back the freed blocks that are kept from reuse. True if there were any.
  bool release_kept() override;
  // The driver takes these bytes of an arena back, so they can no longer be checked.
  void forget(Address home, Bytes bytes) override;

  // Compares the copies that have arrived. Waits for nothing.
  void poll();
  // Waits for the device. Checks every copy under way, the guards of every live block, and all
  // freed memory that is still filled. Puts what it finds into the FindingBook. Throws Error if the
  // driver refuses.
  void check();
  // Called before the device closes. The first refusal stops it, and the caller may try again.
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

  std::mutex mutex_;  // guards all below; taken before the device's locks
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

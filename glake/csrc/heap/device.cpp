#include "heap/device.h"

#include <algorithm>

#include "heap/frees.h"

namespace glake {

Device::Device(Driver& the_driver, int the_number, const Options& the_options)
    : driver(the_driver),
      number(the_number),
      options(the_options),
      clock(driver, number),
      refusals(driver),
      deferred(driver, refusals),
      contiguous(driver, number, refusals),
      grants{number},
      memory(driver, number, deferred, contiguous),
      heaps(*this) {}

Device::~Device() = default;

void Device::require(Status s, const char* what) const {
  if (s.ok()) return;
  throw Error(GLAKE_DRIVER_ERROR,
              "the driver refused " + device_text(number) + " " + what + ": " + driver.describe(s));
}

Request Device::request(Bytes bytes, StreamHandle stream) {
  StreamId id = clock.turn(clock.id_of(stream));
  if (clock.replaced() != replaced_seen_) {
    // Threads may keep blocks for a handle that now names another stream.
    replaced_seen_ = clock.replaced();
    Frees(heaps.own()).drain_caches(true);
    if (clock.ended().many()) clock.reuse(named_streams());
  }
  ++heaps.own().tick;
  return {round_up(bytes, kAlignment), bytes, id};
}

void Device::collect_caches() {
  for (auto& cache : caches) cache->collect(stats);
}

bool Device::plentiful() const {
  return options.policy == PolicyKind::kBalanced && !shortage.full() && memory.half_free();
}

int64_t Device::large_requests() {
  collect_caches();
  return stats.allocation.large.allocated;
}

void Device::settle(HotGuard& guard, Use use) {
  if (deferred.empty() && !contiguous.owes()) return;
  guard.unlock();
  deferred.settle();
  contiguous.settle();
  if (use == Use::kAgain) deferred.keep_mapped();
  guard.lock();
}

Status Device::synchronize(HotGuard& guard) {
  Status s = wait_for_device(guard);
  if (!s.ok()) return s;
  // Blocks that waited in a pool for its graph are freed only now. One more wait finds no work. It
  // shows that destroyed streams are done with these blocks, too.
  bool thawed = false;
  for (Heap* heap : heaps.started()) {
    if (!heap->thaw() || heap->pending_frees.empty()) continue;
    Frees(*heap).drain_pending(Wait::kNo);
    thawed = true;
  }
  return thawed ? wait_for_device(guard) : s;
}

// A wait would break a capture, so the driver is not asked for one then.
Status Device::wait_for_device(HotGuard& guard) {
  if (clock.any_capturing()) return Status::capturing();
  const std::vector<void*> elsewhere = clock.begin_sync();
  guard.unlock();
  Status s = driver.synchronize(number);
  for (void* context : elsewhere) {
    if (s.ok()) s = driver.synchronize_context(context);
  }
  guard.lock();
  if (s.ok()) {
    ++stats.device_syncs;
    clock.end_sync();
    if (clock.ended().many()) clock.reuse(named_streams());
  }
  return s;
}

std::vector<bool> Device::named_streams() const {
  std::vector<bool> named(clock.count());
  const auto note = [&](const Block& b) {
    named[b.stream_id] = true;
    for (StreamId id : b.recorded) named[id] = true;
  };
  blocks.for_each(note);
  contiguous.for_each([&](const Allocation& c) {
    if (c.live) note(*c.block);
  });
  return named;
}

// Waits for all the device's work, because the work of a destroyed stream cannot be marked. While a
// graph is being captured this would break the capture, so only the marks on other streams are
// waited for.
bool Device::wait_for_work(HotGuard& guard) {
  if (!clock.any_capturing()) return synchronize(guard).ok();
  wait_for_marks(guard);
  return true;
}

void Device::wait_for_marks(HotGuard& guard) {
  const std::vector<EventId> marks = clock.last_marks();
  guard.unlock();
  for (EventId mark : marks) driver.wait_host(mark);
  guard.lock();
  clock.poll();
}

}  // namespace glake

#include "heap/device_allocator.h"

#include <algorithm>

#include "driver/device_scope.h"
#include "heap/frees.h"
#include "heap/mapping_turn.h"
#include "heap/neighbours.h"
#include "heap/pause.h"
#include "heap/search.h"
#include "heap/slow_path.h"

namespace glake {

DeviceAllocator::DeviceAllocator(Driver& driver, int number, const Options& options)
    : device_(driver, number, options) {}

void DeviceAllocator::start() {
  if (device_.heaps.own().started) return;
  if (!device_.attached)
    device_.require(device_.driver.attach(device_.number), "a primary context");
  device_.attached = true;
  DeviceScope scope(device_.driver, device_.number);
  device_.require(scope.status(), "to make its context current");
  bool vmm = false;
  Bytes granularity = 0;
  device_.require(device_.driver.vmm_supported(device_.number, &vmm), "its attributes");
  if (!vmm) {
    throw Error(GLAKE_DRIVER_ABSENT,
                device_text(device_.number) + " has no virtual memory management; glake needs it");
  }
  device_.require(device_.driver.choose_traits(device_.number), "its attributes");
  device_.require(device_.driver.granularity(device_.number, &granularity), "its granularity");
  if (granularity == 0 || kGranule % granularity != 0) {
    throw Error(GLAKE_DRIVER_ABSENT, device_text(device_.number) + " maps memory by " +
                                         std::to_string(granularity) +
                                         " bytes; glake needs a divisor of 2 MiB");
  }
  Bytes total = 0;
  device_.require(device_.driver.total_memory(device_.number, &total), "its memory size");
  Bytes limit =
      device_.options.limit.bytes != 0
          ? device_.options.limit.bytes
          : static_cast<Bytes>(device_.options.limit.fraction * static_cast<double>(total));
  device_.memory.begin(total, Granules::floor(std::min(limit, total)));
  if (device_.memory.limit().count == 0) {
    throw Error(GLAKE_INVALID_OPTION, "option limit: " + size_text(limit) + " of " +
                                          device_text(device_.number) + "'s " + size_text(total) +
                                          " is less than one granule of 2 MiB; give more");
  }
  if (device_.options.headroom >= total) {
    throw Error(GLAKE_INVALID_OPTION, "option headroom: " + size_text(device_.options.headroom) +
                                          " of " + device_text(device_.number) + "'s " +
                                          size_text(total) + "; give less");
  }
  device_.driver.set_headroom(device_.number, device_.options.headroom);
  device_.heaps.own().reserve();
  if (device_.options.peers == PeersKind::kAll) Peers(device_).grant_all();
  device_.heaps.own().started = true;
}

// May be called again after a refusal: what was given back stays given back.
void DeviceAllocator::close() {
  Heap& own = device_.heaps.own();
  if (own.started) {
    require_no_blocks();
    Pools(device_).abandon();
    MappingTurn turn(device_);
    HotGuard hot(device_.hot);
    Reclaim(device_).give_back(hot);
  }
  if (!device_.attached) return;
  Status s = device_.debug != nullptr ? device_.debug->close() : Status{};
  device_.require(s, "to end its checks");
  std::lock_guard<FairMutex> slow_guard(device_.slow);
  {
    DeviceScope scope(device_.driver, device_.number);
    s = scope.status();
    bool clean = device_.deferred.settle() && device_.contiguous.settle() &&
                 own.views.count() == 0 && device_.memory.physical().count == 0;
    for (auto& [id, pool] : device_.heaps.pools()) clean = clean && pool->views.count() == 0;
    if (!clean && device_.clock.any_capturing()) {
      throw Error(GLAKE_INVALID_ARGUMENT, device_text(device_.number) +
                                              " still has memory that a capture may use; end it "
                                              "before glake_shutdown()");
    }
    if (!clean) {
      throw Error(GLAKE_DRIVER_ERROR, "the driver refused to take " + device_text(device_.number) +
                                          "'s memory back (" + device_.refusals.text() +
                                          "); try again");
    }
    own.started = false;
    if (s.ok()) s = device_.heaps.close_pools();
    if (s.ok()) s = own.release_ranges();
    if (s.ok()) s = device_.clock.close();
  }
  if (s.ok()) s = device_.driver.detach(device_.number);
  if (!s.ok()) {
    throw Error(GLAKE_DRIVER_ERROR, "the driver refused to give up " + device_text(device_.number) +
                                        ": " + device_.driver.describe(s) + "; try again");
  }
  device_.attached = false;
}

void DeviceAllocator::require_no_blocks() {
  if (!device_.heaps.own().started) return;
  if (device_.debug != nullptr) device_.debug->release_kept();
  std::lock_guard<FairMutex> slow_guard(device_.slow);
  HotGuard hot(device_.hot);
  Frees(device_.heaps.own()).drain_caches(true);
  auto drained = [this] {
    bool all = true;
    for (Heap* heap : device_.heaps.started()) {
      Frees(*heap).drain_pending(Wait::kAllowed);
      Frees(*heap).drain_whole();
      Pause(*heap).end_if_empty();
      all = all && heap->pending_frees.empty();
    }
    return all;
  };
  // The work of a destroyed stream is known to be complete only when all of the device's work is.
  const bool capturing = device_.clock.any_capturing();
  Status waited;
  if (!drained() && !capturing) {
    waited = device_.synchronize(hot);
    if (waited.ok()) drained();
  }
  uint64_t live = 0, freed = 0;
  for (Heap* heap : device_.heaps.started()) {
    live += heap->live;
    freed += heap->pending_frees.size();
  }
  const std::string still = device_text(device_.number) + " still has ";
  if (const size_t ranges = device_.heaps.own().virtuals.ranges().size(); ranges != 0) {
    throw Error(GLAKE_INVALID_ARGUMENT,
                still + counted(ranges, "virtual range") + "; free them before glake_shutdown()");
  }
  if (live == 0) return;
  if (live > freed) {
    throw Error(GLAKE_INVALID_ARGUMENT, still + counted(live - freed, "live block") +
                                            "; free them before glake_shutdown()");
  }
  if (capturing) {
    throw Error(GLAKE_INVALID_ARGUMENT, still + counted(freed, "freed block") +
                                            " that a capture may use; end it before "
                                            "glake_shutdown()");
  }
  throw Error(GLAKE_DRIVER_ERROR, still + counted(freed, "freed block") +
                                      ", and the driver does not say when their work is done: " +
                                      device_.driver.describe(waited));
}

Block* DeviceAllocator::find(Bytes bytes, StreamHandle stream, ThreadCache& cache, Bytes guards) {
  const StreamLives::Named named(device_.driver.streams(), stream);
  Heap& own = device_.heaps.own();
  Bytes size = round_up(bytes + guards, kAlignment);
  save_stream_ids();
  uint64_t entry = 0;
  {
    HotGuard hot(device_.hot);
    cache.collect(device_.stats);
    Request r = device_.request(bytes + guards, stream);
    r.requested = bytes;
    if (!r.small()) {
      Address place = own.history.expect(size, r.stream, &entry);
      if (place != 0) {
        if (Found found = Search(own).repeat(r, place)) {
          if (device_.keeping.followed(own.history.period())) Frees(own).drain_caches(false);
          own.history.placed(entry, found.ptr);
          ++device_.stats.repeats;
          return own.make_block(r, found, stream);
        }
      }
    }
    if (Found found = Search(own).hit(r)) {
      if (!r.small()) {
        own.history.placed(entry, found.ptr);
        if (device_.keeping.found_by_fit([this] { return device_.plentiful(); },
                                         [this] { return device_.large_requests(); }))
          Frees(own).drain_caches(false);
      }
      return own.make_block(r, found, stream);
    }
  }
  return Neighbours::helped(device_, [&] {
    MappingTurn turn(device_);
    HotGuard hot(device_.hot);
    Block* b = SlowPath(own).allocate({size, bytes, device_.clock.id_of(stream)}, stream, hot);
    if (size > kSmallLimit) own.history.placed(entry, b->ptr);
    return b;
  });
}

Bytes DeviceAllocator::give_neighbour(Bytes bytes) {
  const Bytes given = Reclaim(device_).give_some(Granules::ceil(bytes)).bytes();
  HotGuard hot(device_.hot);
  device_.stats.gave_neighbours += given;
  return given;
}

void DeviceAllocator::forgive_refusal() {
  HotGuard hot(device_.hot);
  if (device_.stats.ooms != 0) --device_.stats.ooms;  // it is 0 if somebody has reset it since
}

ThreadCache* DeviceAllocator::make_cache() {
  Bytes limit = 0;
  {
    HotGuard hot(device_.hot);
    limit = device_.memory.limit().bytes();
  }
  auto cache = std::make_unique<ThreadCache>(this, &device_.heaps.own(), limit);
  HotGuard hot(device_.hot);
  device_.caches.push_back(std::move(cache));
  return device_.caches.back().get();
}

void DeviceAllocator::drop_cache(ThreadCache* cache) {
  HotGuard hot(device_.hot);
  device_.drained.clear();
  cache->drain(true, device_.drained);
  cache->collect(device_.stats);
  for (Block* b : device_.drained) Frees(device_.heaps.own()).free(b);
  auto mine = [cache](const std::unique_ptr<ThreadCache>& c) { return c.get() == cache; };
  device_.caches.erase(std::find_if(device_.caches.begin(), device_.caches.end(), mine));
}

void DeviceAllocator::forget_stream(StreamHandle handle) {
  const StreamLives::Named named(device_.driver.streams(), handle);
  HotGuard hot(device_.hot);
  device_.clock.forget(handle);
}

// Programs that make a stream for each piece of work may never synchronise the device.
void DeviceAllocator::save_stream_ids() {
  if (!device_.clock.ended().should_synchronise()) return;
  MappingTurn turn(device_);
  HotGuard hot(device_.hot);
  device_.synchronize(hot);  // a capture may forbid this
}

void DeviceAllocator::stream_may_end(StreamHandle handle) {
  save_stream_ids();
  const StreamLives::Named named(device_.driver.streams(), handle);
  HotGuard hot(device_.hot);
  device_.clock.turn(device_.clock.id_of(handle));
}

bool DeviceAllocator::knows(StreamHandle handle) {
  HotGuard hot(device_.hot);
  return device_.clock.knows(handle);
}

void DeviceAllocator::memory_info(Bytes* free, Bytes* total) {
  DeviceScope scope(device_.driver, device_.number);
  device_.require(scope.status(), "to make its context current");
  device_.require(device_.driver.memory_info(free, total), "its memory's state");
}

Bytes DeviceAllocator::driver_free_bytes() {
  Bytes free = 0, total = 0;
  DeviceScope scope(device_.driver, device_.number);
  return scope.status().ok() && device_.driver.memory_info(&free, &total).ok() ? free : 0;
}

void DeviceAllocator::stream_wait(StreamHandle stream, StreamHandle other) {
  DeviceScope scope(device_.driver, device_.number);
  device_.require(scope.status(), "to make its context current");
  EventId event = 0;
  device_.require(device_.driver.create_event(device_.number, &event), "an event");
  Status s = device_.driver.record(device_.number, event, other);
  if (s.ok()) s = device_.driver.wait_stream(device_.number, stream, event);
  device_.driver.destroy_event(event);  // what waits for it goes on waiting
  device_.require(s, "a wait of one stream for another");
}

bool DeviceAllocator::capturing() {
  HotGuard hot(device_.hot);
  return device_.clock.any_capturing();
}

void DeviceAllocator::note_unticketed() {
  HotGuard hot(device_.hot);
  device_.clock.note_unticketed();
}

}  // namespace glake

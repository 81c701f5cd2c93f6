#include "core/device_allocator.h"

#include <algorithm>

namespace glake {
namespace {

// Room for blocks, growth and absent holes; addresses cost nothing until mapped.
constexpr Bytes kArenaFactor = 2;

Bytes attach(Driver& driver, int device) {
  auto check = [&](Status s, const char* what) {
    if (s.ok()) return;
    throw Error(GLAKE_DRIVER_ERROR, std::string(what) + " of device " + std::to_string(device) +
                                        ": " + driver.describe(s));
  };
  check(driver.attach(device), "primary context");
  try {
    bool vmm = false;
    check(driver.vmm_supported(device, &vmm), "attributes");
    if (!vmm) {
      throw Error(GLAKE_DRIVER_ABSENT, "device " + std::to_string(device) +
                                           " has no virtual memory management; glake needs it");
    }
    Bytes granularity = 0;
    check(driver.granularity(device, &granularity), "granularity");
    if (granularity == 0 || kGranule % granularity != 0) {
      throw Error(GLAKE_DRIVER_ABSENT, "device " + std::to_string(device) + " maps memory by " +
                                           std::to_string(granularity) +
                                           " bytes; glake needs a divisor of 2 MiB");
    }
    Bytes total = 0;
    check(driver.total_memory(device, &total), "memory size");
    return total;
  } catch (...) {
    driver.detach(device);
    throw;
  }
}

// Detaches the device if construction fails after it was attached.
class Attached {
 public:
  Attached(Driver& driver, int device) : driver_(driver), device_(device) {}
  ~Attached() {
    if (armed_) driver_.detach(device_);
  }
  Attached(const Attached&) = delete;
  Attached& operator=(const Attached&) = delete;
  void keep() { armed_ = false; }

 private:
  Driver& driver_;
  int device_;
  bool armed_ = true;
};

}  // namespace

std::unique_ptr<DeviceAllocator> DeviceAllocator::open(Driver& driver, int device,
                                                       const Options& options) {
  Bytes total = attach(driver, device);
  Attached attached(driver, device);
  DeviceScope scope(driver, device);
  // A reservation whose partner is refused is given back before the exception leaves.
  std::unique_ptr<DeviceAllocator> d(new DeviceAllocator(driver, device, options, total));
  d->reserve_arenas();
  if (options.peers) {
    for (int peer = 0; peer < driver.device_count(); ++peer) {
      bool yes = false;
      if (peer != device && driver.can_access_peer(device, peer, &yes).ok() && yes) {
        d->granules_.grant(peer);
      }
    }
  }
  attached.keep();
  return d;
}

DeviceAllocator::DeviceAllocator(Driver& driver, int device, const Options& options, Bytes total)
    : driver_(driver),
      device_(device),
      options_(options),
      total_memory_(total),
      debts_(driver),
      granules_(driver, debts_, device),
      view_space_(driver, this, round_up(total * 2, kRegionAlign)),
      clock_(driver, device) {
  Bytes limit = options.limit_bytes != 0
                    ? options.limit_bytes
                    : static_cast<Bytes>(options.limit_fraction * static_cast<double>(total));
  limit_ = Granules::floor(std::min(limit, total));
}

void DeviceAllocator::reserve_arenas() {
  small_range_ = std::make_unique<Reservation>(driver_, this, total_memory_, kAlignment);
  try {
    large_range_ =
        std::make_unique<Reservation>(driver_, this, total_memory_ * kArenaFactor, kMiB);
  } catch (...) {
    small_range_->release();
    throw;
  }
  small_ = std::make_unique<Arena>(0, small_range_->base(), small_range_->size(), segments_);
  large_ = std::make_unique<Arena>(1, large_range_->base(), large_range_->size(), segments_);
  granules_.add(*small_);
  granules_.add(*large_);
}

DeviceAllocator::~DeviceAllocator() = default;

Block* DeviceAllocator::make_block(const Request& r, const Found& found, StreamHandle stream) {
  Block* b = blocks_.make();
  b->ptr = found.ptr;
  b->size = r.size;
  b->requested = r.requested;
  b->stream = stream;
  b->stream_id = r.stream;
  b->device = this;
  b->pieces = found.pieces;
  b->view = found.view;
  PointerMap::find(b->ptr)->insert(b);
  ++live_;
  stats_.allocate(b->small(), b->size, b->requested);
  b->state.store(BlockState::kLive, std::memory_order_release);
  return b;
}

Block* DeviceAllocator::allocate(Bytes bytes, StreamHandle stream, ThreadCache& cache) {
  Bytes size = round_up(bytes, kAlignment);
  if (size <= kSmallLimit || cache.holds_large()) {
    if (Block* b = cache.take(size, bytes, stream)) return b;
  }
  uint64_t slot = 0;
  {
    HotGuard hot(hot_);
    cache.collect(stats_);
    Request r{size, bytes, clock_.id_of(stream)};
    clock_.turn(r.stream);
    ++tick_;
    if (!r.small()) {
      Address place = history_.expect(size, r.stream, &slot);
      if (place != 0) {
        if (Found found = repeat(r, place)) {
          history_.placed(slot, found.ptr);
          ++stats_.repeats;
          return make_block(r, found, stream);
        }
      }
    }
    if (Found found = hit(r)) {
      if (!r.small()) history_.placed(slot, found.ptr);
      return make_block(r, found, stream);
    }
  }
  std::lock_guard<std::mutex> slow_guard(slow_);
  DeviceScope scope(driver_, device_);
  HotGuard hot(hot_);
  Request r{size, bytes, clock_.id_of(stream)};
  Found found = slow(r, hot);
  if (!r.small()) history_.placed(slot, found.ptr);
  return make_block(r, found, stream);
}

void DeviceAllocator::free(Block* block, ThreadCache& cache) {
  if (block->recorded.empty() && (block->small() || hot_.contended()) && cache.put(block)) return;
  HotGuard hot(hot_);
  cache.collect(stats_);
  stats_.free(block->small(), block->size, block->requested);
  free_locked(block);
}

void DeviceAllocator::record_stream(Block* block, StreamHandle stream) {
  HotGuard hot(hot_);
  StreamId id = clock_.id_of(stream);
  if (id == block->stream_id) return;
  std::vector<StreamId>& recorded = block->recorded;
  if (std::find(recorded.begin(), recorded.end(), id) == recorded.end()) recorded.push_back(id);
}

Block* DeviceAllocator::find(const Region& region, Address ptr) {
  HotGuard hot(hot_);
  return region.find(ptr);
}

ThreadCache* DeviceAllocator::make_cache() {
  auto cache = std::make_unique<ThreadCache>(this, limit_.bytes());
  HotGuard hot(hot_);
  caches_.push_back(std::move(cache));
  return caches_.back().get();
}

void DeviceAllocator::drop_cache(ThreadCache* cache) {
  HotGuard hot(hot_);
  drained_.clear();
  cache->drain(true, drained_);
  cache->collect(stats_);
  for (Block* b : drained_) free_locked(b);
  auto mine = [cache](const std::unique_ptr<ThreadCache>& c) { return c.get() == cache; };
  caches_.erase(std::find_if(caches_.begin(), caches_.end(), mine));
}

// Everything mapped becomes accessible from `peer` too, and all that is mapped later.
void DeviceAllocator::enable_peer(int peer) {
  std::lock_guard<std::mutex> slow(slow_);
  DeviceScope scope(driver_, device_);
  const std::vector<int>& now = granules_.grants();
  if (std::find(now.begin(), now.end(), peer) != now.end()) return;
  bool yes = false;
  Status s = driver_.can_access_peer(peer, device_, &yes);
  if (!s.ok() || !yes) {
    throw Error(GLAKE_INVALID_DEVICE, "device " + std::to_string(peer) +
                                          " cannot reach the memory of device " +
                                          std::to_string(device_));
  }
  std::vector<int> grants = now;
  grants.push_back(peer);
  std::vector<std::pair<Address, Bytes>> ranges;
  HotGuard hot(hot_);
  for (const Arena* arena : {small_.get(), large_.get()}) {
    for (const Segment* seg = arena->first_segment(); seg != nullptr; seg = seg->next) {
      if (seg->state == SegmentState::kAbsent) continue;
      if (!ranges.empty() && ranges.back().first + ranges.back().second == seg->begin) {
        ranges.back().second += seg->size;
      } else {
        ranges.emplace_back(seg->begin, seg->size);
      }
    }
  }
  for (const View* v : views_.recent_first()) ranges.emplace_back(v->base, v->length.bytes());
  hot.unlock();
  for (auto& [base, bytes] : ranges) {
    s = driver_.set_access(base, bytes, grants);
    if (!s.ok()) {
      throw Error(GLAKE_DRIVER_ERROR, "the driver refused device " + std::to_string(peer) +
                                          " access to device " + std::to_string(device_) +
                                          "'s memory: " + driver_.describe(s));
    }
  }
  granules_.grant(peer);
}

void DeviceAllocator::mark_step() {
  HotGuard hot(hot_);
  ++steps_;
}

// After empty_cache() nothing but reservations and events is left.
void DeviceAllocator::close() {
  {
    std::lock_guard<std::mutex> slow(slow_);
    HotGuard hot(hot_);
    drain_caches(true);
    drain_limbo();
    if (live_ != 0) {
      throw Error(GLAKE_INVALID_ARGUMENT, "device " + std::to_string(device_) + " still has " +
                                              std::to_string(live_) + " live blocks; free them");
    }
  }
  empty_cache();
  std::lock_guard<std::mutex> slow(slow_);
  Status s;
  bool clean = false;
  {
    DeviceScope scope(driver_, device_);
    clean = debts_.settle() && views_.count() == 0 && granules_.physical().count == 0;
    closing_ = clean;
    if (clean) s = view_space_.release();
    if (clean && s.ok()) s = small_range_->release();
    if (clean && s.ok()) s = large_range_->release();
    if (clean && s.ok()) clock_.close();
  }
  if (clean && s.ok()) s = driver_.detach(device_);
  if (!clean || !s.ok()) {
    throw Error(GLAKE_DRIVER_ERROR, "the driver refused to take device " +
                                        std::to_string(device_) + "'s memory back" +
                                        (s.ok() ? "" : ": " + driver_.describe(s)) + "; try again");
  }
}

}  // namespace glake

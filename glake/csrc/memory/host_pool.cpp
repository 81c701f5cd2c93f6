#include "memory/host_pool.h"

#include <algorithm>

#include "base/tuning.h"
#include "driver/device_scope.h"

namespace glake {

// Classes are powers of two up to kHostMostClass, and multiples of a granule above it, where a
// power of two would waste up to half of a large block.
Bytes HostPool::class_of(Bytes bytes) {
  if (bytes > Tuning::kHostMostClass) return round_up(bytes, kGranule);
  Bytes size = Tuning::kHostLeastClass;
  while (size < bytes) size *= 2;
  return size;
}

// Takes the device's primary context, and holds it until close().
void HostPool::attach(int device) {
  if (device < 0 || device >= driver_.device_count()) {
    throw Error(GLAKE_INVALID_DEVICE,
                "no " + device_text(device) + ": the driver has " +
                    counted(static_cast<uint64_t>(driver_.device_count()), "device"));
  }
  auto known = [&] {
    std::lock_guard<std::mutex> guard(mutex_);
    return std::find(attached_.begin(), attached_.end(), device) != attached_.end();
  };
  if (known()) return;
  std::lock_guard<std::mutex> progress(progress_);
  if (known()) return;
  Status s = driver_.attach(device);
  if (!s.ok()) {
    throw Error(GLAKE_DRIVER_ERROR, "the driver refused " + device_text(device) +
                                        " a primary context: " + driver_.describe(s));
  }
  std::lock_guard<std::mutex> guard(mutex_);
  attached_.push_back(device);
}

void HostPool::put_ready(HostBlock* block) {
  block->freed_at = ++freed_;
  ready_[block->bytes].push_back(block);
}

void HostPool::count_live(HostBlock& block, Bytes requested) {
  block.live = true;
  block.requested = requested;
  allocated_.add(static_cast<int64_t>(block.bytes));
  asked_ += class_of(requested);
  most_asked_ = std::max(most_asked_, asked_);
  ++live_;
}

// Takes a block of the smallest class from `size` to `most` that has a ready one.
HostPool::HostBlock* HostPool::take_ready(Bytes size, Bytes requested, Bytes most) {
  auto found = ready_.lower_bound(size);
  while (found != ready_.end() && found->second.empty()) found = ready_.erase(found);
  if (found == ready_.end() || found->first > most) return nullptr;
  HostBlock* block = found->second.back();
  found->second.pop_back();
  count_live(*block, requested);
  ++hits_;
  return block;
}

// The most that may be pinned once there is one more block of `size`.
Bytes HostPool::most_held(Bytes size) const {
  const Bytes live = std::max(most_asked_, asked_ + size);
  return live + std::max(live / Tuning::kHostIdle, Tuning::kHostIdleLeast);
}

// A large block may serve a request of half its size, as with classes that are powers of two. It
// may serve a smaller one if otherwise more would be pinned than is allowed, as long as the waste
// fits beside what is live. A small request never gets a large block, because it might hold the
// block for long.
HostPool::HostBlock* HostPool::take_cached(Bytes size, Bytes requested) {
  std::lock_guard<std::mutex> guard(mutex_);
  if (size <= Tuning::kHostMostClass) return take_ready(size, requested, size);
  const Bytes most = most_held(size), live = static_cast<Bytes>(allocated_.current) + size;
  const Bytes spare = most > live ? most - live : 0;
  if (HostBlock* block = take_ready(size, requested, size + std::min(size, spare))) return block;
  const bool more = static_cast<Bytes>(reserved_.current) + size > most;
  return more ? take_ready(size, requested, size + spare) : nullptr;
}

// The blocks that must go back before `size` more bytes are pinned. Nobody uses them, and they were
// freed longest ago. The caller owns them from now on.
std::vector<HostPool::HostBlock*> HostPool::surplus(Bytes size) {
  std::lock_guard<std::mutex> guard(mutex_);
  std::vector<HostBlock*> going;
  Bytes held = static_cast<Bytes>(reserved_.current) + size;
  const Bytes most = most_held(size);
  while (held > most) {
    std::deque<HostBlock*>* oldest = nullptr;
    for (auto& [bytes, blocks] : ready_) {
      if (blocks.empty()) continue;
      if (oldest == nullptr || blocks.front()->freed_at < oldest->front()->freed_at) {
        oldest = &blocks;
      }
    }
    if (oldest == nullptr) break;
    going.push_back(oldest->front());
    held -= oldest->front()->bytes;
    oldest->pop_front();
  }
  return going;
}

void* HostPool::allocate(Bytes bytes) {
  Bytes size = class_of(bytes);
  if (HostBlock* block = take_cached(size, bytes)) return block->ptr;
  bool waits = false;
  {
    std::lock_guard<std::mutex> guard(mutex_);
    waits = !waiting_.empty();
  }
  if (waits) {
    poll();
    if (HostBlock* block = take_cached(size, bytes)) return block->ptr;
  }
  auto block = std::make_unique<HostBlock>();
  block->bytes = size;
  block->ptr = fresh(size);
  void* ptr = block->ptr;
  std::lock_guard<std::mutex> guard(mutex_);
  count_live(*block, bytes);
  blocks_.emplace(ptr, std::move(block));
  reserved_.add(static_cast<int64_t>(size));
  ++allocs_;
  return ptr;
}

// Pinned memory belongs to every device, so any context is enough. No new context is made if one is
// alive.
int HostPool::home() {
  std::lock_guard<std::mutex> guard(mutex_);
  return attached_.empty() ? driver_.device_in_use() : attached_.front();
}

// Takes memory from the driver. First the surplus of the cache goes back, or all of the cache if
// the driver has no more.
void* HostPool::fresh(Bytes bytes) {
  int device = home();
  attach(device);
  DeviceScope scope(driver_, device);
  Status s = scope.status();
  void* ptr = nullptr;
  if (const std::vector<HostBlock*> going = surplus(bytes); !going.empty()) {
    std::lock_guard<std::mutex> progress(progress_);
    release(going);  // what the driver refuses stays cached and ready
  }
  if (s.ok()) s = driver_.allocate_host(bytes, &ptr);
  if (s.out_of_memory()) {
    std::lock_guard<std::mutex> progress(progress_);
    poll_locked();
    s = release_ready();
    if (s.ok()) s = driver_.allocate_host(bytes, &ptr);
  }
  if (s.ok()) return ptr;
  throw Error(s.out_of_memory() ? GLAKE_OUT_OF_MEMORY : GLAKE_DRIVER_ERROR,
              "the driver refused " + std::to_string(bytes) +
                  " bytes of pinned host memory: " + driver_.describe(s) +
                  (s.out_of_memory() ? "; free pinned blocks, or raise the memory the process may "
                                       "lock (ulimit -l)"
                                     : ""));
}

HostPool::HostBlock& HostPool::live_block(void* ptr) {
  auto found = blocks_.find(ptr);
  if (found == blocks_.end()) {
    throw Error(GLAKE_INVALID_POINTER, hex(ptr) + " is no block of pinned host memory");
  }
  if (!found->second->live) {
    throw Error(GLAKE_INVALID_POINTER, hex(ptr) + " (pinned host memory) has been freed already");
  }
  return *found->second;
}

void HostPool::record(void* ptr, int device, StreamHandle stream) {
  attach(device);
  std::lock_guard<std::mutex> guard(mutex_);
  std::vector<Recorded>& streams = live_block(ptr).streams;
  Recorded recorded{device, stream};
  if (std::find(streams.begin(), streams.end(), recorded) == streams.end()) {
    streams.push_back(recorded);
  }
}

void HostPool::forget(StreamHandle stream, bool done) {
  std::lock_guard<std::mutex> guard(mutex_);
  for (auto& [ptr, block] : blocks_) {
    auto ends = [stream](const Recorded& r) { return r.second == stream; };
    std::vector<Recorded>& streams = block->streams;
    const auto kept = std::remove_if(streams.begin(), streams.end(), ends);
    if (kept == streams.end()) continue;
    streams.erase(kept, streams.end());
    block->lost |= !done;
  }
}

void HostPool::free(void* ptr) {
  HostBlock* block = nullptr;
  {
    std::lock_guard<std::mutex> guard(mutex_);
    block = &live_block(ptr);
    block->live = false;
    allocated_.subtract(static_cast<int64_t>(block->bytes));
    asked_ -= class_of(block->requested);
    --live_;
    if (block->streams.empty() && !block->lost) {
      put_ready(block);
      return;
    }
  }
  bool ready = advance(*block);  // no other thread knows of the block any more
  std::lock_guard<std::mutex> guard(mutex_);
  if (ready) {
    put_ready(block);
  } else {
    waiting_.push_back(block);
  }
}

Bytes HostPool::requested(void* ptr) {
  std::lock_guard<std::mutex> guard(mutex_);
  return live_block(ptr).requested;
}

Bytes HostPool::block_bytes(void* ptr) {
  std::lock_guard<std::mutex> guard(mutex_);
  return live_block(ptr).bytes;
}

// Records an event behind what was enqueued on a stream so far. Returns false if that must be tried
// again later: no event can be recorded on a stream under capture, so the block waits for the
// capture's end.
bool HostPool::record_event(HostBlock& block, Recorded recorded) {
  auto [device, stream] = recorded;
  bool capturing = false;
  // Another thread's own default stream cannot be named here, and a stream that may be destroyed
  // must not be.
  bool named =
      is_thread_stream(stream) ? stream == this_thread_stream() : driver_.streams().askable(stream);
  if (!named || !driver_.is_capturing(device, stream, &capturing).ok()) {
    block.lost = true;  // the stream may also be destroyed, with unfinished work
    return true;
  }
  if (capturing) return false;
  EventId event = 0;
  {
    std::lock_guard<std::mutex> guard(mutex_);
    std::vector<EventId>& spare = spare_[device];
    if (!spare.empty()) {
      event = spare.back();
      spare.pop_back();
    }
  }
  if (event == 0 && !driver_.create_event(device, &event).ok()) return false;
  if (driver_.record(device, event, stream).ok()) {
    block.events.emplace_back(device, event);
    return true;
  }
  std::lock_guard<std::mutex> guard(mutex_);
  spare_[device].push_back(event);
  return false;
}

// Records the events that a freed block still lacks, and asks about those that it has. True if all
// work on the block is complete.
bool HostPool::advance(HostBlock& block) {
  auto recorded = [&](const Recorded& r) { return record_event(block, r); };
  std::vector<Recorded>& streams = block.streams;
  streams.erase(std::remove_if(streams.begin(), streams.end(), recorded), streams.end());
  std::vector<Event> done;
  auto complete = [&](const Event& e) {
    if (!driver_.query(e.second).ok()) return false;
    done.push_back(e);
    return true;
  };
  std::vector<Event>& events = block.events;
  events.erase(std::remove_if(events.begin(), events.end(), complete), events.end());
  if (!done.empty()) {
    std::lock_guard<std::mutex> guard(mutex_);
    for (auto [device, event] : done) spare_[device].push_back(event);
  }
  return streams.empty() && events.empty() && !block.lost;
}

// Moves waiting blocks on, unless another thread is doing so.
void HostPool::poll() {
  std::unique_lock<std::mutex> progress(progress_, std::try_to_lock);
  if (progress.owns_lock()) poll_locked();
}

void HostPool::poll_locked() {
  std::vector<HostBlock*> batch;
  {
    std::lock_guard<std::mutex> guard(mutex_);
    batch.swap(waiting_);
  }
  for (HostBlock*& block : batch) {
    if (!advance(*block)) continue;
    std::lock_guard<std::mutex> guard(mutex_);
    put_ready(block);
    block = nullptr;
  }
  std::lock_guard<std::mutex> guard(mutex_);
  for (HostBlock* block : batch) {
    if (block != nullptr) waiting_.push_back(block);
  }
}

// Synchronises all devices for the blocks that wait for this. If a device refuses, nothing changes.
void HostPool::synchronize() {
  std::vector<int> devices;
  std::vector<HostBlock*> lost;
  {
    std::lock_guard<std::mutex> guard(mutex_);
    devices = attached_;
    for (HostBlock* b : waiting_) {
      if (b->lost) lost.push_back(b);
    }
  }
  if (lost.empty()) return;
  for (int device : devices) {
    if (!driver_.synchronize(device).ok()) return;
  }
  for (HostBlock* b : lost) b->lost = false;
}

// The caller holds a context and progress_, here and in release().
Status HostPool::release_ready() {
  std::vector<HostBlock*> going;
  {
    std::lock_guard<std::mutex> guard(mutex_);
    for (auto& [bytes, blocks] : ready_) {
      going.insert(going.end(), blocks.begin(), blocks.end());
    }
    ready_.clear();
  }
  return release(going);
}

// Stops at the first refusal. The blocks that are left are ready again.
Status HostPool::release(const std::vector<HostBlock*>& going) {
  Status s;
  for (HostBlock* block : going) {
    // The block leaves the books first, because the driver may give the address to another thread
    // at once.
    std::unique_ptr<HostBlock> owner;
    if (s.ok()) {
      std::lock_guard<std::mutex> guard(mutex_);
      owner = std::move(blocks_[block->ptr]);
      blocks_.erase(block->ptr);
    }
    if (s.ok()) s = driver_.free_host(block->ptr);
    std::lock_guard<std::mutex> guard(mutex_);
    if (s.ok()) {
      reserved_.subtract(static_cast<int64_t>(block->bytes));
      ++frees_;
      continue;
    }
    if (owner != nullptr) blocks_.emplace(block->ptr, std::move(owner));
    put_ready(block);
  }
  return s;
}

void HostPool::empty_cache(bool may_wait) {
  {
    std::lock_guard<std::mutex> guard(mutex_);
    if (blocks_.empty()) return;
  }
  std::lock_guard<std::mutex> progress(progress_);
  DeviceScope scope(driver_, home());
  Status s = scope.status();
  if (s.ok()) {
    if (may_wait) synchronize();
    poll_locked();
    s = release_ready();
  }
  if (!s.ok()) {
    throw Error(GLAKE_DRIVER_ERROR,
                "the driver refused to take pinned host memory back: " + driver_.describe(s));
  }
}

uint64_t HostPool::live() {
  std::lock_guard<std::mutex> guard(mutex_);
  return live_;
}

glake_host_stats_values HostPool::values() {
  const auto stat = [](const Stat& s) {
    return glake_stat{s.current, s.peak, s.allocated, s.freed};
  };
  const auto number = [](uint64_t n) { return static_cast<int64_t>(n); };
  std::lock_guard<std::mutex> guard(mutex_);
  glake_host_stats_values values{};
  values.allocated_bytes = stat(allocated_);
  values.reserved_bytes = stat(reserved_);
  values.live_blocks = number(live_);
  values.blocks = number(blocks_.size());
  values.waiting_blocks = number(waiting_.size());
  values.hits = number(hits_);
  values.driver_allocs = number(allocs_);
  values.driver_frees = number(frees_);
  return values;
}

std::string HostPool::stats_json() {
  const glake_host_stats_values now = values();
  std::string json = "{";
  const auto bytes = [&](const std::string& name, const glake_stat& s) {
    append_number(json, name + ".current", s.current);
    append_number(json, name + ".peak", s.peak);
    append_number(json, name + ".allocated", s.allocated);
    append_number(json, name + ".freed", s.freed);
  };
  bytes("allocated_bytes", now.allocated_bytes);
  bytes("reserved_bytes", now.reserved_bytes);
  append_number(json, "live_blocks", now.live_blocks);
  append_number(json, "blocks", now.blocks);
  append_number(json, "waiting_blocks", now.waiting_blocks);
  append_number(json, "hits", now.hits);
  append_number(json, "driver_allocs", now.driver_allocs);
  append_number(json, "driver_frees", now.driver_frees);
  return json + "}";
}

void HostPool::close() {
  uint64_t held = live();
  if (held != 0) {
    throw Error(GLAKE_INVALID_ARGUMENT, std::to_string(held) +
                                            " blocks of pinned host memory are live; "
                                            "glake_host_free() them before glake_shutdown()");
  }
  std::lock_guard<std::mutex> progress(progress_);
  auto refuse = [this](Status s) {
    throw Error(GLAKE_DRIVER_ERROR, "the driver refused to take pinned host memory back: " +
                                        driver_.describe(s) + "; try again");
  };
  std::vector<int> devices;
  {
    std::lock_guard<std::mutex> guard(mutex_);
    devices = attached_;
  }
  if (devices.empty()) return;
  poll_locked();
  for (int device : devices) {
    Status s = driver_.synchronize(device);
    if (!s.ok()) refuse(s);
  }
  for (HostBlock* b : waiting_) b->lost = false;
  poll_locked();
  if (!waiting_.empty()) {
    throw Error(GLAKE_DRIVER_ERROR,
                "pinned host memory is recorded on a stream under capture; end "
                "the capture before glake_shutdown()");
  }
  {
    DeviceScope scope(driver_, devices.front());
    Status s = scope.status();
    if (s.ok()) s = release_ready();
    if (!s.ok()) refuse(s);
  }
  for (auto& [device, events] : spare_) {
    for (; !events.empty(); events.pop_back()) {
      Status s = driver_.destroy_event(events.back());
      if (!s.ok()) refuse(s);
    }
  }
  for (; !attached_.empty(); attached_.pop_back()) {
    Status s = driver_.detach(attached_.back());
    if (!s.ok()) refuse(s);
  }
}

}  // namespace glake

// What the debug modes read back: copies of guards and fills, taken in stream order, and compared
// on the host once they have landed.

#include <algorithm>

#include "debug/debug_device.h"
#include "driver/device_scope.h"
#include "heap/device_allocator.h"
#include "memory/fair_mutex.h"

namespace glake {
bool DebugDevice::copy_guards(Batch& batch, const HoldingPtr& h, StreamHandle stream) {
  Bytes front = h->ptr - h->begin;
  Address after = h->ptr + h->requested;
  return copy(batch, stream,
              {nullptr, nullptr, front, h->begin, kGuardByte, Damage::kBefore,
               -static_cast<int64_t>(front), h}) &&
         copy(batch, stream,
              {nullptr, nullptr, h->begin + h->size - after, after, kGuardByte, Damage::kAfter,
               static_cast<int64_t>(h->requested), h});
}

// Enqueues copies of `what` (its place on the host and slab are filled in here) behind the stream's
// work. Where all slabs are in use it waits for the oldest copies.
bool DebugDevice::copy(Batch& batch, StreamHandle stream, Copy what) {
  Bytes left = what.size;
  while (left != 0) {
    char* place = nullptr;
    what.size = std::min(left, Readback::kSlab);
    what.slab = readback_.take(what.size, &place);
    while (what.slab == nullptr) {
      bool repairs = batch.repairs;
      finish(std::move(batch), stream);
      batch = Batch{0, {}, repairs};
      what.slab = readback_.take(what.size, &place);  // with `sync` that batch has been read
      if (what.slab != nullptr) break;
      if (!wait_for_oldest()) return false;
      what.slab = readback_.take(what.size, &place);
    }
    if (!driver_.copy_to_host(place, what.from, what.size, stream).ok()) {
      readback_.done(what.slab);
      return false;
    }
    what.bytes = place;
    batch.copies.push_back(what);
    left -= what.size;
    what.from += what.size;
    what.offset += static_cast<int64_t>(what.size);
  }
  return true;
}

// Marks the end of a batch; with `sync`, waits for it.
void DebugDevice::finish(Batch batch, StreamHandle stream) {
  if (batch.copies.empty() && !modes_.sync) return;
  EventId event = 0;
  if (!spare_events_.empty()) {
    event = spare_events_.back();
    spare_events_.pop_back();
  } else if (!driver_.create_event(number_, &event).ok()) {
    event = 0;
  }
  if (event != 0 && !driver_.record(number_, event, stream).ok()) {
    spare_events_.push_back(event);
    event = 0;
  }
  batch.event = event;
  checks_ += batch.copies.size();
  if (modes_.sync) {
    bool done = event != 0 ? driver_.wait_host(event).ok() : driver_.synchronize(number_).ok();
    if (done) return read(batch);
  }
  if (batch.copies.empty()) {
    if (event != 0) spare_events_.push_back(event);
  } else {
    pending_[stream].push_back(std::move(batch));
  }
}

// Reads every batch that is known to have run: on a stream, a mark covers what came before it.
void DebugDevice::collect() {
  for (auto& [stream, batches] : pending_) {
    size_t done = 0;
    for (size_t i = 0; i < batches.size(); ++i) {
      if (batches[i].event == 0) continue;
      if (!driver_.query(batches[i].event).ok()) break;
      done = i + 1;
    }
    read_first(batches, done);
  }
}

void DebugDevice::poll() {
  std::lock_guard<std::mutex> guard(mutex_);
  DeviceScope scope(driver_, number_);
  if (scope.status().ok()) collect();
}

// Waits for the oldest mark of a stream, and reads what it covers without asking again: a driver
// that refuses to be asked would have the caller wait for ever.
bool DebugDevice::wait_for_oldest() {
  for (auto& [stream, batches] : pending_) {
    for (size_t i = 0; i < batches.size(); ++i) {
      if (batches[i].event == 0) continue;
      if (!driver_.wait_host(batches[i].event).ok()) return false;
      read_first(batches, i + 1);
      return true;
    }
  }
  return false;
}

void DebugDevice::read_first(std::deque<Batch>& batches, size_t n) {
  for (; n != 0; --n) {
    read(batches.front());
    batches.pop_front();
  }
}

void DebugDevice::read(Batch& batch) {
  std::vector<Finding> findings;
  for (const Copy& c : batch.copies) {
    Finding finding;
    if (c.block != nullptr && find_damage(c.bytes, c.size, c.expected, c.offset, &finding)) {
      finding.kind = c.kind;
      finding.block = c.block;
      if (batch.repairs && !driver_.fill(c.from, c.expected, c.size, 0).ok()) skip();
      bool goes_on = !findings.empty() && findings.back().block == finding.block &&
                     findings.back().kind == finding.kind;
      if (goes_on) {
        findings.back().count += finding.count;
        findings.back().last = finding.last;
      } else {
        findings.push_back(std::move(finding));
      }
    }
    readback_.done(c.slab);
  }
  for (Finding& finding : findings) FindingBook::instance().add(std::move(finding));
  if (batch.event != 0) spare_events_.push_back(batch.event);
  batch.copies.clear();
}

// After a synchronisation of the device.
void DebugDevice::read_all() {
  for (auto& [stream, batches] : pending_) {
    read_first(batches, batches.size());
  }
}

bool DebugDevice::check_live(Batch& batch) {
  for (const auto& [ptr, h] : live_) {
    if (h->guarded && !copy_guards(batch, h, 0)) return false;
  }
  return true;
}

bool DebugDevice::check_filled(Batch& batch) {
  auto whole = [&](const HoldingPtr& h, Address from, Bytes n, int64_t offset) {
    return copy(batch, 0, {nullptr, nullptr, n, from, kFreedByte, Damage::kAfterFree, offset, h});
  };
  for (const Kept& k : kept_) {
    const Holding& h = *k.holding;
    if (!whole(k.holding, h.begin, h.size, static_cast<int64_t>(h.begin - h.ptr))) return false;
  }
  std::vector<std::pair<Address, Filled>> idle;
  {
    std::lock_guard<std::mutex> guard(filled_mutex_);
    idle.assign(filled_.begin(), filled_.end());
  }
  for (auto& [begin, f] : idle) {
    if (!whole(f.block, begin, f.end - begin, f.offset)) return false;
  }
  return true;
}

// What check() has enqueued is in order with no stream's later work: if it has not run by now, it
// may land after the memory has changed hands, and the memory must stay mapped until it has run.
void DebugDevice::disregard() {
  device_.note_unticketed();
  for (auto& [stream, batches] : pending_) {
    for (Batch& batch : batches) {
      for (Copy& c : batch.copies) {
        if (batch.repairs) c.block = nullptr;
      }
    }
  }
}

void DebugDevice::check() {
  std::lock_guard<std::mutex> guard(mutex_);
  DeviceScope scope(driver_, number_);
  require(scope.status(), "to make its context current");
  if (device_.capturing()) {  // nothing may be waited for
    skip();
    return;
  }
  // What is idle must not be unmapped while it is read.
  std::lock_guard<FairMutex> mapping(device_.mapping_lock());
  require(driver_.synchronize(number_), "to be synchronised");
  read_all();
  Batch batch;
  batch.repairs = true;
  bool copied = check_live(batch) && check_filled(batch);
  finish(std::move(batch), 0);
  // Once for the copies, once for what they repair.
  Status s = driver_.synchronize(number_);
  if (!s.ok()) disregard();
  require(s, "to be synchronised");
  read_all();
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

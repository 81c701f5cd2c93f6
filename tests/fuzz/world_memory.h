// World's contiguous blocks, pins and pinned host memory, and what watches: history, snapshots,
// findings.
#pragma once

#include "world.h"

namespace fuzz {

inline int World::kind_of(size_t bytes) const {
  if (kinds_[thread_] != GLAKE_STITCHED) return kinds_[thread_];
  if (std::strcmp(setup_.contiguous, "none") == 0) return GLAKE_STITCHED;
  return bytes >= 3 * kMiB ? GLAKE_CONTIGUOUS_VMM : GLAKE_STITCHED;
}

inline void World::contiguous(size_t bytes, int stream, int device, int kind) {
  note("contiguous", {static_cast<int64_t>(bytes), stream, device, kind});
  const int k = 1 + kind % 2;
  auto by = [k](size_t size, int on, CUstream s) {
    return glake_malloc_contiguous(size, on, s, k);
  };
  allocate(bytes, static_cast<int>(stream_of(stream)), device_of(device), 0, k, by);
  identities();
}

inline void World::set_kind(int kind) {
  note("set_kind", {kind});
  int before = call([&] { return glake_set_kind(kind % 3); });
  CHECK(before == kinds_[thread_]);
  kinds_[thread_] = kind % 3;
}

// The driver's handle of the memory behind an address. 0 if there is none, as for memory of
// cuMemAlloc.
inline uint64_t memory_at(uintptr_t address) {
  CUmemGenericAllocationHandle handle = 0;
  CUresult got = cuMemRetainAllocationHandle(&handle, reinterpret_cast<void*>(address));
  if (got != CUDA_SUCCESS) return 0;
  CU(cuMemRelease(handle));
  return handle;
}

inline void World::pin(int n) {
  if (live_.empty()) return;
  note("pin", {n});
  const Live& b = live_[pick(n)];
  OK(call([&] { return glake_pin(b.ptr); }));
  Pinned pinned{b.ptr, {}};
  for (uintptr_t at : {b.begin, b.begin + b.size / 2, b.begin + b.size - 1}) {
    if (!armed_) pinned.memory.emplace_back(at, memory_at(at));
  }
  pins_.push_back(pinned);
  identities();
}

// Pins a freed pointer, and unpins one that has no pin.
inline void World::pin_wrongly() {
  note("pin_wrongly", {});
  void* wrong = freed_ != nullptr ? freed_ : this;
  bool pinned = false, live = false;
  for (const Live& b : live_) live = live || b.ptr == wrong;
  for (const Pinned& p : pins_) pinned = pinned || p.ptr == wrong;
  if (!live) CHECK(call([&] { return glake_pin(wrong); }) == GLAKE_INVALID_POINTER);
  if (!pinned) CHECK(call([&] { return glake_unpin(wrong); }) == GLAKE_INVALID_POINTER);
  identities();
}

inline void World::unpin(int n) {
  if (pins_.empty()) return;
  note("unpin", {n});
  check_pins();
  size_t which = static_cast<size_t>(n) % pins_.size();
  OK(call([&] { return glake_unpin(pins_[which].ptr); }));
  pins_.erase(pins_.begin() + static_cast<std::ptrdiff_t>(which));
  identities();
}

// Makes calls that an armed fault could hit, so it does nothing while one is armed.
inline void World::check_pins() {
  if (armed_) return;
  for (const Pinned& p : pins_) {
    for (auto [address, memory] : p.memory) {
      CHECK_TEXT(memory_at(address) == memory, "pinned memory was moved");
    }
  }
}

inline void World::host_get(size_t bytes) {
  if (hosts_.size() == 16) return;
  note("host_get", {static_cast<int64_t>(bytes)});
  void* ptr = nullptr;
  int code = call([&] {
    ptr = glake_host_malloc(bytes);
    return glake_last_error(nullptr, 0);
  });
  CHECK(ptr != nullptr || (armed_ && (code == GLAKE_OUT_OF_MEMORY || code == GLAKE_DRIVER_ERROR)));
  if (ptr == nullptr) return;
  host_used_ = true;
  hosts_.push_back({static_cast<uint8_t*>(ptr), bytes, ++stamp_});
  std::memset(ptr, hosts_.back().stamp, bytes);
  identities();
}

inline void World::host_drop(int n) {
  if (hosts_.empty()) return;
  note("host_drop", {n});
  size_t which = static_cast<size_t>(n) % hosts_.size();
  const Host h = hosts_[which];
  CHECK(h.ptr[0] == h.stamp && h.ptr[h.bytes - 1] == h.stamp);
  hosts_.erase(hosts_.begin() + static_cast<std::ptrdiff_t>(which));
  OK(call([&] { return glake_host_free(h.ptr); }));
  CHECK(call([&] { return glake_host_free(h.ptr); }) == GLAKE_INVALID_POINTER);
  identities();
}

// Work of the stream reads the block late. No other request may get the block before that.
inline void World::host_record(int n, int stream) {
  if (hosts_.empty()) return;
  note("host_record", {n, stream});
  const Host& h = hosts_[static_cast<size_t>(n) % hosts_.size()];
  auto on = static_cast<int>(stream_of(stream));
  if (ended_[static_cast<size_t>(on)]) return;
  int code = call([&] { return glake_host_record_stream(h.ptr, 0, handle(on)); });
  CHECK(code == GLAKE_OK || (armed_ && code == GLAKE_DRIVER_ERROR));
  if (code == GLAKE_OK && setup_.bytes != 0 && !capturing(on)) {
    stamps_.read_host(h.ptr, h.bytes, h.stamp, handle(on));
  }
  identities();
}

inline void World::host_empty_cache() {
  note("host_empty_cache", {});
  if (!host_used_) return;
  int code = call([] { return glake_host_empty_cache(); });
  CHECK(code == GLAKE_OK || (armed_ && code == GLAKE_DRIVER_ERROR));
  identities();
}

inline void World::check_hosts() {
  if (!host_used_) return;
  const std::string text =
      test::text_of([](char* to, size_t room) { return glake_host_stats(to, room); });
  glake_host_stats_values values{};
  OK(glake_get_host_stats(&values, sizeof values));
  int64_t bytes = 0;
  for (const Host& h : hosts_) bytes += static_cast<int64_t>(h.bytes);
  CHECK_TEXT(values.allocated_bytes.current >= bytes, text);
  CHECK_TEXT(values.allocated_bytes.current <= values.reserved_bytes.current, text);
  CHECK_TEXT(values.live_blocks == static_cast<int64_t>(hosts_.size()), text);
  // One host block of the driver is that of the stamps.
  int64_t driver = test::number_in(test::ledger(0), "host_blocks") - 1;
  CHECK_TEXT(checked() || values.blocks == driver, text);
}

// Turns the history on, for the last `entries` events, or off.
inline void World::history(int entries, int when) {
  note("history", {entries, when});
  const size_t most = static_cast<size_t>(entries) % 3 * 50;
  OK(call([&] { return glake_history(most, when % 4, entries % 2); }));
  static const char* const kTags[] = {nullptr, "a", "b"};
  call([&] {
    glake_set_tag(kTags[when % 3]);
    return 0;
  });
  struct Seen {
    size_t events = 0;
    uint64_t last = 0;
  } seen;
  OK(call([&] {
    return glake_visit_history(0, &seen, [](void* self, const glake_event* event) {
      auto* s = static_cast<Seen*>(self);
      ++s->events;
      CHECK(event->device == 0 && event->time_ns >= s->last);
    });
  }));
  CHECK(seen.events <= most);
  identities();
}

// A snapshot shows every held byte once, and its sums are the statistics of each pool. (Requested
// bytes differ: for a block with guards a snapshot shows the caller's bytes.)
inline void World::check_memory(int device, const glake_device_stats& stats) {
  struct Seen {
    int64_t bytes = 0, covered = 0;
    uint64_t at = 0;
    bool split = false, allocation = false;
    glake_device_stats sums{};
    size_t pool = 0;
    std::vector<std::pair<uint64_t, uint64_t>> all;
    void add(glake_stat (&to)[3], uint64_t n) {
      to[0].current += static_cast<int64_t>(n);
      to[pool].current += static_cast<int64_t>(n);
    }
  } seen;
  OK(glake_visit_memory(
      device, &seen,
      [](void* self, const glake_segment_info* s) {
        auto* all = static_cast<Seen*>(self);
        CHECK(all->bytes == all->covered);
        all->bytes += static_cast<int64_t>(s->bytes);
        all->pool = s->large != 0 ? 2 : 1;
        all->add(all->sums.reserved_bytes, s->bytes);
        all->allocation = s->kind != GLAKE_STITCHED;
        all->split = false;
        if (all->allocation) all->add(all->sums.segment, 1);
        all->at = s->address;
        all->all.emplace_back(s->address, s->address + s->bytes);
      },
      [](void* self, const glake_block_record* b) {
        auto* all = static_cast<Seen*>(self);
        CHECK(b->address == all->at && b->bytes != 0);
        all->at += b->bytes;
        all->covered += static_cast<int64_t>(b->bytes);
        if (b->state == GLAKE_ACTIVE) {
          all->add(all->sums.allocation, 1);
          all->add(all->sums.allocated_bytes, b->bytes);
        }
        if (b->state != GLAKE_INACTIVE) {
          all->add(all->sums.active, 1);
          all->add(all->sums.active_bytes, b->bytes);
          all->split = true;
        } else if (all->allocation && all->split) {
          all->add(all->sums.inactive_split, 1);
          all->add(all->sums.inactive_split_bytes, b->bytes);
        }
      }));
  const Books& b = books_[device];
  CHECK(seen.bytes == seen.covered);
  std::sort(seen.all.begin(), seen.all.end());
  for (size_t i = 1; i < seen.all.size(); ++i) CHECK(seen.all[i - 1].second <= seen.all[i].first);
  CHECK(stats.allocated_bytes[0].current == b.allocated);
  for (size_t pool = 0; pool < 3; ++pool) {
    const std::string where = " of pool " + std::to_string(pool);
    auto same = [&](const char* name, const glake_stat(&told)[3], const glake_stat(&shown)[3]) {
      CHECK_TEXT(told[pool].current == shown[pool].current,
                 name + where + ": " + std::to_string(told[pool].current) + ", and " +
                     std::to_string(shown[pool].current) + " in the snapshot");
    };
    same("allocation", stats.allocation, seen.sums.allocation);
    same("allocated_bytes", stats.allocated_bytes, seen.sums.allocated_bytes);
    same("active", stats.active, seen.sums.active);
    same("active_bytes", stats.active_bytes, seen.sums.active_bytes);
    same("inactive_split", stats.inactive_split, seen.sums.inactive_split);
    same("inactive_split_bytes", stats.inactive_split_bytes, seen.sums.inactive_split_bytes);
    same("segment", stats.segment, seen.sums.segment);
    if (!b.owing) same("reserved_bytes", stats.reserved_bytes, seen.sums.reserved_bytes);
  }
}

// There must be no findings, because all writes here are legal.
inline void World::check_findings() {
  const std::string text =
      test::text_of([](char* to, size_t room) { return glake_findings(to, room); });
  CHECK_TEXT(text.empty(), text);
}

}  // namespace fuzz

// The driver as the core sees it: plain values, a Status for every call, counts of what was asked.
// Nothing above this folder names a cu* function or type.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "types.h"

namespace glake {

using Handle = uint64_t;    // one granule of physical memory
using EventId = uintptr_t;  // a driver event
using StreamHandle = uintptr_t;

// A thread's own default stream (CU_STREAM_PER_THREAD) under a name no other thread's has: the
// driver knows it by one handle, which means another stream on each thread.
constexpr StreamHandle kThreadStream = StreamHandle{1} << 62;
constexpr bool is_thread_stream(StreamHandle s) { return (s & kThreadStream) != 0; }
StreamHandle this_thread_stream();
// A stream as callers and the driver name it, and back; the legacy stream has one name, 0.
constexpr StreamHandle kLegacyHandle = 1, kPerThreadHandle = 2;
inline StreamHandle given_name(StreamHandle s) { return is_thread_stream(s) ? kPerThreadHandle : s; }
inline StreamHandle default_stream(StreamHandle given) {
  return given == kPerThreadHandle ? this_thread_stream() : 0;
}

// A driver's answer; 0 is success.
struct Status {
  int code = 0;
  bool ok() const { return code == 0; }
  bool out_of_memory() const;
  bool not_ready() const;
  bool stream_gone() const;  // destroyed, or its context is
};

// The calls whose number and cost decide what stitching costs.
enum class Call {
  kReserve,
  kCreate,
  kMap,
  kAccess,
  kUnmap,
  kRelease,
  kFree,
  kRecord,
  kWait,
  kCount
};
constexpr size_t kCallKinds = static_cast<size_t>(Call::kCount);
const char* call_name(Call call);

namespace driver {
struct Table;
}

class Driver;

// Makes a device's primary context current for one scope (a thread may have none, or another's),
// and the thread's capture mode relaxed, so that no call in it invalidates a capture under way
// elsewhere.
class DeviceScope {
 public:
  DeviceScope(Driver& driver, int device);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;
  Status status() const { return status_; }

 private:
  Driver& driver_;
  Status status_;
  bool pushed_ = false;
  bool relaxed_ = false;
  int mode_ = 0;  // the thread's capture mode before
};

class Driver {
 public:
  // Opens "cuda", "sim[:preset]" or the path of a library that exports the cu* symbols, and
  // initialises it. Throws Error (GLAKE_DRIVER_ABSENT, GLAKE_INVALID_OPTION, GLAKE_DRIVER_ERROR).
  static std::unique_ptr<Driver> open(const std::string& choice);
  ~Driver();

  const std::string& path() const { return path_; }
  int device_count() const { return device_count_; }
  std::string describe(Status status) const;

  // Devices. attach() retains the primary context; detach() gives it back.
  Status attach(int device);
  Status detach(int device);
  Status total_memory(int device, Bytes* bytes);
  Status granularity(int device, Bytes* bytes);
  Status vmm_supported(int device, bool* yes);
  Status can_access_peer(int device, int peer, bool* yes);
  Status synchronize(int device);

  // Virtual memory management; a DeviceScope must be open on the calling thread.
  Status reserve(Bytes bytes, Address* base);
  Status free_range(Address base, Bytes bytes);
  Status create(int device, Handle* handle);
  Status release(Handle handle);
  Status map(Address at, Handle handle);
  Status unmap(Address at, Bytes bytes);
  Status set_access(Address at, Bytes bytes, const std::vector<int>& devices);
  Status memory_info(Bytes* free, Bytes* total);

  // Streams and events, in `device`'s primary context.
  Status create_event(int device, EventId* event);
  Status destroy_event(EventId event);
  Status record(int device, EventId event, StreamHandle stream);
  Status query(EventId event);
  Status wait_host(EventId event);
  Status wait_stream(int device, StreamHandle stream, EventId event);
  Status is_capturing(int device, StreamHandle stream, bool* yes);
  // A number no other stream of the process ever has; 0 where the driver does not tell.
  Status stream_number(int device, StreamHandle stream, uint64_t* number);

  uint64_t calls(Call call) const { return calls_[static_cast<size_t>(call)].load(); }
  uint64_t memory_calls() const;  // the six memory-management calls together

 private:
  friend class DeviceScope;
  Driver();
  void count(Call call) {
    calls_[static_cast<size_t>(call)].fetch_add(1, std::memory_order_relaxed);
  }

  std::unique_ptr<driver::Table> table_;
  std::string path_;
  int device_count_ = 0;
  std::vector<void*> contexts_;
  std::array<std::atomic<uint64_t>, kCallKinds> calls_{};
};

}  // namespace glake

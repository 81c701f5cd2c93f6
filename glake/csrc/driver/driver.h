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

// A driver's answer; 0 is success.
struct Status {
  int code = 0;
  bool ok() const { return code == 0; }
  bool out_of_memory() const;
  bool not_ready() const;
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

  // Contents, in stream order, and pinned host memory; a DeviceScope must be open.
  Status memory_info(Bytes* free, Bytes* total);
  Status allocate_host(Bytes bytes, void** base);
  Status free_host(void* base);
  Status fill(Address at, uint8_t value, Bytes bytes, StreamHandle stream);
  Status copy_to_host(void* host, Address from, Bytes bytes, StreamHandle stream);

  // Streams and events, in `device`'s primary context.
  Status create_event(int device, EventId* event);
  Status destroy_event(EventId event);
  Status record(int device, EventId event, StreamHandle stream);
  Status query(EventId event);
  Status wait_host(EventId event);
  Status wait_stream(int device, StreamHandle stream, EventId event);
  Status is_capturing(int device, StreamHandle stream, bool* yes);

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

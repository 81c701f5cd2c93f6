// The driver as the core sees it: plain values, a Status for every call, counts of what was asked.
// Nothing above this folder names a cu* function or type.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/types.h"
#include "driver/stream_lives.h"

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
inline StreamHandle given_name(StreamHandle s) {
  return is_thread_stream(s) ? kPerThreadHandle : s;
}
inline StreamHandle default_stream(StreamHandle given) {
  return given == kPerThreadHandle ? this_thread_stream() : 0;
}
// The stream a caller of the C interface names: NULL and CU_STREAM_LEGACY are one,
// CU_STREAM_PER_THREAD is the calling thread's.
inline StreamHandle stream_of(void* stream) {
  const auto given = reinterpret_cast<StreamHandle>(stream);
  return given - 1 > 1 ? given : default_stream(given);
}

// A driver's answer; 0 is success.
struct Status {
  int code = 0;
  bool ok() const { return code == 0; }
  static Status no_memory();
  static Status unready();  // of which not_ready() holds
  bool out_of_memory() const;
  bool not_ready() const;
  bool stream_gone() const;  // destroyed, or its context is
  bool not_supported() const;
  bool invalid_value() const;
};

// How physical memory of a device is created, which is fixed at create: exportable as a file
// descriptor, and reachable by a network card (GPUDirect RDMA).
struct MemoryTraits {
  bool shareable = false;
  bool rdma_capable = false;
};
using DeviceUuid = std::array<uint8_t, 16>;
using LegacyHandle = std::array<uint8_t, 64>;  // CUipcMemHandle

// A kernel of a loaded module.
struct Kernel {
  uintptr_t module = 0, function = 0;
};

// What the driver knows of an address.
struct PointerFacts {
  enum class Kind { kUnregistered, kHost, kDevice, kManaged };
  Kind kind = Kind::kUnregistered;  // kHost: pinned; kUnregistered: pageable, or not ours
  int device = -1;                  // kDevice, kManaged: whose memory it is
  Address base = 0;                 // of the driver's own range around it; 0: not told
  Bytes size = 0;
  bool read_only = false;  // to the device of the DeviceScope it was asked in
};

// Nodes of host memory, where it is no single one.
constexpr int kSpreadNode = -1;   // over several
constexpr int kUnknownNode = -2;  // nothing resident yet, or the system does not tell

constexpr uint64_t kNoTimeout = UINT64_MAX;

// When something should be over, on the driver's clock. A thread that waits for it asks without a
// sleep from `from_ns` until `until_ns`, and sleeps before and after. All 0: nothing is known.
struct ExpectedEnd {
  uint64_t at_ns = 0, from_ns = 0, until_ns = 0;
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

class Driver {
 public:
  // Opens "cuda", "sim[:preset]" or the path of a library that exports the cu* symbols, and
  // initialises it. Throws Error (GLAKE_DRIVER_ABSENT, GLAKE_INVALID_OPTION, GLAKE_DRIVER_ERROR).
  static std::unique_ptr<Driver> open(const std::string& choice);
  ~Driver();

  const std::string& path() const { return path_; }
  int device_count() const { return device_count_; }
  std::string describe(Status status) const;
  // Whether no call on its GPU works from then on.
  static bool ends_context(Status status);

  // Devices. attach() retains the primary context, once more each time; detach() gives it back.
  Status attach(int device);
  Status detach(int device);
  // The device of the calling thread's context, else the first whose primary context is alive, else
  // 0: work that could be any device's then makes no context where there was none.
  int device_in_use();
  Status total_memory(int device, Bytes* bytes);
  Status granularity(int device, Bytes* bytes);
  Status vmm_supported(int device, bool* yes);
  Status can_access_peer(int device, int peer, bool* yes);
  Status synchronize(int device);
  // All zero where the driver has no call for it.
  Status uuid(int device, DeviceUuid* uuid);
  // Asks what physical memory of the device can be created with. create() gives up what the driver
  // then refuses as not supported, for good.
  Status choose_traits(int device);
  MemoryTraits traits(int device) const;

  // Virtual memory management; a DeviceScope must be open on the calling thread.
  Status reserve(Bytes bytes, Address* base);
  Status free_range(Address base, Bytes bytes);
  Status create(int device, Handle* handle, Bytes bytes = kGranule);
  Status release(Handle handle);
  Status map(Address at, Handle handle, Bytes bytes = kGranule);
  Status unmap(Address at, Bytes bytes);
  Status set_access(Address at, Bytes bytes, const std::vector<int>& devices);
  Status memory_info(Bytes* free, Bytes* total);
  // Headroom: how much of a device's memory stays free for others than glake (0: nothing), and how
  // much may then be created, which asks the driver only where there is headroom.
  void set_headroom(int device, Bytes bytes) { headroom_[static_cast<size_t>(device)] = bytes; }
  Bytes headroom(int device) const { return headroom_[static_cast<size_t>(device)].load(); }
  Bytes creatable(int device);

  // Memory of one driver call, and what crosses processes; a DeviceScope must be open. Those that
  // make something throw Error(GLAKE_DRIVER_ABSENT) where the driver lacks the call.
  Status export_fd(Handle handle, int* fd);
  Status import_fd(int fd, Handle* handle);
  Status allocate_legacy(Bytes bytes, Address* base);
  Status free_legacy(Address base);
  Status legacy_handle(Address base, LegacyHandle* handle);
  Status open_legacy(const LegacyHandle& handle, Address* base);
  Status close_legacy(Address base);
  Status allocate_host(Bytes bytes, void** base);
  Status free_host(void* base);

  // Contents, in stream order; a DeviceScope must be open.
  Status fill(Address at, uint8_t value, Bytes bytes, StreamHandle stream);
  Status copy_to_host(void* host, Address from, Bytes bytes, StreamHandle stream);

  // Streams and events, in `device`'s primary context.
  // `sleeping`: who waits for it without a deadline sleeps instead of spinning.
  Status create_event(int device, EventId* event, bool sleeping = false);
  Status destroy_event(EventId event);
  Status record(int device, EventId event, StreamHandle stream);
  Status query(EventId event);
  // Events that keep the time, and what passed between two that are done, of one device.
  Status create_timer(int device, EventId* event);
  Status elapsed_ns(EventId start, EventId end, uint64_t* ns);
  Status wait_host(EventId event);
  Status wait_stream(int device, StreamHandle stream, EventId event);
  Status is_capturing(int device, StreamHandle stream, bool* yes);
  // A number no other stream of the process ever has; 0 where the driver does not tell.
  Status stream_number(int device, StreamHandle stream, uint64_t* number);

  // Streams of one's own, and copies (copies.cpp). A DeviceScope must be open, except where a
  // device is given. They are not_supported() where the driver lacks the call.
  Status create_stream(StreamHandle* stream);  // waits for no other stream, nor others for it
  Status destroy_stream(StreamHandle stream);
  Status stream_idle(int device, StreamHandle stream, bool* idle);
  Status synchronize_stream(int device, StreamHandle stream);
  // Between any two of device memory and pinned host memory. Pageable memory is copied as well, but
  // may make the call wait.
  Status copy(Address dst, Address src, Bytes bytes, StreamHandle stream);
  Status copy_peer(Address dst, int dst_device, Address src, int src_device, Bytes bytes,
                   StreamHandle stream);
  Status copy_2d(Address dst, Bytes dst_pitch, Address src, Bytes src_pitch, Bytes width,
                 Bytes rows, StreamHandle stream);
  // In no order among themselves; not on the legacy stream. The lists are read alone.
  Status copy_batch(Address* dsts, Address* srcs, Bytes* sizes, size_t count, StreamHandle stream);
  bool has_batches() const;
  static Status unsupported();  // what calls answer that the driver lacks
  // `function` makes no driver call and takes no lock that a thread in the driver may hold: under
  // virtual time it runs on any thread that waits or asks there.
  Status host_function(int device, StreamHandle stream, void (*function)(void*), void* data);
  Status write_value(int device, StreamHandle stream, Address at, uint32_t value);
  // Holds the stream until the word at `at` is `value` or beyond (as a signed difference).
  Status wait_value(int device, StreamHandle stream, Address at, uint32_t value);

  // Kernels (kernels.cpp): a function of the PTX text `image`, which the driver compiles for the
  // current device. not_supported() where it lacks the calls, cannot compile the text, or where the
  // device does not reach pinned host memory at the host's own addresses. A DeviceScope must be
  // open.
  Status load_kernel(int device, const char* image, const char* name, Kernel* kernel);
  Status unload_kernel(const Kernel& kernel);
  Status launch(const Kernel& kernel, unsigned groups, unsigned threads, void** arguments,
                StreamHandle stream);

  // Host memory and addresses; a DeviceScope must be open, except for host_node() and
  // enable_peer().
  Status register_host(void* base, Bytes bytes);
  Status unregister_host(void* base);
  Status device_pointer(void* host, Address* address);
  // `access`: whether it may only be read is asked, too.
  Status pointer_facts(Address address, PointerFacts* facts, bool access = false);
  // Whether the driver says that kernels of the DeviceScope's device may write there.
  bool accessible(Address address);
  // The NUMA node of host memory by samples of its pages; kSpreadNode, kUnknownNode. With `groups`
  // (a number for each node, -1 or none: elsewhere), the group of nodes that it is in.
  Status host_node(const void* base, Bytes bytes, int* node,
                   const std::vector<int>& groups = {}) const;
  // Puts fresh pages of the caller's on these nodes, spread over them, and makes them resident. Not
  // ok: they are where the system wants them.
  Status place_host(void* base, Bytes bytes, const std::vector<int>& nodes) const;
  Status enable_peer(int device, int peer);  // both attached; enabled already is fine

  // Time (clock.cpp). A driver that keeps virtual time must know which threads are at work; with
  // any other this is the steady clock, polling with short sleeps, and nothing.
  uint64_t now_ns() const;
  // not_ready() when `timeout_ns` have passed first.
  Status wait_event(EventId event, uint64_t timeout_ns, const ExpectedEnd& expected = {});
  // Until any of them has happened or failed; which, wait_event() says at once. `expected_ns`: when
  // that should be, on this clock; until then it asks seldom.
  Status wait_any(const std::vector<EventId>& events, uint64_t timeout_ns,
                  uint64_t expected_ns = 0);
  // `count` threads are about to call thread_at_work(true): virtual time stands still until they
  // have. A negative count takes that back. May be called in a host function.
  void expect_threads(int count);
  // This thread submits work: virtual time moves only while every such thread waits in the driver.
  // Threads that were expected and those whose waits end at the same time go on one after the
  // other, the former by `rank`, so that a run can be repeated exactly.
  void thread_at_work(bool at_work, int rank = 0);

  // Which streams may be asked about: the same for each driver of the process's life.
  static StreamLives& streams() { return StreamLives::of_process(); }

  uint64_t calls(Call call) const { return calls_[static_cast<size_t>(call)].load(); }
  uint64_t memory_calls() const;  // the six memory-management calls together

 private:
  friend class DeviceScope;
  friend class OutsideScope;
  friend class RelaxedScope;
  Driver();
  void need(bool present, const char* name) const;
  // Waits with a deadline ask again and again, with sleeps between.
  bool polls() const;
  template <class Question>
  Status poll(uint64_t timeout_ns, ExpectedEnd expected, Question&& ask) const;
  void sleep(uint64_t ns) const;
  void count(Call call) {
    calls_[static_cast<size_t>(call)].fetch_add(1, std::memory_order_relaxed);
  }

  std::unique_ptr<driver::Table> table_;
  std::string path_;
  int device_count_ = 0;
  std::mutex attach_mutex_;  // of the contexts' counts
  std::vector<void*> contexts_;
  std::vector<int> attached_;                       // times each context is retained
  std::unique_ptr<std::atomic<Bytes>[]> headroom_;  // by device
  std::unique_ptr<std::atomic<uint8_t>[]> traits_;  // bits: kShareable, kRdma
  std::array<std::atomic<uint64_t>, kCallKinds> calls_{};
};

}  // namespace glake

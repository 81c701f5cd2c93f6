// The driver as the core sees it: plain values, a Status for every call, and counts of the calls.
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

using Handle = uint64_t;    // physical memory, mostly one granule
using EventId = uintptr_t;  // a driver event
using StreamHandle = uintptr_t;

// A thread's own default stream (CU_STREAM_PER_THREAD). The driver has one handle for it, which
// means another stream on each thread. So glake gives the stream of each thread a name of its own.
constexpr StreamHandle kThreadStream = StreamHandle{1} << 62;
constexpr bool is_thread_stream(StreamHandle s) { return (s & kThreadStream) != 0; }
StreamHandle this_thread_stream();
// given_name() translates glake's name of a stream into the one that callers and the driver use.
// default_stream() translates the other way, for a default stream. The legacy stream has one name,
// 0.
constexpr StreamHandle kLegacyHandle = 1, kPerThreadHandle = 2;
inline StreamHandle given_name(StreamHandle s) {
  return is_thread_stream(s) ? kPerThreadHandle : s;
}
inline StreamHandle default_stream(StreamHandle given) {
  return given == kPerThreadHandle ? this_thread_stream() : 0;
}
// The stream that a caller of the C interface names. NULL and CU_STREAM_LEGACY are the same stream,
// CU_STREAM_PER_THREAD is that of the calling thread.
inline StreamHandle stream_of(void* stream) {
  const auto given = reinterpret_cast<StreamHandle>(stream);
  return given - 1 > 1 ? given : default_stream(given);
}

struct StreamKey {
  int device = -1;
  StreamHandle stream = 0;
  bool operator==(const StreamKey& other) const {
    return device == other.device && stream == other.stream;
  }
  bool operator<(const StreamKey& other) const {
    return device != other.device ? device < other.device : stream < other.stream;
  }
};

// A driver's answer; 0 is success.
struct Status {
  int code = 0;
  bool ok() const { return code == 0; }
  static Status no_memory();
  static Status unready();    // a status for which not_ready() is true
  static Status capturing();  // what may not be done while a stream is being captured
  bool out_of_memory() const;
  bool not_ready() const;
  bool stream_gone() const;  // the stream or its context is destroyed
  bool not_supported() const;
  bool invalid_value() const;
};

// Properties of a device's physical memory that are fixed when it is created. They say whether it
// can be exported as a file descriptor, and whether a network card can reach it (GPUDirect RDMA).
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
  // kHost: pinned; kUnregistered: pageable, or unknown to this driver.
  Kind kind = Kind::kUnregistered;
  int device = -1;   // kDevice, kManaged: the device that the memory belongs to
  Address base = 0;  // of the driver's allocation around it; 0: not known
  Bytes size = 0;
  bool read_only = false;  // the device of the caller's DeviceScope may not write
};

// Results for host memory that is not on one node.
constexpr int kSpreadNode = -1;   // on several nodes
constexpr int kUnknownNode = -2;  // no page is resident yet, or the system does not tell

constexpr uint64_t kNoTimeout = UINT64_MAX;

// When something should be over, on the driver's clock. A thread that waits for it polls without a
// sleep from `from_ns` until `until_ns`, and sleeps before and after. If `until_ns` is 0, the
// waiting thread itself chooses both around `at_ns`. All are 0 if nothing is known.
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
  // Whether the status says that no later call on its GPU works.
  static bool ends_context(Status status);

  // Devices. Each attach() retains the primary context once; detach() releases it once.
  Status attach(int device);
  Status detach(int device);
  // The device for work that any device could do, chosen so that the work makes no new context. It
  // is the device of the calling thread's context, or else the first device whose primary context
  // is alive, or else 0.
  int device_in_use();
  Status total_memory(int device, Bytes* bytes);
  Status granularity(int device, Bytes* bytes);
  Status vmm_supported(int device, bool* yes);
  Status can_access_peer(int device, int peer, bool* yes);
  Status synchronize(int device);
  Status synchronize_context(void* context);  // ok, too, if the context has ended
  // The uuid is all zero where the driver has no call for it.
  Status uuid(int device, DeviceUuid* uuid);
  // Asks the driver with which traits the device's physical memory can be created. If the driver
  // later refuses a trait as not supported, create() drops the trait for good.
  Status choose_traits(int device);
  MemoryTraits traits(int device) const;

  // Virtual memory management; a DeviceScope must be open on the calling thread.
  Status reserve(Bytes bytes, Address* base);
  Status free_range(Address base, Bytes bytes);
  Status create(int device, Handle* handle, Bytes bytes = kGranule);
  Status release(Handle handle);
  Status map(Address at, Handle handle, Bytes bytes = kGranule);
  Status unmap(Address at, Bytes bytes);
  // The devices may read and write there, or only read.
  Status set_access(Address at, Bytes bytes, const std::vector<int>& devices,
                    bool read_only = false);
  Status memory_info(Bytes* free, Bytes* total);
  // Headroom is how much of a device's memory stays free for others than glake; 0 is none.
  // creatable() says how much may still be created. It asks the driver only where there is
  // headroom.
  void set_headroom(int device, Bytes bytes) { headroom_[static_cast<size_t>(device)] = bytes; }
  Bytes headroom(int device) const { return headroom_[static_cast<size_t>(device)].load(); }
  Bytes creatable(int device);

  // Memory that one driver call allocates, and memory that other processes share. A DeviceScope
  // must be open. Calls that make something throw Error (GLAKE_DRIVER_ABSENT) if the driver lacks
  // the function.
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
  // `sleeping`: a thread that waits for the event without a deadline sleeps instead of spinning.
  Status create_event(int device, EventId* event, bool sleeping = false);
  Status destroy_event(EventId event);
  Status record(int device, EventId event, StreamHandle stream);
  Status query(EventId event);
  // Timers are events that keep the time. elapsed_ns() returns the time between two completed
  // timers of one device.
  Status create_timer(int device, EventId* event);
  Status elapsed_ns(EventId start, EventId end, uint64_t* ns);
  Status wait_host(EventId event);
  Status wait_stream(int device, StreamHandle stream, EventId event);
  Status is_capturing(int device, StreamHandle stream, bool* yes);
  // A number that no other stream of the process ever has; 0 if the driver has no such call.
  Status stream_number(int device, StreamHandle stream, uint64_t* number);
  // The stream's context, if it is another one than the device's primary one; else null.
  void* other_context(int device, StreamHandle stream);

  // Glake's own streams, and copies (copies.cpp). A DeviceScope must be open for the calls that are
  // given no device. If the driver lacks a function, the status says not_supported().
  Status create_stream(StreamHandle* stream);  // never waits for the legacy stream
  Status destroy_stream(StreamHandle stream);
  Status stream_idle(int device, StreamHandle stream, bool* idle);
  Status synchronize_stream(int device, StreamHandle stream);
  // Copies between device memory and pinned host memory, in every direction. Pageable memory is
  // copied as well, but may make the call wait.
  Status copy(Address dst, Address src, Bytes bytes, StreamHandle stream);
  Status copy_peer(Address dst, int dst_device, Address src, int src_device, Bytes bytes,
                   StreamHandle stream);
  // Rows of equal length at equal distances: of host memory and a device's, or from one device to
  // another. No distance is above kMostPitch.
  struct Rows {
    Address dst = 0, src = 0;
    Bytes dst_pitch = 0, src_pitch = 0, width = 0, count = 0;
  };
  static constexpr Bytes kMostPitch = INT32_MAX;  // of any device
  Status copy_rows(const Rows& rows, StreamHandle stream);
  Status copy_peer_rows(const Rows& rows, int dst_device, int src_device, StreamHandle stream);
  bool has_rows() const;
  // The copies have no order among themselves. The stream must not be the legacy one. The lists are
  // only read.
  Status copy_batch(Address* dsts, Address* srcs, Bytes* sizes, size_t count, StreamHandle stream);
  bool has_batches() const;
  static Status unsupported();  // the answer of calls that the driver lacks
  // `function` must make no driver call, and must take no lock that a thread in the driver may
  // hold. Under virtual time it runs on any thread that waits or polls in the driver.
  Status host_function(int device, StreamHandle stream, void (*function)(void*), void* data);
  Status write_value(int device, StreamHandle stream, Address at, uint32_t value);
  // Holds the stream until the word at `at` reaches `value` (by a signed difference).
  Status wait_value(int device, StreamHandle stream, Address at, uint32_t value);

  // Kernels (kernels.cpp). A kernel is a function of the PTX text `image`, which the driver
  // compiles for the current device. The status says not_supported() if the driver lacks the
  // functions or cannot compile the text, or if the device does not reach pinned host memory at the
  // host's own addresses. A DeviceScope must be open.
  Status load_kernel(int device, const char* image, const char* name, Kernel* kernel);
  Status unload_kernel(const Kernel& kernel);
  Status launch(const Kernel& kernel, unsigned groups, unsigned threads, void** arguments,
                StreamHandle stream);

  // Host memory and addresses; a DeviceScope must be open, except for host_node() and
  // enable_peer().
  Status register_host(void* base, Bytes bytes);
  Status unregister_host(void* base);
  Status device_pointer(void* host, Address* address);
  // `access`: also fills in `read_only`, by another driver call.
  Status pointer_facts(Address address, PointerFacts* facts, bool access = false);
  // Whether a GPU reaches the device memory there once its context has peer access. Mapped memory
  // and memory of pools have access rights of their own.
  bool peers_reach(Address address);
  // Whether the driver says that kernels of the DeviceScope's device may write there.
  bool accessible(Address address);
  // The NUMA node of host memory, by samples of its pages, or kSpreadNode or kUnknownNode. `groups`
  // has the number of each node's group. Nodes beyond its end, or with -1, are in no group. With
  // `groups`, `node` becomes the number of the group that the memory is in.
  Status host_node(const void* base, Bytes bytes, int* node,
                   const std::vector<int>& groups = {}) const;
  // Puts a caller's fresh pages on these nodes, spread over them, and makes them resident. If the
  // status is not ok, the pages are where the system wants them.
  Status place_host(void* base, Bytes bytes, const std::vector<int>& nodes) const;
  Status enable_peer(int device, int peer);  // both must be attached; ok if it was enabled before

  // Time (clock.cpp). A driver that keeps virtual time must know which threads are at work. With
  // any other driver these calls use the steady clock and poll with short sleeps, and the calls
  // about threads do nothing.
  uint64_t now_ns() const;
  void sleep(uint64_t ns) const;
  // Returns not_ready() if `timeout_ns` pass first.
  Status wait_event(EventId event, uint64_t timeout_ns, const ExpectedEnd& expected = {});
  // Waits until any of the events has happened or failed; wait_event() then says at once which.
  // `expected_ns` is when that should be, by now_ns(). Until then it polls seldom.
  Status wait_any(const std::vector<EventId>& events, uint64_t timeout_ns,
                  uint64_t expected_ns = 0);
  // Says that `count` threads will call thread_at_work(true). Virtual time stands still until they
  // have. A negative count takes that back. A host function may call this.
  void expect_threads(int count);
  // Says that this thread submits work. Virtual time moves only while every such thread waits in
  // the driver. Threads that were expected go on one after the other by `rank`. So do threads whose
  // waits end at the same time. Thus a run can be repeated exactly.
  void thread_at_work(bool at_work, int rank = 0);

  // Which streams may be asked about. It is the same object for all drivers of the process.
  static StreamLives& streams() { return StreamLives::of_process(); }

  uint64_t calls(Call call) const { return calls_[static_cast<size_t>(call)].load(); }
  uint64_t memory_calls() const;  // the sum of kReserve to kFree

 private:
  friend class DeviceScope;
  friend class OutsideScope;
  friend class RelaxedScope;
  Driver();
  void need(bool present, const char* name) const;
  // Whether waits with a deadline poll, with sleeps between.
  bool polls() const;
  template <class Question>
  Status poll(uint64_t timeout_ns, ExpectedEnd expected, Question&& ask) const;
  void count(Call call) {
    calls_[static_cast<size_t>(call)].fetch_add(1, std::memory_order_relaxed);
  }

  std::unique_ptr<driver::Table> table_;
  std::string path_;
  int device_count_ = 0;
  void* context_of(int device);
  std::mutex attach_mutex_;  // guards changes of contexts_ and attached_
  std::vector<void*> contexts_;
  std::vector<int> attached_;                       // how many times each context is retained
  std::unique_ptr<std::atomic<Bytes>[]> headroom_;  // by device
  std::unique_ptr<std::atomic<uint8_t>[]> traits_;  // bits: kShareable, kRdma
  std::array<std::atomic<uint64_t>, kCallKinds> calls_{};
};

}  // namespace glake

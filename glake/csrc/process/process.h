// The process's one allocator: options, the driver, a DeviceAllocator per device in use, and each
// thread's caches. Never destroyed: a process that exits makes no driver call.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "heap/device_allocator.h"
#include "ipc/ipc.h"
#include "memory/host_pool.h"
#include "watch/trace_writer.h"

namespace glake {

namespace transfer {
class Engine;
}

// Where a paused region's bytes go: GLAKE_REGION_*.
struct PauseTo {
  int kind;
  std::string folder;
};

// What an allocation or free must do besides: a bit each. Almost always none, so that the hot path
// asks one question.
enum AllocHook : uint32_t {
  kTraced = 1,
  kWatched = 2,  // watch/watch.h
  kDebug = 4,    // debug/debug_device.h
  kKinds = 8,    // some blocks come from the escape pool, or from a thread's own pool
  kUnread = 16,  // the options, which may ask for the others, have not been read yet
  kCopied = 32,  // copies of no stream's order are under way: what they use must not be freed
};

class Process {
 public:
  static constexpr int kMaxDevices = 64;
  static Process& instance() {
    Process* process = instance_.load(std::memory_order_acquire);
    return process != nullptr ? *process : start();
  }

  // The process if allocations and frees do nothing besides, else null: the hot path's one
  // question.
  static Process* plain() {
    Process* process = instance_.load(std::memory_order_acquire);
    return process != nullptr && !process->hooked() ? process : nullptr;
  }
  // Whether calls from signal handlers are refused: with the option `debug`, and until it is read.
  static bool checked() {
    Process* process = instance_.load(std::memory_order_acquire);
    return process == nullptr || process->hooked(kDebug) || process->hooked(kUnread);
  }

  // The calling thread's cache on a device; opens driver and device at first use. Throws Error.
  ThreadCache& cache(int device) {
    auto* thread = this_thread_;
    if (thread != nullptr && static_cast<unsigned>(device) < kMaxDevices &&
        thread->generation == generation_.load(std::memory_order_acquire) &&
        thread->caches[device] != nullptr && !forked_.load(std::memory_order_relaxed)) {
      return *thread->caches[device];
    }
    return open_cache(device);
  }
  // The block a caller holds at `ptr` (take: the block that starts there, moved from live to
  // freed). Throws Error.
  Block& block(void* ptr, bool take);
  // Bytes the caller of the live block at `ptr` asked for: its guards are not among them.
  Bytes requested(void* ptr, const Block& b) const;
  CallerBlock caller_block(void* ptr, const Block& b) const;
  Owned owned(Address at);  // the live block that holds the byte at `at`
  DeviceAllocator& device(int device) { return *cache(device).device(); }

  // Calls visit(DeviceAllocator&) for each device in use; none may end meanwhile.
  template <typename Visit>
  void for_each_device(Visit&& visit) {
    std::lock_guard<std::mutex> guard(mutex_);
    for (auto& device : devices_) {
      if (device != nullptr) visit(*device);
    }
  }
  // Reads the options, if that has not been done. Throws Error.
  void prepare();
  void check_usable() const;  // throws Error in a forked child

  void configure(const std::string& key, const std::string& value);
  std::string options();
  int device_count();
  const char* driver_path();
  void shutdown();
  // Ends a caller's pin; the block may be gone. Throws Error if `ptr` has none.
  void unpin(void* ptr);
  HostPool& host();
  Ipc& ipc();
  void settle_ipc();  // what the driver refused to take back of other processes' blocks
  // The transfer engine (csrc/transfer/); see TransferUse. Throw Error.
  void open_transfer(const std::string& topology, const std::string& name);
  void close_transfer();
  int used_device();              // the first device in use here; 0 if none is
  void refuse_copied(void* ptr);  // throws Error if such a copy uses the block
  void refuse_copied(void* ptr, Bytes bytes);

  // What an allocation of the calling thread is: its own kind if it has set one, else by the option
  // `contiguous` (`by_size`). set_kind() returns the kind before.
  int kind_of(Bytes bytes, bool* by_size) const;
  int set_kind(int kind);
  // Where the calling thread's later blocks come from: a private pool, or {0, 0}. Returns the pool
  // before.
  static PoolId pool_of_thread();
  PoolId set_pool(PoolId pool);

  // Of a device, or of all in use and to come: as DeviceAllocator has it. Throw Error.
  static constexpr int kAllDevices = -1;
  Bytes set_headroom(int device, Bytes bytes);
  Bytes headroom(int device);

  // Regions (heap/regions.h). Throw Error.
  void pause_region(int device, PoolId id, const PauseTo& to);
  void resume_region(int device, PoolId id, bool verify);
  void set_region_budget(PoolId id, Bytes bytes);
  std::string regions();

  // One more after each shutdown: what names something of before is void.
  uint64_t generation() const { return generation_.load(std::memory_order_acquire); }

  bool hooked() const { return hooks_.load(std::memory_order_acquire) != 0; }
  bool hooked(AllocHook d) const { return (hooks_.load(std::memory_order_acquire) & d) != 0; }
  void set_hook(AllocHook d, bool on) {
    if (on) {
      hooks_.fetch_or(d);
    } else {
      hooks_.fetch_and(~static_cast<uint32_t>(d));
    }
  }

  TraceWriter& trace() { return trace_; }
  void start_trace(const std::string& path);  // neither in a forked child
  void stop_trace();

 private:
  friend class TransferUse;
  // A thread's caches, one per device it has used.
  struct Thread {
    uint64_t generation = 0;
    StreamHandle stream = 0;  // its own default stream
    ThreadCache* caches[kMaxDevices] = {};
  };
  // A plain pointer in the static block: one instruction to read, also in a dlopened library.
  static __attribute__((tls_model("initial-exec"))) __thread Thread* this_thread_;
  struct ThreadKind;
  Process();
  Block* escaped(Address ptr);
  void use_kinds(int step);
  static Process& start();
  static std::atomic<Process*> instance_;
  std::vector<int> used_devices();
  Options& read_options();
  void use_debug();
  Driver& open_driver();
  ThreadCache& open_cache(int device);
  static void thread_ended(void* thread);
  static void before_fork();
  static void in_parent();
  static void in_child();

  std::mutex mutex_;  // of everything below; not taken on the hot path
  bool options_read_ = false;
  Options options_;
  std::string driver_path_;
  std::unique_ptr<Driver> driver_;
  bool driver_used_ = false;  // ever: a forked child can then use no driver
  std::unique_ptr<DeviceAllocator> devices_[kMaxDevices];
  TraceWriter trace_;
  std::unique_ptr<HostPool> host_;
  std::unique_ptr<Ipc> ipc_;
  std::mutex transfer_mutex_;  // of opening and closing it; taken before mutex_
  std::unique_ptr<transfer::Engine> transfer_;
  std::atomic<transfer::Engine*> transfer_in_use_{nullptr};
  std::atomic<int> transfer_users_{0};
  int kinds_ = 0;  // threads with a kind or a pool of their own
  // Read on the way of every allocation, set under mutex_.
  std::atomic<Bytes> contiguous_from_{0};
  std::atomic<int> contiguous_kind_{GLAKE_CONTIGUOUS_VMM};
  std::atomic<uint32_t> hooks_{kUnread};
  std::atomic<uint64_t> generation_{1};  // one more after each shutdown: old caches are void
  std::atomic<bool> forked_{false};
};

// Keeps the transfer engine open while a call uses it. Throws Error if it is not open.
class TransferUse {
 public:
  TransferUse();
  ~TransferUse() { Process::instance().transfer_users_.fetch_sub(1); }
  TransferUse(const TransferUse&) = delete;
  TransferUse& operator=(const TransferUse&) = delete;
  transfer::Engine* operator->() const { return engine_; }

 private:
  transfer::Engine* engine_;
};

}  // namespace glake

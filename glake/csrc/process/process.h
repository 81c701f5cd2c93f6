// The process's one allocator. It has the options, the driver, a DeviceAllocator for each device in
// use, and each thread's caches. It is never destroyed, because a process that exits makes no
// driver call.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "heap/device_allocator.h"
#include "ipc/ipc.h"
#include "ipc/neighbour_processes.h"
#include "memory/host_pool.h"
#include "process/hook_flags.h"
#include "process/thread_kinds.h"
#include "process/transfer_host.h"
#include "watch/trace_writer.h"

namespace glake {

class Process {
 public:
  static constexpr int kMaxDevices = 64;
  static Process& instance() {
    Process* process = instance_.load(std::memory_order_acquire);
    return process != nullptr ? *process : start();
  }

  // The process; null if it has not started, or if a hook gives allocations and frees more to do
  // (process/hook_flags.h). The hot path makes no other check.
  static Process* plain() {
    Process* process = instance_.load(std::memory_order_acquire);
    return process != nullptr && !process->hooks_.any() ? process : nullptr;
  }
  // Whether calls from signal handlers are refused. They are refused with the option `debug`, and
  // as long as the options have not been read.
  static bool checked() {
    Process* process = instance_.load(std::memory_order_acquire);
    return process == nullptr || process->hooks_.has(kDebug) || process->hooks_.has(kUnread);
  }

  // The calling thread's cache on a device. The first use opens the driver and the device. Throws
  // Error.
  ThreadCache& cache(int device) {
    auto* thread = this_thread_;
    if (thread != nullptr && static_cast<unsigned>(device) < kMaxDevices &&
        thread->generation == generation_.load(std::memory_order_acquire) &&
        thread->caches[device] != nullptr && !forked_.load(std::memory_order_relaxed)) {
      return *thread->caches[device];
    }
    return open_cache(device);
  }
  // The block that a caller holds at `ptr`. With `take` the block itself must start there, and it
  // is marked as freed. Throws Error.
  Block& block(const void* ptr, bool take);
  CallerBlock caller_block(const void* ptr, const Block& b) const;
  Owned owned(Address at);  // the live block that holds the byte at `at`
  DeviceAllocator& device(int device) { return *cache(device).device(); }

  // Calls visit(DeviceAllocator&) for each device in use. No device may end meanwhile.
  template <typename Visit>
  void for_each_device(Visit&& visit) {
    std::lock_guard<std::mutex> guard(mutex_);
    for (auto& device : devices_) {
      if (device != nullptr) visit(*device);
    }
  }
  // Reads the options if that has not been done yet. Throws Error.
  void prepare();
  void check_usable() const;  // throws Error in a forked child

  void configure(const std::string& key, const std::string& value);
  Options options();
  int device_count();
  const char* driver_path();
  void shutdown();
  // Ends a caller's pin. The block may be freed already. Throws Error if `ptr` is not pinned.
  void unpin(void* ptr);
  Driver& driver();  // opened at first use
  // A caller's stream ends now, or may end at any time. This opens no device.
  void stream_ends(int device, StreamHandle stream, StreamEnd when);
  HostPool& host();
  Ipc& ipc();
  // Tries again to give back blocks of other processes that the driver has refused to take back.
  void settle_ipc();
  TransferHost& transfer() { return transfer_; }

  ThreadKinds& kinds() { return kinds_; }

  // These do what the methods of the same name of Limits do, for one device or for all devices that
  // are or will be in use. They throw Error.
  static constexpr int kAllDevices = -1;
  Bytes set_headroom(int device, Bytes bytes);
  Bytes headroom(int device);

  // The number rises by one at each shutdown, so that what was made before a shutdown can be told
  // apart.
  uint64_t generation() const { return generation_.load(std::memory_order_acquire); }

  HookFlags& hooks() { return hooks_; }

  TraceWriter& trace() { return trace_; }
  // Throws Error, also in a forked child.
  void start_trace(const std::string& path, TraceWriter::Begin begin = TraceWriter::Begin::kNow);
  void stop_trace();
  void end_trace_at_exit() noexcept;

 private:
  // A thread's caches, one for each device that it has used.
  struct Thread {
    uint64_t generation = 0;
    StreamHandle stream = 0;  // its own default stream
    ThreadCache* caches[kMaxDevices] = {};
  };
  // A plain pointer in the static TLS block takes one instruction to read, also in a dlopened
  // library.
  static __attribute__((tls_model("initial-exec"))) __thread Thread* this_thread_;
  Process();
  static Process& start();
  static std::atomic<Process*> instance_;
  Options& read_options();
  Driver& open_driver();
  void use_debug();
  ThreadCache& open_cache(int device);
  static void thread_ended(void* thread);
  struct Fork;

  std::mutex mutex_;  // guards everything below; not taken on the hot path
  bool options_read_ = false;
  Options options_;
  std::string driver_path_;
  std::unique_ptr<Driver> driver_;
  bool driver_used_ = false;  // a driver was opened: a child forked later can use none
  bool fork_child_ = false;
  std::unique_ptr<DeviceAllocator> devices_[kMaxDevices];
  TraceWriter trace_;
  std::unique_ptr<HostPool> host_;
  std::unique_ptr<Ipc> ipc_;
  std::unique_ptr<NeighbourProcesses> neighbours_;  // null: the option `cooperate` is off
  TransferHost transfer_{*this};
  HookFlags hooks_;
  ThreadKinds kinds_{mutex_, hooks_};
  std::atomic<uint64_t> generation_{1};  // rises at each shutdown, which makes older caches void
  std::atomic<bool> forked_{false};
};

}  // namespace glake

// Allocation, free, streams, out of memory, exit.
#include <c10/core/impl/GPUTrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "harness.h"

using namespace testing;

TEST(allocate) {
  DataPtr ptr = allocator()->allocate(1000);
  CHECK(ptr.get() != nullptr);
  CHECK(ptr.get() == ptr.get_context());
  CHECK(ptr.device() == c10::Device(c10::kCUDA, 0));
  CHECK(reinterpret_cast<uintptr_t>(ptr.get()) % 512 == 0);
  CHECK_EQ(live_bytes(), 1000);
  CHECK(allocator()->is_simple_data_ptr(ptr));
  ptr.clear();
  CHECK_EQ(live_bytes(), 0);
  DataPtr none = allocator()->allocate(0);
  CHECK(none.get() == nullptr);
  CHECK(none.device() == c10::Device(c10::kCUDA, 0));
  CHECK(none.get_deleter() == allocator()->raw_deleter());
}

TEST(raw_deleter) {
  c10::DeleterFnPtr deleter = allocator()->raw_deleter();
  CHECK(deleter != nullptr);
  DataPtr ptr = allocator()->allocate(4096);
  CHECK(ptr.get_deleter() == deleter);
  deleter(ptr.release_context());
  CHECK_EQ(live_bytes(), 0);
  deleter(nullptr);
  CHECK(c10::GetAllocator(c10::kCUDA) == allocator());
}

TEST(raw_alloc) {
  void* ptr = allocator()->raw_alloc(5000);
  CHECK(ptr != nullptr);
  CHECK_EQ(live_bytes(), 5000);
  CHECK(allocator()->raw_alloc(0) == nullptr);
  allocator()->raw_delete(ptr);
}

TEST(raw_alloc_with_stream) {
  CUDAStream stream = new_stream();
  void* ptr = allocator()->raw_alloc_with_stream(5000, stream.stream());
  void* known = nullptr;
  CHECK_EQ(glake_block_info(ptr, nullptr, nullptr, &known), 0);
  CHECK(known == stream.stream());
  CHECK(allocator()->raw_alloc_with_stream(0, stream.stream()) == nullptr);
}

TEST(raw_delete) {
  void* ptr = allocator()->raw_alloc(5000);
  allocator()->raw_delete(ptr);
  CHECK_EQ(live_bytes(), 0);
  allocator()->raw_delete(nullptr);
  CHECK(!thrown<c10::Error>([&] { allocator()->raw_delete(ptr); }).empty());
}

TEST(current_stream_and_device) {
  CUDAStream stream = new_stream(1);
  c10::DeviceGuard guard(c10::Device(c10::kCUDA, 1));
  OnStream on(stream);
  DataPtr ptr = allocator()->allocate(2 * kMiB);
  int device = -1;
  void* known = nullptr;
  CHECK_EQ(glake_block_info(ptr.get(), nullptr, &device, &known), 0);
  CHECK_EQ(device, 1);
  CHECK(known == stream.stream());
  CHECK(ptr.device() == c10::Device(c10::kCUDA, 1));
}
OPTIONS(current_stream_and_device, {"devices", "2"});

// A refused free throws nothing, and is counted.
TEST(deleter_never_throws) {
  auto* refused = reinterpret_cast<uint64_t (*)()>(adapter_symbol("glake_adapter_refused_frees"));
  int on_stack = 0;
  allocator()->raw_deleter()(&on_stack);
  allocator()->raw_deleter()(&on_stack);
  CHECK_EQ(refused(), uint64_t{2});
}

static void record_stream(bool through_base) {
  CUDAStream owner = new_stream(), user = new_stream();
  OnStream on(owner);
  void* result = allocator()->raw_alloc_with_stream(8 * kMiB, user.stream());
  DataPtr ptr = allocator()->allocate(8 * kMiB);
  void* before = ptr.get();
  CUDA(cudaMemsetAsync(before, 0x5A, 8 * kMiB, owner.stream()));
  owner.synchronize();
  // `user` reads the block, which simcuda runs as late as is legal.
  CUDA(cudaMemcpyAsync(result, before, 8 * kMiB, cudaMemcpyDeviceToDevice, user.stream()));
  if (through_base) {
    static_cast<c10::DeviceAllocator*>(allocator())->recordStream(ptr, user.unwrap());
  } else {
    allocator()->recordStream(ptr, user);
  }
  ptr.clear();
  DataPtr next = allocator()->allocate(8 * kMiB);
  CUDA(cudaMemsetAsync(next.get(), 0xFF, 8 * kMiB, owner.stream()));
  owner.synchronize();
  user.synchronize();
  CHECK(filled(result, 0x5A, 8 * kMiB));
}
TEST(recordStream) { record_stream(false); }
TEST(recordStream_of_DeviceAllocator) { record_stream(true); }

// The side stream's work is done. So any request gets the block, even if no other block has been
// freed since.
TEST(recordStream_then_synchronised) {
  CUDAStream user = new_stream();
  DataPtr ptr = allocator()->allocate(8 * kMiB);
  void* where = ptr.get();
  CUDA(cudaMemsetAsync(where, 1, 8 * kMiB, user.stream()));
  allocator()->recordStream(ptr, user);
  ptr.clear();
  CUDA(cudaDeviceSynchronize());
  DataPtr next = allocator()->allocate(8 * kMiB);
  CHECK(next.get() == where);
}

// A block whose free has not completed is active, in the statistics as in the snapshot.
TEST(recordStream_on_many) {
  DataPtr ptr = allocator()->allocate(3 * kMiB);
  for (int i = 0; i < 9; ++i) allocator()->recordStream(ptr, new_stream());
  ptr.clear();
  size_t active = 0;
  for (const auto& segment : allocator()->snapshot().segments) active += segment.active_size;
  auto stats = allocator()->getDeviceStats(0);
  CHECK_EQ(active, 3 * kMiB);
  CHECK_EQ(stats.active[0].current, 1);
  CHECK_EQ(stats.active_bytes[0].current, static_cast<int64_t>(active));
  CHECK_EQ(stats.allocation[0].current, 0);
  CHECK_EQ(stats.segment[0].current, 0);  // expandable segments are not counted
}

TEST(recordStream_of_others_memory_is_left_alone) {
  int value = 0;
  DataPtr foreign(&value, c10::Device(c10::kCUDA, 0));
  allocator()->recordStream(foreign, new_stream());
  allocator()->recordStream(DataPtr(), new_stream());
}

TEST(getBaseAllocation) {
  DataPtr ptr = allocator()->allocate(1000);
  size_t bytes = 0;
  CHECK(allocator()->getBaseAllocation(ptr.get(), &bytes) == ptr.get());
  CHECK_EQ(bytes, size_t{1024});
  CHECK(!thrown<c10::Error>([&] { allocator()->getBaseAllocation(&bytes, &bytes); }).empty());
}

TEST(copy_data) {
  DataPtr from = allocator()->allocate(3 * kMiB), to = allocator()->allocate(3 * kMiB);
  std::memset(from.get(), 0x3C, 3 * kMiB);
  std::memset(to.get(), 0, 3 * kMiB);
  allocator()->copy_data(to.get(), from.get(), 3 * kMiB);
  CUDA(cudaDeviceSynchronize());
  CHECK(filled(to.get(), 0x3C, 3 * kMiB));
  DataPtr clone = allocator()->clone(from.get(), 3 * kMiB);
  CHECK(filled(clone.get(), 0x3C, 3 * kMiB));
}

static void copy_between_devices(bool peer_access) {
  CUDAStream stream = new_stream();
  DataPtr from = allocator()->allocate(2 * kMiB);
  c10::DeviceGuard guard(c10::Device(c10::kCUDA, 1));
  DataPtr to = allocator()->allocate(2 * kMiB);
  guard.reset_device(c10::Device(c10::kCUDA, 0));
  std::memset(from.get(), 0x11, 2 * kMiB);
  std::memset(to.get(), 0, 2 * kMiB);
  if (peer_access) {
    allocator()->enablePeerAccess(0, 1);
    allocator()->enablePeerAccess(0, 1);  // a second call does nothing
  }
  simcuda_reset_calls();
  CUDA(
      allocator()->memcpyAsync(to.get(), 1, from.get(), 0, 2 * kMiB, stream.stream(), peer_access));
  stream.synchronize();
  CHECK(filled(to.get(), 0x11, 2 * kMiB));
  CHECK_EQ(violations(), std::string("[]"));
  CHECK_EQ(simcuda_calls("cuMemcpyPeerAsync"), int64_t{peer_access ? 0 : 1});
}
TEST(memcpyAsync) { copy_between_devices(false); }
OPTIONS(memcpyAsync, {"preset", "hgx_h100_h200"});
TEST(enablePeerAccess) { copy_between_devices(true); }
OPTIONS(enablePeerAccess, {"preset", "hgx_h100_h200"});

TEST(memcpyAsync_on_one_device) {
  DataPtr from = allocator()->allocate(kMiB), to = allocator()->allocate(kMiB);
  std::memset(from.get(), 0x22, kMiB);
  std::memset(to.get(), 0, kMiB);
  CUDA(allocator()->memcpyAsync(to.get(), 0, from.get(), 0, kMiB, nullptr, false));
  CUDA(cudaDeviceSynchronize());
  CHECK(filled(to.get(), 0x22, kMiB));
}

TEST(out_of_memory) {
  int called = 0;
  size_t asked = 300 * kMiB;
  allocator()->attachOutOfMemoryObserver(
      [&](int64_t device, size_t bytes, size_t total, size_t free) {
        ++called;
        CHECK_EQ(device, 0);
        CHECK_EQ(bytes, asked);
        CHECK_EQ(total, 256 * kMiB);
        CHECK(free <= total);
        allocator()->snapshot({0, 0}, true);  // torch's own observer does so: no lock is held
      });
  std::string text = thrown<c10::OutOfMemoryError>([] { allocator()->allocate(300 * kMiB); });
  CHECK(has(text, "CUDA out of memory"));
  CHECK(has(text, "300"));
  CHECK(has(text, "unallocated. glake:\n  limit "));  // the core's facts, one in each line
  CHECK_EQ(called, 1);
  CHECK_EQ(stats().ooms, 1);
  DataPtr after = allocator()->allocate(kMiB);
  asked = size_t{1} << 60;
  text = thrown<c10::OutOfMemoryError>([] { allocator()->allocate(size_t{1} << 60); });
  CHECK(has(text, "CUDA out of memory"));
}

static DataPtr* held = nullptr;
struct GiveBack : c10::FreeMemoryCallback {
  bool Execute() override {
    bool had = held != nullptr && *held;
    if (had) held->clear();
    return had;
  }
};
namespace c10 {
REGISTER_FREE_MEMORY_CALLBACK(give_back, ::GiveBack)
}  // namespace c10

TEST(out_of_memory_callbacks) {
  DataPtr large = allocator()->allocate(200 * kMiB);
  held = &large;
  DataPtr next = allocator()->allocate(200 * kMiB);  // fits after the callback's free
  CHECK(!large);
  CHECK(next.get() != nullptr);
  CHECK_EQ(allocator()->getDeviceStats(0).num_ooms, 0);  // the request was served
  held = &next;
  CHECK(!thrown<c10::OutOfMemoryError>([] { allocator()->allocate(300 * kMiB); }).empty());
  CHECK_EQ(allocator()->getDeviceStats(0).num_ooms, 1);  // once, although it was tried twice
  allocator()->resetAccumulatedStats(0);
  CHECK_EQ(allocator()->getDeviceStats(0).num_ooms, 0);
}

TEST(attachOomRejectionObserver) {
  int called = 0;
  allocator()->attachOomRejectionObserver(
      [&](int64_t device, size_t bytes, size_t allocated, size_t total) {
        ++called;
        CHECK_EQ(device, 0);
        CHECK_EQ(bytes, 100 * kMiB);
        CHECK_EQ(allocated, 40 * kMiB);
        CHECK_EQ(total, 256 * kMiB);
      });
  allocator()->setMemoryFraction(0.5, 0);
  DataPtr some = allocator()->allocate(40 * kMiB);
  CHECK(!thrown<c10::OutOfMemoryError>([] { allocator()->allocate(100 * kMiB); }).empty());
  CHECK_EQ(called, 1);
  CHECK_EQ(allocator()->getDeviceStats(0).num_oom_rejections, 1);
}

struct Profiler : c10::MemoryReportingInfoBase {
  void reportMemoryUsage(void*, int64_t bytes, size_t allocated, size_t reserved,
                         c10::Device device) override {
    CHECK(device == c10::Device(c10::kCUDA, 0));
    CHECK(reserved >= allocated);
    sizes.push_back(bytes);
  }
  void reportOutOfMemory(int64_t bytes, size_t, size_t, c10::Device) override { oom = bytes; }
  bool memoryProfilingEnabled() const override { return true; }
  std::vector<int64_t> sizes;
  int64_t oom = 0;
};

TEST(profiler) {
  auto profiler = std::make_shared<Profiler>();
  c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, profiler);
  allocator()->allocate(1000);
  CHECK(profiler->sizes == (std::vector<int64_t>{1024, -1024}));
  CHECK(!thrown<c10::OutOfMemoryError>([] { allocator()->allocate(1000 * kMiB); }).empty());
  CHECK_EQ(profiler->oom, 1000 * static_cast<int64_t>(kMiB));
}

TEST(threads) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      OnStream on(new_stream());
      std::vector<DataPtr> mine;
      unsigned seed = static_cast<unsigned>(t) + 1;
      for (int i = 0; i < 2000; ++i) {
        seed = seed * 1664525 + 1013904223;
        size_t bytes = seed % 5 == 0 ? 1 + seed % (4 * kMiB) : 1 + seed % 20000;
        mine.push_back(allocator()->allocate(bytes));
        auto* at = static_cast<unsigned char*>(mine.back().get());
        at[0] = static_cast<unsigned char>(t);
        if (mine.size() > 8) {
          size_t victim = seed % mine.size();
          CHECK_EQ(int{*static_cast<unsigned char*>(mine[victim].get())}, t);
          mine.erase(mine.begin() + static_cast<std::ptrdiff_t>(victim));
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK_EQ(live_bytes(), 0);
  CHECK_EQ(glake_check(0), 0);
}

// A static destructor frees a block after the adapter's exit handler.
struct Late {
  DataPtr ptr;
};
static Late* late() {
  static Late instance;
  return &instance;
}
TEST(frees_at_exit) {
  late()->ptr = allocator()->allocate(kMiB);
  static DataPtr early = allocator()->allocate(kMiB);
  CHECK(early.get() != nullptr);
}

TEST(fork_child_frees_quietly) {
  DataPtr ptr = allocator()->allocate(kMiB);
  pid_t child = fork();
  if (child == 0) {
    ptr.clear();
    _exit(7);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
}

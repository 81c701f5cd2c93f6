// Tests beside the lock that a driver may have inside (the simulator's option driver_lock). Calls
// that free, unpin or load wait for all work under way, and keep other threads' copies out. So a
// copy whose stream is held until threads have enqueued more would wait for ever. With
// copy_order=enqueued nothing waits for ever.
#include <algorithm>
#include <array>
#include <atomic>
#include <functional>

#include "transfer/run/kernels/copy_blocks_ptx.h"
#include "transfer_play.h"

using test::Buffer;
using test::Call;
using test::kMiB;
using test::kPageable;
using test::kPinned;
using test::Node;

namespace {

constexpr size_t kBytes = 12 * kMiB;

const test::Options kLocked = {{"memory", "512MiB"}, {"driver_lock", "1"}};
const test::Options kEnqueued = {{"copy_order", "enqueued"}};

struct Stream {
  Stream() { CU(cuStreamCreate(&handle, CU_STREAM_NON_BLOCKING)); }
  ~Stream() { test::end_stream(handle); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  CUstream handle = nullptr;
};

// Makes the calls that other libraries make meanwhile, and that glake makes when memory is short.
void disturb(int turn) {
  CUdeviceptr block = 0;
  void* pinned = nullptr;
  CUmodule module = nullptr;
  CUcontext context = nullptr;
  switch (turn % 7) {
    case 0:
      CU(cuMemAlloc(&block, kMiB));
      CU(cuMemFree(block));
      break;
    case 1:
      CU(cuMemHostAlloc(&pinned, 4096, 0));
      CU(cuMemFreeHost(pinned));
      break;
    case 2:
      OK(glake_empty_cache(0));
      break;
    case 3:
      CU(cuModuleLoadData(&module, glake::transfer::kCopyBlocksPtx));
      CU(cuModuleUnload(module));
      break;
    case 4:
      CU(cuDevicePrimaryCtxRetain(&context, 7));
      CU(cuDevicePrimaryCtxRelease(7));
      break;
    case 5: {
      test::CurrentContext peer(7);
      CU(cuCtxGetCurrent(&context));
      test::CurrentContext mine(6);
      CU(cuCtxEnablePeerAccess(context, 0));
      CU(cuCtxDisablePeerAccess(context));
      break;
    }
    default: {
      std::vector<char> pages(1 << 16);
      void* const page =
          reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(pages.data()) + 4095) / 4096 * 4096);
      CU(cuMemHostRegister(page, 4096, 0));
      CU(cuMemHostUnregister(page));
    }
  }
}

// A call that frees waits for a stream that is held, and for nothing else.
TEST(a_free_waits_for_all_work) {
  test::running() = "a free waits";
  Node node("dgx_a100", kLocked);
  Buffer word(kPinned, 4096), host(kPinned, 4096);
  std::memset(word.data(), 0, 4);
  test::CurrentContext context(0);
  Stream stream;
  CU(cuStreamWaitValue32(stream.handle, word.at(), 1, CU_STREAM_WAIT_VALUE_GEQ));
  CUdeviceptr block = 0;
  CU(cuMemAlloc(&block, kMiB));
  std::atomic<int> freed{0}, copied{0};
  std::thread frees([&] {
    test::CurrentContext mine(0);
    CU(cuMemFree(block));
    freed = 1;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  std::thread copies([&] {
    test::CurrentContext mine(0);
    Stream other;
    CU(cuMemcpyAsync(host.at(), word.at(), 4, other.handle));
    copied = 1;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  CHECK(freed == 0 && copied == 0);
  __atomic_store_n(reinterpret_cast<uint32_t*>(word.data()), 1, __ATOMIC_RELEASE);
  frees.join();
  copies.join();
  CHECK(freed == 1 && copied == 1);
  CU(cuStreamSynchronize(stream.handle));
}

// A driver call, and what an H200 showed of it (simcuda/driver/driver_lock.h).
struct DriverCall {
  const char* name;
  std::function<void()> before, call, after;
  bool waits, excludes;  // waits for all work; keeps other threads out, at least while it runs
};

constexpr size_t kPage = 4096;

std::vector<DriverCall> calls_of_memory() {
  static CUdeviceptr block = 0;
  static void* host = nullptr;
  static std::vector<char> memory(3 * kPage);
  void* const page = reinterpret_cast<void*>(
      (reinterpret_cast<uintptr_t>(memory.data()) + kPage - 1) / kPage * kPage);
  const auto none = [] {};
  const auto take = [] { CU(cuMemAlloc(&block, kMiB)); };
  const auto give = [] { CU(cuMemFree(block)); };
  const auto pin = [] { CU(cuMemHostAlloc(&host, kPage, 0)); };
  const auto unpin = [] { CU(cuMemFreeHost(host)); };
  const auto enlist = [=] { CU(cuMemHostRegister(page, kPage, 0)); };
  const auto delist = [=] { CU(cuMemHostUnregister(page)); };
  return {{"cuMemAlloc", none, take, give, false, true},
          {"cuMemFree", take, give, none, true, true},
          {"cuMemHostAlloc", none, pin, unpin, false, true},
          {"cuMemFreeHost", pin, unpin, none, true, true},
          {"cuMemHostRegister", none, enlist, delist, false, true},
          {"cuMemHostUnregister", enlist, delist, none, true, true}};
}

std::vector<DriverCall> calls_of_granules() {
  constexpr size_t kBlock = 2 * kMiB;
  static CUdeviceptr base = 0;
  static CUmemGenericAllocationHandle handle = 0;
  const auto create = [] {
    CUmemAllocationProp prop{};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
    CU(cuMemCreate(&handle, kBlock, &prop, 0));
  };
  const auto grant = [] {
    CUmemAccessDesc access{};
    access.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    CU(cuMemSetAccess(base, kBlock, &access, 1));
  };
  const auto none = [] {};
  const auto reserve = [] { CU(cuMemAddressReserve(&base, kBlock, 0, 0, 0)); };
  const auto map = [] { CU(cuMemMap(base, kBlock, 0, handle, 0)); };
  const auto unmap = [] { CU(cuMemUnmap(base, kBlock)); };
  const auto release = [] { CU(cuMemRelease(handle)); };
  const auto forget = [] { CU(cuMemAddressFree(base, kBlock)); };
  // Each call needs what the call before it has made.
  return {{"cuMemCreate", none, create, none, false, false},
          {"cuMemAddressReserve", none, reserve, none, false, false},
          {"cuMemMap", none, map, none, false, false},
          {"cuMemSetAccess", none, grant, none, false, false},
          {"cuMemUnmap", none, unmap, none, false, false},
          {"cuMemRelease", none, release, none, false, false},
          {"cuMemAddressFree", none, forget, none, false, false}};
}

std::vector<DriverCall> calls_of_the_rest() {
  static CUstream stream = nullptr;
  static CUevent event = nullptr;
  static CUmodule module = nullptr;
  const auto none = [] {};
  const auto open = [] { CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING)); };
  const auto close = [] { CU(cuStreamDestroy(stream)); };
  const auto make = [] { CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING)); };
  const auto drop = [] { CU(cuEventDestroy(event)); };
  const auto load = [] { CU(cuModuleLoadData(&module, glake::transfer::kCopyBlocksPtx)); };
  const auto unload = [] { CU(cuModuleUnload(module)); };
  return {{"cuStreamCreate", none, open, none, false, true},
          {"cuStreamDestroy", none, close, none, false, true},
          {"cuEventCreate", none, make, none, false, true},
          {"cuEventDestroy", none, drop, none, false, false},
          {"cuModuleLoadData", none, load, none, true, true},
          {"cuModuleUnload", none, unload, none, true, false}};
}

std::vector<DriverCall> driver_calls() {
  std::vector<DriverCall> all = calls_of_memory();
  for (const auto& some : {calls_of_granules(), calls_of_the_rest()}) {
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

// While a stream is held, one thread makes the call, and then another thread makes a copy.
void beside_a_held_stream(const DriverCall& it, const Buffer& word, const Buffer& host) {
  test::running() = it.name;
  std::atomic<int> called{0}, copied{0};
  auto* const value = reinterpret_cast<uint32_t*>(word.at());
  Stream held, other;
  it.before();
  __atomic_store_n(value, 0, __ATOMIC_RELEASE);
  CU(cuStreamWaitValue32(held.handle, word.at(), 1, CU_STREAM_WAIT_VALUE_GEQ));
  std::thread calls([&] {
    test::CurrentContext mine(0);
    it.call();
    called = 1;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  std::thread copies([&] {
    test::CurrentContext mine(0);
    CU(cuMemcpyAsync(host.at(), word.at(), 4, other.handle));
    copied = 1;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const bool waits = called == 0, excludes = copied == 0;
  __atomic_store_n(value, 1, __ATOMIC_RELEASE);
  calls.join();
  copies.join();
  CU(cuStreamSynchronize(held.handle));
  CU(cuStreamSynchronize(other.handle));
  it.after();
  CHECK_TEXT(waits == it.waits && excludes == (it.waits && it.excludes), it.name);
}

TEST(calls_wait_for_work_as_a_gpu_showed) {
  Node node("dgx_a100", kLocked);
  node.count_streams = false;
  const Buffer word(kPinned, kPage), host(kPinned, kPage);
  test::CurrentContext context(0);
  for (const DriverCall& it : driver_calls()) beside_a_held_stream(it, word, host);
}

// Returns for how many seconds a copy of this thread is kept out by the call of another thread,
// which comes first and takes a second. Both threads are at work on the simulator's clock.
double kept_out(const DriverCall& it, const Buffer& from, const Buffer& to, CUstream stream) {
  test::running() = it.name;
  it.before();
  const std::string second = it.name + std::string("=1000000");
  CHECK(simcuda_configure("call_us", second.c_str()) == 0);
  CHECK(simcuda_expect(2) == 0);
  std::thread calls([&] {
    test::CurrentContext mine(0);
    CHECK(simcuda_work(1, 0) == 0);
    it.call();
    CHECK(simcuda_work(0, 0) == 0);
  });
  CHECK(simcuda_work(1, 1) == 0);
  const uint64_t begin = simcuda_now_ns();
  CU(cuMemcpyAsync(to.at(), from.at(), 4, stream));
  const double took = static_cast<double>(simcuda_now_ns() - begin) / 1e9;
  CHECK(simcuda_work(0, 1) == 0);
  calls.join();
  CHECK(simcuda_configure("call_us", (it.name + std::string("=0")).c_str()) == 0);
  CU(cuStreamSynchronize(stream));
  it.after();
  return took;
}

// If no work is under way, calls that wait for work keep other threads out no longer than they run.
TEST(calls_keep_others_out_for_their_own_time) {
  for (const char* on : {"1", "0"}) {
    Node node("dgx_a100", {{"memory", "512MiB"}, {"driver_lock", on}, {"call_time", "1"}});
    node.count_streams = false;
    const Buffer from(kPinned, kPage), to(kPinned, kPage);
    test::CurrentContext context(0);
    Stream stream;
    for (const DriverCall& it : driver_calls()) {
      const bool excludes = *on == '1' && it.excludes && !it.waits;
      const double took = kept_out(it, from, to, stream.handle);
      CHECK_TEXT(excludes ? took >= 1 : took < 0.001, it.name);
    }
  }
}

// Returns how many ns two threads take that record an event eight times each, in 1 us a call.
uint64_t calls_of_two(const std::array<int, 2>& gpus) {
  CHECK(simcuda_expect(2) == 0);
  std::array<uint64_t, 2> ends{};
  const uint64_t begin = simcuda_now_ns();
  std::vector<std::thread> threads;
  for (size_t i = 0; i < gpus.size(); ++i) {
    threads.emplace_back([&, i] {
      test::CurrentContext context(gpus[i]);
      const Stream stream;
      CUevent event = nullptr;
      CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
      CHECK(simcuda_work(1, static_cast<int>(i)) == 0);
      for (int call = 0; call < 8; ++call) CU(cuEventRecord(event, stream.handle));
      ends[i] = simcuda_now_ns();
      CHECK(simcuda_work(0, 0) == 0);
      CU(cuEventDestroy(event));
    });
  }
  for (std::thread& each : threads) each.join();
  return *std::max_element(ends.begin(), ends.end()) - begin;
}

TEST(calls_into_one_context_follow_each_other) {
  for (const char* lock : {"context", "none"}) {
    Node node("dgx_a100", {{"memory", "512MiB"}, {"call_time", "1"}, {"call_lock", lock}});
    node.count_streams = false;
    CHECK(simcuda_configure("call_us", "cuEventRecord=1") == 0);
    const uint64_t one = calls_of_two({0, 0}), two = calls_of_two({0, 1});
    CHECK_TEXT(one == (std::string(lock) == "context" ? 16000 : 8000), std::to_string(one));
    CHECK_TEXT(two == 8000, std::to_string(two));
  }
}

TEST(a_launch_takes_time_for_each_node) {
  constexpr size_t kCopies = 11, kPart = 64 * 1024;
  Node node("dgx_a100", {{"memory", "512MiB"}, {"call_time", "1"}});
  node.count_streams = false;
  CHECK(simcuda_configure("call_us", "cuGraphLaunch=2+1") == 0);
  const Buffer from(kPinned, kCopies * kPart), to(kPinned, kCopies * kPart);
  test::CurrentContext context(0);
  const Stream stream;
  CU(cuStreamBeginCapture(stream.handle, CU_STREAM_CAPTURE_MODE_RELAXED));
  for (size_t at = 0; at < kCopies * kPart; at += kPart) {
    CU(cuMemcpyAsync(to.at() + at, from.at() + at, kPart, stream.handle));
  }
  CUgraph graph = nullptr;
  CU(cuStreamEndCapture(stream.handle, &graph));
  CUgraphExec instance = nullptr;
  CU(cuGraphInstantiateWithFlags(&instance, graph, 0));
  const uint64_t begin = simcuda_now_ns();
  CU(cuGraphLaunch(instance, stream.handle));
  const uint64_t launch = simcuda_now_ns() - begin;
  CHECK_TEXT(launch == 2000 + (kCopies - 1) * 1000, std::to_string(launch));
  CU(cuStreamSynchronize(stream.handle));
  CU(cuGraphExecDestroy(instance));
  CU(cuGraphDestroy(graph));
}

// Calls one of the API's other functions in each round.
void use_api(int round, CUstream stream, uint64_t id) {
  constexpr glake_pool kPool{7, 0};
  glake_pool region{};
  uint64_t done = 0, total = 0;
  void* block = nullptr;
  switch (round % 8) {
    case 0:
      block = glake_malloc(3 * kMiB, 0, stream);
      OK(glake_record_stream(block, nullptr));
      OK(glake_free(block));
      break;
    case 1:
      OK(glake_copy_progress(id, &done, &total));
      CHECK(done <= total && glake_copy_done(id) >= 0 && glake_copy_settled(id) >= 0);
      break;
    case 2:
      block = glake_host_malloc(3 * kMiB);
      OK(glake_host_record_stream(block, 0, stream));
      OK(glake_host_free(block));
      OK(glake_host_empty_cache());
      break;
    case 3:
      OK(glake_pool_retain(0, kPool));
      block = glake_pool_malloc(5 * kMiB, 0, stream, kPool);
      OK(glake_free(block));
      OK(glake_pool_release(0, kPool));
      break;
    case 4:
      for (int kind : {GLAKE_CONTIGUOUS_VMM, GLAKE_CONTIGUOUS_LEGACY}) {
        block = glake_malloc_contiguous(kMiB, 0, stream, kind);
        OK(glake_free(block));
      }
      break;
    case 5:
      OK(glake_region_pool("lock", &region));
      block = glake_pool_malloc(2 * kMiB, 0, stream, region);
      OK(glake_region_pause(0, region, GLAKE_REGION_HOST, nullptr));
      OK(glake_region_resume(0, region, 1));
      OK(glake_free(block));
      break;
    case 6:
      OK(glake_set_headroom(0, kMiB, nullptr));
      OK(glake_set_headroom(0, 0, nullptr));
      break;
    default:
      OK(glake_transfer_lend(round % 16 == 7 ? 0u : ~0u, nullptr, 0));
      CHECK(!test::transfer_stats().empty() && !test::stats().empty());
  }
}

// Small blocks between a GPU and the host, which kernels gather and scatter.
Call blocks_of(const Buffer& dst, const Buffer& src) {
  constexpr size_t kBlock = 16 * test::kKiB;
  std::vector<glake_copy_part> parts;
  for (size_t at = 0; at + kBlock <= kBytes; at += 2 * kBlock) {
    parts.push_back({dst.at(at), src.at(at), kBlock});
  }
  return Call(std::move(parts), dst.device(), src.device());
}

// A round's copies, each of which begins while the stream is at work.
void copy_round(int round, Buffer* a, Buffer* b, Buffer* host, Buffer* back, CUstream stream,
                CUstream second) {
  const auto value = static_cast<unsigned char>(round % 250 + 1);
  std::memset(host->data(), value, kBytes);
  std::vector<uint64_t> ids;
  const auto start = [&](Call& call) {
    ids.push_back(call.start());
    CHECK_TEXT(ids.back() != 0, test::last_error());
  };
  const unsigned flags = round % 7 == 6 ? unsigned{GLAKE_COPY_CHECKSUM} : 0u;
  CU(cuMemsetD8Async(a->at(), 0xEE, kBytes, stream));
  start(Call(*a, 0, *host, 0, kBytes).on(stream, 0).flags(flags));
  OK(glake_copy_stream_wait(ids.back(), 0, second));
  start(Call(*b, 0, *a, 0, kBytes).on(stream, 0));
  start(Call(*back, 0, *b, 0, kBytes).on(stream, 0));
  use_api(round, second, ids[0]);
  CU(cuStreamSynchronize(stream));
  CU(cuStreamSynchronize(second));
  CHECK(back->data()[0] == value);
  CHECK(std::memcmp(back->data(), back->data() + 1, kBytes - 1) == 0);
  if (round % 3 == 0) start(Call(*a, 0, *host, 0, kBytes).flags(0));  // of no stream
  if (round % 4 == 1) {
    Call blocks = blocks_of(*a, *host);
    start(blocks.on(stream, 0));
  }
  for (uint64_t id : ids) test::finish(id);
  if (round % 5 == 2) {
    const uint64_t id = Call(*b, 0, *host, 0, kBytes).start();
    OK(glake_copy_cancel(id));
    const int code = glake_copy_wait(id, test::kForever);
    CHECK_TEXT(code == GLAKE_OK || code == GLAKE_COPY_CANCELLED, test::last_error());
    OK(glake_copy_release(id));
  }
}

// Begins copies in every way, and calls the API's other functions. Meanwhile another thread frees,
// pins, unmaps, loads code, and opens contexts and peers.
void copies_beside_frees(int rounds) {
  test::running() = "copies beside frees";
  Node node("dgx_a100", kLocked, true, kEnqueued);
  node.count_streams = false;
  Buffer a(0, kBytes), b(1, kBytes), pinned(kPinned, kBytes), pageable(kPageable, kBytes);
  std::atomic<bool> over{false};
  std::thread others([&] {
    test::CurrentContext mine(0);
    for (int turn = 0; !over; ++turn) disturb(turn);
  });
  {
    test::CurrentContext context(0);
    Stream stream, second;
    for (int round = 0; round < rounds; ++round) {
      Buffer& host = round % 5 == 4 ? pageable : pinned;
      copy_round(round, &a, &b, &host, &pinned, stream.handle, second.handle);
    }
  }
  over = true;
  others.join();
  CHECK(test::violations() == "[]");
}

int rounds = 60;

TEST(copies_beside_frees_end) { copies_beside_frees(rounds); }

}  // namespace

int main(int argc, char** argv) {
  rounds = test::number_argument(argc, argv, rounds);
  return test::run_cases(argc, argv);
}

// Which driver calls wait for work under way, and which block calls of other threads meanwhile.
//
//   driver_lock [LIBRARY [MILLISECONDS]]     (default libsimcuda.so, 2)
//
// Work of MILLISECONDS runs in one stream. Meanwhile one thread makes the call, and a second one
// enqueues small work in another stream all the time. A row (measure.h) has the call's own time,
// `still_running` and `peer_us`. `still_running` counts the rounds in which the work outlasted the
// call, so that the call did not wait. `peer_us` is the second thread's longest enqueue (the median
// over the rounds). The simulator's option driver_lock says what it assumes of each call.
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "measure.h"

using namespace measure;

namespace {

constexpr int kRounds = 7;
constexpr size_t kBlock = 32 * kMiB;

Rows rows;
kernels::Kernels kernel;
bool kernels_run = false;
CUcontext context = nullptr;

// Work of a known length on one stream, for the multiprocessors or for a copy engine.
class Work {
 public:
  Work(bool copies, double milliseconds) : copies_(copies) {
    OK(cu.cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING));
    OK(cu.cuEventCreate(&done_, CU_EVENT_DISABLE_TIMING));
    OK(cu.cuMemAlloc(&device_, kBlock));
    OK(cu.cuMemHostAlloc(&host_, kBlock, 0));
    one();
    OK(cu.cuStreamSynchronize(stream_));
    const double us = timed_us([&] {
      for (int i = 0; i < 8; ++i) one();
      OK(cu.cuStreamSynchronize(stream_));
    });
    times_ = std::max(1, static_cast<int>(std::ceil(milliseconds * 1e3 / (us / 8))));
  }
  ~Work() {
    cu.cuMemFreeHost(host_);
    cu.cuMemFree(device_);
    cu.cuEventDestroy(done_);
    cu.cuStreamDestroy(stream_);
  }
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  void start() {
    for (int i = 0; i < times_; ++i) one();
    OK(cu.cuEventRecord(done_, stream_));
  }
  bool runs() { return cu.cuEventQuery(done_) == CUDA_ERROR_NOT_READY; }
  void finish() { OK(cu.cuStreamSynchronize(stream_)); }
  CUstream stream() const { return stream_; }
  CUevent done() const { return done_; }

 private:
  void one() {
    if (copies_) {
      OK(cu.cuMemcpyHtoDAsync(device_, host_, kBlock, stream_));
    } else if (kernels_run) {
      OK(kernel.add_one(stream_, 8, device_, kBlock / 16));
    } else {
      OK(cu.cuMemsetD32Async(device_, 7, kBlock / 4, stream_));
    }
  }
  bool copies_;
  CUstream stream_ = nullptr;
  CUevent done_ = nullptr;
  CUdeviceptr device_ = 0;
  void* host_ = nullptr;
  int times_ = 1;
};

// Another thread of the program, which enqueues small work all the time.
class Peer {
 public:
  Peer() {
    OK(cu.cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING));
    OK(cu.cuMemAlloc(&word_, 4096));
    OK(cu.cuEventCreate(&event_, CU_EVENT_DISABLE_TIMING));
    thread_ = std::thread([this] { run(); });
  }
  ~Peer() {
    ends_ = true;
    thread_.join();
    OK(cu.cuStreamSynchronize(stream_));
    cu.cuEventDestroy(event_);
    cu.cuMemFree(word_);
    cu.cuStreamDestroy(stream_);
  }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  void start() {
    longest_us_ = 0;
    const uint64_t before = turns_;
    asked_ = true;
    while (turns_ < before + 3) std::this_thread::yield();  // it works
    longest_us_ = 0;
  }
  double stop() {
    const uint64_t before = turns_;
    while (turns_ < before + 2) std::this_thread::yield();  // counts a call that was blocked
    asked_ = false;
    return longest_us_;
  }

 private:
  void run() {
    OK(cu.cuCtxSetCurrent(context));
    while (!ends_) {
      if (!asked_) {
        std::this_thread::yield();
        continue;
      }
      const double us = timed_us([&] {
        OK(cu.cuMemsetD32Async(word_, 1, 16, stream_));
        OK(cu.cuEventRecord(event_, stream_));
      });
      if (us > longest_us_) longest_us_ = us;
      ++turns_;
      // A full queue would block the thread too.
      if (turns_ % 64 == 0) OK(cu.cuStreamSynchronize(stream_));
    }
  }
  CUstream stream_ = nullptr;
  CUdeviceptr word_ = 0;
  CUevent event_ = nullptr;
  std::atomic<bool> asked_{false}, ends_{false};
  std::atomic<uint64_t> turns_{0};
  std::atomic<double> longest_us_{0};
  std::thread thread_;
};

struct Call {
  const char* name;
  std::function<void()> before;  // while nothing runs
  std::function<void()> call;    // timed
  std::function<void()> after;   // while nothing runs
};

void measure_call(const Call& it, const char* kind, Work* work, Peer* peer) {
  std::vector<double> own, others;
  uint64_t still = 0;
  for (int round = 0; round < kRounds; ++round) {
    if (it.before) it.before();
    OK(cu.cuCtxSynchronize());
    work->start();
    peer->start();
    const double us = timed_us(it.call);
    const bool runs = work->runs();
    const double peer_us = peer->stop();
    work->finish();
    OK(cu.cuCtxSynchronize());
    if (it.after) it.after();
    if (round == 0) continue;  // warm-up
    own.push_back(us);
    others.push_back(peer_us);
    still += runs;
  }
  char sizes[128];
  std::snprintf(sizes, sizeof sizes, "\"still_running\": %llu, \"peer_us\": %.2f",
                static_cast<unsigned long long>(still), quantile(others, 0.5));
  rows.add(it.name, kind, sizes, own);
}

std::vector<Call> calls_of_memory(std::vector<char>* pageable) {
  static CUdeviceptr block = 0;
  static void* host = nullptr;
  const auto take = [] { OK(cu.cuMemAlloc(&block, kBlock)); };
  const auto give = [] { OK(cu.cuMemFree(block)); };
  const auto pin = [] { OK(cu.cuMemHostAlloc(&host, kBlock, 0)); };
  const auto unpin = [] { OK(cu.cuMemFreeHost(host)); };
  const auto enlist = [=] { OK(cu.cuMemHostRegister(pageable->data(), pageable->size(), 0)); };
  const auto delist = [=] { OK(cu.cuMemHostUnregister(pageable->data())); };
  const auto ask = [] {
    size_t free = 0, total = 0;
    OK(cu.cuMemGetInfo(&free, &total));
  };
  std::vector<Call> made = {
      {"nothing", {}, [] { std::this_thread::sleep_for(std::chrono::microseconds(300)); }, {}},
      {"cuMemAlloc", {}, take, give},
      {"cuMemFree", take, give, {}},
      {"cuMemHostAlloc", {}, pin, unpin},
      {"cuMemFreeHost", pin, unpin, {}},
      {"cuMemGetInfo", {}, ask, {}},
      {"cuMemcpyHtoD, pageable", take, [=] { OK(cu.cuMemcpyHtoD(block, pageable->data(), kMiB)); },
       give},
  };
  if (cu.cuMemHostRegister != nullptr) {
    made.push_back({"cuMemHostRegister", {}, enlist, delist});
    made.push_back({"cuMemHostUnregister", enlist, delist, {}});
  }
  return made;
}

std::vector<Call> calls_of_granules() {
  static CUdeviceptr base = 0;
  static CUmemGenericAllocationHandle handle = 0;
  static const CUmemAllocationProp prop = device_memory();
  const auto reserve = [] { OK(cu.cuMemAddressReserve(&base, kBlock, 0, 0, 0)); };
  const auto release = [] { OK(cu.cuMemRelease(handle)); };
  const auto create = [] { OK(cu.cuMemCreate(&handle, kBlock, &prop, 0)); };
  const auto forget = [] { OK(cu.cuMemAddressFree(base, kBlock)); };
  const auto map = [] { OK(cu.cuMemMap(base, kBlock, 0, handle, 0)); };
  const auto unmap = [] { OK(cu.cuMemUnmap(base, kBlock)); };
  const auto access = [] { grant(base, kBlock); };
  const auto in_turn = [](std::vector<std::function<void()>> steps) {
    return [=] {
      for (const auto& step : steps) step();
    };
  };
  const auto both = in_turn({create, reserve});
  const auto mapped = in_turn({create, reserve, map});
  const auto usable = in_turn({create, reserve, map, access});
  const auto ends = in_turn({forget, release});
  const auto unmaps = in_turn({unmap, forget, release});
  return {
      {"cuMemAddressReserve", {}, reserve, forget},
      {"cuMemAddressFree", reserve, forget, {}},
      {"cuMemCreate", {}, create, release},
      {"cuMemRelease", create, release, {}},
      {"cuMemMap", both, map, unmaps},
      {"cuMemSetAccess", mapped, access, unmaps},
      {"cuMemUnmap", usable, unmap, ends},
  };
}

std::vector<Call> calls_of_streams(Work* work) {
  static CUstream stream = nullptr;
  static CUevent event = nullptr;
  static CUmodule module = nullptr;
  const auto open = [] { OK(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING)); };
  const auto close = [] { OK(cu.cuStreamDestroy(stream)); };
  const auto make = [] { OK(cu.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING)); };
  const auto drop = [] { OK(cu.cuEventDestroy(event)); };
  const auto load = [] { OK(cu.cuModuleLoadData(&module, kernels::kPtx)); };
  const auto unload = [] { OK(cu.cuModuleUnload(module)); };
  std::vector<Call> made = {
      {"cuStreamCreate", {}, open, close},
      {"cuStreamDestroy", open, close, {}},
      {"cuEventCreate", {}, make, drop},
      {"cuEventDestroy", make, drop, {}},
      {"cuStreamSynchronize", {}, [=] { OK(cu.cuStreamSynchronize(work->stream())); }, {}},
      {"cuEventSynchronize", {}, [=] { OK(cu.cuEventSynchronize(work->done())); }, {}},
  };
  if (kernels_run && cu.cuModuleLoadData != nullptr) {
    made.push_back({"cuModuleLoadData", {}, load, unload});
    made.push_back({"cuModuleUnload", load, unload, {}});
  }
  return made;
}

}  // namespace

int main(int argc, char** argv) {
  const char* library = argc > 1 ? argv[1] : "libsimcuda.so";
  const double milliseconds = argc > 2 ? std::atof(argv[2]) : 2;
  context = measure::open(library);
  kernels_run = kernel.open(library) && kernel.status() == CUDA_SUCCESS;
  std::vector<char> pageable(kBlock, 1);
  for (const bool copies : {false, true}) {
    Work work(copies, milliseconds);
    Peer peer;
    const char* kind = copies ? "beside copies" : "beside kernels";
    for (const std::vector<Call>& calls :
         {calls_of_memory(&pageable), calls_of_granules(), calls_of_streams(&work)}) {
      for (const Call& it : calls) measure_call(it, kind, &work, &peer);
    }
  }
  rows.print("driver_lock", library, kernels_run);
  cu.cuDevicePrimaryCtxRelease(0);
  return 0;
}

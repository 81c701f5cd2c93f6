// What each driver call costs on the host, by handle size and count.
//
//   driver_calls [LIBRARY [MEMORY_MIB [SECONDS]]]     (default libsimcuda.so, 64, 2)
//
// Prints JSON (measure.h). Cases of the rows of cuMem*: "each" is one call for each handle, "at
// once" is one call over `handles` of them, "next to" is one handle beside others that are mapped
// already, "busy" is a call while a kernel runs on other memory of the same range. "by threads" is
// of several threads at once. report.py and tools/calibrate.py read the rows.
#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "measure.h"

using namespace measure;

namespace {

Rows rows;
size_t memory = 64 * kMiB;
double deadline_us = 0;

bool late() { return now_us() > deadline_us; }

std::string sizes(size_t handle, size_t handles) {
  return pair("handle_bytes", handle) + ", " + pair("handles", handles);
}

// Makes each call over `count` handles of `bytes`, `times` times. `each`: adds rows of single
// calls.
void vmm_calls(size_t bytes, size_t count, int times, bool each) {
  std::vector<double> reserve, create, map, access_each, access_all, unmap_each, unmap_all, release,
      give_back;
  for (int time = 0; time < times && !late(); ++time) {
    Handles handles(bytes, count);
    create.insert(create.end(), handles.create_us.begin(), handles.create_us.end());
    const size_t length = bytes * count;
    CUdeviceptr base = 0;
    reserve.push_back(timed_us([&] { OK(cu.cuMemAddressReserve(&base, length, 0, 0, 0)); }));
    const auto map_all = [&](bool measured) {
      for (size_t i = 0; i < count; ++i) {
        const double us =
            timed_us([&] { OK(cu.cuMemMap(base + i * bytes, bytes, 0, handles.at[i], 0)); });
        if (measured) map.push_back(us);
      }
    };
    map_all(true);
    access_all.push_back(timed_us([&] { grant(base, length); }));
    unmap_all.push_back(timed_us([&] { OK(cu.cuMemUnmap(base, length)); }));
    map_all(false);
    for (size_t i = 0; i < count; ++i) {
      access_each.push_back(timed_us([&] { grant(base + i * bytes, bytes); }));
    }
    for (size_t i = 0; i < count; ++i) {
      unmap_each.push_back(timed_us([&] { OK(cu.cuMemUnmap(base + i * bytes, bytes)); }));
    }
    give_back.push_back(timed_us([&] { OK(cu.cuMemAddressFree(base, length)); }));
    for (CUmemGenericAllocationHandle& handle : handles.at) {
      release.push_back(timed_us([&] { OK(cu.cuMemRelease(handle)); }));
    }
    handles.at.clear();
  }
  const std::string one = sizes(bytes, 1), all = sizes(bytes, count);
  rows.add("cuMemAddressReserve", "at once", all, reserve);
  rows.add("cuMemSetAccess", "at once", all, access_all);
  rows.add("cuMemUnmap", "at once", all, unmap_all);
  rows.add("cuMemAddressFree", "at once", all, give_back);
  if (!each) return;
  rows.add("cuMemCreate", "each", one, create);
  rows.add("cuMemMap", "each", one, map);
  rows.add("cuMemSetAccess", "each", one, access_each);
  rows.add("cuMemUnmap", "each", one, unmap_each);
  rows.add("cuMemRelease", "each", one, release);
}

// Maps one more granule where `others` are mapped already.
void next_to_others(size_t others, int times) {
  const size_t bytes = 2 * kMiB;
  std::vector<double> map, access, unmap;
  Handles handles(bytes, others + 1);
  Addresses range(bytes * (others + 1));
  for (size_t i = 0; i < others; ++i) {
    OK(cu.cuMemMap(range.base + i * bytes, bytes, 0, handles.at[i], 0));
  }
  if (others > 0) grant(range.base, others * bytes);
  const CUdeviceptr at = range.base + others * bytes;
  for (int time = 0; time < times && !late(); ++time) {
    map.push_back(timed_us([&] { OK(cu.cuMemMap(at, bytes, 0, handles.at[others], 0)); }));
    access.push_back(timed_us([&] { grant(at, bytes); }));
    unmap.push_back(timed_us([&] { OK(cu.cuMemUnmap(at, bytes)); }));
  }
  if (others > 0) OK(cu.cuMemUnmap(range.base, others * bytes));
  const std::string what = sizes(bytes, 1) + ", " + pair("others", others);
  rows.add("cuMemMap", "next to", what, map);
  rows.add("cuMemSetAccess", "next to", what, access);
  rows.add("cuMemUnmap", "next to", what, unmap);
}

// Shows whether threads that map their own granules are faster together. `us` is for each granule.
void mapping_by_threads(int threads) {
  constexpr size_t kBytes = 2 * kMiB, kCount = 64;
  CUcontext context = nullptr;
  OK(cu.cuCtxGetCurrent(&context));
  std::vector<std::unique_ptr<Handles>> handles;
  std::vector<std::unique_ptr<Addresses>> ranges;
  for (int i = 0; i < threads; ++i) {
    handles.push_back(std::make_unique<Handles>(kBytes, kCount));
    ranges.push_back(std::make_unique<Addresses>(kBytes * kCount));
  }
  const auto by_all = [&](auto&& work) {
    return timed_us([&] {
      std::vector<std::thread> running;
      for (int i = 0; i < threads; ++i) {
        running.emplace_back([&, i] {
          OK(cu.cuCtxSetCurrent(context));
          work(ranges[i]->base, *handles[i]);
        });
      }
      for (std::thread& one : running) one.join();
    });
  };
  std::vector<double> access, unmap;
  const double all = static_cast<double>(kCount) * threads;
  for (int time = 0; time < 6 && !late(); ++time) {
    const double us = by_all([&](CUdeviceptr base, const Handles& mine) {
      for (size_t i = 0; i < kCount; ++i) {
        OK(cu.cuMemMap(base + i * kBytes, kBytes, 0, mine.at[i], 0));
      }
      grant(base, kBytes * kCount);
    });
    const double back =
        by_all([&](CUdeviceptr base, const Handles&) { OK(cu.cuMemUnmap(base, kBytes * kCount)); });
    if (time == 0) continue;  // warm-up
    access.push_back(us / all);
    unmap.push_back(back / all);
  }
  const std::string what = sizes(kBytes, kCount) + ", " + pair("threads", threads);
  rows.add("cuMemMap, cuMemSetAccess", "by threads", what, access);
  rows.add("cuMemUnmap", "by threads", what, unmap);
}

// Shows whether threads that enqueue small copies in one context wait for each other, each with a
// stream of its own. `us` is for one copy and the record of an event, over the number of threads:
// half of that with one thread if two do not wait, as much if they do.
void enqueueing_by_threads(int threads) {
  constexpr int kCount = 64;
  struct Mine {
    CUstream stream = nullptr;
    CUevent event = nullptr;
    CUdeviceptr to = 0;
    void* from = nullptr;
  };
  CUcontext context = nullptr;
  OK(cu.cuCtxGetCurrent(&context));
  std::vector<Mine> all(static_cast<size_t>(threads));
  for (Mine& one : all) {
    OK(cu.cuStreamCreate(&one.stream, CU_STREAM_NON_BLOCKING));
    OK(cu.cuEventCreate(&one.event, CU_EVENT_DISABLE_TIMING));
    OK(cu.cuMemAlloc(&one.to, 4096));
    OK(cu.cuMemHostAlloc(&one.from, 4096, 0));
  }
  std::vector<double> us;
  for (int time = 0; time < 30 && !late(); ++time) {
    std::atomic<int> ready{0};
    std::vector<std::pair<double, double>> spans(all.size());
    std::vector<std::thread> running;
    for (size_t i = 0; i < all.size(); ++i) {
      running.emplace_back([&, i] {
        const Mine& one = all[i];
        OK(cu.cuCtxSetCurrent(context));
        ++ready;
        while (ready != threads) std::this_thread::yield();
        spans[i].first = now_us();
        for (int k = 0; k < kCount; ++k) {
          OK(cu.cuMemcpyHtoDAsync(one.to, one.from, 4096, one.stream));
          OK(cu.cuEventRecord(one.event, one.stream));
        }
        spans[i].second = now_us();
        OK(cu.cuStreamSynchronize(one.stream));
      });
    }
    for (std::thread& one : running) one.join();
    double begin = spans[0].first, end = spans[0].second;
    for (const auto& [from, to] : spans) {
      begin = std::min(begin, from);
      end = std::max(end, to);
    }
    if (time >= 3) us.push_back((end - begin) / (kCount * threads));  // the first ones warm up
  }
  for (Mine& one : all) {
    OK(cu.cuMemFreeHost(one.from));
    OK(cu.cuMemFree(one.to));
    OK(cu.cuEventDestroy(one.event));
    OK(cu.cuStreamDestroy(one.stream));
  }
  rows.add("cuMemcpyHtoDAsync, cuEventRecord", "by threads", pair("threads", threads), us);
}

// Enqueues enough work that it still runs when the calls below return.
void keep_busy(CUstream stream, CUdeviceptr base, size_t bytes) {
  for (int i = 0; i < 64; ++i) OK(cu.cuMemsetD32Async(base, 7, bytes / 4, stream));
}

// Shows whether the calls wait for a kernel that runs on other memory. `still` counts how often the
// kernel still ran afterwards.
void beside_running_work(int times) {
  const size_t bytes = 2 * kMiB,
               busy_bytes = std::min<size_t>(memory / 16, 256 * kMiB) / bytes * bytes;
  Handles handles(bytes, 1), busy(busy_bytes, 1);
  Addresses range(bytes + busy_bytes);
  OK(cu.cuMemMap(range.base, busy_bytes, 0, busy.at[0], 0));
  grant(range.base, busy_bytes);
  CUstream stream = nullptr;
  CUevent done = nullptr;
  OK(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  OK(cu.cuEventCreate(&done, CU_EVENT_DISABLE_TIMING));
  std::vector<double> map, access, unmap;
  uint64_t still = 0;
  const CUdeviceptr at = range.base + busy_bytes;
  for (int time = 0; time < times && !late(); ++time) {
    keep_busy(stream, range.base, busy_bytes);
    OK(cu.cuEventRecord(done, stream));
    map.push_back(timed_us([&] { OK(cu.cuMemMap(at, bytes, 0, handles.at[0], 0)); }));
    access.push_back(timed_us([&] { grant(at, bytes); }));
    unmap.push_back(timed_us([&] { OK(cu.cuMemUnmap(at, bytes)); }));
    still += cu.cuEventQuery(done) == CUDA_ERROR_NOT_READY;
    OK(cu.cuStreamSynchronize(stream));
  }
  OK(cu.cuMemUnmap(range.base, busy_bytes));
  OK(cu.cuEventDestroy(done));
  OK(cu.cuStreamDestroy(stream));
  const std::string what = sizes(bytes, 1) + ", " + pair("still_running", still);
  rows.add("cuMemMap", "busy", what, map);
  rows.add("cuMemSetAccess", "busy", what, access);
  rows.add("cuMemUnmap", "busy", what, unmap);
}

void events(int times) {
  std::vector<double> create, record, again, complete, pending, wait, host, destroy;
  CUstream stream = nullptr, other = nullptr;
  CUdeviceptr scratch = 0;
  const size_t bytes = std::min<size_t>(memory / 64, 128 * kMiB);
  OK(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  OK(cu.cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  OK(cu.cuMemAlloc(&scratch, bytes));
  for (int time = 0; time < times && !late(); ++time) {
    CUevent event = nullptr;
    create.push_back(timed_us([&] { OK(cu.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING)); }));
    record.push_back(timed_us([&] { OK(cu.cuEventRecord(event, stream)); }));
    OK(cu.cuStreamSynchronize(stream));
    complete.push_back(timed_us([&] { OK(cu.cuEventQuery(event)); }));
    host.push_back(timed_us([&] { OK(cu.cuEventSynchronize(event)); }));
    if (time % 8 == 0) keep_busy(stream, scratch, bytes);
    again.push_back(timed_us([&] { OK(cu.cuEventRecord(event, stream)); }));
    pending.push_back(timed_us([&] { (void)cu.cuEventQuery(event); }));
    wait.push_back(timed_us([&] { OK(cu.cuStreamWaitEvent(other, event, 0)); }));
    destroy.push_back(timed_us([&] { OK(cu.cuEventDestroy(event)); }));
  }
  OK(cu.cuCtxSynchronize());
  OK(cu.cuMemFree(scratch));
  OK(cu.cuStreamDestroy(stream));
  OK(cu.cuStreamDestroy(other));
  rows.add("cuEventCreate", "each", "", create);
  rows.add("cuEventRecord", "each", "", record);
  rows.add("cuEventRecord", "busy", "", again);
  rows.add("cuEventQuery", "each", "", complete);
  rows.add("cuEventQuery", "busy", "", pending);
  rows.add("cuStreamWaitEvent", "each", "", wait);
  rows.add("cuEventSynchronize", "each", "", host);
  rows.add("cuEventDestroy", "each", "", destroy);
}

void plain_allocation(size_t bytes, int times) {
  std::vector<double> allocate, release;
  for (int time = 0; time < times && !late(); ++time) {
    CUdeviceptr block = 0;
    allocate.push_back(timed_us([&] { OK(cu.cuMemAlloc(&block, bytes)); }));
    release.push_back(timed_us([&] { OK(cu.cuMemFree(block)); }));
  }
  rows.add("cuMemAlloc", "each", pair("handle_bytes", bytes), allocate);
  rows.add("cuMemFree", "each", pair("handle_bytes", bytes), release);
}

// Stream-ordered allocation (cudaMallocAsync), first from the driver, then from the pool that it
// keeps.
void async_allocation(size_t bytes, int times) {
  if (cu.cuMemAllocAsync == nullptr || cu.cuMemPoolSetAttribute == nullptr) return;
  CUmemoryPool pool = nullptr;
  OK(cu.cuDeviceGetDefaultMemPool(&pool, 0));
  CUstream stream = nullptr;
  OK(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  for (const bool kept : {false, true}) {
    cuuint64_t threshold = kept ? UINT64_MAX : 0;
    OK(cu.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
    std::vector<double> allocate, release;
    for (int time = 0; time < times && !late(); ++time) {
      CUdeviceptr block = 0;
      const double us = timed_us([&] { OK(cu.cuMemAllocAsync(&block, bytes, stream)); });
      if (!kept || time > 0) allocate.push_back(us);
      release.push_back(timed_us([&] { OK(cu.cuMemFreeAsync(block, stream)); }));
      OK(cu.cuStreamSynchronize(stream));
    }
    const char* how = kept ? "kept" : "each";
    rows.add("cuMemAllocAsync", how, pair("handle_bytes", bytes), allocate);
    rows.add("cuMemFreeAsync", how, pair("handle_bytes", bytes), release);
  }
  cuuint64_t none = 0;
  OK(cu.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &none));
  OK(cu.cuStreamDestroy(stream));
}

}  // namespace

int main(int argc, char** argv) {
  const char* library = argc > 1 ? argv[1] : "libsimcuda.so";
  if (argc > 2) memory = static_cast<size_t>(std::max(64, std::atoi(argv[2]))) * kMiB;
  deadline_us = now_us() + (argc > 3 ? std::atof(argv[3]) : 2) * 1e6;
  measure::open(library);
  size_t free = 0, total = 0;
  OK(cu.cuMemGetInfo(&free, &total));
  memory = std::min(memory, free / 2);
  vmm_calls(2 * kMiB, 8, 2, false);  // warm-up, whose rows are dropped
  rows = Rows();
  for (const size_t mib : {2, 4, 16, 32, 64, 256, 1024}) {
    const size_t count = std::min<size_t>(memory / (mib * kMiB), 64);
    if (count >= 1) vmm_calls(mib * kMiB, count, 4, true);
  }
  // One call over more and more granules. The slope is the price of one more.
  for (const size_t count : {1, 2, 4, 8, 16, 32, 128, 512, 2048}) {
    if (count * 2 * kMiB <= memory) vmm_calls(2 * kMiB, count, count <= 128 ? 8 : 3, false);
  }
  for (const size_t others : {0, 64, 512, 2048}) {
    if ((others + 1) * 2 * kMiB <= memory) next_to_others(others, 50);
  }
  for (const int threads : {1, 2, 4, 8}) mapping_by_threads(threads);
  for (const int threads : {1, 2, 4, 8}) enqueueing_by_threads(threads);
  beside_running_work(20);
  events(400);
  for (const size_t mib : {2, 32, 256, 1024}) {
    if (mib * kMiB > memory) continue;
    plain_allocation(mib * kMiB, 20);
    async_allocation(mib * kMiB, 20);
  }
  rows.print("driver_calls", library, false);
  cu.cuDevicePrimaryCtxRelease(0);
  return 0;
}

// Copies by size and direction, many small blocks by glake's own kernel and without it, and whether
// kernels run slower on stitched memory.
//
//   copies [LIBRARY [MEMORY_MIB [SECONDS]]]     (default libsimcuda.so, 64, 2)
//
// Prints JSON (measure.h) with rows in GB/s (1e9 bytes a second). A copy within the device, and a
// kernel that reads and writes, count both. Kinds of memory, with interleaved repetitions: "plain"
// (cuMemAlloc), "one handle", "granules" (2 MiB handles in order), "shuffled" (the same in random
// order), "second view" (a further mapping of the shuffled granules, as a stitched block is).
#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "block_rates.h"
#include "measure.h"

using namespace measure;

namespace {

Rows rows;
size_t memory = 64 * kMiB;
double deadline_us = 0;

bool late() { return now_us() > deadline_us; }

// Times work on a stream by events, in milliseconds.
class Watch {
 public:
  Watch() {
    OK(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cu.cuEventCreate(&start_, CU_EVENT_DEFAULT));
    OK(cu.cuEventCreate(&end_, CU_EVENT_DEFAULT));
  }
  ~Watch() {
    cu.cuEventDestroy(start_);
    cu.cuEventDestroy(end_);
    cu.cuStreamDestroy(stream);
  }
  template <class F>
  double ms(F&& work) {
    OK(cu.cuEventRecord(start_, stream));
    work();
    OK(cu.cuEventRecord(end_, stream));
    OK(cu.cuEventSynchronize(end_));
    float taken = 0;
    OK(cu.cuEventElapsedTime(&taken, start_, end_));
    return taken;
  }
  CUstream stream = nullptr;

 private:
  CUevent start_ = nullptr, end_ = nullptr;
};

double rate(double bytes, double ms) { return ms > 0 ? bytes / ms / 1e6 : 0; }

void copies(size_t most) {
  Watch watch;
  CUdeviceptr device = 0, second = 0;
  void* pinned = nullptr;
  OK(cu.cuMemAlloc(&device, most));
  OK(cu.cuMemAlloc(&second, most));
  OK(cu.cuMemHostAlloc(&pinned, most, 0));
  std::vector<char> pageable(most, 1);
  for (size_t bytes = 4096; bytes <= most; bytes *= 4) {
    const int inner = static_cast<int>(std::clamp<size_t>((64 * kMiB) / bytes, 1, 64));
    const int times = bytes <= 64 * kMiB ? 15 : 5;
    std::vector<double> up, down, within, up_pageable, down_pageable;
    const double total = static_cast<double>(bytes) * inner;
    for (int time = 0; time < times && !late(); ++time) {
      const auto repeated = [&](auto&& one) {
        return watch.ms([&] {
          for (int i = 0; i < inner; ++i) one();
        });
      };
      const double to =
          repeated([&] { OK(cu.cuMemcpyHtoDAsync(device, pinned, bytes, watch.stream)); });
      const double from =
          repeated([&] { OK(cu.cuMemcpyDtoHAsync(pinned, device, bytes, watch.stream)); });
      const double on =
          repeated([&] { OK(cu.cuMemcpyDtoDAsync(second, device, bytes, watch.stream)); });
      const double to_us = timed_us([&] { OK(cu.cuMemcpyHtoD(device, pageable.data(), bytes)); });
      const double from_us = timed_us([&] { OK(cu.cuMemcpyDtoH(pageable.data(), device, bytes)); });
      if (time == 0) continue;  // warm-up
      up.push_back(rate(total, to));
      down.push_back(rate(total, from));
      within.push_back(rate(2 * total, on));
      up_pageable.push_back(rate(static_cast<double>(bytes), to_us / 1e3));
      down_pageable.push_back(rate(static_cast<double>(bytes), from_us / 1e3));
    }
    const std::string size = pair("bytes", bytes);
    rows.add("host to device", "pinned", size, up, "GB/s");
    rows.add("device to host", "pinned", size, down, "GB/s");
    rows.add("host to device", "pageable", size, up_pageable, "GB/s");
    rows.add("device to host", "pageable", size, down_pageable, "GB/s");
    rows.add("within the device", "plain", size, within, "GB/s");
  }
  OK(cu.cuMemFreeHost(pinned));
  OK(cu.cuMemFree(second));
  OK(cu.cuMemFree(device));
}

struct Kind {
  const char* name;
  CUdeviceptr base;
  std::vector<double> fill, copy, add, gather;
};

void map_in_order(CUdeviceptr base, const Handles& handles, const std::vector<size_t>& order) {
  for (size_t i = 0; i < order.size(); ++i) {
    OK(cu.cuMemMap(base + i * handles.bytes, handles.bytes, 0, handles.at[order[i]], 0));
  }
  grant(base, order.size() * handles.bytes);
}

// Reads, writes and scattered reads over `bytes` of every kind of memory.
void kinds_of_memory(size_t bytes, kernels::Kernels* kernel) {
  const size_t granule = 2 * kMiB, count = bytes / granule;
  std::vector<size_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  const std::vector<size_t> straight = order;
  std::shuffle(order.begin(), order.end(), std::mt19937(3));
  CUdeviceptr plain = 0, source = 0, out = 0;
  OK(cu.cuMemAlloc(&plain, bytes));
  OK(cu.cuMemAlloc(&source, bytes));
  OK(cu.cuMemAlloc(&out, 4096));
  Handles whole(bytes, 1), small(granule, count), mixed(granule, count);
  Addresses one(bytes), granules(bytes), shuffled(bytes), second(bytes);
  map_in_order(one.base, whole, {0});
  map_in_order(granules.base, small, straight);
  map_in_order(shuffled.base, mixed, order);
  map_in_order(second.base, mixed, straight);
  std::vector<Kind> kinds = {{"plain", plain, {}, {}, {}, {}},
                             {"one handle", one.base, {}, {}, {}, {}},
                             {"granules", granules.base, {}, {}, {}, {}},
                             {"shuffled", shuffled.base, {}, {}, {}, {}},
                             {"second view", second.base, {}, {}, {}, {}}};
  Watch watch;
  const auto size = static_cast<double>(bytes);
  size_t words = 1;
  while (2 * words <= bytes / 4) words *= 2;
  const size_t reads = words / 8;
  for (int time = 0; time < 12 && !late(); ++time) {
    for (Kind& kind : kinds) {
      const double fill =
          watch.ms([&] { OK(cu.cuMemsetD32Async(kind.base, 5, bytes / 4, watch.stream)); });
      const double copy =
          watch.ms([&] { OK(cu.cuMemcpyDtoDAsync(kind.base, source, bytes, watch.stream)); });
      double add = 0, gather = 0;
      if (kernel != nullptr) {
        add = watch.ms([&] { OK(kernel->add_one(watch.stream, 2048, kind.base, bytes / 16)); });
        gather = watch.ms(
            [&] { OK(kernel->gather(watch.stream, 2048, kind.base, words - 1, reads, out)); });
      }
      if (time < 2) continue;  // warm-up
      kind.fill.push_back(rate(size, fill));
      kind.copy.push_back(rate(2 * size, copy));
      if (kernel == nullptr) continue;
      kind.add.push_back(rate(2 * size, add));
      kind.gather.push_back(rate(4.0 * static_cast<double>(reads), gather));
    }
  }
  for (const Kind& kind : kinds) {
    const std::string what = pair("bytes", bytes);
    rows.add("memset", kind.name, what, kind.fill, "GB/s");
    rows.add("copy into", kind.name, what, kind.copy, "GB/s");
    rows.add("kernel, read and write", kind.name, what, kind.add, "GB/s");
    rows.add("kernel, scattered reads", kind.name, what, kind.gather, "GB/s");
  }
  OK(cu.cuCtxSynchronize());
  for (const Addresses* range : {&one, &granules, &shuffled, &second}) {
    OK(cu.cuMemUnmap(range->base, bytes));
  }
  for (const CUdeviceptr block : {plain, source, out}) OK(cu.cuMemFree(block));
}

void blocks_of(size_t most, const char* library) {
  kernels::BlockKernel blocks;
  OK(blocks.open(library));
  Watch watch;  // destroyed before the context, else a GPU's driver crashes
  block_rates(&rows, &blocks, watch.stream, most, [&](size_t bytes, auto&& work) {
    return rate(static_cast<double>(bytes), watch.ms(work));
  });
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
  kernels::Kernels kernel;
  const bool has_kernels = kernel.open(library);
  if (has_kernels) OK(kernel.status());
  kinds_of_memory(std::min<size_t>(memory / 8 / (2 * kMiB) * (2 * kMiB), 4096 * kMiB),
                  has_kernels ? &kernel : nullptr);
  copies(std::min<size_t>(memory / 4, 1024 * kMiB));
  blocks_of(std::min<size_t>(memory / 4, 64 * kMiB), library);
  rows.print("copies", library, has_kernels);
  cu.cuDevicePrimaryCtxRelease(0);
  return 0;
}

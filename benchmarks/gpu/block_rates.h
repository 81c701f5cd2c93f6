// Rates of many small blocks for copies.cpp: by one launch of glake_copy_blocks, by one copy of as
// many bytes, and by one copy for each block.
#pragma once

#include <algorithm>
#include <numeric>
#include <random>

#include "../../tests/conformance/block_kernel.h"
#include "measure.h"

namespace measure {

// GB/s of `bytes` in blocks between pinned host memory and the device. The blocks of one side are
// in random order. `rate_of` runs the work on the stream and returns its rate by events.
template <class RateOf>
void block_rates(Rows* rows, kernels::BlockKernel* kernel, CUstream stream, size_t bytes,
                 RateOf&& rate_of) {
  CUdeviceptr device = 0;
  void *pinned = nullptr, *memory = nullptr;
  OK(cu.cuMemAlloc(&device, bytes));
  OK(cu.cuMemHostAlloc(&pinned, bytes, 0));
  const auto host = reinterpret_cast<CUdeviceptr>(pinned);
  for (const size_t block : {size_t{4096}, size_t{16384}, size_t{65536}}) {
    const size_t count = bytes / block;
    OK(cu.cuMemHostAlloc(&memory, count * sizeof(kernels::CopyBlock), 0));
    auto* table = static_cast<kernels::CopyBlock*>(memory);
    std::vector<size_t> order(count);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), std::mt19937(5));
    for (const bool up : {true, false}) {
      for (size_t i = 0; i < count; ++i) {
        const CUdeviceptr one = device + i * block, other = host + order[i] * block;
        table[i] = {up ? one : other, up ? other : one, block};
      }
      std::vector<double> by_kernel, whole, singly;
      for (int time = 0; time < 6; ++time) {
        const double launched = rate_of(
            bytes, [&] { OK(kernel->launch(stream, table, static_cast<unsigned>(count))); });
        const double copied = rate_of(bytes, [&] {
          OK(up ? cu.cuMemcpyHtoDAsync(device, pinned, bytes, stream)
                : cu.cuMemcpyDtoHAsync(pinned, device, bytes, stream));
        });
        const double pieces = rate_of(bytes, [&] {
          for (size_t i = 0; i < count; ++i) {
            void* at = reinterpret_cast<void*>(up ? table[i].src : table[i].dst);
            OK(up ? cu.cuMemcpyHtoDAsync(table[i].dst, at, block, stream)
                  : cu.cuMemcpyDtoHAsync(at, table[i].src, block, stream));
          }
        });
        if (time == 0) continue;  // warm-up
        by_kernel.push_back(launched);
        whole.push_back(copied);
        singly.push_back(pieces);
      }
      const char* what = up ? "blocks to device" : "blocks to host";
      const std::string size = pair("bytes", block);
      rows->add(what, "one kernel", size, by_kernel, "GB/s");
      rows->add(what, "one copy of all", size, whole, "GB/s");
      rows->add(what, "a copy each", size, singly, "GB/s");
    }
    OK(cu.cuMemFreeHost(memory));
  }
  OK(cu.cuMemFreeHost(pinned));
  OK(cu.cuMemFree(device));
}

}  // namespace measure

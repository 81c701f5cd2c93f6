// Turns copy, memset and value calls into stream work. Under the driver's mutex.
#pragma once

#include "driver.h"

namespace simcuda {

struct CopyEnd {
  uint64_t address = 0;
  size_t pitch = 0;
  bool host = false;
  bool unified = false;  // the address itself tells what it is
};

// `stream` is a handle of the table. Waits when `wait` is set, or when CUDA says so (to pageable
// host memory, between host addresses).
CUresult copy(Driver* driver, uint64_t stream, Lock* lock, CopyEnd dst, CopyEnd src, size_t bytes,
              size_t rows, bool peer, bool wait);
// The socket of host memory, -1: spread over all, -2: by the device at the other end.
int node_of_host(const Driver& driver, uint64_t address, size_t bytes);

struct BatchCopy {
  uint64_t dst = 0, src = 0;
  size_t bytes = 0;
  bool read_now = false;  // the source, before the call returns
};
// One piece of work of many copies, in no order among themselves.
CUresult copy_batch(Driver* driver, uint64_t stream, const std::vector<BatchCopy>& copies);
// What a launch of glake_copy_blocks does. Its time is by what the table, in pinned host memory,
// holds now; it copies what the table holds when it runs.
CUresult copy_blocks(Driver* driver, uint64_t stream, uint64_t table, uint32_t count);
CUresult fill(Driver* driver, uint64_t stream, CUdeviceptr dst, uint64_t value, unsigned width,
              size_t count);
// The calling thread is inside a call that is computed as a whole (compute.h).
bool covered();
// Into the stream, or into its capture, or onto the tick clock.
CUresult submit(Driver* driver, Stream* stream, const OpPtr& op);

}  // namespace simcuda

// Turns copy, memset and value calls into stream work. Under the driver's mutex.
#pragma once

#include "driver.h"

namespace simcuda {

struct CopyEnd {
  uint64_t address = 0;
  size_t pitch = 0;
  bool host = false;
  bool unified = false;  // the address alone tells which memory it is
};

struct CopyRequest {
  CopyEnd dst, src;
  size_t bytes = 0, rows = 1;
  bool peer = false;          // between the contexts below
  uint64_t to = 0, from = 0;  // their ids
  bool wait = false;
};
// Enqueues a copy. Waits for it if `wait` is set or if CUDA waits (copies to pageable host memory,
// or between host addresses). `stream` is a handle of the table.
CUresult copy(Driver* driver, uint64_t stream, Lock* lock, const CopyRequest& request);
// The socket of host memory; -1: spread over all; -2: decided by the device at the other end.
int node_of_host(const Driver& driver, uint64_t address, size_t bytes);

struct BatchCopy {
  uint64_t dst = 0, src = 0;
  size_t bytes = 0;
  bool read_now = false;  // the source is read before the call returns
};
// One piece of work with many copies, which have no order among themselves.
CUresult copy_batch(Driver* driver, uint64_t stream, const std::vector<BatchCopy>& copies);
// Does the work of a launch of glake_copy_blocks. Its time is computed from the table in pinned
// host memory as it is now. It copies what the table says when it runs.
CUresult copy_blocks(Driver* driver, uint64_t stream, uint64_t table, uint32_t count);
struct FillRequest {
  CUdeviceptr dst = 0;
  uint64_t value = 0;
  unsigned width = 1;
  size_t count = 0;
  // The call without a stream: it waits if the target is pinned host memory or managed memory
  // (CUDA Driver API, API synchronization behavior).
  bool synchronous = false;
};
CUresult fill(Driver* driver, uint64_t stream, Lock* lock, const FillRequest& request);
// Whether the calling thread is inside a call that is computed as a whole (compute.h).
bool covered();
// Puts the work into the stream, into the stream's capture, or onto the tick clock. A copy between
// devices in the NULL stream is work of the legacy streams `others` too.
CUresult submit(Driver* driver, Stream* stream, const OpPtr& op,
                const std::vector<Stream*>& others = {});

}  // namespace simcuda

// Enqueues the copies of one hop of a chunk on a stream. It uses a driver copy for each piece, a
// batch of them, or one launch of the kernel that copies blocks, whichever is quickest.
#pragma once

#include <vector>

#include "transfer/buffers/devices.h"
#include "transfer/buffers/slots.h"
#include "transfer/call/request.h"
#include "transfer/run/copy_kernel.h"

namespace glake::transfer {

// One hop of a chunk. A chunk is in one piece in a buffer, and may be in several at the transfer's
// own ends.
struct ChunkHop {
  const Request& request;
  const Hop& hop;
  Range range;
  Address from = 0, to = 0;  // buffers; 0: the transfer's own end
  Rate link = 0;             // the rate of this hop if it were alone
  StreamHandle stream = 0;   // of device_of(hop)

  // The device whose copy engine does the work. It is also the one whose context the calls need.
  static int device_of(const Hop& hop) {
    return hop.from.host() || hop.reads ? hop.to.gpu : hop.from.gpu;
  }
};

// The memory of a kernel: its table of blocks, and room for the chunk in one piece. It is kept
// until the copies are done.
struct KernelBuffers {
  Slot table, bounce;
};

class ChunkCopier {
 public:
  ChunkCopier(Driver& driver, Devices& devices, Slots& slots, CopyKernel& kernel, uint64_t copy_ns)
      : driver_(driver), devices_(devices), slots_(slots), kernel_(kernel), copy_ns_(copy_ns) {}

  // A DeviceScope of device_of(hop) must be open. `enqueued` are the bytes that are in the stream
  // when it returns, also after an error. `unsure`: some bytes may be in the stream, and the driver
  // does not tell when they are done.
  Status copy(const ChunkHop& chunk, KernelBuffers* buffers, Bytes* enqueued, bool* unsure);
  // Waits until all work of a stream is done. False: the driver does not tell.
  bool quiesce(int device, StreamHandle stream);

 private:
  Status copy_one(const ChunkHop& chunk, Address dst, Address src, Bytes bytes);
  Status copy_together(const ChunkHop& chunk, KernelBuffers* buffers, bool* unsure);
  Status copy_by_kernel(const ChunkHop& chunk, KernelBuffers* buffers, bool* unsure);
  bool kernel_reaches(const ChunkHop& chunk);
  bool side_by_side(bool at_source) const;
  bool by_driver_between_gpus(const Hop& hop) const;
  size_t row_count(size_t first) const;
  Status copy_rows(const ChunkHop& chunk, size_t first, size_t count);

  Driver& driver_;
  Devices& devices_;
  Slots& slots_;
  CopyKernel& kernel_;
  const uint64_t copy_ns_;
  std::vector<Piece> pieces_;  // scratch, like all members below
  std::vector<Address> dsts_, srcs_;
  std::vector<Bytes> sizes_;
};

}  // namespace glake::transfer

// Puts the copies of one hop of a chunk into a stream: a copy each, a batch of them, or one launch
// of the kernel that copies blocks, whichever is quickest.
#pragma once

#include <vector>

#include "transfer/buffers/devices.h"
#include "transfer/buffers/slots.h"
#include "transfer/call/request.h"
#include "transfer/run/copy_kernel.h"

namespace glake::transfer {

// One hop of a chunk. A chunk is whole in a buffer, and in pieces at the transfer's own ends.
struct ChunkHop {
  const Request& request;
  const Hop& hop;
  Range range;
  Address from = 0, to = 0;  // buffers; 0: the transfer's own end
  Rate link = 0;             // of this hop, were it alone
  StreamHandle stream = 0;   // of device_of(hop)

  // The device whose copy engine does the work: the one that has the bytes, which pushes them,
  // except where they come from the host.
  static int device_of(const Hop& hop) { return hop.from.host() ? hop.to.gpu : hop.from.gpu; }
};

// What a kernel works with: its table of blocks, and the chunk in one piece beside them. Kept until
// the copies are done.
struct KernelBuffers {
  Slot table, bounce;
};

class ChunkCopier {
 public:
  ChunkCopier(Driver& driver, Devices& devices, Slots& slots, CopyKernel& kernel, uint64_t copy_ns)
      : driver_(driver), devices_(devices), slots_(slots), kernel_(kernel), copy_ns_(copy_ns) {}

  // In a DeviceScope of device_of(hop). `enqueued`: bytes that are in the stream when it returns,
  // whatever it returns. `unsure`: some may be, and the driver does not tell when they are done.
  Status copy(const ChunkHop& chunk, KernelBuffers* buffers, Bytes* enqueued, bool* unsure);
  // Whether all of a stream is done. An error may be the question's, not a copy's: it asks again.
  bool quiesce(int device, StreamHandle stream);

 private:
  Status copy_one(const ChunkHop& chunk, Address dst, Address src, Bytes bytes);
  Status copy_together(const ChunkHop& chunk, KernelBuffers* buffers, bool* unsure);
  Status copy_by_kernel(const ChunkHop& chunk, KernelBuffers* buffers, bool* unsure);
  bool kernel_reaches(const ChunkHop& chunk);
  bool side_by_side(bool at_source) const;

  Driver& driver_;
  Devices& devices_;
  Slots& slots_;
  CopyKernel& kernel_;
  const uint64_t copy_ns_;
  std::vector<Piece> pieces_;  // scratch, as all that follow
  std::vector<Address> dsts_, srcs_;
  std::vector<Bytes> sizes_;
};

}  // namespace glake::transfer

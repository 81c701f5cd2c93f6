// What a caller asks for, checked against what the driver knows of the addresses.
#pragma once

#include "driver/driver.h"
#include "glake/glake.h"
#include "plan/plan.h"
#include "transfer/buffers/allocator.h"
#include "transfer/buffers/parts.h"

namespace glake::transfer {

enum Flags : unsigned {
  kDirect = GLAKE_COPY_DIRECT,
  kRelayed = GLAKE_COPY_RELAYED,
  kTracked = GLAKE_COPY_TRACKED,
  kChecksum = GLAKE_COPY_CHECKSUM,
  kChecked = GLAKE_COPY_CHECKED,
  kCheckedDst = GLAKE_COPY_CHECKED_DST,
  kCheckedSrc = GLAKE_COPY_CHECKED_SRC
};

// The bytes of the host end that lie on one socket. They go up to `end`.
struct Stripe {
  Bytes end = 0;
  int node = kSpread;
};

struct Request {
  explicit Request(Parts what) : parts(std::move(what)) {}

  Parts parts;
  Place dst, src;
  Demand demand() const { return {src, dst, 1, relays, false, may_read}; }
  bool local() const { return !src.host() && src.gpu == dst.gpu; }  // within one GPU
  bool known = false;     // all memory of both ends was checked
  bool pageable = false;  // the host end is not pinned, so chunks pass through pinned buffers
  // The relay service does not reach the host end, so its chunks pass through other memory.
  bool unshared = false;
  uint32_t relays = kAllGpus;  // GPUs that may relay for it, one bit each
  bool may_read = false;       // other GPUs may be given access to the memory of `src`
  bool ordered = false;        // it has a place in the order of the caller's work on `stream`
  int stream_device = 0;
  StreamHandle stream = 0;
  StreamKey stream_key() const { return ordered ? StreamKey{stream_device, stream} : StreamKey{}; }
  unsigned flags = 0;
  bool also_ordered = false;  // it has a place in a second stream's order, too
  int also_device = 0;
  StreamHandle also_stream = 0;
  std::vector<Stripe> stripes;  // of the host end, if it is kStriped
  bool by_socket = false;       // its parts are stripes of one range, which copy engines carry
  bool in_rows = false;         // many of these lie at equal distances: one driver copy has several
};

// Small copies with named ends are not checked, unless the request wants that (kChecked,
// kCheckedDst, kCheckedSrc). For other copies glake checks that its own memory is in one live
// block. It asks the driver about other memory in the context of device `context`, which must be
// open. `topology` may be null. Throws Error.
Request make_request(Driver& driver, Allocator& allocator, const topology::Topology* topology,
                     const glake_copy_request& given, int context);

}  // namespace glake::transfer

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

// Bytes of the host end up to `end` that lie on one socket.
struct Stripe {
  Bytes end = 0;
  int node = kSpread;
};

struct Request {
  explicit Request(Parts what) : parts(std::move(what)) {}

  Parts parts;
  Place dst, src;
  Demand demand() const { return {src, dst, 1, relays}; }
  bool known = false;          // all of both ends has been looked into
  bool pageable = false;       // the host end is not pinned: chunks pass through pinned buffers
  bool unshared = false;       // nor reached by the relay service: its chunks pass through others
  uint32_t relays = kAllGpus;  // GPUs that may relay for it, as bits
  bool ordered = false;        // after and before the caller's work on `stream`
  int stream_device = 0;
  StreamHandle stream = 0;
  unsigned flags = 0;
  bool also_ordered = false;  // by a second stream, too
  int also_device = 0;
  StreamHandle also_stream = 0;
  std::vector<Stripe> stripes;  // of the host end, where it is kStriped
  bool by_socket = false;       // its parts are stripes of one range: copy engines carry them
};

// Small copies whose ends the caller has named are not looked into, unless it wants that
// (kChecked, kCheckedDst, kCheckedSrc). Of others, glake's own memory is known to lie in one live
// block, and the driver is asked about the rest in the context of device `context`, which must be
// open. `topology` may be null. Throws Error.
Request make_request(Driver& driver, Allocator& allocator, const topology::Topology* topology,
                     const glake_copy_request& given, int context);

}  // namespace glake::transfer

// The copies of one flight, hop by hop. It gets the buffers, makes each copy by a stream or by the
// relay service, and asks whether the copy is done.
#pragma once

#include <string>

#include "base/transfer_tuning.h"
#include "transfer/run/chunk_copier.h"
#include "transfer/run/flight.h"
#include "transfer/run/submitter_tools.h"
#include "transfer/run/work_streams.h"

namespace glake::transfer {

class FlightCopier {
 public:
  FlightCopier(const SubmitterTools& tools, WorkStreams& streams)
      : tools_(tools),
        streams_(streams),
        chunks_(tools.driver, tools.devices, tools.slots, tools.kernel, tools.copy_ns) {}

  // Whether the relay service has buffers for a chunk of the run now. True if the run does not need
  // the service.
  bool has_room(const PathRun& run, Bytes bytes) const;
  // Lends the flight its buffers, and copies pageable bytes into one. Throws if there is no buffer.
  void outfit(Flight* flight);
  // Begins this hop's copy. `enqueued` says how many bytes are under way then, also after an error.
  Status start(Flight* flight, Bytes* enqueued);
  // The status of a copy that is under way: done, not ready, or failed.
  Status ask(Flight* flight);
  // Waits until nothing may still read or write the buffers, so that another chunk may have them.
  // False: the driver does not say.
  bool quiesce(const Flight& flight);
  // Called after the last copy. If the destination is pageable, copies the bytes from the buffer to
  // it.
  void bring_back(const Flight& flight);
  // Says in words what went wrong.
  std::string failure(const Flight& flight, Status status) const;

 private:
  bool staged(const Flight& flight) const;
  Status order(Flight* flight, Bytes* enqueued);

  const SubmitterTools& tools_;
  WorkStreams& streams_;
  ChunkCopier chunks_;
};

}  // namespace glake::transfer

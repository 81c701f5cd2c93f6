// The copies of one flight, hop by hop: its buffers, the streams or the relay service that make
// each copy, and whether it is done.
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

  // Whether the relay service has buffers for a chunk of the run now, where it is on the way.
  bool has_room(const PathRun& run, Bytes bytes) const;
  // Lends the flight its buffers, and takes pageable bytes into one. Throws if one is not to be
  // had.
  void outfit(Flight* flight);
  // Begins this hop's copy; what of it is under way then, also where the status is an error.
  Status start(Flight* flight, Bytes* enqueued);
  // Of a copy that is under way: done, not ready, or failed.
  Status ask(Flight* flight);
  // Nothing may still read or write the buffers when they go to another chunk. False: the driver
  // does not say.
  bool quiesce(const Flight& flight);
  // After the last copy: bytes for pageable memory are copied there.
  void bring_back(const Flight& flight);
  // What went wrong, in words.
  std::string failure(const Flight& flight, Status status) const;

 private:
  bool staged(const Flight& flight) const;
  Status order(Flight* flight, Bytes* enqueued);

  const SubmitterTools& tools_;
  WorkStreams& streams_;
  ChunkCopier chunks_;
};

}  // namespace glake::transfer

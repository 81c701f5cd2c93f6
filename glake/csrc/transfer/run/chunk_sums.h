// Checksums. They tell whether a chunk arrived as it was sent, for users who trust no link or relay
// buffer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "transfer/run/flight.h"
#include "transfer/run/flight_copier.h"
#include "transfer/run/lost_flights.h"
#include "transfer/run/submitter_tools.h"
#include "transfer/run/work_streams.h"

namespace glake::transfer {

class ChunkSums {
 public:
  ChunkSums(const SubmitterTools& tools, WorkStreams& streams, FlightCopier& copier,
            LostFlights& lost)
      : tools_(tools), streams_(streams), copier_(copier), lost_(lost) {}

  // How a chunk that has arrived differs from what was sent; "" if it does not.
  std::string difference(const Flight& flight);

 private:
  enum class Side { kSrc, kDst };
  uint64_t sum_at(const Flight& flight, Side side);

  const SubmitterTools& tools_;
  WorkStreams& streams_;
  FlightCopier& copier_;
  LostFlights& lost_;
  std::vector<Piece> pieces_;  // scratch
};

}  // namespace glake::transfer

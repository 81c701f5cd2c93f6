// Keeps copies that were given up and whose end nobody has seen yet, together with their buffers.
#pragma once

#include <vector>

#include "transfer/run/flight.h"
#include "transfer/run/flight_copier.h"

namespace glake::transfer {

class LostFlights {
 public:
  LostFlights(const SubmitterTools& tools, FlightCopier& copier)
      : driver_(tools.driver), book_(tools.book), copier_(copier) {}

  // The next four are called under the lock.
  void add(Flight flight);
  bool any() const { return !flights_.empty(); }
  // Finds copies that are done after all. True: the submitter's thread must ask about some of them.
  bool look(ChunkBook::Lock* lock);
  std::vector<Flight> take();

  // Called on the submitter's thread, without the lock. Gives back the buffers of the copies that
  // are done.
  void reap(uint64_t timeout_ns);

 private:
  void found(Flight* flight);

  Driver& driver_;
  ChunkBook& book_;
  FlightCopier& copier_;
  uint64_t count_ = 0;
  std::vector<Flight> flights_;
};

}  // namespace glake::transfer

// A thread that submits the copies of every path that one GPU works for, and waits for them. It
// sleeps while there are none. The second copy of a relayed chunk is submitted when the first is
// seen done. So a chunk that is stuck before its last copy has written nothing to the destination.
#pragma once

#include <condition_variable>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "transfer/run/chunk_book.h"
#include "transfer/run/chunk_listener.h"
#include "transfer/run/chunk_sums.h"
#include "transfer/run/flight.h"
#include "transfer/run/flight_copier.h"
#include "transfer/run/lost_flights.h"
#include "transfer/run/submitter_tools.h"
#include "transfer/run/transfer.h"
#include "transfer/run/work_streams.h"

namespace glake::transfer {

class Submitter {
 public:
  using Lock = ChunkBook::Lock;

  Submitter(const SubmitterTools& tools, ChunkListener& listener, int gpu);
  Submitter(const Submitter&) = delete;
  Submitter& operator=(const Submitter&) = delete;
  ~Submitter();

  int gpu() const { return gpu_; }
  // Under the book's lock. A simulated driver's time waits for a thread that is woken.
  void add(const TransferPtr& transfer, PathRun* run);
  void remove(const Transfer* transfer);
  void wake();
  // Whether there is work for the thread that it has not seen yet.
  bool wanted(uint64_t now) const;
  // Finds given-up copies that are done after all. True if the submitter's thread must ask about
  // some of them.
  bool look_for_lost(Lock* lock) { return lost_.look(lock); }
  // Ends the thread. No transfer may be under way. Returns a text that says what was not given
  // back; "": all was.
  std::string stop();
  void abandon() { thread_.detach(); }  // in a forked child there is no such thread

 private:
  struct Entry {
    TransferPtr transfer;
    PathRun* run;
    uint64_t turn;  // number of the last chunk that it took
  };

  void run();
  void rest(Lock* lock);
  void doze(Lock* lock);
  bool claim(Flight* flight, uint64_t now);
  void begin(Flight flight);
  void launch(Flight flight);
  bool park(Flight* flight);
  uint64_t next_moment(uint64_t now);
  void wait();
  void complete(Flight flight, Status status);
  void give_up(Lock* lock, Flight flight, const std::string& why);
  void handle_overdue(size_t index, uint64_t now);
  std::string end();

  const SubmitterTools tools_;
  ChunkBook& book_;
  ChunkListener& listener_;
  Driver& driver_;
  const int gpu_;
  // Under the lock.
  std::vector<Entry> entries_;
  uint64_t turns_ = 0;
  bool awake_ = false, stopping_ = false;
  std::string left_;  // what was not given back, once the thread has ended
  std::condition_variable woken_;
  // Only its thread uses these.
  WorkStreams streams_;
  std::vector<Flight> flights_;
  bool crowded_ = false;  // a chunk waits for room in a buffer of the relay service
  FlightCopier copier_;
  LostFlights lost_;  // LostFlights says which calls need the lock
  ChunkSums sums_;
  std::vector<EventId> events_;  // scratch
  std::thread thread_;
};

}  // namespace glake::transfer

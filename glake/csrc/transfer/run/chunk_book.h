// Books what happens to chunks with their transfers, runs and paths. Submitters use the state that
// they share (run_state.h) only through this class. Callers of every method except lock() hold the
// lock.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "driver/driver.h"
#include "transfer/run/flight.h"
#include "transfer/run/transfer.h"

namespace glake::transfer {

class RunState;

class ChunkBook {
 public:
  using Lock = std::unique_lock<std::mutex>;

  // `copy_ns`: what starting a copy costs.
  ChunkBook(RunState& state, Driver& driver, uint64_t copy_ns)
      : state_(state), driver_(driver), copy_ns_(copy_ns) {}

  Lock lock();  // the state's

  // How many bytes the run may take at `now`.
  Bytes allowance(const Transfer& transfer, const PathRun& run, uint64_t now) const;
  // The same, but 0 if the chunk should not begin yet.
  Bytes ready(const Transfer& transfer, PathRun& run, uint64_t now) const;
  // When the run's next chunk should begin, if that is later.
  uint64_t next_chance(const PathRun& run) const;
  // The run takes the next chunk, of about `bytes` bytes.
  Flight take(const TransferPtr& transfer, PathRun* run, Bytes bytes, uint64_t now);

  // When the chunk's next copy should be submitted: `now`, or later.
  uint64_t moment(const Flight& flight, uint64_t now) const;
  // Sets what the flight must know of its next hop: how fast the link is, how many streams take
  // turns, and whether the copy begins only after the one before it.
  void aim(Flight* flight) const;
  // Only the first `enqueued` bytes of the copy are under way. They become a shorter chunk, and the
  // rest is taken again. `why` says what failed; "": nothing did.
  void shorten(Flight* flight, Bytes enqueued, const std::string& why);
  // The copy is under way. Tells the flight when it should be done, and when it is late.
  void submit(Flight* flight, uint64_t now);
  // The copy is late.
  void suspect(const Flight& flight, const std::string& why);
  // The copy is done.
  void complete(const Flight& flight, uint64_t now);

  // The chunk has arrived.
  void land(const Flight& flight);
  // Which hop has kept the chunk's run below its plan for a while; -1: none has.
  int slow_hop(const Flight& flight, uint64_t now);
  // The chunk got no buffers and is taken again. `why` is the reason to close its run; "": the run
  // stays open.
  void refuse(const Flight& flight, const std::string& why);
  // The copy has failed. The chunk is taken again.
  void fail(const Flight& flight, const std::string& why);
  // Nobody waits for the copy any more. If it is the chunk's last one, the transfer fails. Else the
  // chunk is taken again.
  void give_up(const Flight& flight, const std::string& why);
  // A copy that was given up may still read and write. lose() counts such a copy, and find() says
  // that it was seen done.
  void lose(const Flight& flight);
  void find(const Flight& flight);

 private:
  void give_back(const Flight& flight, const std::string& why);
  void drop(const Flight& flight, const std::string& why);

  RunState& state_;
  Driver& driver_;
  const uint64_t copy_ns_;
};

}  // namespace glake::transfer

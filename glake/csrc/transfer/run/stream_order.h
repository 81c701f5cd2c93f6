// How a transfer takes its place in a caller's stream. It begins when the stream reaches it, and
// the stream goes on when it is done. The call itself returns at once.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "transfer/run/runner.h"
#include "transfer/run/stream_gates.h"

namespace glake::transfer {

class StreamOrder {
 public:
  StreamOrder(Driver& driver, HostPool& host, RunState& state, Runner& runner)
      : driver_(driver), gates_(host), state_(state), runner_(runner) {}
  StreamOrder(const StreamOrder&) = delete;
  StreamOrder& operator=(const StreamOrder&) = delete;

  // Puts the transfer into its request's stream. False: the driver cannot make a stream wait. If it
  // throws Error, the stream goes on, and the transfer has ended.
  bool place(const TransferPtr& transfer);
  // Makes later work of the stream wait for the transfer. Throws Error.
  void make_stream_wait(const TransferPtr& transfer, int device, StreamHandle stream);
  // Drives a simulated driver's time while a transfer waits for a stream. Callers hold the state's
  // lock, which is released meanwhile. If the driver says that the stream has failed, the stream
  // never reaches the transfer.
  void await(RunState::Lock* lock, const TransferPtr& transfer);
  // Nobody waits for this transfer's stream any more.
  void retire(const TransferPtr& transfer);
  size_t waiting();  // transfers that no stream has reached yet
  // Ends the transfers that no stream has reached yet. A stream that comes later is ignored.
  void shut();
  // Destroys the events of streams that have passed their gates. True if every stream has.
  bool reap(uint64_t timeout_ns);
  void close() { gates_.close(); }

 private:
  struct Arrival;  // the argument of the driver's callback

  void arrived(const TransferPtr& transfer);
  Status nothing_before(int device, StreamHandle stream, bool* nothing);
  Status enqueue(const TransferPtr& transfer, const std::shared_ptr<Arrival>& arrival,
                 EventId passed);
  void undo(const TransferPtr& transfer, Arrival* arrival, EventId passed);

  Driver& driver_;
  StreamGates gates_;
  RunState& state_;
  Runner& runner_;
  // Under the state's lock.
  std::vector<std::shared_ptr<Arrival>> arrivals_;
  std::vector<EventId> passed_;  // recorded behind gates, on callers' streams
};

}  // namespace glake::transfer

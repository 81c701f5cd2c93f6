// One request under way. It knows which bytes are still to be taken, which have arrived, and its
// runs. Every method runs under the state's lock (run_state.h).
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "transfer/buffers/range_set.h"
#include "transfer/call/request.h"
#include "transfer/run/health_book.h"
#include "transfer/run/path_run.h"
#include "transfer/run/stream_gates.h"

namespace glake::transfer {

enum class State { kWaiting, kRunning, kDone, kFailed, kCancelled };
const char* state_name(State state);

class Transfer {
 public:
  explicit Transfer(Request what);

  bool over() const { return state >= State::kDone; }
  Bytes total() const { return request.parts.total(); }
  Bytes left() const;  // neither taken nor arrived

  // Takes the next chunk of about `wanted` bytes, for a run to which allowance() granted them.
  Range take(const PathRun& run, Bytes wanted);
  void give_back(Range range);

  // How much `run` may take at `now`. 0: it is another run's turn, or there is no more to take.
  Bytes allowance(const PathRun& run, uint64_t now, uint64_t copy_ns) const;

  // Takes the paths of a new plan. Runs that stay keep what they know.
  void replan(const TransferPlan& next, HealthBook* book);
  void add_run(const PlannedPath& path, HealthBook* book);
  void close_run(PathRun* run, const std::string& reason);
  void count_failure(PathRun* run);  // a chunk failed; after many failures the run is closed
  // Whether there is more to take and no open run for it.
  bool stranded() const;
  // Whether nothing more will happen. If the transfer is stranded, it is failed first.
  bool ready();
  void end(uint64_t now);  // for a transfer that is ready
  // Takes no more chunks. The transfer ends when those under way have ended. `details` may be long,
  // so messages have them last, after the destination's state.
  void fail(int code, const std::string& text, const std::string& details = "");
  std::string destination_state() const;
  std::string json(uint64_t now) const;

 private:
  // The bytes still to be taken from one socket's memory, or from all memory if sockets do not
  // matter.
  struct Stock {
    std::deque<Range> ranges;
    Bytes bytes = 0;
  };
  size_t stock_at(Bytes offset) const;
  size_t own_stock(const PathRun& run) const;
  const Stock* stock_for(const PathRun& run) const;
  Stock* stock_for(const PathRun& run);
  int index_for(const PathRun& run) const;
  Rate planned_rate(size_t stock) const;
  bool live(const PathRun& run) const;
  bool may_take(const PathRun& run, uint64_t now, uint64_t copy_ns) const;
  bool best_choice(const PathRun& run, Bytes bytes, uint64_t now, uint64_t copy_ns) const;
  bool ahead_of_share(const PathRun& run) const;

 public:
  const Request request;
  State state = State::kRunning;
  bool listed = false;  // it was put into the list of running transfers
  bool begun = false;   // a chunk has been taken
  bool cancelled = false;
  int error = 0;  // a glake_status
  std::string error_text;
  RangeSet landed;
  RangeSet unknown;  // the ranges of copies that were given up
  // How many of those copies are not seen done yet. They may still read and write.
  unsigned unfinished = 0;
  bool released = false;  // the caller released it while there were such copies
  std::vector<std::unique_ptr<PathRun>> runs;
  std::vector<Refusal> refusals;
  TransferPlan plan;  // only its rates are used after replan()
  unsigned in_flight = 0;
  uint64_t started_ns = 0, ended_ns = 0;
  StreamGate gate;                  // of the caller's stream
  std::vector<StreamGate> waiters;  // of other streams
  EventId passed = 0;               // recorded behind the gate on the caller's stream
  std::condition_variable changed;

 private:
  std::vector<Stock> stocks_;
  std::string error_details_;
};

using TransferPtr = std::shared_ptr<Transfer>;

}  // namespace glake::transfer

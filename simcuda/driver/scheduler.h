// Takes stream work, and connects the parts that run it. A discrete-event simulation on the clock
// computes the times (Timeline, Flows). Effects are made lazily in a seeded order (Applier).
// Threads go on one by one (Turns). Every method runs under the driver's mutex.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "applier.h"
#include "clock.h"
#include "effects.h"
#include "flows.h"
#include "foreseen.h"
#include "graph.h"
#include "host.h"
#include "known.h"
#include "landings.h"
#include "links.h"
#include "lost.h"
#include "memory.h"
#include "op.h"
#include "options.h"
#include "pending.h"
#include "phantom.h"
#include "shared_links.h"
#include "stream.h"
#include "timekeeper.h"
#include "timeline.h"
#include "turns.h"
#include "waits.h"
#include "workers.h"

namespace simcuda {

class Scheduler {
 public:
  Scheduler(const Options& options, std::mutex* mutex, Topology* topology, Memory* memory,
            const HostMemory* host, Streams* streams, std::unique_ptr<SharedLinks> shared);
  // Drops what is pending and ends the threads. The mutex must not be held.
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Appends to the stream by the rules of the legacy stream. `op` also runs after `also`.
  void enqueue(Stream* stream, const OpPtr& op, const OpPtr& also = nullptr);
  // The same, as if `op` were also the next work of the streams `others`.
  void enqueue_across(Stream* stream, const std::vector<Stream*>& others, const OpPtr& op);
  struct Ordered {  // a piece of a graph
    OpPtr op;
    const After* after = nullptr;  // indices in the list; all are lower than its own
    OpPtr also;                    // work outside the graph that it waits for
  };
  // Appends a graph to the stream, to run after `also` too. Returns the last piece, which follows
  // all others.
  OpPtr enqueue_graph(Stream* stream, const std::vector<Ordered>& work, const OpPtr& also);
  // The stream is destroyed. What is enqueued there still runs.
  void forget(uint64_t stream) { workers_.forget(stream); }
  // Ends work that is in no stream.
  void end(const OpPtr& op);
  // Copies under way continue at the links' present speed.
  void links_changed();

  // The parts that calls use themselves.
  const Clock& clock() const { return clock_; }
  const PendingWork& pending() const { return pending_; }
  Links& links() { return links_; }
  Landings& landings() { return landings_; }
  Known& known() { return known_; }           // of phantom memory
  Foreseen& foreseen() { return foreseen_; }  // the same, after all enqueued work
  LostContexts& lost() { return lost_; }
  Effects& effects() { return effects_; }
  Turns& turns() { return turns_; }
  Waits& waits() { return waits_; }

 private:
  void append(Stream* stream, const OpPtr& op);
  void admit(Stream* stream, const OpPtr& op);

  std::mutex* const mutex_;
  Streams* const streams_;
  const bool phantom_;
  const std::unique_ptr<SharedLinks> shared_;
  Clock clock_;
  PendingWork pending_;
  Links links_;
  Landings landings_;
  Known known_;
  Foreseen foreseen_;
  LostContexts lost_;
  PhantomMemory phantom_memory_;
  Effects effects_;
  Turns turns_;
  Applier applier_;
  Flows flows_;
  Timeline timeline_;
  Workers workers_;
  std::unique_ptr<Timekeeper> timekeeper_;  // used if the clock moves by itself
  Waits waits_;
};

}  // namespace simcuda

// Takes in stream work, and holds together what runs it: a discrete-event simulation on the clock
// gives the times (Timeline, Flows), effects are applied lazily in a seeded order (Applier), and
// threads go on one by one (Turns). Every method runs under the driver's mutex.
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

  // Appends to the stream, after `also` too; legacy stream rules included.
  void enqueue(Stream* stream, const OpPtr& op, const OpPtr& also = nullptr);
  struct Ordered {  // one piece of a graph
    OpPtr op;
    const After* after = nullptr;  // places in the list, lower than its own
    OpPtr also;                    // work outside of the graph it waits for
  };
  // Appends a graph to the stream, after `also` too; its last piece, that follows all others.
  OpPtr enqueue_graph(Stream* stream, const std::vector<Ordered>& work, const OpPtr& also);
  // Work of no stream is over when somebody says so.
  void end(const OpPtr& op);
  // Copies under way go on at the links' speed of now.
  void links_changed();

  // The parts that calls use themselves.
  const Clock& clock() const { return clock_; }
  const PendingWork& pending() const { return pending_; }
  Links& links() { return links_; }
  Landings& landings() { return landings_; }
  Known& known() { return known_; }           // of phantom memory
  Foreseen& foreseen() { return foreseen_; }  // the same, of all work enqueued
  LostContexts& lost() { return lost_; }
  Effects& effects() { return effects_; }
  Turns& turns() { return turns_; }
  Waits& waits() { return waits_; }

 private:
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
  std::unique_ptr<Timekeeper> timekeeper_;  // where the clock goes on by itself
  Waits waits_;
};

}  // namespace simcuda

// A chunk under way over a run, with all that its copies hold until they are done.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "transfer/buffers/slots.h"
#include "transfer/remote/remote_gpus.h"
#include "transfer/run/chunk_copier.h"
#include "transfer/run/lent_event.h"
#include "transfer/run/transfer.h"

namespace glake::transfer {

struct Flight {
  std::shared_ptr<Transfer> transfer;
  PathRun* run = nullptr;
  Range range;
  size_t hop = 0;
  std::vector<Slot> slots;  // between hop i and i + 1
  Slot stage;               // pinned, in place of a pageable end
  KernelBuffers kernel;
  LentEvent event;         // recorded behind this hop's copies
  RemoteFlight remote;     // instead, where the relay service makes them
  std::string remote_why;  // that failed
  StreamHandle stream = 0;
  int device = -1;  // the stream's
  uint64_t expected = 0, deadline = 0;
  uint64_t parked_until = 0;                     // not submitted before
  uint64_t lost = 0;                             // its number among the copies that were given up
  Rate link = 0;                                 // of this hop, were it alone
  unsigned flows = TransferTuning::kLeastFlows;  // of this hop
  bool alone = false;                            // behind the run's copy before, not beside it
  bool seen_done = false;                        // without the event
  bool overdue = false;  // it writes the destination: all one can do is wait
  bool marked = false;   // the event is recorded behind this hop's copies
  bool unsure = false;   // the driver refuses to say whether it is done

  const Hop& step() const { return run->planned.path.hops[hop]; }
  bool last() const { return hop + 1 == run->hops.size(); }
};

}  // namespace glake::transfer

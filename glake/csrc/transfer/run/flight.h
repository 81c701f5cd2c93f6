// A chunk that is under way over a run. It owns all that its copies need until they are done.
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
  std::vector<Slot> slots;  // slot i is between hops i and i + 1
  Slot stage;               // pinned memory that stands for the end in pageable memory
  KernelBuffers kernel;
  LentEvent event;         // recorded behind this hop's copies
  RemoteFlight remote;     // in place of `event`, where the relay service makes the copies
  std::string remote_why;  // why the relay service failed
  StreamHandle stream = 0;
  int device = -1;  // the device of `stream`
  uint64_t expected = 0, deadline = 0;
  uint64_t parked_until = 0;                     // it is not submitted before this time
  uint64_t lost = 0;                             // its number among lost copies; 0: it is none
  Rate link = 0;                                 // how fast this hop would be alone
  unsigned flows = TransferTuning::kLeastFlows;  // how many streams of this hop take turns
  bool alone = false;                            // it begins when the run's last copy has ended
  bool seen_done = false;                        // it was seen done without the event
  bool overdue = false;  // it is late, but writes the destination, so it is only waited for
  bool marked = false;   // the event is recorded behind this hop's copies
  bool unsure = false;   // the driver refuses to say whether it is done

  const Hop& step() const { return run->planned.path.hops[hop]; }
  bool last() const { return hop + 1 == run->hops.size(); }
};

}  // namespace glake::transfer

// What stream work does to memory, and whether it may.
#pragma once

#include "clock.h"
#include "host.h"
#include "landings.h"
#include "lost.h"
#include "memory.h"
#include "op.h"
#include "phantom.h"

namespace simcuda {

class Effects {
 public:
  // `phantom`: nullptr where memory is real.
  Effects(const Clock* clock, Memory* memory, const HostMemory* host, PhantomMemory* phantom,
          Landings* landings, LostContexts* lost)
      : clock_(clock),
        memory_(memory),
        host_(host),
        phantom_(phantom),
        landings_(landings),
        lost_(lost) {}

  // Takes a kernel's parts from its table as that is now. False, with a violation noted: the table
  // is not in pinned memory.
  bool read_table(Op* op);
  // Whether a stream that waits for a word goes on.
  bool satisfied(const Op& word);

  // What work that is due does: its effect, nothing, as its fault says, or a violation, noted.
  enum class Verdict { kRuns, kFaulty, kIllegal };
  Verdict judge(Op* op);
  void perform(Op* op);
  // Work is done with: its bytes count as written, its fault ends its context.
  void conclude(const Op& op);

 private:
  bool legal(const Op& op);
  bool legal(const Op& op, const Op::Side& side, bool write);
  void move(const Op& op);

  const Clock* const clock_;
  Memory* const memory_;
  const HostMemory* const host_;
  PhantomMemory* const phantom_;
  Landings* const landings_;
  LostContexts* const lost_;
};

// Work that is a function, of the host or of a kernel that somebody computes. Outside of the
// driver's mutex.
bool is_function(const Op& op);
CUresult call_function(const Op& op);

// Set while this thread runs a host function: no call is allowed then.
extern thread_local bool in_host_function;

}  // namespace simcuda

// The effects of stream work on memory, and checks whether it may have them.
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
  // `phantom` is nullptr if memory is real.
  Effects(const Clock* clock, Memory* memory, const HostMemory* host, PhantomMemory* phantom,
          Landings* landings, LostContexts* lost)
      : clock_(clock),
        memory_(memory),
        host_(host),
        phantom_(phantom),
        landings_(landings),
        lost_(lost) {}

  // Reads a kernel's parts from its table, as the table is now. False: the table is not in pinned
  // memory, and a violation was noted.
  bool read_table(Op* op);
  // Whether a stream that waits for a word may go on.
  bool satisfied(const Op& word);

  // What happens to work that is due: its effect, nothing because of its fault, or a noted
  // violation.
  enum class Verdict { kRuns, kFaulty, kIllegal };
  Verdict judge(Op* op);
  void perform(Op* op);
  // The work is done. Its bytes count as written, and its fault ends its context.
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

// True for work that calls a function, which is a host function or a kernel that somebody else
// computes. It runs without the driver's mutex.
bool is_function(const Op& op);
CUresult call_function(const Op& op);

// Set while this thread runs a host function, in which no call is allowed.
extern thread_local bool in_host_function;

}  // namespace simcuda

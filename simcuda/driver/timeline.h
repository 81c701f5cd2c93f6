// When stream work starts and ends: a discrete-event simulation on the clock.
#pragma once

#include <list>
#include <vector>

#include "applier.h"
#include "clock.h"
#include "effects.h"
#include "flows.h"
#include "links.h"
#include "op.h"
#include "pending.h"
#include "turns.h"

namespace simcuda {

class Timeline {
 public:
  Timeline(Clock* clock, Links* links, const PendingWork* pending, Turns* turns, Effects* effects,
           Applier* applier, Flows* flows)
      : clock_(clock),
        links_(links),
        pending_(pending),
        turns_(turns),
        effects_(effects),
        applier_(applier),
        flows_(flows) {}

  // Work whose dependencies are known.
  void admit(const OpPtr& op);
  bool start_ready();  // whether anything ended at once
  // To the next thing that happens; false: nothing can. May let go of the lock.
  bool advance(Lock* lock);
  // The same, but where only a value somebody writes can help, the writes that are due are made.
  bool advance_or_write(Lock* lock);
  // It ends now.
  void finish(const OpPtr& op);

 private:
  bool tick(Lock* lock);
  void begin(const OpPtr& op);
  bool finish_done();
  bool poll_words();
  bool run_prompt(Lock* lock);

  Clock* const clock_;
  Links* const links_;
  const PendingWork* const pending_;
  Turns* const turns_;
  Effects* const effects_;
  Applier* const applier_;
  Flows* const flows_;
  std::list<OpPtr> ready_;     // all they wait for is timed
  std::vector<OpPtr> words_;   // streams wait for them
  std::vector<OpPtr> prompt_;  // timed; time does not move before they are applied
};

}  // namespace simcuda

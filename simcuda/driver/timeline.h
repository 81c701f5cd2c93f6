// Computes when stream work starts and ends, by a discrete-event simulation on the clock.
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

  // Adds work whose dependencies are known.
  void admit(const OpPtr& op);
  bool start_ready();  // returns whether anything ended at once
  // Goes to the next event. False: there is none. May release the lock.
  bool advance(Lock* lock);
  // The same. But if nothing goes on before a value is written, it makes the writes that are due.
  bool advance_or_write(Lock* lock);
  // Ends the work now.
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
  std::list<OpPtr> ready_;     // all that they wait for is timed
  std::vector<OpPtr> words_;   // words that streams wait for
  std::vector<OpPtr> prompt_;  // timed; time does not move before they are applied
};

}  // namespace simcuda

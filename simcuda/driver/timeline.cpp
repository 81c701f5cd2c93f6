#include "timeline.h"

#include <algorithm>
#include <utility>

namespace simcuda {

void Timeline::admit(const OpPtr& op) {
  if (op->untimed_deps == 0) ready_.push_back(op);
}

void Timeline::begin(const OpPtr& op) {
  if (op->kind == Op::Kind::kWaitValue) {
    words_.push_back(op);
    const std::vector<OpPtr> writers = pending_->writers(*op);
    prompt_.insert(prompt_.end(), writers.begin(), writers.end());
  } else if (op->latency_ns + op->stall_ns == 0 && op->route.empty()) {
    finish(op);
  } else {
    flows_->begin(op);
  }
}

void Timeline::finish(const OpPtr& op) {
  op->timed = true;
  op->end_ns = clock_->moment_ns();
  for (const OpPtr& next : op->dependents) {
    if (--next->untimed_deps == 0) ready_.push_back(next);
  }
  // Effects that the host would notice at once are made before time moves. All others are made as
  // late as is legal.
  const bool awaited = std::any_of(words_.begin(), words_.end(),
                                   [&](const OpPtr& word) { return writes_word(*op, *word); });
  if (op->kind == Op::Kind::kHostFunction || awaited) prompt_.push_back(op);
  turns_->release_for(op);
}

bool Timeline::start_ready() {
  bool any = false;
  while (!ready_.empty()) {
    const OpPtr op = ready_.front();
    ready_.pop_front();
    begin(op);
    any = any || op->timed;
  }
  return any;
}

bool Timeline::poll_words() {
  bool any = false;
  for (size_t i = 0; i < words_.size();) {
    if (!effects_->satisfied(*words_[i])) {
      ++i;
      continue;
    }
    const OpPtr op = words_[i];
    words_.erase(words_.begin() + static_cast<std::ptrdiff_t>(i));
    finish(op);
    any = true;
  }
  return any;
}

// Runs host functions and writes to words that streams wait for.
bool Timeline::run_prompt(Lock* lock) {
  if (prompt_.empty()) return false;
  applier_->apply_unasked(lock, std::exchange(prompt_, {}));
  return true;
}

bool Timeline::finish_done() {
  const std::vector<OpPtr> done = flows_->take_done();
  for (const OpPtr& op : done) finish(op);
  return !done.empty();
}

// Things that take no time happen before the clock moves.
bool Timeline::advance(Lock* lock) {
  if (clock_->paced()) return tick(lock);
  // A word is read only after the writes to it that are over.
  if (start_ready() || run_prompt(lock) || poll_words()) return true;
  if (turns_->deadline_due()) return false;  // the thread that waited for this moment goes on first
  while (true) {
    links_->change(clock_->moment_ns());
    if (flows_->empty() && !words_.empty()) {
      // Nothing goes on before a value is written. So this makes the writes that are due, and looks
      // again.
      const bool idle = turns_->nobody_at_work();
      applier_->apply_timed(lock);
      if (poll_words() || start_ready() || !flows_->empty()) return true;
      // A thread has come in meanwhile.
      if (idle && !turns_->nobody_at_work()) return true;
    }
    if (!flows_->move(turns_->next_deadline())) return false;
    const bool any = finish_done();
    start_ready();  // an event behind them ends now, and not after a deadline of this moment
    if (turns_->reach_deadlines() || any) return true;
  }
}

// For a clock that moves by itself: does what is due. False: nothing was due.
bool Timeline::tick(Lock* lock) {
  clock_->catch_up();
  bool any = start_ready() || run_prompt(lock) || poll_words();
  any = finish_done() || any;
  any = start_ready() || any;
  if (flows_->empty() && !words_.empty()) applier_->apply_timed(lock);
  return turns_->reach_deadlines() || any;
}

bool Timeline::advance_or_write(Lock* lock) {
  if (advance(lock)) return true;
  if (turns_->deadline_due()) return false;
  applier_->apply_timed(lock);
  return poll_words();
}

}  // namespace simcuda

// The ids of streams that have ended. Programs may make a stream for each piece of work, and a
// ticket has room for 65,536 ids. So an id is given to a new stream once nothing can tell the two
// apart: the old stream's work is known to be complete, nothing was freed on it since then, and no
// block names it.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <vector>

#include "base/tuning.h"
#include "memory/tickets.h"

namespace glake {

class EndedStreams {
 public:
  struct Ended {
    StreamId id;
    uint64_t syncs;  // how many synchronisations had begun when the stream was known to have ended
    uint64_t epoch;  // all its work is complete when this epoch is; 0: there is no such epoch
  };
  void add(Ended ended) {
    ended_.push_back(ended);
    update();
  }
  // To look at all blocks for the ids that they name is worth it for so many. Those that were
  // looked at in vain do not count, until a synchronisation says more about them.
  bool many() const { return ended_.size() >= seen_ + Tuning::kEndedStreams; }
  void synchronised() { seen_ = 0; }
  // The ids of those for which `free(ended)` is true can be taken from now on.
  template <typename Free>
  void release(Free&& free) {
    spare_.reserve(spare_.size() + ended_.size());  // what follows cannot fail half-way
    const auto taken =
        std::partition(ended_.begin(), ended_.end(), [&](const Ended& e) { return !free(e); });
    for (auto e = taken; e != ended_.end(); ++e) spare_.push_back(e->id);
    ended_.erase(taken, ended_.end());
    seen_ = ended_.size();
    update();
  }

  bool can_take() const { return !spare_.empty(); }
  StreamId take() {
    const StreamId id = spare_.back();
    spare_.pop_back();
    update();
    return id;
  }
  // An id was made that no stream had before.
  void made(StreamId id) {
    last_ = id;
    update();
  }
  // Whether ids run out, though a synchronisation may give some back. Takes no lock.
  bool should_synchronise() const { return should_.load(std::memory_order_relaxed); }

 private:
  void update() {
    const bool few = last_ >= kMaxStreams - Tuning::kIdsLeft;
    should_.store(few && spare_.empty() && many(), std::memory_order_relaxed);
  }

  std::vector<Ended> ended_;
  std::vector<StreamId> spare_;
  size_t seen_ = 0;  // by release(), of those in ended_
  StreamId last_ = 0;
  std::atomic<bool> should_{false};
};

}  // namespace glake

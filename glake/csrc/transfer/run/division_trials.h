// Improves the division of copies that are made again and again. The forecast does not know all
// that paths cost each other. So bytes are moved from the paths that ended last to those that ended
// first, and the division that cost the least time stays.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "transfer/run/share_out.h"

namespace glake::transfer {

// How a copy goes.
struct Decision {
  PlanPtr plan;                   // the plan whose paths the shares name; null: as a plain copy
  DivisionPtr division;           // what each of its paths carries
  std::vector<PathShare> shares;  // the same, cut into chunks; empty: it is not cut
  std::vector<Flow> flows;        // the shares in the form that the forecast takes
  double calls_ns = 0;            // for how many ns its calls hold up the caller
  uint32_t gpus = 0;              // a bit for each GPU that the shares' paths pass
  bool trial = false;             // it may be slow although no link is
};
using DecisionPtr = std::shared_ptr<const Decision>;

// What a copy took from its start, as a whole and over each of its paths.
struct DivisionTimes {
  struct PathTime {
    const PlannedPath* path;
    Bytes bytes;
    uint64_t ns;
  };
  uint64_t ns = 0;
  std::vector<PathTime> paths;
};

// The division under which paths that are as fast as they were would end together. `step`: which
// part of that change is made. Nothing: they nearly did end together.
struct Evened {
  Division division;
  double end_ns = 0;  // when all paths would then end, if the whole change were made
};
std::optional<Evened> evened(const TransferPlan& plan, const Division& division,
                             const DivisionTimes& times, double step);

// The trials of copies that are made together: one copy, or a burst.
class DivisionTrials {
 public:
  explicit DivisionTrials(size_t copies) : best_(copies) { restart(); }

  // How copy `i` goes the next time; null: it has not been decided.
  const DecisionPtr& next(size_t i) const { return trial_.empty() ? best_[i] : trial_[i]; }
  // The best that is known of it.
  const DecisionPtr& best(size_t i) const { return best_[i]; }
  void decide(size_t i, DecisionPtr decision) { best_[i] = std::move(decision); }
  // How many trials were made.
  int tries() const { return tries_; }
  // The same as next(i), cut into chunks. `keep`: its chunks are those of each copy like it, and
  // are kept. If not, only the time of its calls is.
  void cut(size_t i, DecisionPtr decision, bool keep);
  // All copies went as next() says, and took these times. Until the last of them was done, it took
  // `ns`. The times of a plain copy have no paths.
  void saw(std::vector<DivisionTimes> times, uint64_t ns);

 private:
  double cost(uint64_t ns) const;
  void accept();
  void restart();
  void begin_trial();
  bool try_evened();
  bool even_trial(const std::vector<DivisionTimes>& times, uint64_t ns);
  // So many times as many chunks for the copies from `from` until `until`. `apart`: no hops share
  // their streams. `relayed`, `direct`: so many chunks of such a path flow at once; 0: as before.
  // `nearest`: of each path, as many as its plan calls nearest.
  struct ChunkMove {
    double times;
    size_t from, until;
    bool apart = false;
    size_t relayed = 0, direct = 0;
    bool nearest = false;
  };
  bool try_chunks(const ChunkMove& move);

  std::vector<DecisionPtr> best_, trial_;  // by copy; trial_ is empty if there is none
  std::vector<DivisionTimes> best_times_;
  uint64_t least_ns_ = 0;               // what the best took
  double least_cost_ = 0;               // the same with a part of its calls' time
  double step_ = 1;                     // of the next evening
  std::vector<ChunkMove> chunk_moves_;  // to be tried; the last one is next
  bool of_chunks_ = false;              // whether the trial is one of them
  bool evened_ = false;                 // whether it was evened since
  int tries_ = 0, late_ = 0;
};

}  // namespace glake::transfer

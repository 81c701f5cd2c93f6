#include "transfer/run/division_trials.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/transfer_tuning.h"

namespace glake::transfer {
namespace {

DecisionPtr uncut(const Decision& like, Division division, double times_chunks = 1,
                  bool apart = false) {
  auto decision = std::make_shared<Decision>();
  decision->plan = like.plan;
  decision->calls_ns = times_chunks * like.calls_ns;
  division.chunks *= times_chunks;
  division.apart = division.apart || apart;
  decision->division = std::make_shared<const Division>(std::move(division));
  decision->trial = true;
  return decision;
}

// So many chunks of each path that carries anything beside others flow at once. 0: as before.
template <class Wanted>
void set_at_once(const TransferPlan& plan, Division* division, Wanted wanted_of) {
  for (size_t i = 0; i < division->at_once.size(); ++i) {
    const size_t wanted = wanted_of(plan.paths[i]);
    if (wanted == 0 || plan.paths.size() == 1 || division->flows[i].bytes <= 0) continue;
    division->at_once[i] = wanted;
    division->flows[i].copies = static_cast<double>(wanted);
  }
}

// Whether hops of the copy share streams, as far as is known: a copy of striped memory is cut anew
// each time, and its cut is not kept.
bool may_be_joined(const Decision& decision) {
  if (decision.division->apart) return false;
  const std::vector<PathShare>& shares = decision.shares;
  const auto joined = [](const PathShare& share) { return share.streams.joined; };
  return shares.empty() || std::any_of(shares.begin(), shares.end(), joined);
}

}  // namespace

std::optional<Evened> evened(const TransferPlan& plan, const Division& division,
                             const DivisionTimes& times, double step) {
  struct Stock {
    double bytes = 0, rate = 0, owed = 0;
    uint64_t first = UINT64_MAX, last = 0;
  };
  struct Pace {
    double bytes = 0, rate = 0, delay = 0;
  };
  std::map<int, Stock> stocks;  // by the socket whose memory it is
  std::vector<Pace> paces(plan.paths.size());
  for (const DivisionTimes::PathTime& time : times.paths) {
    size_t i = 0;
    while (i < paces.size() && &plan.paths[i] != time.path) ++i;
    if (i == paces.size() || time.ns == 0) return {};  // not a path of the plan, or not timed
    const auto ns = static_cast<double>(time.ns);
    Pace& pace = paces[i];
    pace.bytes = static_cast<double>(time.bytes);
    pace.delay = std::min(division.flows[i].delay_ns, TransferTuning::kMostDelay * ns);
    pace.rate = pace.bytes / (ns - pace.delay);
    Stock& stock = stocks[node_of(time.path->path)];
    stock.bytes += pace.bytes;
    stock.rate += pace.rate;
    stock.owed += pace.rate * pace.delay;
    stock.first = std::min(stock.first, time.ns);
    stock.last = std::max(stock.last, time.ns);
  }
  Evened next{division};
  bool uneven = false;
  for (size_t i = 0; i < paces.size(); ++i) {
    const Pace& pace = paces[i];
    if (pace.rate <= 0) continue;
    const Stock& stock = stocks[node_of(plan.paths[i].path)];
    const double end = (stock.bytes + stock.owed) / stock.rate;
    const double bytes = pace.rate * std::max(end - pace.delay, 0.0);
    const double moved = pace.bytes + step * (bytes - pace.bytes);
    next.end_ns = std::max(next.end_ns, end);
    next.division.flows[i].bytes =
        moved < static_cast<double>(TransferTuning::kLeastChunk) / 2 ? 0 : moved;
    uneven = uneven || static_cast<double>(stock.last - stock.first) >
                           TransferTuning::kEven * static_cast<double>(times.ns);
  }
  if (!uneven) return {};
  return next;
}

void DivisionTrials::cut(size_t i, DecisionPtr decision, bool keep) {
  DecisionPtr& known = (trial_.empty() ? best_ : trial_)[i];
  if (!keep) {
    auto uncut = std::make_shared<Decision>(*known);
    uncut->calls_ns = decision->calls_ns;
    decision = std::move(uncut);
  }
  known = std::move(decision);
}

void DivisionTrials::saw(std::vector<DivisionTimes> times, uint64_t ns) {
  const double spent = cost(ns);
  bool better = least_ns_ == 0 || spent < least_cost_;
  if (!trial_.empty()) {
    if (!better && of_chunks_ && !evened_ && even_trial(times, ns)) return;
    evened_ = false;
    if (better) accept();
    if (!better && of_chunks_) chunk_moves_.pop_back();
    if (better || !of_chunks_) step_ = better ? 1 : step_ / 2;
  } else if (least_ns_ != 0) {
    // The links may have become slower meanwhile.
    const bool late =
        static_cast<double>(ns) > TransferTuning::kDrift * static_cast<double>(least_ns_);
    late_ = late ? late_ + 1 : 0;
    if (late_ < TransferTuning::kLateOnes) return;
    better = true;
    restart();
  }
  if (better) {
    least_ns_ = ns;
    least_cost_ = spent;
    best_times_ = std::move(times);
  }
  begin_trial();
}

// More chunks may save less time than their calls take from the callers.
double DivisionTrials::cost(uint64_t ns) const {
  double calls = 0;
  for (size_t i = 0; i < best_.size(); ++i) {
    if (next(i) != nullptr) calls += next(i)->calls_ns;
  }
  return static_cast<double>(ns) + TransferTuning::kBlocked * calls;
}

void DivisionTrials::accept() {
  for (size_t i = 0; i < trial_.size(); ++i) {
    auto decision = std::make_shared<Decision>(*trial_[i]);
    decision->trial = false;
    best_[i] = std::move(decision);
  }
}

void DivisionTrials::restart() {
  tries_ = late_ = 0;
  evened_ = false;
  step_ = 1;
  const size_t count = best_.size(), half = count / 2;
  // Paths of several sockets may share a link and end far apart. Copies that come together are
  // balanced by when they end, and other trials gain them more: this one comes last.
  const ChunkMove nearest{1, 0, count, false, 0, 0, true};
  chunk_moves_ = {{TransferTuning::kMoreChunks, 0, count},
                  {TransferTuning::kFewerChunks, 0, count}};
  // The calls of the first copies hold up the others, so these begin late. But if the first copies
  // have too few chunks, they end late themselves.
  if (half != 0) {
    chunk_moves_.push_back({TransferTuning::kMoreChunks, 0, half});
    chunk_moves_.push_back({TransferTuning::kMoreChunks, half, count});
    chunk_moves_.push_back({TransferTuning::kFewerChunks, 0, half});
  }
  // The more chunks of a path flow at once, the more there must be.
  chunk_moves_.push_back({1, 0, std::max<size_t>(half, 1), false, TransferTuning::kFlows});
  // On a link that other copies fill too, hops that share their streams have the smaller part: for
  // some of the time they have one copy there, and not two.
  chunk_moves_.push_back({1, 0, count, true});
  // A relayed path comes over its fast hops in bursts, with more than its part of a link. What a
  // direct path loses by this it does not get back, unless it has more copies there at once.
  chunk_moves_.push_back({1, 0, count, false, 0, TransferTuning::kMostAtOnce});
  chunk_moves_.insert(half == 0 ? chunk_moves_.end() : chunk_moves_.begin(), nearest);
}

void DivisionTrials::begin_trial() {
  trial_.clear();
  if (tries_ == TransferTuning::kTrials) return;
  of_chunks_ = step_ < TransferTuning::kLeastStep || !try_evened();
  while (of_chunks_ && !chunk_moves_.empty() && !try_chunks(chunk_moves_.back())) {
    chunk_moves_.pop_back();
  }
  if (!trial_.empty()) ++tries_;
}

// False: all paths nearly end together.
bool DivisionTrials::try_evened() {
  std::vector<DecisionPtr> trial = best_;
  bool uneven = false;
  for (size_t i = 0; i < trial.size(); ++i) {
    if (best_times_[i].paths.empty()) continue;
    std::optional<Evened> next =
        evened(*best_[i]->plan, *best_[i]->division, best_times_[i], step_);
    if (!next) continue;
    trial[i] = uncut(*best_[i], std::move(next->division));
    uneven = true;
  }
  if (uneven) trial_ = std::move(trial);
  return uneven;
}

// Other numbers of chunks change how fast some paths are, but not the direct one, which may end as
// late as before. What they are worth shows once all paths end together again. False: by what the
// paths took, that would not be sooner than the best.
bool DivisionTrials::even_trial(const std::vector<DivisionTimes>& times, uint64_t ns) {
  if (tries_ == TransferTuning::kTrials) return false;
  std::vector<DecisionPtr> trial = trial_;
  double saved = 0;  // by the copy that ends last
  uint64_t last = 0;
  for (size_t i = 0; i < trial.size(); ++i) {
    std::optional<Evened> next;
    if (!times[i].paths.empty()) {
      next = evened(*trial[i]->plan, *trial[i]->division, times[i], 1);
    }
    if (times[i].ns >= last) {
      last = times[i].ns;
      saved = next ? static_cast<double>(last) - next->end_ns : 0;
    }
    if (next) trial[i] = uncut(*trial[i], std::move(next->division));
  }
  const double end = static_cast<double>(ns) - saved;
  if (end > (1 - TransferTuning::kEven) * static_cast<double>(least_ns_)) return false;
  trial_ = std::move(trial);
  ++tries_;
  return evened_ = true;
}

// False: nothing would change, or the calls would take too much of the copies' time.
bool DivisionTrials::try_chunks(const ChunkMove& move) {
  const double most = TransferTuning::kCallsPart * static_cast<double>(least_ns_);
  std::vector<DecisionPtr> trial = best_;
  bool changed = false;
  for (size_t i = move.from; i < move.until; ++i) {
    const Decision& known = *best_[i];
    if (move.times > 1 && move.times * known.calls_ns > most) return false;
    if (known.plan == nullptr) continue;
    const double chunks = move.times * known.division->chunks;
    if (std::max(chunks, 1 / chunks) > TransferTuning::kMostChunkFactor) return false;
    Division division = *known.division;
    set_at_once(*known.plan, &division, [&](const PlannedPath& path) {
      if (move.nearest) return path.nearest_at_once;
      return path.path.hops.size() > 1 ? move.relayed : move.direct;
    });
    changed = changed || move.times != 1 || division.at_once != known.division->at_once ||
              (move.apart && may_be_joined(known));
    trial[i] = uncut(known, std::move(division), move.times, move.apart);
  }
  if (changed) trial_ = std::move(trial);
  return changed;
}

}  // namespace glake::transfer

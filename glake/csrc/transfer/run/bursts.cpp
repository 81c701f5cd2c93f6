#include "transfer/run/bursts.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/transfer_tuning.h"
#include "transfer/run/live_burst.h"

namespace glake::transfer {
// Sizes count as the same if one is at most twice the other.
Bursts::Key Bursts::key_of(const Copy& copy) {
  Bytes size = 1;
  while (size < copy.bytes) size *= 2;
  const Place &src = copy.demand.src, &dst = copy.demand.dst;
  return {src.gpu, src.host() ? src.node : 0, dst.gpu, dst.host() ? dst.node : 0, size};
}

bool Bursts::queued(const std::vector<Copy>& copies) {
  std::set<StreamKey> streams;
  for (const Copy& copy : copies) {
    if (copy.stream.device >= 0 && !streams.insert(copy.stream).second) return true;
  }
  return false;
}

Bursts::Burst Bursts::begin(const Copy& copy, uint64_t now) {
  std::lock_guard<std::mutex> guard(mutex_);
  if (current_.size() >= TransferTuning::kBurstThreads)
    current_.clear();  // most of the threads in it have ended
  Current& current = current_[std::this_thread::get_id()];
  if (now > current.open_until || current.copies.size() >= TransferTuning::kBurstCopies) {
    note(&current);
  }
  current.copies.push_back(copy);
  current.open_until = 0;
  current.began = now;
  const size_t count = current.copies.size();
  if (count == 1) {
    current.live = std::make_shared<LiveBurst>();
    current.foreseen = false;
    current.alike = 0;
  }
  const auto found = known_.find(key_of(current.copies.front()));
  if (found != known_.end()) {
    const std::vector<Copy>& copies = found->second.copies;
    if (current.alike == count - 1 && count <= copies.size() && alike(copy, copies[count - 1])) {
      current.alike = count;
    }
  }
  const bool known = found != known_.end() && found->second.right >= found->second.wrong &&
                     current.alike == count && count <= found->second.copies.size();
  if (!known) {
    if (current.foreseen) current.live = nullptr;
    Burst unknown;
    unknown.live = current.live;
    unknown.number = count - 1;
    return unknown;
  }
  Known& burst = found->second;
  const auto next = burst.copies.begin() + static_cast<std::ptrdiff_t>(count);
  if (count == 1) {
    burst.anew = burst.begun++ % TransferTuning::kDecided == 0;
    current.foreseen = burst.copies.size() > 1;
    if (current.foreseen) current.live = std::make_shared<LiveBurst>(burst.trials);
  }
  const BurstWay way = burst.anew ? BurstWay::kUnknown : burst.ways[count - 1];
  return {current.live, count - 1, true, burst.copies.size(), {next, burst.copies.end()}, way};
}

void Bursts::decided(BurstWay way) {
  std::lock_guard<std::mutex> guard(mutex_);
  const std::vector<Copy>& copies = current_[std::this_thread::get_id()].copies;
  if (copies.empty()) return;
  const auto found = known_.find(key_of(copies.front()));
  if (found == known_.end() || copies.size() > found->second.ways.size()) return;
  found->second.ways[copies.size() - 1] = way;
}

void Bursts::begun(uint64_t now, double ns) {
  std::lock_guard<std::mutex> guard(mutex_);
  Current& current = current_[std::this_thread::get_id()];
  // Calls may take longer than the copy. A copy that begins after this one is done is not in its
  // burst.
  const auto after = [&](uint64_t time, double part) {
    return time + static_cast<uint64_t>(std::max(part * ns, 0.0));
  };
  current.open_until =
      std::max(now, std::min(after(now, TransferTuning::kSoon), after(current.began, 1)));
}

void Bursts::end() {
  std::lock_guard<std::mutex> guard(mutex_);
  const auto current = current_.find(std::this_thread::get_id());
  if (current == current_.end() || current->second.copies.empty()) return;
  note(&current->second);
}

// The thread's burst is over.
void Bursts::note(Current* current) {
  const std::vector<Copy> copies = std::exchange(current->copies, {});
  const std::shared_ptr<LiveBurst> live = std::exchange(current->live, nullptr);
  if (copies.empty()) return;
  if (known_.size() >= TransferTuning::kBurstsKnown) known_.clear();
  const auto [it, first] = known_.try_emplace(key_of(copies.front()));
  Known& known = it->second;
  const size_t count = copies.size();
  const bool the_same =
      std::equal(copies.begin(), copies.end(), known.copies.begin(), known.copies.end(), alike);
  if (first || the_same) {
    known.right = std::min(known.right + 1, TransferTuning::kMostDoubt);
  } else {
    known.right = 0;
    known.wrong = std::min(known.wrong + 1, TransferTuning::kMostDoubt);
  }
  if (!the_same) {
    known.ways.assign(count, BurstWay::kUnknown);
    known.begun = 0;
  }
  if (!the_same || known.trials->copies() != copies || known.trials->queued() != queued(copies)) {
    known.trials = std::make_shared<BurstTrials>(copies);
  }
  if (count > 1 && live != nullptr && !current->foreseen) adopt_(live.get(), known.trials);
  known.copies = copies;
}

}  // namespace glake::transfer

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

bool Bursts::announce(const std::vector<Copy>& copies) {
  if (copies.size() > TransferTuning::kBurstCopies) return false;
  std::lock_guard<std::mutex> guard(mutex_);
  if (current_.size() >= TransferTuning::kBurstThreads) current_.clear();
  Current& current = current_[std::this_thread::get_id()];
  note(&current);
  if (announced_.size() >= TransferTuning::kBurstsKnown) announced_.clear();
  std::vector<Key> keys;
  for (const Copy& copy : copies) keys.push_back(key_of(copy));
  KnownPtr& known = announced_[keys];
  if (known == nullptr) known = std::make_shared<Known>();
  take(known.get(), copies);
  current.known = known;
  current.announced = copies;
  return true;
}

Bursts::Burst Bursts::begin(const Copy& copy, uint64_t now) {
  std::lock_guard<std::mutex> guard(mutex_);
  if (current_.size() >= TransferTuning::kBurstThreads)
    current_.clear();  // most of the threads in it have ended
  Current& current = current_[std::this_thread::get_id()];
  const bool over =
      now > current.open_until || current.copies.size() >= TransferTuning::kBurstCopies;
  if (over && current.announced.empty()) note(&current);
  current.copies.push_back(copy);
  current.open_until = 0;
  current.began = now;
  const size_t count = current.copies.size();
  if (count == 1) {
    current.live = std::make_shared<LiveBurst>();
    current.foreseen = false;
    current.alike = 0;
    const auto found = known_.find(key_of(copy));
    if (current.announced.empty() && found != known_.end()) current.known = found->second;
  }
  const std::vector<Copy>* const expected = current.expected();
  if (expected != nullptr && current.alike == count - 1 && count <= expected->size() &&
      alike(copy, (*expected)[count - 1])) {
    current.alike = count;
  }
  Known* const burst = current.known.get();
  const bool known = burst != nullptr && burst->right >= burst->wrong && current.alike == count &&
                     count <= expected->size();
  if (!known) {
    if (current.foreseen) current.live = nullptr;
    Burst unknown;
    unknown.live = current.live;
    unknown.number = count - 1;
    return unknown;
  }
  const auto next = expected->begin() + static_cast<std::ptrdiff_t>(count);
  if (count == 1) {
    burst->anew = burst->begun++ % TransferTuning::kDecided == 0;
    current.foreseen = expected->size() > 1;
    if (current.foreseen) current.live = std::make_shared<LiveBurst>(burst->trials);
  }
  const bool decided = !burst->anew && count <= burst->ways.size();
  const BurstWay way = decided ? burst->ways[count - 1] : BurstWay::kUnknown;
  return {current.live, count - 1, true, expected->size(), {next, expected->end()}, way};
}

void Bursts::decided(BurstWay way) {
  std::lock_guard<std::mutex> guard(mutex_);
  const Current& current = current_[std::this_thread::get_id()];
  const size_t count = current.copies.size();
  if (count == 0 || current.known == nullptr || count > current.known->ways.size()) return;
  current.known->ways[count - 1] = way;
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
  if (current != current_.end()) note(&current->second);
}

// The thread's burst is over.
void Bursts::note(Current* current) {
  const std::vector<Copy> copies = std::exchange(current->copies, {});
  const std::shared_ptr<LiveBurst> live = std::exchange(current->live, nullptr);
  current->known = nullptr;
  const bool announced = !std::exchange(current->announced, {}).empty();
  if (copies.empty() || announced) return;
  if (known_.size() >= TransferTuning::kBurstsKnown) known_.clear();
  KnownPtr& known = known_[key_of(copies.front())];
  const bool first = known == nullptr;
  if (first) known = std::make_shared<Known>();
  if (take(known.get(), copies) || first) {
    known->right = std::min(known->right + 1, TransferTuning::kMostDoubt);
  } else {
    known->right = 0;
    known->wrong = std::min(known->wrong + 1, TransferTuning::kMostDoubt);
  }
  if (copies.size() > 1 && live != nullptr && !current->foreseen) adopt_(live.get(), known->trials);
}

// These are the burst's copies now. Returns whether they are like those it had.
bool Bursts::take(Known* known, const std::vector<Copy>& copies) {
  const bool the_same =
      std::equal(copies.begin(), copies.end(), known->copies.begin(), known->copies.end(), alike);
  if (!the_same) {
    known->ways.assign(copies.size(), BurstWay::kUnknown);
    known->begun = 0;
  }
  if (!the_same || known->trials->copies() != copies || known->trials->queued() != queued(copies)) {
    known->trials = std::make_shared<BurstTrials>(copies);
  }
  known->copies = copies;
  return the_same;
}

}  // namespace glake::transfer

#include "heap/placement_history.h"

namespace glake {

Address PlacementHistory::expect(Bytes size, StreamId stream, uint64_t* slot) {
  constexpr uint64_t forget = power(Tuning::kAgreeing);
  uint64_t what = key(size, stream);
  Address place = 0;
  if (cursor_ != 0) {
    const Entry& e = ring_[(cursor_ - 1) % Tuning::kRemembered];
    bool same = cursor_ - 1 + Tuning::kRemembered > count_ && e.what == what;
    place = same ? e.ptr : 0;
    cursor_ = same ? cursor_ + 1 : 0;
  }
  hash_ = hash_ * kBase + what;
  if (count_ >= Tuning::kAgreeing)
    hash_ -= ring_[(count_ - Tuning::kAgreeing) % Tuning::kRemembered].what * forget;
  *slot = count_;
  ring_[count_++ % Tuning::kRemembered] = {what, 0};
  // While a sequence is followed, a sparse index is enough to find it again.
  if (count_ < Tuning::kAgreeing || (cursor_ != 0 && count_ % Tuning::kIndexed != 0)) return place;
  uint64_t& known = index_[(hash_ >> 32) % Tuning::kRemembered];
  if (cursor_ == 0 && known != 0 && known - 1 + Tuning::kRemembered > count_) {
    // The same hash must mean the same requests: look at the last few.
    bool same = true;
    for (uint64_t back = 1; back <= Tuning::kCompared && same; ++back) {
      same = ring_[(known - 1 - back) % Tuning::kRemembered].what ==
             ring_[(count_ - back) % Tuning::kRemembered].what;
    }
    if (same) cursor_ = known;
  }
  known = count_ + 1;
  return place;
}

}  // namespace glake

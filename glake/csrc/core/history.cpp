#include "core/history.h"

namespace glake {

Address PlacementHistory::expect(Bytes size, StreamId stream, uint64_t* slot) {
  Entry now{size, stream, 0};
  Address place = 0;
  if (cursor_ != 0) {
    const Entry& e = ring_[(cursor_ - 1) % kEntries];
    bool alive = cursor_ - 1 + kEntries > count_;
    bool same = alive && e.size == size && e.stream == stream;
    place = same ? e.ptr : 0;
    cursor_ = same ? cursor_ + 1 : 0;
  }
  Entry& entry = ring_[count_ % kEntries];
  *slot = count_++;
  entry = now;
  hash_ = hash_ * kBase + key(now);
  if (count_ > kContext) hash_ -= key(ring_[(count_ - 1 - kContext) % kEntries]) * power(kContext);
  if (count_ < kContext) return place;
  uint64_t& known = index_[(hash_ >> 32) % kEntries];
  if (cursor_ == 0 && known != 0 && known - 1 + kEntries > count_) {
    // The same hash must mean the same requests: look at the last few.
    bool same = true;
    for (uint64_t back = 1; back <= 4 && same; ++back) {
      const Entry& then = ring_[(known - 1 - back) % kEntries];
      const Entry& here = ring_[(count_ - back) % kEntries];
      same = then.size == here.size && then.stream == here.stream;
    }
    if (same) cursor_ = known;
  }
  known = count_ + 1;
  return place;
}

}  // namespace glake

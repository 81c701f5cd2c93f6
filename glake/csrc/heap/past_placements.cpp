#include "heap/past_placements.h"

namespace glake {

Address PastPlacements::expect(Bytes size, StreamId stream, uint64_t* entry) {
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
  *entry = count_;
  ring_[count_++ % Tuning::kRemembered] = {what, 0};
  // While a sequence is followed, a sparse index is enough to find it again.
  if (count_ < Tuning::kAgreeing || (cursor_ != 0 && count_ % Tuning::kIndexed != 0)) return place;
  const auto context = static_cast<uint32_t>(hash_ >> 32);
  uint32_t& known = index_[context % Tuning::kRemembered];
  // How long ago that request was.
  const uint64_t ago = (count_ + 1 - known) % kNumbered;
  if (cursor_ == 0 && known != 0 && ago != 0 && ago < Tuning::kRemembered && ago <= count_ &&
      high_bits(known) == high_bits(context)) {
    const uint64_t then = count_ - ago;
    // The same hash must mean the same requests, so the last few are compared.
    bool same = then >= Tuning::kAgreeing;
    for (uint64_t back = 1; back <= Tuning::kCompared && same; ++back) {
      same = ring_[(then - back) % Tuning::kRemembered].what ==
             ring_[(count_ - back) % Tuning::kRemembered].what;
    }
    if (same) cursor_ = then + 1;
  }
  known = high_bits(context) | static_cast<uint32_t>((count_ + 1) % kNumbered);
  return place;
}

}  // namespace glake

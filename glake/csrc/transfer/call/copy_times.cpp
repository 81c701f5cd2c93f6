#include "transfer/call/copy_times.h"

#include <algorithm>

#include "base/transfer_tuning.h"

namespace glake::transfer {

CopyTimes::CopyTimes(int devices) {
  const size_t count = static_cast<size_t>(devices) * kWays * kSizes;
  ns_a_byte_ = std::make_unique<std::atomic<float>[]>(count);
  for (size_t i = 0; i < count; ++i) ns_a_byte_[i] = 0;
}

CopyTimes::Kind CopyTimes::kind(const Request& request) const {
  const size_t way = request.src.host() ? 0 : request.dst.host() ? 1 : 2;
  size_t size = 0;
  for (Bytes bytes = request.parts.total(); bytes > 1; bytes /= 2) ++size;
  return Kind((static_cast<size_t>(request.stream_device) * kWays + way) * kSizes + size);
}

void CopyTimes::note(Kind kind, Bytes bytes, uint64_t ns) {
  std::atomic<float>& least = ns_a_byte_[kind.index_];
  const float seen = static_cast<float>(ns) / static_cast<float>(std::max<Bytes>(bytes, 1));
  float known = least.load(std::memory_order_relaxed);
  while ((known == 0 || seen < known) && !least.compare_exchange_weak(known, seen)) {
  }
}

// The seen time may include a wait, and the plan's rate may be below the link's. Either alone could
// make the thread sleep too long. So the thread sleeps at the start only if both are known.
ExpectedEnd CopyTimes::expected(Kind kind, Bytes bytes, Rate rate, uint64_t begun) const {
  const auto size = static_cast<double>(bytes);
  const double seen = size * static_cast<double>(ns_a_byte_[kind.index_].load());
  const double planned = rate > 0 ? size / rate : 0;
  const bool sure = seen > 0 && planned > 0;
  const auto ns = static_cast<uint64_t>(sure ? std::min(seen, planned) : std::max(seen, planned));
  const uint64_t late = std::clamp(ns, TransferTuning::kUnknownCopyNs, TransferTuning::kMostSpinNs);
  const uint64_t early = ns / TransferTuning::kSpunPart + TransferTuning::kWakeNs;
  if (!sure || ns <= TransferTuning::kShortCopyNs) {
    return {begun, begun, begun + std::min(ns, TransferTuning::kMostSpinNs) + late};
  }
  return {begun + ns, begun + ns - early, begun + ns + late};
}

}  // namespace glake::transfer

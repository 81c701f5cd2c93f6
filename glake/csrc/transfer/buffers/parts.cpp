#include "transfer/buffers/parts.h"

#include <algorithm>

#include "base/transfer_tuning.h"

namespace glake::transfer {
Parts::Parts(const std::vector<Part>& parts) {
  parts_.reserve(parts.size());
  for (const Part& part : parts) {
    if (part.bytes == 0) continue;
    Part* last = parts_.empty() ? nullptr : &parts_.back();
    if (last != nullptr && last->dst + last->bytes == part.dst &&
        last->src + last->bytes == part.src) {
      last->bytes += part.bytes;
    } else {
      parts_.push_back(part);
    }
  }
  starts_.reserve(parts_.size());
  for (const Part& part : parts_) {
    starts_.push_back(total_);
    total_ += part.bytes;
  }
}

size_t Parts::part_at(Bytes offset) const {
  auto after = std::upper_bound(starts_.begin(), starts_.end(), offset);
  return static_cast<size_t>(after - starts_.begin()) - 1;
}

void Parts::pieces(Range range, std::vector<Piece>* out) const {
  out->clear();
  for (size_t i = part_at(range.begin); i < parts_.size() && starts_[i] < range.end; ++i) {
    const Bytes from = std::max(range.begin, starts_[i]);
    const Bytes to = std::min(range.end, starts_[i] + parts_[i].bytes);
    const Bytes inside = from - starts_[i];
    out->push_back({parts_[i].dst + inside, parts_[i].src + inside, to - from, from});
  }
}

Bytes Parts::chunk_end(Bytes begin, Bytes wanted, Bytes most) const {
  Bytes end = std::min(begin + wanted, most);
  const size_t first = part_at(begin);
  const size_t past = first + TransferTuning::kMostPieces;
  if (past < starts_.size()) end = std::min(end, starts_[past]);
  const size_t last = part_at(end - 1);
  const bool cut = end < starts_[last] + parts_[last].bytes;
  const bool little = end - starts_[last] <= wanted / TransferTuning::kLittle;
  if (cut && last > first && end < most && little) return starts_[last];
  return end;
}

Bytes Parts::part_end_near(Bytes begin, Bytes end, Bytes longest) const {
  const size_t part = part_at(end - 1);
  const Bytes before = starts_[part], after = before + parts_[part].bytes;
  if (2 * (end - begin) < 3 * parts_[part].bytes) return end;
  const Bytes most = (end - begin) / 4;
  const bool later = after - end <= most && after - begin <= longest;
  const bool sooner = before > begin && end - before <= most;
  if (later && sooner) return after - end <= end - before ? after : before;
  return later ? after : sooner ? before : end;
}

bool Parts::regular() const {
  size_t regular = 0;
  for (size_t i = 2; i < parts_.size(); ++i) {
    const Part &part = parts_[i], &last = parts_[i - 1], &other = parts_[i - 2];
    regular += part.bytes == last.bytes && part.dst - last.dst == last.dst - other.dst &&
               part.src - last.src == last.src - other.src;
  }
  return 2 * regular > parts_.size();
}

}  // namespace glake::transfer

#include "foreseen.h"

#include <algorithm>
#include <vector>

#include "known.h"

namespace simcuda {

Foreseen::Ranges::const_iterator Foreseen::reaching(uint64_t address) const {
  auto at = ranges_.upper_bound(address);
  if (at != ranges_.begin() && std::prev(at)->second > address) --at;
  return at;
}

bool Foreseen::any(uint64_t address, size_t bytes) const {
  if (given_up_) return true;
  const auto at = reaching(address);
  return at != ranges_.end() && at->first < address + bytes;
}

bool Foreseen::all(uint64_t address, size_t bytes) const {
  if (given_up_) return true;
  const auto at = reaching(address);
  return at != ranges_.end() && at->first <= address && at->second >= address + bytes;
}

void Foreseen::set(uint64_t address, size_t bytes, bool known) {
  if (bytes == 0) return;
  uint64_t first = address, end = address + bytes;
  auto at = ranges_.upper_bound(address);
  if (at != ranges_.begin() && std::prev(at)->second >= address) --at;
  while (at != ranges_.end() && at->first <= end) {
    const auto [from, until] = *at;
    at = ranges_.erase(at);
    if (known) {  // adjacent ranges become one
      first = std::min(first, from);
      end = std::max(end, until);
      continue;
    }
    if (from < first) ranges_.emplace(from, first);
    if (until > end) ranges_.emplace(end, until);
  }
  if (known) ranges_.emplace(first, end);
}

void Foreseen::copy(const Op::Side& dst, const Op::Side& src, size_t bytes) {
  if (dst.host) return;
  if (src.host) {
    set(dst.address, bytes, bytes <= Known::kMostOfOne);
    return;
  }
  std::vector<std::pair<uint64_t, uint64_t>> moved;  // copied first, because the two may overlap
  const uint64_t end = src.address + bytes;
  for (auto at = reaching(src.address); at != ranges_.end() && at->first < end; ++at) {
    moved.emplace_back(std::max(at->first, src.address), std::min(at->second, end));
  }
  set(dst.address, bytes, false);
  for (const auto& [from, until] : moved) {
    set(dst.address + (from - src.address), until - from, true);
  }
}

// What is computed from known bytes is known. A piece that is only written needs no known bytes.
void Foreseen::compute(const Op& op) {
  const bool known =
      op.computes == Op::Computes::kOfAny ||
      (op.computes == Op::Computes::kOfAll &&
       std::all_of(op.followed.begin(), op.followed.end(), [&](const Op::Followed& each) {
         return !each.read || all(each.address, each.bytes);
       }));
  for (const Op::Followed& each : op.followed) {
    if (each.write && (known || !each.keeps)) set(each.address, each.bytes, known);
  }
}

// A launch of a kernel that nobody computes forgets all known bytes of its GPU when it runs. But it
// may run before work of other streams that is enqueued already. So what is foreseen here stays as
// it is.
void Foreseen::enqueue(const Op& op) {
  if (op.covered || given_up_) return;
  switch (op.kind) {
    case Op::Kind::kMemset:
    case Op::Kind::kCopy:
      break;
    case Op::Kind::kWriteValue:
      if (!op.dst.host) set(op.dst.address, op.width, true);
      return;
    case Op::Kind::kCompute:
      compute(op);
      return;
    default:
      return;
  }
  if (op.table != 0) {  // the table's content when the kernel runs is not known
    give_up();
    return;
  }
  for (const Op::Part& part : op.parts) {
    if (!op.staging) {
      copy(part.dst, part.src, part.bytes);
    } else if (!part.dst.host) {  // other ranks may know what arrives
      set(part.dst.address, part.bytes, part.known != nullptr);
    }
  }
  for (size_t row = 0; op.parts.empty() && row < op.rows; ++row) {
    Op::Side dst = op.dst, src = op.src;
    dst.address += row * dst.pitch;
    src.address += row * src.pitch;
    if (op.kind == Op::Kind::kCopy) {
      copy(dst, src, op.bytes);
    } else if (!dst.host) {
      set(dst.address, op.bytes, op.bytes <= Known::kMostOfOne);
    }
  }
}

}  // namespace simcuda

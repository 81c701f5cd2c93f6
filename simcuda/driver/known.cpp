#include "known.h"

#include <algorithm>
#include <cstring>

namespace simcuda {
namespace {

constexpr size_t kMostTogether = size_t{64} << 20;  // bytes of host memory for all ranges: assumed
constexpr size_t kMostRanges = size_t{1} << 18;     // each takes some 200 more bytes
// Bytes of one range. A part that stays known keeps at most this much memory.
constexpr size_t kLongest = size_t{64} << 10;

}  // namespace

Known::Range Known::take(Ranges::iterator at) {
  Range taken = std::move(at->second);
  total_ -= taken.bytes.size;
  small_.erase(taken.turn);
  large_.erase(taken.turn);
  ranges_.erase(at);
  return taken;
}

// Fresh host memory is zeros. Benchmarks and initial parameters copy it by the gigabyte, so all of
// it shares one copy.
Known::Bytes Known::copied(const char* from, size_t bytes) {
  static const std::shared_ptr<const char[]> zeros(new char[kLongest]());
  if (bytes == kLongest && std::memcmp(from, zeros.get(), bytes) == 0) {
    return {zeros, bytes, 0, bytes};
  }
  std::shared_ptr<char[]> made(new char[bytes]);
  std::memcpy(made.get(), from, bytes);
  return {std::move(made), bytes, 0, bytes};
}

// A small part of many bytes is copied, because it would otherwise keep all of them.
Known::Bytes Known::part(const Bytes& bytes, size_t begin, size_t size) {
  if (size < bytes.of / 4) return copied(bytes.data() + begin, size);
  return {bytes.all, bytes.of, bytes.begin + begin, size};
}

// Drops ranges when there are too many. Large writes go first, and of these the oldest, because
// scripts act on small values.
void Known::keep(int device, uint64_t address, Bytes bytes, bool large) {
  Range range{device, ++turns_, std::move(bytes)};
  (large ? large_ : small_)[range.turn] = address;
  total_ += range.bytes.size;
  ranges_[address] = std::move(range);
  while (total_ > kMostTogether || ranges_.size() > kMostRanges) {
    const auto& oldest = large_.empty() ? small_ : large_;
    take(ranges_.find(oldest.begin()->second));
  }
}

// Forgets the range. Known bytes before and behind it stay known.
void Known::cut(uint64_t address, size_t bytes) {
  const uint64_t end = address + bytes;
  auto at = ranges_.upper_bound(address);
  if (at != ranges_.begin()) --at;
  while (at != ranges_.end() && at->first < end) {
    const uint64_t first = at->first, last = first + at->second.bytes.size;
    if (last <= address) {
      ++at;
      continue;
    }
    const auto next = std::next(at);
    const Range held = take(at);
    at = next;
    if (first < address) keep(held.device, first, part(held.bytes, 0, address - first), false);
    if (last > end) keep(held.device, end, part(held.bytes, end - first, last - end), false);
  }
}

void Known::write(int device, uint64_t address, const void* from, size_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  cut(address, bytes);
  if (bytes > kMostOfOne || stopped_) return;
  for (size_t at = 0; at < bytes; at += kLongest) {
    const size_t length = std::min(kLongest, bytes - at);
    keep(device, address + at, copied(static_cast<const char*>(from) + at, length),
         bytes > kLongest);
  }
}

void Known::forget(uint64_t address, size_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  cut(address, bytes);
}

void Known::forget_all(int device) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto at = ranges_.begin(); at != ranges_.end();) {
    const auto next = std::next(at);
    if (at->second.device == device) take(at);
    at = next;
  }
}

void Known::stop() {
  std::lock_guard<std::mutex> lock(mutex_);
  stopped_ = true;
  while (!ranges_.empty()) take(ranges_.begin());
}

std::vector<Known::Piece> Known::pieces(uint64_t address, size_t bytes) const {
  std::vector<Piece> found;
  const uint64_t end = address + bytes;
  auto at = ranges_.upper_bound(address);
  if (at != ranges_.begin()) --at;
  for (; at != ranges_.end() && at->first < end; ++at) {
    const Bytes& held = at->second.bytes;
    const uint64_t from = std::max(address, at->first);
    const uint64_t until = std::min<uint64_t>(end, at->first + held.size);
    if (from < until) {
      found.push_back({from, {held.all, held.of, held.begin + (from - at->first), until - from}});
    }
  }
  return found;
}

void Known::copy(int device, uint64_t to, uint64_t from, size_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  const std::vector<Piece> moved = pieces(from, bytes);  // read first, because the two may overlap
  cut(to, bytes);
  for (const Piece& piece : moved) {
    const Bytes& bytes = piece.bytes;
    keep(device, to + (piece.address - from), part(bytes, 0, bytes.size), false);
  }
}

size_t Known::read(uint64_t address, void* to, size_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  size_t known = 0;
  for (const Piece& piece : pieces(address, bytes)) {
    char* const place = static_cast<char*>(to) + (piece.address - address);
    std::memcpy(place, piece.bytes.data(), piece.bytes.size);
    known += piece.bytes.size;
  }
  return known;
}

}  // namespace simcuda

#include "known.h"

#include <algorithm>
#include <cstring>

namespace simcuda {
namespace {

constexpr size_t kMostTogether = size_t{64} << 20;  // of host memory
constexpr size_t kMostRanges = size_t{1} << 18;     // each takes some 200 bytes besides
// A range is cut where something else is written into it, and the rest is copied.
constexpr size_t kLongest = size_t{64} << 10;

}  // namespace

Known::Range Known::take(Ranges::iterator at) {
  Range taken = std::move(at->second);
  total_ -= taken.bytes.size();
  small_.erase(taken.turn);
  large_.erase(taken.turn);
  ranges_.erase(at);
  return taken;
}

// Drops ranges when there are too many: those of large writes first, the oldest first. Scripts
// act on small values.
void Known::keep(int device, uint64_t address, const char* begin, size_t bytes) {
  auto& order = bytes > kLongest ? large_ : small_;
  for (size_t at = 0; at < bytes; at += kLongest) {
    const size_t length = std::min(kLongest, bytes - at);
    Range range{device, ++turns_, std::vector<char>(begin + at, begin + at + length)};
    order[range.turn] = address + at;
    total_ += length;
    ranges_[address + at] = std::move(range);
  }
  while (total_ > kMostTogether || ranges_.size() > kMostRanges) {
    const auto& oldest = large_.empty() ? small_ : large_;
    take(ranges_.find(oldest.begin()->second));
  }
}

// What lies before and behind the range stays known.
void Known::cut(uint64_t address, size_t bytes) {
  const uint64_t end = address + bytes;
  auto at = ranges_.upper_bound(address);
  if (at != ranges_.begin()) --at;
  while (at != ranges_.end() && at->first < end) {
    const uint64_t first = at->first, last = first + at->second.bytes.size();
    if (last <= address) {
      ++at;
      continue;
    }
    const auto next = std::next(at);
    const Range held = take(at);
    at = next;
    if (first < address) keep(held.device, first, held.bytes.data(), address - first);
    if (last > end) keep(held.device, end, held.bytes.data() + (end - first), last - end);
  }
}

void Known::write(int device, uint64_t address, const void* from, size_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  cut(address, bytes);
  if (bytes > kMostOfOne || stopped_) return;
  keep(device, address, static_cast<const char*>(from), bytes);
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
    const std::vector<char>& held = at->second.bytes;
    const uint64_t from = std::max(address, at->first);
    const uint64_t until = std::min<uint64_t>(end, at->first + held.size());
    if (from < until) found.push_back({from, &held[from - at->first], until - from});
  }
  return found;
}

void Known::copy(int device, uint64_t to, uint64_t from, size_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<std::pair<uint64_t, std::vector<char>>> moved;  // the two may overlap
  for (const Piece& piece : pieces(from, bytes)) {
    moved.emplace_back(to + (piece.address - from),
                       std::vector<char>(piece.begin, piece.begin + piece.bytes));
  }
  cut(to, bytes);
  for (const auto& [address, held] : moved) keep(device, address, held.data(), held.size());
}

size_t Known::read(uint64_t address, void* to, size_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  size_t known = 0;
  for (const Piece& piece : pieces(address, bytes)) {
    std::memcpy(static_cast<char*>(to) + (piece.address - address), piece.begin, piece.bytes);
    known += piece.bytes;
  }
  return known;
}

}  // namespace simcuda

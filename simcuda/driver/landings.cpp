// Runs of bytes with one count each. A gigabyte that is written in chunks has as many runs as
// chunks.
#include "landings.h"

#include <algorithm>
#include <cstring>

namespace simcuda {

// Splits the run that has `at` inside, so that a run begins at `at`.
void Landings::split(uint64_t at) {
  auto found = runs_.lower_bound(at);
  if (found == runs_.begin()) return;
  --found;
  if (found->second.end <= at) return;
  runs_[at] = found->second;
  found->second.end = at;
}

void Landings::forget(uint64_t address, size_t bytes) {
  split(address);
  split(address + bytes);
  runs_.erase(runs_.lower_bound(address), runs_.lower_bound(address + bytes));
}

void Landings::watch(uint64_t address, size_t bytes) {
  forget(address, bytes);
  if (bytes != 0) runs_[address] = {address + bytes, 0};
}

void Landings::land(uint64_t address, size_t bytes) {
  if (runs_.empty()) return;
  split(address);
  split(address + bytes);
  const auto last = runs_.lower_bound(address + bytes);
  for (auto run = runs_.lower_bound(address); run != last; ++run) ++run->second.count;
}

template <class Visit>
bool Landings::each(uint64_t address, size_t bytes, Visit&& visit) const {
  uint64_t at = address;
  auto run = runs_.upper_bound(address);
  if (run != runs_.begin()) --run;
  for (; run != runs_.end() && at < address + bytes; ++run) {
    if (run->second.end <= at) continue;
    if (run->first > at) return false;
    const uint64_t end = std::min(run->second.end, address + bytes);
    visit(at, end, run->second.count);
    at = end;
  }
  return at >= address + bytes;
}

bool Landings::read(uint64_t address, size_t bytes, uint8_t* counts) const {
  return each(address, bytes, [&](uint64_t from, uint64_t to, uint32_t count) {
    std::memset(counts + (from - address), static_cast<int>(std::min<uint32_t>(count, 255)),
                to - from);
  });
}

bool Landings::sum(uint64_t address, size_t bytes, int times, uint64_t* total) const {
  *total = 0;
  return each(address, bytes, [&](uint64_t from, uint64_t to, uint32_t count) {
    if (times < 0 ? count > 1 : count == static_cast<uint32_t>(times)) *total += to - from;
  });
}

}  // namespace simcuda

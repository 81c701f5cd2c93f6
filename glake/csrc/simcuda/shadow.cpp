#include "shadow.h"

#include <cstring>

namespace simcuda {
namespace {

constexpr size_t kSmall = size_t{64} << 10;  // a guess: facts are smaller, data is larger
constexpr size_t kMost = 256;                // ranges of a GPU; without launches nothing ends them

}  // namespace

void Shadow::drop(Ranges* ranges, uint64_t address, size_t bytes) {
  auto at = ranges->upper_bound(address);
  if (at != ranges->begin()) --at;
  while (at != ranges->end() && at->first < address + bytes) {
    at = at->first + at->second.size() > address ? ranges->erase(at) : std::next(at);
  }
}

void Shadow::wrote(int device, uint64_t address, const void* from, size_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  Ranges& ranges = devices_[device];
  drop(&ranges, address, bytes);
  if (bytes == 0 || bytes > kSmall) return;
  if (ranges.size() >= kMost) ranges.clear();
  const auto* begin = static_cast<const char*>(from);
  ranges.emplace(address, std::vector<char>(begin, begin + bytes));
}

void Shadow::overwritten(int device, uint64_t address, size_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  drop(&devices_[device], address, bytes);
}

void Shadow::launched(int device) {
  std::lock_guard<std::mutex> lock(mutex_);
  devices_[device].clear();
}

bool Shadow::read(int device, uint64_t address, void* to, size_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  const Ranges& ranges = devices_[device];
  auto at = ranges.upper_bound(address);
  if (at == ranges.begin()) return false;
  --at;
  if (address + bytes > at->first + at->second.size()) return false;
  std::memcpy(to, at->second.data() + (address - at->first), bytes);
  return true;
}

}  // namespace simcuda

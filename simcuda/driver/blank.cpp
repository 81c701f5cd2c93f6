#include "blank.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>

namespace simcuda {
namespace {

constexpr size_t kLong = 1 << 20;  // bytes from which a range is long: assumed

// Whether all of [from, to) is private memory without a file. Only such memory is zero after its
// pages were given back.
bool anonymous(uint64_t from, uint64_t to) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; from < to && std::getline(maps, line);) {
    uint64_t start = 0, end = 0, inode = 0;
    char flags[8] = "";
    if (std::sscanf(line.c_str(), "%" SCNx64 "-%" SCNx64 " %7s %*s %*s %" SCNu64, &start, &end,
                    flags, &inode) != 4) {
      return false;
    }
    if (end <= from) continue;
    if (start > from || flags[3] != 'p' || inode != 0) return false;
    from = end;
  }
  return from >= to;
}

}  // namespace

void blank(void* address, size_t bytes) {
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const auto at = reinterpret_cast<uint64_t>(address);
  const uint64_t first = (at + page - 1) / page * page, last = (at + bytes) / page * page;
  auto* begin = static_cast<char*>(address);
  if (bytes < kLong || !anonymous(first, last) ||
      madvise(begin + (first - at), last - first, MADV_DONTNEED) != 0) {
    std::memset(begin, 0, bytes);
    return;
  }
  std::memset(begin, 0, first - at);
  std::memset(begin + (last - at), 0, at + bytes - last);
}

}  // namespace simcuda

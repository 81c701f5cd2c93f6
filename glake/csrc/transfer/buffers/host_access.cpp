#include "transfer/buffers/host_access.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <string>

#include "base/transfer_tuning.h"

namespace glake::transfer {
namespace {

Bytes page_bytes() { return static_cast<Bytes>(sysconf(_SC_PAGESIZE)); }

// The text of /proc/self/maps; empty where /proc is not mounted.
std::string mappings_text() {
  std::string text;
  const int file = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  if (file < 0) return text;
  std::array<char, 16384> piece;
  for (;;) {
    const ssize_t got = read(file, piece.data(), piece.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    text.append(piece.data(), static_cast<size_t>(got));
  }
  close(file);
  return text;
}

}  // namespace

bool mapped(Address at, Bytes bytes) {
  const Bytes page = page_bytes();
  std::array<unsigned char, 4096> resident;
  const Address end = at + bytes;
  for (at = round_down(at, page); at < end; at += resident.size() * page) {
    const Bytes piece = std::min<Bytes>(round_up(end - at, page), resident.size() * page);
    if (mincore(reinterpret_cast<void*>(at), piece, resident.data()) != 0) return false;
  }
  return true;
}

// Makes the kernel provide all pages, for reading or for writing. False may also mean that the
// kernel is too old, or that the mapping has no ordinary pages.
bool HostAccess::provide(Address at, Bytes bytes) {
  if (calls_ == TransferTuning::kMostCalls || bytes > TransferTuning::kMostProvided - provided_)
    return false;
  ++calls_;
  provided_ += bytes;
  const Address begin = round_down(at, page_bytes());
  const int how = write_ ? MADV_POPULATE_WRITE : MADV_POPULATE_READ;
  return madvise(reinterpret_cast<void*>(begin), at + bytes - begin, how) == 0;
}

// Reads /proc/self/maps once. Its lines are "begin-end rwxp ...", in the order of addresses.
bool HostAccess::read_mappings() {
  if (known_) return !mappings_.empty();
  known_ = true;
  const std::string text = mappings_text();
  for (size_t line = 0; line < text.size();) {
    char* after = nullptr;
    Address begin = strtoull(text.c_str() + line, &after, 16);
    const Address end = *after == '-' ? strtoull(after + 1, &after, 16) : 0;
    const bool usable = *after == ' ' && after[1] == 'r' && (!write_ || after[2] == 'w');
    // A mapping that changes during the reading may appear twice.
    if (!mappings_.empty()) begin = std::max(begin, mappings_.back().end);
    if (begin < end) {
      const bool joins =
          !mappings_.empty() && mappings_.back().end == begin && mappings_.back().usable == usable;
      if (joins) {
        mappings_.back().end = end;
      } else {
        mappings_.push_back({begin, end, usable});
      }
    }
    line = std::min(text.find('\n', line), text.size() - 1) + 1;
  }
  return !mappings_.empty();
}

Reach HostAccess::reach(Address at, Bytes bytes) {
  const Address end = at + bytes;
  if (bytes == 0 || (!known_ && provide(at, bytes))) return {end, false};
  // Without /proc only mapped() can tell something, and it knows nothing of protection.
  if (!read_mappings()) return {mapped(at, bytes) ? end : at, false};
  auto found = std::upper_bound(mappings_.begin(), mappings_.end(), at,
                                [](Address a, const Mapping& mapping) { return a < mapping.end; });
  for (; found != mappings_.end() && found->begin <= at; ++found) {
    if (!found->usable) return {at, true};
    at = found->end;
    if (at >= end) return {end, false};
  }
  return {at, false};
}

}  // namespace glake::transfer

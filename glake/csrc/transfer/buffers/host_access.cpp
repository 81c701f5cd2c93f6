#include "transfer/buffers/host_access.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
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

bool HostAccess::may_provide(Bytes bytes) {
  if (calls_ == TransferTuning::kMostCalls || bytes > TransferTuning::kMostProvided - provided_)
    return false;
  ++calls_;
  provided_ += bytes;
  return true;
}

// Makes the kernel provide all pages, for reading or for writing. Returns 0 or the error. EFAULT:
// an access would end in SIGBUS. Other errors may also mean that the kernel is too old, or that the
// mapping has no ordinary pages.
int HostAccess::provide(Address begin, Address end) const {
  begin = round_down(begin, page_bytes());
  const int how = write_ ? MADV_POPULATE_WRITE : MADV_POPULATE_READ;
  return madvise(reinterpret_cast<void*>(begin), end - begin, how) == 0 ? 0 : errno;
}

bool HostAccess::no_page(Address at) const { return provide(at, at + 1) == EFAULT; }

// The first address from `at` on that has no page, in the mapping of a file whose page at `last`
// has none.
Address HostAccess::file_end(Address at, Address last) const {
  const Bytes page = page_bytes();
  Address low = at / page, high = last / page;
  while (low < high) {
    const Address middle = low + (high - low) / 2;
    if (no_page(middle * page)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return std::max(at, low * page);
}

// Reads /proc/self/maps once. Its lines are "begin-end rwxp offset device inode ...",
// in the order of addresses. The inode is 0 if there is no file.
bool HostAccess::read_mappings() {
  if (known_) return !mappings_.empty();
  known_ = true;
  const std::string text = mappings_text();
  for (size_t line = 0; line < text.size();) {
    char* after = nullptr;
    Address begin = strtoull(text.c_str() + line, &after, 16);
    const Address end = *after == '-' ? strtoull(after + 1, &after, 16) : 0;
    const bool usable = *after == ' ' && after[1] == 'r' && (!write_ || after[2] == 'w');
    const char* field = after;  // the space before a field; the inode is the fourth one
    for (int i = 0; i < 3 && *field == ' '; ++i) field += strcspn(field + 1, " \n") + 1;
    const bool file = *field == ' ' && strtoull(field, nullptr, 10) != 0;
    // A mapping that changes during the reading may appear twice.
    if (!mappings_.empty()) begin = std::max(begin, mappings_.back().end);
    if (begin < end) {
      const bool joins = !mappings_.empty() && mappings_.back().end == begin &&
                         mappings_.back().usable == usable && !file && !mappings_.back().file;
      if (joins) {
        mappings_.back().end = end;
      } else {
        mappings_.push_back({begin, end, usable, file});
      }
    }
    line = std::min(text.find('\n', line), text.size() - 1) + 1;
  }
  return !mappings_.empty();
}

Reach HostAccess::reach(Address at, Bytes bytes) {
  const Address end = at + bytes;
  if (bytes == 0) return {end};
  bool missing = false;  // one of the pages
  if (!known_ && may_provide(bytes)) {
    const int error = provide(at, end);
    if (error == 0) return {end};
    missing = error == EFAULT;
  }
  const Reach nowhere{at, Reach::Limit::kNoPage};
  // Without /proc only mapped() can tell something, and it knows nothing of protection.
  if (!read_mappings()) {
    if (mapped(at, bytes)) return missing ? nowhere : Reach{end};
    return {at, Reach::Limit::kUnmapped};
  }
  auto found = std::upper_bound(mappings_.begin(), mappings_.end(), at,
                                [](Address a, const Mapping& mapping) { return a < mapping.end; });
  for (; found != mappings_.end() && found->begin <= at; ++found) {
    if (!found->usable) return {at, Reach::Limit::kProtected};
    const Address until = std::min(found->end, end);
    if (found->file && no_page(until - 1)) {
      return {file_end(at, until - 1), Reach::Limit::kNoPage};
    }
    at = until;
    if (at == end) return missing ? nowhere : Reach{end};
  }
  return {at, Reach::Limit::kUnmapped};
}

}  // namespace glake::transfer

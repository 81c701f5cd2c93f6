// The mappings of this process, read without malloc.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace glake::adapter {

// A line of /proc/self/maps.
struct Mapping {
  uintptr_t begin = 0, end = 0;
  uint64_t offset = 0;
  uint64_t device_major = 0, device_minor = 0, inode = 0;
  int protection = 0;
  bool shared = false;
  char name[64] = "";  // a longer path is cut, because names are only compared, and never opened
};

// Reads /proc/self/maps line by line into fixed storage.
class MapsReader {
 public:
  MapsReader() : fd_(::open("/proc/self/maps", O_RDONLY | O_CLOEXEC)) {}
  ~MapsReader() {
    if (fd_ >= 0) ::close(fd_);
  }
  MapsReader(const MapsReader&) = delete;
  MapsReader& operator=(const MapsReader&) = delete;

  bool next(Mapping* out) {
    char line[256];
    size_t length = 0;
    for (int c = get(); c != '\n'; c = get()) {
      if (c < 0) return false;
      if (length + 1 < sizeof line) line[length++] = static_cast<char>(c);
    }
    line[length] = '\0';
    parse(line, out);
    return true;
  }

 private:
  int get() {
    if (at_ == filled_) {
      ssize_t got = fd_ < 0 ? 0 : ::read(fd_, buffer_, sizeof buffer_);
      if (got <= 0) return -1;
      at_ = 0;
      filled_ = static_cast<size_t>(got);
    }
    return buffer_[at_++];
  }

  static uint64_t number(const char*& p, unsigned base) {
    uint64_t value = 0;
    for (;; ++p) {
      unsigned digit = *p >= '0' && *p <= '9'   ? static_cast<unsigned>(*p - '0')
                       : *p >= 'a' && *p <= 'f' ? static_cast<unsigned>(*p - 'a') + 10
                                                : base;
      if (digit >= base) break;
      value = value * base + digit;
    }
    if (*p != '\0') ++p;  // the one separator
    return value;
  }

  // begin-end perms offset major:minor inode   name
  static void parse(const char* p, Mapping* out) {
    *out = Mapping();
    out->begin = number(p, 16);
    out->end = number(p, 16);
    if (std::strlen(p) < 5) return;
    out->protection = (p[0] == 'r' ? PROT_READ : 0) | (p[1] == 'w' ? PROT_WRITE : 0) |
                      (p[2] == 'x' ? PROT_EXEC : 0);
    out->shared = p[3] == 's';
    p += 5;
    out->offset = number(p, 16);
    out->device_major = number(p, 16);
    out->device_minor = number(p, 16);
    out->inode = number(p, 10);
    while (*p == ' ') ++p;
    size_t length = 0;
    while (p[length] != '\0' && length + 1 < sizeof out->name) ++length;
    std::memcpy(out->name, p, length);
    out->name[length] = '\0';
  }

  int fd_;
  size_t at_ = 0, filled_ = 0;
  char buffer_[16384];
};

}  // namespace glake::adapter

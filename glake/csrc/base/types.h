// The nouns of glake's allocator, in one page.
//
//   granule   2 MiB of physical device memory: one driver handle, mapped at its home address
//   range     reserved virtual addresses
//   arena     a long range whose granules are mapped in address order ("home"); blocks of it are
//             split and merged at 512 bytes
//   span      a stretch of bytes of an arena: busy, free, or absent (no granule behind it)
//   extent    a maximal stretch of free spans; best fit searches these
//   view      a range in which granules from anywhere are mapped side by side ("stitched"); their
//             home mappings stay, so building a view unmaps nothing and waits for nothing
//   block     what a caller holds: one span, or the spans under a stretch of a view
//   ticket    (stream, epoch): the work after which a freed span is safe on any stream
//   epoch     a stretch of frees on one stream, closed by one event (a "mark")
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>
#include <utility>

#include "base/numbers.h"
#include "glake/glake.h"

namespace glake {

using Address = uint64_t;
using Bytes = uint64_t;

constexpr Bytes kKiB = 1024;
constexpr Bytes kMiB = 1024 * kKiB;
constexpr Bytes kGiB = 1024 * kMiB;

constexpr Bytes kAlignment = 512;     // of every block; PyTorch's allocator has the same
constexpr Bytes kGranule = 2 * kMiB;  // the driver's mapping granularity on every GPU so far
constexpr Bytes kSmallLimit = kMiB;   // blocks up to this size live in the small arena
// The alignment of reserved ranges. A page of the pointer map has this size.
constexpr Bytes kRangeAlign = kGiB;
constexpr Bytes kMaxRequest = kMostSize;

// A type of its own for a count of granules, so that it is not taken for a count of bytes.
struct Granules {
  uint64_t count = 0;
  constexpr Bytes bytes() const { return count * kGranule; }
  static constexpr Granules floor(Bytes b) { return {b / kGranule}; }
  static constexpr Granules ceil(Bytes b) { return {(b + kGranule - 1) / kGranule}; }
  constexpr bool operator==(const Granules& o) const { return count == o.count; }
  constexpr bool operator!=(const Granules& o) const { return count != o.count; }
  constexpr bool operator<(const Granules& o) const { return count < o.count; }
  constexpr bool operator<=(const Granules& o) const { return count <= o.count; }
  constexpr Granules operator+(const Granules& o) const { return {count + o.count}; }
  constexpr Granules operator-(const Granules& o) const { return {count - o.count}; }
};

constexpr Bytes round_up(Bytes b, Bytes unit) { return (b + unit - 1) / unit * unit; }
constexpr Bytes round_down(Bytes b, Bytes unit) { return b / unit * unit; }

// An address as messages show it.
inline std::string hex(Address a) {
  char text[32];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(a));
  return text;
}
inline std::string hex(const void* p) { return hex(reinterpret_cast<Address>(p)); }

// An error that the C interface returns as a glake_status and a sentence.
class Error : public std::exception {
 public:
  Error(glake_status code, std::string text, Bytes missing = 0)
      : code_(code), text_(std::move(text)), missing_(missing) {}
  glake_status code() const { return code_; }
  // GLAKE_OUT_OF_MEMORY: how much more the driver must have free for this to succeed. 0: more in
  // the driver would not help.
  Bytes missing() const { return missing_; }
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  glake_status code_;
  std::string text_;
  Bytes missing_;
};

}  // namespace glake

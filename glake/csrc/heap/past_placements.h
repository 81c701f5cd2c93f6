// Remembers where the last large requests were placed, and follows the sequence. A training step
// asks for the same sizes in the same order as the step before. If its placement is repeated
// exactly, a repeated step needs no driver call. The result is only a guess: the caller checks that
// the place is free now, and falls back to searching. (The idea of planning from a recorded step is
// STAlloc's, arXiv 2507.16274. Here it is automatic and needs no marks.)
#pragma once

#include <cstdint>
#include <vector>

#include "base/tuning.h"
#include "base/types.h"
#include "memory/tickets.h"

namespace glake {

class PastPlacements {
 public:
  // A history that is not used takes no memory.
  explicit PastPlacements(bool used = true)
      : ring_(used ? Tuning::kRemembered : 0), index_(used ? Tuning::kRemembered : 0) {}

  // Enters a request. Returns where its counterpart in the followed sequence lies, or 0. `entry`
  // becomes the request's number, for placed().
  Address expect(Bytes size, StreamId stream, uint64_t* entry);
  uint64_t count() const { return count_; }
  // How many requests ago the counterpart of the last one was. Once steps repeat, it is a step's
  // length.
  uint64_t period() const { return cursor_ == 0 ? Tuning::kRemembered : count_ - cursor_ + 1; }
  void placed(uint64_t entry, Address ptr) { ring_[entry % Tuning::kRemembered].ptr = ptr; }

 private:
  static constexpr uint64_t kBase = 0x9e3779b97f4a7c15ull;
  struct Entry {
    uint64_t what = 0;  // size and stream
    Address ptr = 0;
  };
  static uint64_t key(Bytes size, StreamId stream) {
    return (size / kAlignment) * kMaxStreams + stream + 1;
  }
  // The index has a request's number modulo this. The number has one bit more than the remembered
  // requests need. That bit tells them from most of the forgotten requests.
  static constexpr uint64_t kNumbered = 2 * Tuning::kRemembered;
  static uint32_t high_bits(uint32_t bits) { return bits & ~static_cast<uint32_t>(kNumbered - 1); }
  static constexpr uint64_t power(uint64_t n) { return n == 0 ? 1 : kBase * power(n - 1); }

  std::vector<Entry> ring_;
  // For each hash of a context, the index has the number (plus 1) of the request that followed it,
  // and more bits of the hash. A context is the last requests. The extra bits tell nearly all
  // entries of other contexts apart, without a look at the ring. An entry has only four bytes: each
  // look-up is at another place, so the index must fit the processor's cache.
  std::vector<uint32_t> index_;
  uint64_t count_ = 0;   // all requests so far
  uint64_t hash_ = 0;    // of the last kAgreeing requests
  uint64_t cursor_ = 0;  // the request expected next, + 1; 0: it follows no sequence
};

}  // namespace glake

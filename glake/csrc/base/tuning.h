// The allocator's thresholds: where memory is traded for driver calls, waits or host time. Each
// says where its value is from: a script that measures it, a published price, or a guess that
// nothing has contradicted. What is a promise or a format (alignment, granule, handle texts) is not
// here.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/types.h"

namespace glake {

struct Tuning {
  // Growth.
  // Once one part in so many more is held than was ever live, what is free is waited for, and
  // stitched, before there is more of it: to map granules again costs less than to create them.
  // Chosen by benchmarks/allocator/targets.py on the recorded jobs.
  static constexpr uint64_t kHoard = 16;

  // Addresses, which cost nothing until mapped; guesses.
  // Of the device's memory: room for blocks, growth and absent holes.
  static constexpr Bytes kArenaFactor = 2;
  // A private pool's are a part of it, so that there may be dozens: what does not fit is stitched.
  static constexpr Bytes kPoolSmallShare = 8;

  // Searches, which run under the device's lock. Bounds on host time, checked by
  // benchmarks/allocator/curves.py; the values themselves are guesses.
  static constexpr int kCandidates = 16;  // extents tried at both ends for one that needs no wait
  static constexpr int kExtentsWalked = 64;
  static constexpr int kIdleViewsTried = 64;  // of the same length
  static constexpr size_t kViewsSearched = 128;
  static constexpr size_t kRunsSearched = 8192;  // of these views

  // Stream waits that a step (or so many requests, where steps do not repeat) may cost, and what a
  // step may be, in requests: chosen by targets.py on the recorded jobs.
  static constexpr uint64_t kWaitsPerStep = 36;
  static constexpr uint64_t kWaitsPerWindow = 24;
  static constexpr uint64_t kWindow = 4096;
  static constexpr uint64_t kLeastStep = 512, kMostStep = 32768;

  // Events: guesses.
  static constexpr size_t kMostMarks = 64;  // outstanding on one stream
  static constexpr int kPollsATurn = 8;     // streams

  // Views. One is extended when at least one in so many of the granules needed is there already: a
  // guess. So many granules are unmapped in the time that one takes to be mapped, and in an
  // unmapping call so many are mapped: the published prices (simcuda/symbols.h).
  static constexpr uint64_t kLeastReuse = 8;
  static constexpr uint64_t kUnmapped = 4;
  static constexpr uint64_t kUnmapCall = 8;

  // A cached contiguous block may be longer than what is asked for by this part of it, or by two
  // granules: a guess.
  static constexpr Bytes kSlack = 4;

  // Pinned host memory that nobody uses: at most one part in so many of what was ever live, and so
  // much in any case. Guesses, which benchmarks/real/pinned.py shows at work.
  static constexpr Bytes kHostIdle = 8;
  static constexpr Bytes kHostIdleLeast = 64 * kMiB;

  // Requests remembered, and how many must agree before a sequence is followed: guesses.
  static constexpr uint64_t kRemembered = 1 << 16;
  static constexpr uint64_t kAgreeing = 16;

  // A thread's cache: places, and blocks of one size and stream in each: guesses.
  static constexpr int kCacheSlots = 256;
  static constexpr int kCacheDepth = 14;
};

}  // namespace glake

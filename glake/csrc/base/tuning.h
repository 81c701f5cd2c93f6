// The allocator's thresholds: where memory is traded for driver calls, waits or host time. Each
// says where its value is from: a script that measures it, a published price, or a guess, which
// was chosen and not measured. A threshold that is "a part" of something is the divisor: 16 stands
// for a sixteenth. Promises and formats (alignment, granule, handle texts) are not here.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/types.h"

namespace glake {

struct Tuning {
  // Growth.
  // Once this part more is held than was ever live, growth comes last: free memory is waited for,
  // and stitched, before that. To map granules again costs less than to create them. Chosen by
  // benchmarks/allocator/targets.py on the recorded jobs.
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

  // Stream waits that a step may cost. Where steps do not repeat, the waits that each kWindow
  // requests may cost. The least and the most requests of a step. Chosen by targets.py on the
  // recorded jobs.
  static constexpr uint64_t kWaitsPerStep = 36;
  static constexpr uint64_t kWaitsPerWindow = 24;
  static constexpr uint64_t kWindow = 4096;
  static constexpr uint64_t kLeastStep = 512, kMostStep = 32768;

  // A request of at least this part of the limit is not moved to save a wait, because moving it
  // would cost mapping calls: a guess.
  static constexpr Bytes kMovedAnyway = 32;

  // Tickets in one set: work on more streams is waited for before memory is free. A guess.
  static constexpr int kTickets = 8;

  // Events: guesses.
  static constexpr size_t kMostMarks = 64;  // outstanding on one stream
  static constexpr int kPollsATurn = 8;     // streams

  // Views. A view is extended if it has at least this part of the granules needed: a guess.
  static constexpr uint64_t kLeastReuse = 8;
  // Granules that are unmapped in the time in which one is mapped, and granules that are mapped in
  // the time of one unmapping call: the published prices (simcuda/driver/symbols.h).
  static constexpr uint64_t kUnmapped = 4;
  static constexpr uint64_t kUnmapCall = 8;

  // Views may exceed their budget of mapped addresses by this part before the host waits for their
  // work: a guess.
  static constexpr uint64_t kViewsOver = 2;

  // A cached contiguous block may be longer than what is asked for by this part of it, or by two
  // granules: a guess.
  static constexpr Bytes kSlack = 4;

  // Pinned host memory that nobody uses: at most this part of what was ever live, but the least may
  // always be kept. Guesses, which benchmarks/real/pinned.py shows at work.
  static constexpr Bytes kHostIdle = 8;
  static constexpr Bytes kHostIdleLeast = 64 * kMiB;
  // Its classes: powers of two from the first to the second, whole granules above that: guesses.
  static constexpr Bytes kHostLeastClass = 4 * kKiB, kHostMostClass = 8 * kMiB;

  // A paused region's bytes go to the host in portions, and a group of portions is one transfer. It
  // has 256 MiB: a longer one is hardly faster (docs/transfer.md, by `glake bench transfer`).
  static constexpr Bytes kSavedPortion = 32 * kMiB;
  static constexpr size_t kSavedGroup = 8;
  // Groups under way. Each one that waits behind them costs the engine's threads questions to the
  // driver, and takes turns from those of the other direction. A guess.
  static constexpr size_t kSavedUnderWay = 4;
  // Threads that add up and copy them: this part of the cores, and the most threads. A core adds up
  // 8 to 10 GB/s (taken by hand, 2026-11-24), a node's links to one GPU carry 25 to 200.
  static constexpr size_t kCrewCores = 2;
  static constexpr size_t kCrewMost = 8;

  // Requests remembered, and how many must agree before a sequence is followed: guesses.
  static constexpr uint64_t kRemembered = 1 << 16;
  static constexpr uint64_t kAgreeing = 16;
  // While a sequence is followed, one request of kIndexed is entered in the index. The last
  // kCompared requests are compared, because different requests may have one hash. Guesses.
  static constexpr uint64_t kIndexed = 4;
  static constexpr uint64_t kCompared = 4;

  // A thread's cache: shelves, and blocks of one size and stream in each: guesses.
  static constexpr int kCacheShelves = 256;
  static constexpr int kCacheDepth = 14;
  // The part of the limit that it keeps at most: in small blocks, and in large ones, where it keeps
  // these. Guesses, which benchmarks/allocator/mixed_sizes.py shows at work.
  static constexpr Bytes kCacheSmall = 1024;
  static constexpr Bytes kCacheLarge = 32;

  // The device's lock: attempts before a thread sleeps, and acquisitions for which it is remembered
  // that threads contend. Guesses, which benchmarks/allocator/thread_scaling.py shows at work.
  static constexpr int kLockSpins = 1000;
  static constexpr int kContended = 4096;

  // Debug modes: the bytes of freed blocks that are kept from reuse at most, and pinned slabs that
  // checked bytes are read back into. Guesses.
  static constexpr Bytes kDebugKept = 64 * kMiB;
  static constexpr Bytes kReadbackSlab = kMiB;
  static constexpr size_t kReadbackSlabs = 32;

  // Records made at once, of blocks and of spans: a guess.
  static constexpr size_t kSlabRecords = 256;
};

}  // namespace glake

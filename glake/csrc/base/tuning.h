// The allocator's thresholds: where memory is traded for driver calls, waits or host time. The
// comment of each says where its value is from: a script that measures it, a published price, or a
// guess. A guess was chosen and not measured. A threshold that is "a part" of something is the
// divisor: 16 stands for a sixteenth. Promises and formats (alignment, granule, handle texts) are
// elsewhere.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/types.h"

namespace glake {

struct Tuning {
  // Growth.
  // Once glake holds this part more than the most that was ever live, it first waits for free
  // memory and stitches whole free granules. Only then does it grow, because to map granules again
  // costs less than to create them. Chosen by benchmarks/allocator/targets.py on the recorded jobs.
  static constexpr uint64_t kHoard = 16;

  // While several threads keep large blocks (heap/large_keeping.h), up to this part more is held
  // before they give them back. With a sixteenth, 0.04 of their pairs take the device's lock,
  // and with a quarter 0.01. Chosen by hand, for benchmarks/allocator/thread_scaling.py.
  static constexpr uint64_t kHoardToKeep = 4;

  // Sizes of address ranges. Addresses cost nothing until memory is mapped. Guesses.
  // The large arena of a device has this many times the device's memory in addresses: room for
  // blocks, growth and holes without memory.
  static constexpr Bytes kArenaFactor = 2;
  // A private pool's large arena has as many addresses as the device has memory. Its small arena
  // and its views have this part of that, so that there may be dozens of pools.
  static constexpr Bytes kPoolSmallShare = 8;

  // Searches run under the device's lock. These bound their host time, which
  // benchmarks/allocator/curves.py checks. The values themselves are guesses.
  // The most extents whose two ends are tried as a place that needs no wait.
  static constexpr int kCandidates = 16;
  static constexpr int kExtentsWalked = 64;
  static constexpr int kIdleViewsTried = 64;  // idle views of the same length
  static constexpr size_t kViewsSearched = 128;
  static constexpr size_t kRunsSearched = 8192;  // runs of granules in these views

  // How many stream waits a training step may cost. If no steps repeat, each kWindow requests may
  // cost kWaitsPerWindow. A step has at least kLeastStep and at most kMostStep requests. Chosen by
  // targets.py on the recorded jobs.
  static constexpr uint64_t kWaitsPerStep = 36;
  static constexpr uint64_t kWaitsPerWindow = 24;
  static constexpr uint64_t kWindow = 4096;
  static constexpr uint64_t kLeastStep = 512, kMostStep = 32768;

  // A request of at least this part of the limit waits even when the waits of its step are spent,
  // because another place would cost mapping calls: a guess.
  static constexpr Bytes kMovedAnyway = 32;

  // The most tickets in one set. If more streams have work, the work of the rest is waited for
  // before the memory is free. A guess.
  static constexpr int kTickets = 8;

  // Events: guesses.
  static constexpr size_t kMostMarks = 64;  // kept for one stream
  static constexpr int kPollsATurn = 8;     // streams whose marks one turn asks about

  // Views. A view is extended if it has at least this part of the granules needed: a guess.
  static constexpr uint64_t kLeastReuse = 8;
  // How many granules are unmapped in the time in which one is mapped, and how many are mapped in
  // the time of one unmapping call. They follow from the published prices
  // (simcuda/driver/symbols.h).
  static constexpr uint64_t kUnmapped = 4;
  static constexpr uint64_t kUnmapCall = 8;

  // Views may exceed their budget of mapped addresses by this part before the host waits for their
  // work: a guess.
  static constexpr uint64_t kViewsOver = 2;

  // A cached contiguous block may be longer than what is asked for by this part of it, or by two
  // granules: a guess.
  static constexpr Bytes kSlack = 4;

  // Pinned host memory that nobody uses is at most this part of what was ever live. Up to
  // kHostIdleLeast may always be kept. These are guesses, and benchmarks/real/pinned.py shows their
  // effect.
  static constexpr Bytes kHostIdle = 8;
  static constexpr Bytes kHostIdleLeast = 64 * kMiB;
  // Size classes of pinned host memory: powers of two from the first to the second value, whole
  // granules above that. Guesses.
  static constexpr Bytes kHostLeastClass = 4 * kKiB, kHostMostClass = 8 * kMiB;

  // A paused region's bytes go to the host in portions, and a group of portions is one transfer. A
  // group has 256 MiB, because a longer one is hardly faster (docs/transfer.md, by `glake bench
  // transfer`).
  static constexpr Bytes kSavedPortion = 32 * kMiB;
  static constexpr size_t kSavedGroup = 8;
  // How many groups are under way at once. With more, the engine's threads ask the driver more
  // often, and groups of the other direction get fewer turns. A guess.
  static constexpr size_t kSavedUnderWay = 4;
  // How many threads compute checksums of portions and copy them: this part of the cores, and at
  // most kCrewMost. A core checks 8 to 10 GB/s (measured by hand, 2026-11-24), and a node's links
  // to one GPU carry 25 to 200.
  static constexpr size_t kCrewCores = 2;
  static constexpr size_t kCrewMost = 8;

  // Requests remembered, and how many must agree before a sequence is followed: guesses.
  static constexpr uint64_t kRemembered = 1 << 16;
  static constexpr uint64_t kAgreeing = 16;
  // While a sequence is followed, one in kIndexed requests is entered in the index. The last
  // kCompared requests are compared, because different requests may have one hash. Guesses.
  static constexpr uint64_t kIndexed = 4;
  static constexpr uint64_t kCompared = 4;

  // A thread's cache: how many shelves it has, in groups of how many, and how many blocks of one
  // size and stream a shelf holds. A block may be on any shelf of a group, so that few sizes have
  // none. Guesses.
  static constexpr size_t kCacheShelves = 256, kCacheGroup = 8;
  static constexpr int kCacheDepth = 14;
  // The most bytes that a thread's cache keeps, as a part of the limit: of small blocks, and of
  // large blocks if it keeps them. These are guesses, and benchmarks/allocator/mixed_sizes.py shows
  // their effect.
  static constexpr Bytes kCacheSmall = 1024;
  static constexpr Bytes kCacheLarge = 8;
  // Caches that keep so many hundredths of the small arena, and a granule, are emptied before it
  // grows. With fewer, the working sets of two threads need the device's lock often (with 25
  // hundredths for 0.07 of their blocks, with 50 for 0.008, with 60 for 0.002). With more, jobs of
  // random small sizes hold more. Chosen by hand, for benchmarks/allocator/thread_scaling.py and
  // made-up jobs.
  static constexpr Bytes kCachesHoard = 55;

  // The device's lock: how often a thread tries it before it sleeps, and for how many acquisitions
  // contention is remembered. Guesses; benchmarks/allocator/thread_scaling.py shows their effect.
  static constexpr int kLockSpins = 1000;
  static constexpr int kContended = 4096;

  // How many more streams must have ended before all blocks are looked at for ids that can be used
  // again, and how many of the 65,536 ids are left when the device is synchronised for that.
  // Guesses.
  static constexpr size_t kEndedStreams = 256;
  static constexpr size_t kIdsLeft = 1024;

  // Debug modes: the most bytes of freed blocks that are kept from reuse, and the size and number
  // of the pinned slabs into which checked bytes are read back. Guesses.
  static constexpr Bytes kDebugKept = 64 * kMiB;
  static constexpr Bytes kReadbackSlab = kMiB;
  static constexpr size_t kReadbackSlabs = 32;

  // The most findings of the debug modes that wait to be read, and the most changed bytes that one
  // shows: guesses.
  static constexpr size_t kMostFindings = 200;
  static constexpr size_t kBytesShown = 8;

  // Out of memory: how many stacks of the largest blocks are compared, and how many holders the
  // text names. Guesses.
  static constexpr size_t kHoldersDescribed = 64;
  static constexpr size_t kHoldersNamed = 3;

  // Memory of other processes, in ms. The first is the longest wait for a process that is stopped
  // or busy. The second is the time until the next try, when the system has no descriptor for a
  // connection. Guesses.
  static constexpr int kIpcPatienceMs = 30000;
  static constexpr int kIpcRetryMs = 100;
  // The most connections that the server of this process's blocks keeps, and the most descriptors
  // in one message (Linux permits 253). Guesses.
  static constexpr size_t kIpcConnections = 4096;
  static constexpr size_t kIpcBatch = 32;

  // Memory that other processes give back: how long a process that is short waits for all of them,
  // how long at least for each, when it asks no more of them, how long one that gives waits for a
  // question, in ms, and how often a request is tried again. A process that runs out of memory has
  // nothing better to do, but one that is stopped never answers. Guesses.
  static constexpr int kNeighbourPatienceMs = 5000;
  static constexpr int kNeighbourLeastMs = 250;
  static constexpr int kNeighbourMostMs = 10000;
  static constexpr int kNeighbourReadMs = 1000;
  static constexpr size_t kNeighbourAskers = 32;  // connections without a question, at most
  static constexpr int kNeighbourTries = 3;

  // How long a region that is given up sleeps between two questions whether a copy of its bytes has
  // ended, in ms. A guess.
  static constexpr int kRegionPollMs = 1;

  // The most frames of one stack, of C++ (a native stack) and of Python: guesses.
  static constexpr int kNativeFrames = 32;
  static constexpr size_t kPythonFrames = 64;
  // How many tags of a trace exist as Python strings at a time. A guess.
  static constexpr size_t kTagsKept = 4096;
  // The most bytes of a context's text. A guess.
  static constexpr size_t kContextText = 16384;

  // Views of more runs than this are searched by halving. A guess.
  static constexpr size_t kRunsScanned = 8;

  // Interception: how many ranges of each end of a copy are looked at, because host memory may be
  // pinned in pieces, and GPU memory mapped in pieces. A guess.
  static constexpr int kRangesJudged = 4096;

  // How many records of blocks, or of spans, are made at once: a guess.
  static constexpr size_t kSlabRecords = 256;
  // Once a kind of records has so many bytes, more of them lie in huge pages of 2 MiB. Fewer bytes
  // need few entries of the processor's TLB, and part of a huge page would be too much for them.
  // Chosen by hand (docs/prototypes.md, host path of a hit): with a quarter of it no pair of a free
  // and an allocation was faster. With twice as much those among a million blocks were slower.
  static constexpr Bytes kHugeSlabsFrom = 8 * kMiB;
};

}  // namespace glake

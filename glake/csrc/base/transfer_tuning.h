// The transfer engine's thresholds and the planner's. Each says where its value is from: a command
// that measured it, a published cost, or a guess, which was chosen and not measured. Promises and
// formats (ids, messages, the shape of the copy kernel) are not here, nor the defaults of links
// that a platforms file leaves out (plan/topology.cpp).
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "base/types.h"

namespace glake {

struct TransferTuning {
  // Which copies are planned.
  // Below this size no plan is asked for: a guess.
  static constexpr Bytes kAlwaysPlain = kMiB;
  // A relayed chunk is at least this long, and so is a relay buffer: a guess.
  static constexpr Bytes kLeastChunk = 512 * kKiB;
  // ns from the call to the first copy of another thread: a guess.
  static constexpr double kHandOverNs = 5'000;
  // A copy is shared out if it takes this many times less than a plain one: a guess.
  static constexpr double kLeastGain = 1.03;
  // ns of one copy with its events, where a platforms file says nothing: a guess.
  static constexpr double kCopyNs = 8000;
  // Relays must bring this many times the rate of the plain copy; GPUs in a row on one path, and
  // paths of one demand, at most: guesses.
  static constexpr double kRelayGain = 1.15;
  static constexpr int kRelaysInARow = 2, kPathsOfOne = 16;
  // GB/s of a link that nobody has described: a guess.
  static constexpr double kUnknownRate = 20;
  // Copies from this size on are told to others, which reckon with them: a guess.
  static constexpr Bytes kLongCopy = 8 * kMiB;

  // Plans: weights and bounds of the planner's linear programs. Guesses.
  // What a link costs, as a part of the path's rate: of equal paths the shorter is taken.
  static constexpr double kLoadCost = 0.0002;
  static constexpr double kSettled = 1000;  // what a settled rate earns, against one that is not
  // A rate cannot grow if its price is higher. The prices of a demand sum up to 1.
  static constexpr double kStopped = 0.02;
  static constexpr double kSameRate = 1.005;  // a smaller rise is not worth another round
  // What the highest load costs: little against a rate, much against a link.
  static constexpr double kUneven = 10;
  static constexpr int kEvenRounds = 4;  // of paths that are as even as they can be
  // A path is thin if it has less than this part of its demand's rate. Parts of that rate that it
  // may cost to drop a thin path, and any other.
  static constexpr double kThinPath = 0.03, kThinLoss = 0.02, kOtherLoss = 0.002;
  static constexpr double kPlanFull = 1 - 1e-3;     // of a limit: a refusal calls it full
  static constexpr size_t kPlansKnown = 1024;       // answers kept; then all are dropped
  static constexpr size_t kMostRefusals = 24;       // named of a demand: more explain nothing
  static constexpr double kThinShare = 0.05;        // of a plan's rate: what a lent path must bring
  static constexpr size_t kMostDecisions = 32;      // kept: both ways of each of 16 GPUs
  static constexpr size_t kPlainRemembered = 64;    // plain copies under way
  static constexpr uint64_t kForget = 200'000'000;  // ns until a slow edge is tried at full speed

  // Pageable memory of up to this size goes as the driver copies it, if there is no second path.
  // Then the call takes as long as the copy. On an H200 in a virtual machine the driver carried 1
  // to 16 MiB in 0.53 to 0.72 of the time of glake's own buffers (2026-11-27,
  // benchmarks/gpu/results).
  static constexpr Bytes kPlainPageable = 32 * kMiB;

  // Events kept of each GPU for the next plain copies: as many are seldom under way. A guess.
  static constexpr size_t kSpareEvents = 64;

  // Copies beside each other.
  // A forecast of copies that take each other's links is up to this many times too good: a guess.
  static constexpr double kUnsure = 1.05;
  // ns of a copy from which several ways to deal it out are compared: each takes some 20 us of the
  // caller's time, which no simulated clock shows. A guess.
  static constexpr double kWorthAsking = 1'000'000;
  static constexpr double kRunsWell = 0.85;   // of its plan: such a run clears its edges; a guess
  static constexpr double kSharedFull = 0.9;  // of a limit: copies wait for each other; a guess
  static constexpr int kMostEvents = 256;     // looked ahead; 16 GPUs that all copy have fewer
  static constexpr double kLeftBytes = 4096;  // make no difference to a forecast any more
  static constexpr double kMuchFaster = 2;    // a link than what a run asks of it; a guess
  static constexpr double kFullLimit = 0.95;  // of a limit; a guess
  static constexpr double kAlike = 1.25;      // times as fast one way: both begin together; a guess
  static constexpr double kManyChunks = 12;   // each way: fewer do not make up for waiting; a guess
  // A burst: the next copy begins within this part of a copy's time. A guess.
  static constexpr double kSoon = 0.25;
  static constexpr size_t kBurstCopies = 64, kBurstThreads = 256, kBurstsKnown = 1024;
  // Of bursts that come now one way, now another, this many must have been alike before one is
  // expected again: a guess.
  static constexpr int kMostDoubt = 3;
  // After this many times it is decided again how a burst goes: other copies may have run beside
  // it.
  static constexpr unsigned kDecided = 8;

  // Shares of copies that are enqueued at once. Chosen by `glake bench transfer --order enqueued`
  // on hgx_h100_h200, dgx_a100 and dgx1v, where nothing else is said.
  // A chunk flows at least this many times as long as a copy takes to start. So the starts of the
  // chunks beside it are hidden.
  static constexpr double kCoverage = 2;
  // Chunks' times that a slow hop stands idle until the one before it has filled its buffers, and
  // after the last chunk, of which two are on a hop at once.
  static constexpr double kFill = 3;
  // What a caller's time costs, as a part of a copy's time. The first counts where no other copy
  // waits for the calls, the second where others may. Guesses.
  static constexpr double kBlocked = 0.1, kBlockedUnknown = 1;
  // A hop counts as slow if it is at most this much faster than the slowest one.
  static constexpr double kNearlySlowest = 1.5;
  // A chunk of a path with one slow hop is at most such a part of it, and of what is left of it;
  // where other copies wait for the calls, a larger one.
  static constexpr double kWhole = 4, kWholeInHaste = 2;
  static constexpr Bytes kLongestChunk = 16 * kMiB;  // of a relayed path
  // Buffers of a relay for one transfer, and about how many bytes they are together.
  static constexpr size_t kLeastBuffers = 3, kMostBuffers = 6;
  static constexpr Bytes kBuffered = kLeastBuffers * kLongestChunk;
  // ns of an asynchronous copy's call: published for an A10, as in simcuda/driver/symbols.h.
  static constexpr double kCallNs = 2600;
  // ns of the calls that open and join a path: a wait and a record are taken for 1000 each.
  static constexpr double kEventNs = 1000, kPathNs = 3 * kEventNs;
  // The calls may take this part of the copy's own time: they go on while its first chunks flow.
  static constexpr double kCalls = 0.5;
  // Copies that one thread enqueues sooner than it wakes others: a guess, two wake-ups.
  static constexpr size_t kAlone = 6;
  // Others that a thread wakes: a system call each, of several microseconds. A caller that woke all
  // of them would enqueue nothing meanwhile. A guess.
  static constexpr size_t kWakes = 2;
  // Chunks of a path of which one is timed: it has others before and behind it.
  static constexpr size_t kLeastTimed = 3;
  // Copies of one hop that flow at once, so that one's start hides behind another's bytes. They
  // take turns: of more, all would share the hop and be done together, and the next hop stand idle
  // until then.
  static constexpr size_t kFlows = 2;
  static constexpr size_t kMostUnderWay = 32;  // each may keep 48 MiB on every relay; a guess

  // Chunks of copies that threads submit: guesses that `glake bench transfer --order held` shows at
  // work.
  // At the planned rate a chunk takes at least this many times as long as a copy's start.
  static constexpr double kStarts = 2;
  // Of a copy's start: two streams take turns, and each copy covers the other's start with half of
  // its bytes.
  static constexpr double kCovering = 1.25;
  static constexpr Bytes kMostChunk = 8 * kMiB;    // that a buffer holds on its way
  static constexpr Bytes kMostDirect = 64 * kMiB;  // that needs none
  // One copy's start hides behind another's bytes. More than these, and the starts cost more than
  // they hide.
  static constexpr unsigned kLeastFlows = 2, kMostFlows = 6;
  // Chunks of a run under way over a hop: two go, and where the slow link should be one waits. No
  // more than that: two that each waited for another would begin, and end, together for ever.
  static constexpr unsigned kGoing = 2, kQueued = 1;
  static constexpr double kOverPlan = 1.25;  // what a run is trusted to do beyond its plan
  static constexpr double kShares = 24;      // chunks a run's part of the transfer makes, at least
  static constexpr size_t kMostPieces = 1024;     // of one chunk: they are submitted in one go
  static constexpr Bytes kLeastTable = 4 * kKiB;  // of pieces that a kernel reads

  // Faults: guesses, in ns unless said.
  // A run is looked at after this many chunks and this time.
  static constexpr uint64_t kWatched = 4, kWatchNs = 400'000;
  static constexpr unsigned kSlowLooks = 3;  // that show a run slow before it is believed
  static constexpr double kSlow = 0.7;       // of its plan
  static constexpr double kMemory = 0.75;    // weight of what was measured before, each completion
  static constexpr unsigned kMostFailures = 3;  // of a run in one transfer
  static constexpr uint64_t kFirstRest = 2'000'000, kLongestRest = 10'000'000'000;
  static constexpr uint64_t kGoodChunks = 64;          // in a row, that halve the next rest
  static constexpr uint64_t kGrace = 10'000'000;       // a copy may be late whatever was expected
  static constexpr uint64_t kOverduePoll = 1'000'000;  // there may be other work by then
  static constexpr uint64_t kLastChance = 2'000'000'000;  // for one that writes the destination
  static constexpr uint64_t kFarewell = 5'000'000'000;    // for lost ones, when the engine closes
  static constexpr uint64_t kHoldUp = 5'000'000'000;      // that closing waits for each thing
  static constexpr uint64_t kMostWait = 2'000'000'000;    // for a GPU's bytes to be read back
  static constexpr uint64_t kStuck = 20'000'000'000;      // for one set of the probe's copies
  static constexpr int kQuestions = 4;  // asked of a stream: each failed copy fails one

  // Waiting, in ns. A thread asks without a sleep from this long before the expected end until as
  // long after it. Even with exact sleeps one takes some 10 us more than asked; a chunk of a fast
  // link takes 20. Half of it gave up to a third of the rate in the simulator (completion=polled,
  // 16 to 64 MiB on an H100 box), twice as much gained nothing.
  static constexpr uint64_t kSpinNs = 20'000;
  // A plain copy's waiting thread. In a virtual machine with an H200 a thread that slept was late
  // by tens of us (2026-11-27, benchmarks/gpu/results: 16 MiB took 421 us, and 358 us where the
  // driver waited without a sleep). So a copy of up to kShortCopyNs is asked about from its begin
  // on, and a longer one from this part of its time and kWakeNs before its end. It may take that
  // time once more, up to kMostSpinNs, until the thread sleeps again; one of which nothing is known
  // may take kUnknownCopyNs.
  static constexpr uint64_t kShortCopyNs = 400'000, kWakeNs = 60'000, kSpunPart = 10;
  static constexpr uint64_t kUnknownCopyNs = 100'000, kMostSpinNs = 10'000'000;
  // Sleeps before and after that: guesses.
  static constexpr uint64_t kShortestSleep = 1'000, kLongestSleep = 50'000;
  // Between two looks: guesses.
  static constexpr uint64_t kWaitSlice = 50'000'000;  // at whether to go on waiting
  static constexpr uint64_t kOrderLook = 2'000'000;   // at what a caller's stream has passed

  // Host memory.
  // A copy of less takes its caller's word for where its ends are, where the caller gives it.
  static constexpr Bytes kTrusted = kMiB;
  // Places of host memory whose socket is asked for, how much of each stripe is asked about, and
  // the shortest stripe of one socket. Guesses, as the one above.
  static constexpr Bytes kLooks = 8, kProbe = 16 * kKiB, kLeastStripe = kMiB;
  static constexpr size_t kLiveRanges = 16;  // entries, of which the copies may be done; a guess
  // Pages of a buffer that are asked for their socket, and how many per cent of them may be on
  // another than the one that is said: guesses.
  static constexpr size_t kNodeSamples = 64, kForeignPercent = 10;
  // Beyond, reading the mappings is quicker: measured by hand with 350 to 3,000 of them.
  static constexpr Bytes kMostProvided = 16 * kMiB;
  static constexpr int kMostCalls = 64;
  static constexpr Bytes kPinPiece = 256 * kMiB;  // some 25 ms of the driver's locks; a guess
  static constexpr unsigned kMostTouching = 4;    // threads; a guess
  // Some 100 us of a thread; its waking is some tens in a virtual machine. Chunks of 1 MiB, each
  // carried by one thread, gave 8 GB/s on the H200, which a link of 53 GB/s waited for (2026-11-27,
  // benchmarks/gpu/results): this many slices are for all threads. Both are guesses.
  static constexpr Bytes kStagedSlice = kMiB, kStagedChunk = 8 * kMiB;
  static constexpr unsigned kMostCopying = 4;  // threads; a guess

  // The relay service: guesses.
  static constexpr Bytes kClientBuffer = 8 * kMiB, kAllBuffers = 64 * kMiB;  // of each GPU
  static constexpr Bytes kMostRemote = kClientBuffer / 4;  // of a chunk that it carries
  static constexpr size_t kMostClients = 64;
  static constexpr size_t kMostShared = 256, kMostFlights = 1024;  // of a client
  static constexpr int64_t kAnswerSeconds = 5, kSendSeconds = 5;
  static constexpr std::chrono::seconds kPatience{20};  // for contexts to be opened
  static constexpr int kFullMs = 100;  // until the next try, when no files or threads can be had
  static constexpr int kLookMs = 5;
  static constexpr uint64_t kOrdersLook = 50'000;  // ns, for orders while copies are under way
  static constexpr uint64_t kAnswersLook = 5'000;  // ns, for the service's answers
  static constexpr uint64_t kAskAgain = 100'000;   // ns between two questions about a lost copy

  // The probe: guesses.
  static constexpr Bytes kProbeBuffer = 32 * kMiB;  // of a GPU, and of pinned memory for each copy
  static constexpr size_t kProbeCopies = 64;
  static constexpr int kProbeRepeats = 64;
};

}  // namespace glake

// The thresholds of the transfer engine and of the planner. The comment of each says where its
// value is from: a command that measured it, a published cost, or a guess. A guess was chosen and
// not measured. Promises and formats (ids, messages, the shape of the copy kernel) are elsewhere,
// and so are the defaults of links that a platforms file leaves out (plan/topology.cpp).
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
  // A relay buffer is at least this long, and so is a relayed chunk of a copy that threads carry:
  // a guess.
  static constexpr Bytes kLeastChunk = 512 * kKiB;
  // ns from the call until another thread's first copy: a guess.
  static constexpr double kHandOverNs = 5'000;
  // A copy is shared out if a plain copy would take this many times as long: a guess.
  static constexpr double kLeastGain = 1.03;
  // ns that one copy with its events costs, where the platforms file does not say: a guess.
  static constexpr double kCopyNs = 8000;
  // Relays must bring this many times the rate of the plain copy: kHostGain if host memory is an
  // end of it, kRelayGain between GPUs, where a path over host memory takes PCIe links of both. One
  // path has at most kRelaysInARow relay GPUs. It has more than kFewRelays only if these bring
  // kLongGain times the rate of a plan without them, because each hop makes the start and the end
  // of a copy longer. The plan of one copy has at most kPathsOfOne paths. Guesses.
  static constexpr double kRelayGain = 1.15, kHostGain = 1.05, kLongGain = 1.03;
  static constexpr int kRelaysInARow = 3, kPathsOfOne = 16;
  static constexpr size_t kFewRelays = 2;
  // GB/s of a plan from which relays read from the copy's GPU even where a full link takes this
  // part of a path's rate for it. Guesses, after trials with made-up machines of 256 MiB and 1 GiB.
  static constexpr double kReadRate = 200, kReadLoss = 0.03;
  // GB/s of a link that no file describes: a guess.
  static constexpr double kUnknownRate = 20;
  // Other processes are told of copies from this size on, and plan with them in mind: a guess.
  static constexpr Bytes kLongCopy = 8 * kMiB;

  // Plans: weights and bounds of the planner's linear programs. Guesses.
  // What each link of a path costs, as a part of the path's rate. So the shorter of two equally
  // fast paths wins.
  static constexpr double kLoadCost = 0.0002;
  // The weight of a rate that earlier rounds have settled. A rate that still grows has 1.
  static constexpr double kSettled = 1000;
  // A rate counts as settled if its price is higher than this. The prices of the rates that still
  // grow are 1 on average.
  static constexpr double kStopped = 0.02;
  static constexpr double kSameRate = 1.005;  // a smaller rise is not worth another round
  // What the highest load of a path costs: much less than kSettled, and much more than a link.
  static constexpr double kUneven = 10;
  static constexpr int kEvenRounds = 4;  // rounds that make the loads of paths even
  // A path is thin if it has less than kThinPath of its demand's rate. A thin path is dropped if
  // that costs at most kThinLoss of the rate, and any other path if it costs at most kOtherLoss.
  static constexpr double kThinPath = 0.03, kThinLoss = 0.02, kOtherLoss = 0.002;
  // A refusal's text calls a limit full from this part on.
  static constexpr double kPlanFull = 1 - 1e-3;
  // A simplex run ends after kPivots pivots, and kPivotsARow more for each row and column. An early
  // end only costs rate. A guess: no run has come near.
  static constexpr int kPivots = 50, kPivotsARow = 10;
  static constexpr size_t kPlansKnown = 1024;  // plans that are kept; if full, all go
  static constexpr size_t kCutsKnown = 4096;   // cuts that are kept; if full, all go
  // The most refusals listed for one copy, because a longer list explains nothing more.
  static constexpr size_t kMostRefusals = 24;
  // A path that another process lends must bring this part of the plan's rate.
  static constexpr double kThinShare = 0.05;
  // The most decisions kept, which is enough for both directions of each of 16 GPUs.
  static constexpr size_t kMostDecisions = 32;
  // A copy of a size that is at most so many times as long or as short is divided alike at first. A
  // guess.
  static constexpr double kNearSize = 1.09;
  // A copy that is made again and again: its division is improved in at most kTrials copies, until
  // its paths end within kEven of its time. After a trial that took longer, the next one moves half
  // as many bytes, but not less than kLeastStep of what would make the ends even. At most
  // kMostDelay of a path's time counts as time without a flow. If kLateOnes copies in a row take
  // over kDrift times the least time, the trials begin again. Guesses.
  static constexpr int kTrials = 12, kLateOnes = 3;
  // A trial has more chunks only if its calls take at most kCallsPart of the copy's time.
  static constexpr double kCallsPart = 0.3;
  static constexpr double kMoreChunks = 1.4, kFewerChunks = 0.7;
  // Trials after trials, which noise may decide, change the number of chunks by this much at most.
  static constexpr double kMostChunkFactor = 3;
  static constexpr double kEven = 0.01, kLeastStep = 0.3, kMostDelay = 0.5, kDrift = 1.1;
  // The plain copies of at most kTimings bursts are timed. That takes calls of some kTimingNs for
  // each copy. Where they would be over kTimingPart of the burst's time, none is timed. Guesses.
  static constexpr int kTimings = 6;
  static constexpr uint64_t kTimingNs = 10'000;
  static constexpr double kTimingPart = 0.1;
  // A way of planning a burst is tried if it is forecast to take less than this many times what the
  // burst took: once, or up to kWayTries times while nothing is learnt of it. Guesses.
  static constexpr double kWorthTrying = 1.3;
  static constexpr int kWayTries = 3;
  static constexpr size_t kPlainRemembered = 64;    // the most plain copies under way remembered
  static constexpr uint64_t kForget = 200'000'000;  // ns until a slow edge is tried at full speed

  // The driver copies pageable memory of up to this size, if there is no second path. Then the call
  // takes as long as the copy. On an H200 in a virtual machine the driver took 0.53 to 0.72 of the
  // time of glake's own buffers for 1 to 16 MiB (2026-11-27, benchmarks/gpu/results).
  static constexpr Bytes kPlainPageable = 32 * kMiB;

  // If a copy has many pageable blocks, this many of the first and this many of the last ones stand
  // for all of them when glake finds out where they are. A guess.
  static constexpr size_t kBlocksLooked = 16;
  // Each thread that touches pages before they are pinned has at least this many bytes. A guess.
  static constexpr Bytes kTouched = 16 * kMiB;
  // While the engine closes, it sleeps this many ns between two looks for calls that still run. A
  // guess.
  static constexpr uint64_t kCloseSleepNs = 50'000;

  // How many events of each GPU are kept for later plain copies. More copies are seldom under way.
  // A guess.
  static constexpr size_t kSpareEvents = 64;

  // Copies that flow at the same time.
  // If copies share links, a forecast may promise this many times too much: a guess.
  static constexpr double kUnsure = 1.05;
  // If it is known what follows a copy, it has fewer chunks than seem best only where that is
  // forecast to gain this much: forecasts see too little of what hops lose between chunks. A guess.
  static constexpr double kFewerChunksGain = 1.02;
  // If a copy takes at least this many ns, several ways to deal it out are compared. Each takes
  // some 20 us of the caller's time, which no simulated clock shows. A guess.
  static constexpr double kWorthAsking = 1'000'000;
  // A run whose planned rate changes by less than this part keeps what its hops have measured. A
  // guess.
  static constexpr double kPaceKept = 0.05;
  // A run whose planned part of a stock, times the number of runs beside it, is above this is not
  // held back: it is no thin path. A guess.
  static constexpr double kWidePart = 0.6;
  // A run that reaches this part of its plan's rate clears its edges of suspicion: a guess.
  static constexpr double kRunsWell = 0.85;
  // Copies that together need this part of a limit wait for each other: a guess.
  static constexpr double kSharedFull = 0.9;
  // The most beginnings and ends of copies that a forecast computes. 16 GPUs that all copy have
  // fewer.
  static constexpr int kMostEvents = 256;
  static constexpr double kLeftBytes = 4096;  // a forecast ignores a rest of fewer bytes
  // A link is much faster than a run if it carries this many times what the run asks of it: a
  // guess.
  static constexpr double kMuchFaster = 2;
  static constexpr double kFullLimit = 0.95;  // a limit counts as full from this part on; a guess
  // Both directions begin together if neither is faster than this many times the other: a guess.
  static constexpr double kAlike = 1.25;
  // Both directions begin together only if each has at least this many chunks. With fewer, the wait
  // costs more than it saves. A guess.
  static constexpr double kManyChunks = 12;
  // Copies are one burst if the next begins within this part of a copy's time: a guess.
  static constexpr double kSoon = 0.25;
  // The most copies of one burst, the most threads whose bursts are followed, and how many bursts
  // are remembered. Guesses.
  static constexpr size_t kBurstCopies = 1024, kBurstThreads = 256, kBurstsKnown = 256;
  // If a thread's bursts change their direction, glake expects the last direction again only after
  // this many bursts in a row had it: a guess.
  static constexpr int kMostDoubt = 3;
  // After this many bursts the paths of a burst are chosen again, because other copies may have run
  // beside it.
  static constexpr unsigned kDecided = 8;

  // Shares of copies of which all chunks are enqueued in one go. Where nothing else is said, the
  // values were chosen by `glake bench transfer --order enqueued` on hgx_h100_h200, dgx_a100 and
  // dgx1v.
  // What a caller's time costs, as a part of a copy's time. kBlocked counts if no later copy waits
  // until this one is enqueued, kBlockedUnknown if one may wait. Guesses.
  static constexpr double kBlocked = 0.1, kBlockedUnknown = 1;
  // On a relayed path. With more copies at once it is shorter (cut_search.h).
  static constexpr Bytes kLongestChunk = 16 * kMiB;
  // Where two streams have both hops of a path, and one is much faster, two buffers are enough. So
  // they may be longer: a copy that others wait for has as few chunks as possible. A guess.
  static constexpr Bytes kLongestJoined = 2 * kLongestChunk;
  // So that no short chunk is left of a range, a path may carry a kOverPart-th more than its part.
  static constexpr Bytes kOverPart = 64;
  // A relay buffer serves if it is at most this many times as large as the smallest that would. So
  // none is made where chunks are a little shorter than the last time. A guess.
  static constexpr Bytes kLarger = 2;
  // The buffers that a relay has for one transfer, and about how many bytes they have together. A
  // path that has more than two copies at once may have more of them, but not more bytes.
  static constexpr size_t kLeastBuffers = 3, kMostBuffers = 6;
  static constexpr Bytes kBuffered = kLeastBuffers * kLongestChunk;
  // ns of an asynchronous copy's call: published for an A10, as in simcuda/driver/symbols.h.
  static constexpr double kCallNs = 2600;
  // ns of the calls that open and join a path. A wait and a record are assumed to take kEventNs
  // each.
  static constexpr double kEventNs = 1000, kPathNs = 3 * kEventNs;
  // The calls may take this part of the copy's own time, because they go on while the first chunks
  // flow, and those of all threads this part of a core for each path.
  static constexpr double kCalls = 0.5, kCore = 0.33;
  // One thread enqueues up to this many copies itself, because waking other threads takes longer. A
  // guess: the time of two wake-ups.
  static constexpr size_t kAlone = 6;
  // How many threads one thread wakes. Each takes a system call of several microseconds. A caller
  // that woke all of them would enqueue nothing meanwhile. A guess.
  static constexpr size_t kWakes = 2;
  // One chunk of a path is timed if the path has at least this many chunks. Then other chunks come
  // before and after the timed one.
  static constexpr size_t kLeastTimed = 3;
  // Copies of one hop that flow at once, so that the start of one is hidden by the bytes of
  // another. More copies would share the hop and end together, and the next hop would stand idle
  // until then.
  static constexpr size_t kFlows = 2;
  // A path may have up to kMostAtOnce instead, if by that all paths together take at most a
  // kBalanced-th of the time: more copies at once need more chunks. Other numbers of copies are
  // tried while each trial saves a kNearer-th, at first at most kBalances times. Guesses.
  static constexpr size_t kMostAtOnce = 6;
  static constexpr int kBalances = 4;
  static constexpr double kBalanced = 1.03, kNearer = 1.01;
  // The most enqueued transfers under way at once, and the most pipelines of them. A pipeline may
  // keep 64 MiB on each of its relays, and 80 MiB if transfers with few and with many copies at
  // once took turns. Guesses.
  static constexpr size_t kMostUnderWay = 1024, kMostPipelines = 256;

  // Chunks of copies whose chunks are submitted one after the other, by threads of the engine.
  // These are guesses, and `glake bench transfer --order held` shows their effect.
  // The longest chunk of a run takes at least this many times as long as a copy's start, at the
  // planned rate.
  static constexpr double kStarts = 2;
  // A copy that wants to take turns with one of the opposite direction waits for it at most for
  // this many starts of a copy.
  static constexpr uint64_t kTurnStarts = 2;
  // Each chunk of a run may be half as long again as the longest before it. A guess.
  static constexpr Bytes ramped(Bytes longest) { return longest * 3 / 2; }
  // A last chunk shorter than this part of the others is not made; they are a little longer. A
  // guess.
  static constexpr Bytes kSmallLast = 8;
  // If the parts of a copy lie within so many bytes, all of them are checked at once. A guess.
  static constexpr Bytes kOneCheck = 4 * kGiB;
  // The shortest chunk takes this many times as long as a copy's start. Two streams take turns, and
  // half of each copy covers the start of the next one.
  static constexpr double kCovering = 1.25;
  static constexpr Bytes kMostChunk = 8 * kMiB;    // if the path has buffers
  static constexpr Bytes kMostDirect = 64 * kMiB;  // if it has none
  // Copies that flow at once, so that the start of one is hidden by the bytes of another. With more
  // copies the starts cost more time than they hide.
  static constexpr unsigned kLeastFlows = 2, kMostFlows = 6;
  // How many copies of a run go over one hop at once, and how many more wait there if the link is
  // slow. If more waited, two copies could begin together and end together again and again.
  static constexpr unsigned kGoing = 2, kQueued = 1;
  // A run is expected to carry at most this many times its planned rate.
  static constexpr double kOverPlan = 1.25;
  // What a run carries of the transfer is cut into at least this many chunks.
  static constexpr double kShares = 24;
  static constexpr size_t kMostPieces = 1024;  // in one chunk, whose pieces are submitted together
  // A chunk ends where a piece ends if that makes it shorter by at most a kLittle-th. A guess.
  static constexpr Bytes kLittle = 8;
  static constexpr Bytes kLeastTable = 4 * kKiB;  // a table of pieces that a kernel reads

  // Faults: guesses, in ns unless the comment says otherwise.
  // A run is checked after this many chunks and this time.
  static constexpr uint64_t kWatched = 4, kWatchNs = 400'000;
  static constexpr unsigned kSlowLooks = 3;     // slow results in a row before a run counts as slow
  static constexpr double kSlow = 0.7;          // a run is slow below this part of its plan
  static constexpr double kMemory = 0.75;       // weight of older measurements at each completion
  static constexpr unsigned kMostFailures = 3;  // failures after which a transfer gives a run up
  // How long a path rests after its first failure, and the longest rest.
  static constexpr uint64_t kFirstRest = 2'000'000, kLongestRest = 10'000'000'000;
  static constexpr uint64_t kGoodChunks = 64;  // successes in a row that halve the next rest
  // A chunk is late after so many times the time that was expected of it, and kGrace more: guesses.
  static constexpr uint64_t kLate = 3;
  static constexpr uint64_t kGrace = 10'000'000;
  // Time between two questions about a late copy.
  static constexpr uint64_t kOverduePoll = 1'000'000;
  // A late copy that writes to the destination gets this much more time before its transfer fails.
  static constexpr uint64_t kLastChance = 2'000'000'000;
  // When a submitter ends, it waits at most this long for lost copies.
  static constexpr uint64_t kFarewell = 5'000'000'000;
  // When the engine closes, it waits for plain copies, for work in callers' streams, and for
  // enqueued transfers. It waits at most this long for each of the three.
  static constexpr uint64_t kHoldUp = 5'000'000'000;
  // The longest wait for bytes that are read back from a GPU.
  static constexpr uint64_t kMostWait = 2'000'000'000;
  // The longest wait for one set of the probe's copies.
  static constexpr uint64_t kStuck = 20'000'000'000;
  // How many times glake waits for a stream whose wait fails. Each failed copy makes one wait fail.
  static constexpr int kQuestions = 4;

  // Waiting, in ns. A thread polls without a sleep from this long before the expected end until
  // this long after it. Even an exact sleep ends some 10 us late, and a chunk of a fast link takes
  // 20 us. With half of this value up to a third of the rate was lost in the simulator
  // (completion=polled, 16 to 64 MiB on an H100 box). Twice the value gained nothing.
  static constexpr uint64_t kSpinNs = 20'000;
  // These are for the thread that waits for a plain copy. In a virtual machine with an H200 a
  // thread that slept was late by tens of us (2026-11-27, benchmarks/gpu/results: 16 MiB took 421
  // us, and 358 us where the driver waited without a sleep). So a thread polls for a copy of up to
  // kShortCopyNs from the copy's start on. For a longer copy it begins kWakeNs and a kSpunPart-th
  // of the copy's time before the end. It polls for as long again after the expected end, up to
  // kMostSpinNs, and then sleeps. It polls kUnknownCopyNs for a copy of which nothing is known.
  static constexpr uint64_t kShortCopyNs = 400'000, kWakeNs = 60'000, kSpunPart = 10;
  static constexpr uint64_t kUnknownCopyNs = 100'000, kMostSpinNs = 10'000'000;
  // The sleeps before and after the polling: guesses.
  static constexpr uint64_t kShortestSleep = 1'000, kLongestSleep = 50'000;
  // The longest time between two checks: guesses.
  static constexpr uint64_t kWaitSlice = 50'000'000;  // whether the engine was closed
  static constexpr uint64_t kOrderLook = 2'000'000;   // whether a transfer still waits for a stream

  // Host memory.
  // For a smaller copy, glake trusts what the caller says about where its ends are.
  static constexpr Bytes kTrusted = kMiB;
  // kLooks places of host memory are asked for their socket. If it is striped, kProbe bytes at the
  // start of each stripe are. No stripe is shorter than kLeastStripe. These and kTrusted are
  // guesses.
  static constexpr Bytes kLooks = 8, kProbe = 16 * kKiB, kLeastStripe = kMiB;
  // The engine keeps the ranges of copies under way. Once it has those of this many copies, it
  // drops those that have finished. A guess.
  static constexpr size_t kLiveRanges = 16;
  // How many pages of a buffer are asked for their socket, and how many per cent of them may be on
  // another socket than the rest. Guesses.
  static constexpr size_t kNodeSamples = 64, kForeignPercent = 10;
  // The kernel is asked to provide pages of host memory for at most this many bytes, in at most
  // this many calls. For more it is quicker to read the list of the process's mappings: measured by
  // hand with 350 to 3,000 mappings.
  static constexpr Bytes kMostProvided = 16 * kMiB;
  static constexpr int kMostCalls = 64;
  // Host memory is pinned in pieces of this size. To pin one piece holds the driver's locks for
  // some 25 ms. A guess.
  static constexpr Bytes kPinPiece = 256 * kMiB;
  static constexpr unsigned kMostTouching = 4;  // threads that touch pages; a guess
  // A chunk of pageable memory has kStagedChunk bytes, which all threads copy in slices of
  // kStagedSlice. One slice takes a thread some 100 us. In a virtual machine it takes some tens of
  // us to wake a thread. Chunks of 1 MiB, each copied by one thread, gave 8 GB/s on the H200, while
  // a link of 53 GB/s waited (2026-11-27, benchmarks/gpu/results). Both are guesses.
  static constexpr Bytes kStagedSlice = kMiB, kStagedChunk = 8 * kMiB;
  static constexpr unsigned kMostCopying = 4;  // threads that copy one chunk; a guess

  // The relay service: guesses.
  // The bytes on each GPU of one client's buffer, and of all clients' buffers together.
  static constexpr Bytes kClientBuffer = 8 * kMiB, kAllBuffers = 64 * kMiB;
  // The longest chunk that the service carries.
  static constexpr Bytes kMostRemote = kClientBuffer / 4;
  static constexpr size_t kMostClients = 64;
  // The most pieces of host memory, and the most copies under way, of one client.
  static constexpr size_t kMostShared = 256, kMostFlights = 1024;
  // How long the service may take to send one answer, and a client to send one message.
  static constexpr int64_t kAnswerSeconds = 5, kSendSeconds = 5;
  // A client waits this long for an answer, because the service may open contexts first.
  static constexpr std::chrono::seconds kPatience{20};
  // ms until the service accepts clients again, when the system has no more files or threads.
  static constexpr int kFullMs = 100;
  // ms between two looks of a client that waits for an answer.
  static constexpr int kLookMs = 5;
  // ns between looks for orders while copies are under way. Meanwhile the service is deaf, and the
  // link of a GPU that has no copy stands idle: with 50 us instead of 5, two ranks of an H100 box
  // reached 0.83 of their bound instead of 0.95 (benchmarks/transfer/ranks.py --mib 256).
  static constexpr uint64_t kOrdersLook = 5'000;
  static constexpr uint64_t kAnswersLook = 5'000;  // ns between looks for the service's answers
  static constexpr uint64_t kAskAgain = 100'000;   // ns between two questions about a lost copy

  // The probe: guesses.
  // The bytes of a buffer. There is one on each GPU, and one in pinned memory for each copy.
  static constexpr Bytes kProbeBuffer = 32 * kMiB;
  // The most copies of one set, and how often each of them may be repeated.
  static constexpr size_t kProbeCopies = 64;
  static constexpr int kProbeRepeats = 64;
};

}  // namespace glake

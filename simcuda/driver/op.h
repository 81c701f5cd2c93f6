// One piece of stream work. It is *timed* when the virtual clock has passed its end, and *applied*
// when its effect has been made: as late as is legal, when somebody may know that it is done.
#pragma once

#include <memory>
#include <vector>

#include "plan/topology.h"
#include "types.h"

namespace simcuda {

using glake::topology::Route;
using glake::topology::Topology;

struct Op;
using OpPtr = std::shared_ptr<Op>;

struct Op {
  enum class Kind { kMarker, kCopy, kMemset, kHostFunction, kWriteValue, kWaitValue, kCompute };
  struct Side {  // one end of a copy
    uint64_t address = 0;
    size_t pitch = 0;
    bool host = false;
    int device = -1;      // that must have the access granted
    bool pinned = false;  // captured: pinned host memory then, and so it must be at each launch
  };

  Kind kind = Kind::kMarker;
  int device = -1;  // of the stream
  uint64_t seq = 0;

  // Where a copy goes from and to: a GPU, or host memory of a socket (-1: of all).
  struct Place {
    int gpu = -1, node = -1;
  };
  struct Part {  // of a batch
    Side dst, src;
    size_t bytes = 0;
    std::vector<char> staged;
    size_t* known = nullptr;  // a collective's, in phantom memory: how many of its bytes are staged
  };

  Side dst, src;     // copies; memsets and values use dst
  size_t bytes = 0;  // of a row
  size_t rows = 1;
  std::vector<char> staged;  // source bytes taken at the call, from pageable host memory
  uint64_t value = 0;        // memset pattern, or value to write or wait for
  unsigned width = 1;        // bytes of the value
  unsigned flags = 0;        // of a wait
  CUhostFn function = nullptr;
  void* data = nullptr;
  // Of a batch or a kernel, instead of dst, src and rows; `bytes` is their sum.
  std::vector<Part> parts;
  // Of a kernel that somebody else computes (compute.h): what it reads and writes.
  struct Touched {
    uint64_t address = 0;
    size_t bytes = 0;
    bool write = false;
  };
  int (*compute)(void* data) = nullptr;
  std::vector<Touched> touched;
  // In phantom memory instead of `touched`: what is known of what it writes, if what it reads is.
  enum class Computes { kNothing, kOfAll, kOfAny };
  struct Followed {
    uint64_t address = 0;
    size_t bytes = 0;
    bool read = false, write = false, keeps = false;
  };
  Computes computes = Computes::kNothing;
  std::vector<Followed> followed;  // until it is enqueued
  // A copy or memset of a call that is computed as a whole: it takes its time and moves no byte.
  bool covered = false;
  bool launch = false;   // of a kernel that is counted, not run
  bool staging = false;  // a collective's: phantom memory has no host memory to stage in
  uint64_t table = 0;    // a kernel reads its parts there when it runs: `blocks` of them
  uint32_t blocks = 0;
  std::shared_ptr<void> keep;           // what its host memory hangs on, until it is applied
  std::shared_ptr<const void> objects;  // of a graph's launch: user objects

  // Timing.
  uint64_t latency_ns = 0;
  Route route;           // empty: no transfer
  double remaining = 0;  // bytes still to move
  bool timed = false;
  uint64_t latency_end_ns = 0, end_ns = 0;
  int shared = -1;  // its number among all processes' copies (shared_links.h)
  size_t untimed_deps = 0;

  // Injected faults (links.h).
  Place from, to;
  CUresult fault = CUDA_SUCCESS;   // it ends with this after its latency, and lands nothing
  uint64_t stall_ns = 0;           // on top of its latency
  bool corrupt = false;            // it lands with its first bit flipped
  bool told = false;               // somebody has been given `fault`
  bool landed = false;             // its bytes were written
  std::vector<OpPtr> answers_for;  // of an event: copies of the stream since the event before

  // Effects.
  bool applied = false;
  size_t unapplied_deps = 0;
  uint64_t mark = 0;  // of the closure being applied
  std::vector<OpPtr> deps, dependents;
};

// Whether work writes into the word a stream waits for, at the address it is waited for at.
bool writes_word(const Op& op, const Op& word);
// Whether work touches the device memory of a range.
bool touches(const Op& op, uint64_t address, size_t bytes);
// The first comes after the second, if that is not over.
void depend(const OpPtr& op, const OpPtr& dep);
// The injected fault among these copies, given once to a caller who waits for their stream;
// CUDA_SUCCESS: none. To one who asks about their event it is given as often as asked.
CUresult tell_faults(const std::vector<OpPtr>& copies, bool again);

}  // namespace simcuda

// One piece of stream work. It is *timed* when the virtual clock has passed its end. It is
// *applied* when its effect has been made. The effect is made as late as is legal: when a program
// may learn that the work is done.
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
    int device = -1;      // the device that must have access
    bool pinned = false;  // captured: it was pinned host memory, and must be so at each launch
  };

  Kind kind = Kind::kMarker;
  int device = -1;  // of the stream
  uint64_t seq = 0;

  // The place of a copy's source or target: a GPU, or host memory of a socket (-1: of all).
  struct Place {
    int gpu = -1, node = -1;
  };
  struct Part {  // of a batch
    Side dst, src;
    size_t bytes = 0;
    std::vector<char> staged;
    // Of a collective in phantom memory: how many of its bytes are staged.
    size_t* known = nullptr;
  };

  Side dst, src;     // copies; memsets and values use dst
  size_t bytes = 0;  // of a row
  size_t rows = 1;
  std::vector<char> staged;  // source bytes from pageable host memory, taken at the call
  uint64_t value = 0;        // memset pattern, or value to write or wait for
  unsigned width = 1;        // bytes of the value
  unsigned flags = 0;        // of a wait
  CUhostFn function = nullptr;
  void* data = nullptr;
  // The parts of a batch or a kernel, in place of dst, src and rows. `bytes` is their sum.
  std::vector<Part> parts;
  // What a kernel reads and writes that somebody else computes (compute.h).
  struct Touched {
    uint64_t address = 0;
    size_t bytes = 0;
    bool write = false;
  };
  int (*compute)(void* data) = nullptr;
  std::vector<Touched> touched;
  // In phantom memory this stands in place of `touched`. It says whether the written bytes are
  // known, depending on which of the read bytes are.
  enum class Computes { kNothing, kOfAll, kOfAny };
  struct Followed {
    uint64_t address = 0;
    size_t bytes = 0;
    bool read = false, write = false, keeps = false;
  };
  Computes computes = Computes::kNothing;
  std::vector<Followed> followed;  // emptied when the work is enqueued
  // A copy or memset in a call that is computed as a whole. It takes its time and moves no byte.
  bool covered = false;
  bool launch = false;   // a launch of a kernel that is counted and not run
  bool staging = false;  // of a collective: phantom memory has no host memory to stage in
  uint64_t table = 0;    // the address at which a kernel reads its `blocks` parts when it runs
  uint32_t blocks = 0;
  std::shared_ptr<void> keep;           // keeps its host memory alive until it is applied
  std::shared_ptr<const void> objects;  // of a graph's launch: keeps user objects alive

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
  CUresult fault = CUDA_SUCCESS;   // it ends with this after its latency, and writes nothing
  uint64_t stall_ns = 0;           // added to its latency
  bool corrupt = false;            // it lands with its first bit flipped
  bool told = false;               // some caller has been told of `fault`
  bool landed = false;             // its bytes were written
  std::vector<OpPtr> answers_for;  // of an event: the stream's copies since the event before

  // Effects.
  bool applied = false;
  size_t unapplied_deps = 0;
  uint64_t mark = 0;  // set by the closure that is being applied
  std::vector<OpPtr> deps, dependents;
};

// Whether work writes into the word that a stream waits for, at the address of the wait.
bool writes_word(const Op& op, const Op& word);
// Whether work touches the device memory of a range.
bool touches(const Op& op, uint64_t address, size_t bytes);
// Makes `op` run after `dep`, if that is not over.
void depend(const OpPtr& op, const OpPtr& dep);
// The injected fault among these copies; CUDA_SUCCESS: there is none. A caller who waits for their
// stream is told once. A caller who asks about their event is told each time (`again`).
CUresult tell_faults(const std::vector<OpPtr>& copies, bool again);

}  // namespace simcuda

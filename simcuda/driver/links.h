// Changes of links by tests: speeds, now or later, and copies that fail or stall. It also counts
// what each link carried.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "op.h"
#include "options.h"

namespace simcuda {

// A fault of a copy: it ends with a code, starts later, or lands with a bit flipped.
struct CopyFault {
  CUresult code = CUDA_SUCCESS;
  uint64_t stall_ns = 0;
  bool corrupt = false;
};

class Links {
 public:
  explicit Links(Topology* topology) : topology_(topology) { restart(); }

  // Sets a link's speed in GB/s from virtual time `at_ns` on.
  CUresult set(uint64_t at_ns, const char* from, const char* to, double rate);
  // Makes the changes that are due. False: nothing changed.
  bool change(uint64_t now_ns);
  uint64_t next_change() const;  // UINT64_MAX: none
  // The code with which copies over a dead link end. CUDA_SUCCESS: they stand still.
  CUresult dead_code() const { return static_cast<CUresult>(dead_link().load()); }
  bool dead(const Route& route) const;

  // The k-th later copy between two places has the fault, `times` in a row. Places are "g3", "m0",
  // "host" (any host memory) or "*".
  CUresult arm(const char* from, const char* to, int64_t k, int64_t times, const CopyFault& fault);
  void disarm() { faults_.clear(); }
  // Gives a copy that is about to be enqueued the fault that is due.
  void meet(Op* op);

  // Counts what `flows` carried in `ns` at their `rates`.
  void carry(const std::vector<Op*>& flows, const std::vector<double>& rates, uint64_t ns);
  std::string json(bool clear);

 private:
  struct Change {
    int edge;
    double rate;
  };
  struct Fault {
    std::string from, to;
    int64_t countdown, times;
    CopyFault is;
  };
  struct Carried {
    double bytes = 0, peak = 0;  // GB/s
    double load = 0;             // the largest part of its rate that was ever in use
  };
  void restart();  // the counts of what was carried

  Topology* const topology_;
  std::multimap<uint64_t, Change> changes_;
  std::vector<Fault> faults_;
  std::vector<Carried> edges_;  // by edge
  std::vector<double> limits_;  // by limit: the largest part of it that was ever in use
};

}  // namespace simcuda

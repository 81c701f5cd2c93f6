// One clock and one set of links for all processes of a shared machine (option pace). The clock is
// the system's, `pace` times slower. The flows of all processes are in shared memory. Any process
// that looks moves all of them up to now. So a copy's progress does not depend on when its process
// looks, and no process sees links emptier than they are. A process that looks late begins its next
// work late.
#pragma once

#include <pthread.h>

#include <memory>
#include <string>

#include "op.h"

namespace simcuda {

// The most flows under way in all processes, and the most edges of one flow's route. Tables in
// shared memory have these sizes.
constexpr int kMostShared = 1024, kMostEdges = 32;

class SharedLinks {
 public:
  // Opens the links of the machine in `directory`. The first process makes them. Throws nothing.
  static CUresult open(const std::string& directory, uint64_t pace, int slot, const Topology& links,
                       std::unique_ptr<SharedLinks>* made);
  ~SharedLinks();
  SharedLinks(const SharedLinks&) = delete;
  SharedLinks& operator=(const SharedLinks&) = delete;

  uint64_t now_ns() const;
  uint64_t real_ns(uint64_t ns) const { return ns * pace_; }
  // Enters a copy whose bytes move from `start_ns` on. Returns its number; -1: there is no room.
  int enter(const Route& route, uint64_t start_ns, double bytes);
  // Moves all flows to `now_ns`, and says whether this one is over by then. If so, it is forgotten.
  bool over(int flow, uint64_t now_ns, uint64_t* end_ns);
  // When the next flow of any process will start or be over, at the present rates.
  uint64_t next_ns() const;

 private:
  enum class Stage : uint32_t { kFree, kMoving, kOver };
  struct State;
  struct Flow;
  class Guard;
  SharedLinks() = default;
  void advance(uint64_t now_ns);

  State* state_ = nullptr;
  const Topology* links_ = nullptr;
  uint64_t pace_ = 1;
  int slot_ = 0;
};

}  // namespace simcuda

// One clock and one set of links for all processes of a shared machine (option pace). The clock is
// the system's, `pace` times slower. What flows over the links, whoever it is of, is in shared
// memory, and whoever looks moves all of it up to now: the bytes that a copy has moved never hang
// on when its process looks, and no process sees links emptier than they are. A process that looks
// late begins its next work late.
#pragma once

#include <pthread.h>

#include <memory>
#include <string>

#include "op.h"

namespace simcuda {

constexpr int kMostShared = 1024, kMostEdges = 32;

class SharedLinks {
 public:
  // The machine's in `directory`, which its first process makes. Throws nothing.
  static CUresult open(const std::string& directory, uint64_t pace, int slot, const Topology& links,
                       std::unique_ptr<SharedLinks>* made);
  ~SharedLinks();
  SharedLinks(const SharedLinks&) = delete;
  SharedLinks& operator=(const SharedLinks&) = delete;

  uint64_t now_ns() const;
  uint64_t real_ns(uint64_t ns) const { return ns * pace_; }
  // Enters a copy, whose bytes move from `start_ns` on. Its number; -1: no room.
  int enter(const Route& route, uint64_t start_ns, double bytes);
  // Whether it is over by `now_ns`, to which all are moved first; it is forgotten then.
  bool over(int flow, uint64_t now_ns, uint64_t* end_ns);
  // When the next of anybody's is, by what flows now.
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

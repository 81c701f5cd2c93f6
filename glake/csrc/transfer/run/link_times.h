// How long copies that the driver has already will keep the links busy: what begins now ends behind
// them.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "plan/plan.h"

namespace glake::transfer {

// Of a path: each limit of the topology that it counts in, and ns that a byte takes of it.
using PathTimes = std::vector<std::pair<int, double>>;

class LinkTimes {
 public:
  // `topology` may be null: no path has limits then.
  explicit LinkTimes(const topology::Topology* topology) : topology_(topology) {}

  // `parts`: of each limit, what is ours (empty: all).
  PathTimes of(const Path& path, const std::vector<double>& parts) const;
  // A copy from now to about `end`, and how long it takes of each limit. `key`: to remove it by.
  void add(const void* key, std::vector<std::pair<int, double>> ns, uint64_t now, uint64_t end);
  void remove(const void* key);
  // Those without a key, of which nobody tells.
  void forget_ended(uint64_t now);
  // For how many ns from now on each limit has work.
  std::vector<double> busy(uint64_t now) const;

 private:
  struct Load {
    const void* key;
    std::vector<std::pair<int, double>> ns;
    uint64_t begin, end;
  };
  const topology::Topology* topology_;
  std::vector<Load> loads_;
};

}  // namespace glake::transfer

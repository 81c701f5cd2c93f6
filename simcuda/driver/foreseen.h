// Where phantom memory may hold known bytes (known.h) once all enqueued work is done. Most of a
// job's ops read nothing known and write where nothing is known. This finds them when they are
// enqueued, so that they need not be followed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "op.h"

namespace simcuda {

// Used under the driver's mutex. It assumes that work runs in the order in which it was enqueued.
// Words that streams wait for can change that order; then it gives up, see give_up().
class Foreseen {
 public:
  void enqueue(const Op& op);
  bool all(uint64_t address, size_t bytes) const;
  bool any(uint64_t address, size_t bytes) const;
  // From now on something may be known anywhere.
  void give_up() { given_up_ = true; }

 private:
  using Ranges = std::map<uint64_t, uint64_t>;  // from the first address to the end; no two touch

  Ranges::const_iterator reaching(uint64_t address) const;  // the first range that ends behind it
  void set(uint64_t address, size_t bytes, bool known);
  void copy(const Op::Side& dst, const Op::Side& src, size_t bytes);
  void compute(const Op& op);

  Ranges ranges_;
  bool given_up_ = false;
};

}  // namespace simcuda

// Where phantom memory may hold known bytes (known.h) once all work enqueued so far is done. Most
// of a job's ops read nothing known and write where nothing is: to see that when they are enqueued
// spares the work of following them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "op.h"

namespace simcuda {

// Under the driver's mutex. Work counts in the order it is enqueued in: what is ordered otherwise
// (by words that streams wait for) makes an end of it, see give_up().
class Foreseen {
 public:
  void enqueue(const Op& op);
  bool all(uint64_t address, size_t bytes) const;
  bool any(uint64_t address, size_t bytes) const;
  // Something may be known anywhere, from now on.
  void give_up() { given_up_ = true; }

 private:
  using Ranges = std::map<uint64_t, uint64_t>;  // from the first address to the end; none touch

  Ranges::const_iterator reaching(uint64_t address) const;  // the first that ends behind it
  void set(uint64_t address, size_t bytes, bool known);
  void copy(const Op::Side& dst, const Op::Side& src, size_t bytes);
  void compute(const Op& op);

  Ranges ranges_;
  bool given_up_ = false;
};

}  // namespace simcuda

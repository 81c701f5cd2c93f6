// What the driver has refused for want of memory, and what that says of the next request: it may
// have less than it reports. It is forgotten when the driver takes memory back. Under slow.
#pragma once

#include <algorithm>
#include <string>

#include "base/types.h"
#include "memory/contiguous_pool.h"

namespace glake {

class DriverShortage {
 public:
  void request_begins() { now_ = false; }
  // The driver has taken `given` back. It has that in addition to what it had when it refused.
  void forget(Granules given);
  // Growth is tried again before all else.
  void try_growth() { full_ = false; }

  // Growth. It was refused by a driver that reports `reported` and had `had`, or at most that.
  void refuse_growth(Granules reported, Granules had, bool at_most, const std::string& said);
  void grown(Granules n);
  bool full() const { return full_; }        // growth is tried only as a last resort
  bool refused_now() const { return now_; }  // to the request under way
  // What a driver that reports `reported` gives; how much of it is withheld; why.
  Granules gives(Granules reported) const;
  Granules withheld() const { return full_ ? withheld_ : Granules{0}; }
  const std::string& said() const { return said_; }

  // Views. The most granules that it maps side by side, since it refused one, and why.
  void refuse_view(Granules most, const std::string& said);
  void mapped_view(Granules n);
  bool refused_view() const { return !view_said_.empty(); }
  Granules most_in_view() const { return view_most_; }
  const std::string& view_said() const { return view_said_; }

  // Contiguous blocks: what it reports free does not say whether the next of the kind fits.
  void refuse_allocation(int kind) { allocation_[ContiguousPool::number(kind)] = true; }
  bool refused_allocation(int kind) const { return allocation_[ContiguousPool::number(kind)]; }

 private:
  bool full_ = false, now_ = false;
  Granules had_, withheld_;  // that it had then, and that it reported free beyond these
  std::string said_;
  Granules view_most_;
  std::string view_said_;  // empty: it refused none
  bool allocation_[2] = {false, false};
};

}  // namespace glake

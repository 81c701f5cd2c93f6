// What the driver has refused for lack of memory. The driver may then have less than it reports,
// which matters to the next request. All is forgotten when the driver takes memory back. Callers
// hold the slow lock.
#pragma once

#include <algorithm>
#include <string>

#include "base/types.h"
#include "memory/contiguous_pool.h"

namespace glake {

class DriverShortage {
 public:
  void request_begins() { now_ = false; }
  // The driver has taken `given` back. It has them in addition to what it had when it refused.
  void forget(Granules given);
  // Growth is tried again before all else.
  void try_growth() { full_ = false; }

  // The driver refused growth. It reports `reported` free. In fact it had `had`; with `at_most`, it
  // may have had less.
  void refuse_growth(Granules reported, Granules had, bool at_most, const std::string& said);
  void grown(Granules n);
  bool full() const { return full_; }        // growth is tried only as a last resort
  bool refused_now() const { return now_; }  // the request under way was refused
  // gives() is how much a driver that reports `reported` gives. withheld() is how much it does not
  // give. said() is the reason.
  Granules gives(Granules reported) const;
  Granules withheld() const { return full_ ? withheld_ : Granules{0}; }
  const std::string& said() const { return said_; }

  // A view was refused. `most` is the most granules that the driver has mapped side by side since.
  void refuse_view(Granules most, const std::string& said);
  void mapped_view(Granules n);
  bool refused_view() const { return !view_said_.empty(); }
  Granules most_in_view() const { return view_most_; }
  const std::string& view_said() const { return view_said_; }

  // A contiguous block was refused. What the driver reports free does not say whether the next one
  // fits.
  void refuse_allocation(int kind) { allocation_[ContiguousPool::number(kind)] = true; }
  bool refused_allocation(int kind) const { return allocation_[ContiguousPool::number(kind)]; }

 private:
  bool full_ = false, now_ = false;
  Granules had_, withheld_;  // what it had then, and what it reported free beyond that
  std::string said_;
  Granules view_most_;
  std::string view_said_;  // empty: it refused no view
  bool allocation_[2] = {false, false};
};

}  // namespace glake

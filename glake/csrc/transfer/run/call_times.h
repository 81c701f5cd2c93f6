// How long the driver calls take that enqueue the chunks of several paths. A thread makes the calls
// of its paths one after the other (Path::worker). Calls of several threads into one context are
// assumed to follow each other too, because no document promises anything else.
#pragma once

#include <cstddef>
#include <map>
#include <vector>

#include "plan/plan.h"

namespace glake::transfer {

// The time of one thread's calls for so many chunks of a path, if it waits for nobody. `joined`:
// the first two hops share their streams.
double chunk_calls_ns(const Path& path, double chunks, size_t buffers, bool joined);

class CallTimes {
 public:
  void add(const Path& path, double chunks, size_t buffers, bool joined);
  // Adds calls of the path's thread that do not depend on its chunks.
  void add_once(const Path& path, double ns) { of_thread_[path.worker] += ns; }
  size_t threads() const { return of_thread_.size(); }
  // Until all calls are made.
  double longest_ns() const;
  // Until all calls are made that the path's thread makes, or that go into the path's contexts.
  double longest_beside(const Path& path) const;

 private:
  std::map<int, double> of_thread_, of_context_;  // by GPU
};

// For each path of the plan, how many times as long its calls take as they would without the other
// paths' calls. All paths have the same number of chunks.
std::vector<double> crowds(const TransferPlan& plan);

}  // namespace glake::transfer

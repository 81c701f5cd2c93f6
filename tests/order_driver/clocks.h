// Vector clocks. The clock of a stream, of an event or of the host says how far it knows each
// stream to have come.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

namespace order {

// Work on a stream, identified by the tick at which it was enqueued.
struct Tick {
  size_t stream = 0;
  uint64_t at = 0;
};

class VectorClock {
 public:
  bool covers(Tick t) const { return t.stream < at_.size() && at_[t.stream] >= t.at; }
  bool covers(const VectorClock& other) const {
    for (size_t s = 0; s < other.at_.size(); ++s) {
      if (other.at_[s] != 0 && !covers(Tick{s, other.at_[s]})) return false;
    }
    return true;
  }
  void join(const VectorClock& other) {
    at_.resize(std::max(at_.size(), other.at_.size()));
    for (size_t s = 0; s < other.at_.size(); ++s) at_[s] = std::max(at_[s], other.at_[s]);
  }
  Tick advance(size_t stream) {
    if (at_.size() <= stream) at_.resize(stream + 1);
    return {stream, ++at_[stream]};
  }

 private:
  std::vector<uint64_t> at_;  // by stream
};

// The streams, and what the host knows to be finished. The clock of an event also has all that its
// streams waited for. So all the work that it covers may finish at once.
class Streams {
 public:
  // Enqueues work on a stream. It comes after all that the host knows to be finished.
  Tick enqueue(size_t stream) {
    VectorClock& now = streams_[stream];
    now.join(host_);
    return now.advance(stream);
  }
  const VectorClock& now(size_t stream) { return streams_[stream]; }
  void wait(size_t stream, const VectorClock& event) {
    enqueue(stream);
    streams_[stream].join(event);
  }

  // Whether an event is known to have happened.
  bool finished(const VectorClock& event) const { return finished_.covers(event); }
  void finish(const VectorClock& event) { finished_.join(event); }
  void host_learns(const VectorClock& event) {
    finished_.join(event);
    host_.join(event);
  }
  void host_waits_for_all() {
    for (const auto& [stream, now] : streams_) host_learns(now);
  }
  const VectorClock& host() const { return host_; }

 private:
  std::map<size_t, VectorClock> streams_;
  VectorClock finished_, host_;
};

}  // namespace order

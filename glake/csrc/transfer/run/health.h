// What the engine remembers of a path between transfers: whether copies over it complete. Every
// method runs under the state's lock (run_state.h); times are the driver's nanoseconds.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace glake::transfer {

enum class PathState { kHealthy, kSuspect, kQuarantined };
const char* path_state_name(PathState state);

class PathHealth {
 public:
  PathState state() const { return state_; }
  uint64_t failures() const { return failures_; }
  const std::string& why() const { return why_; }
  // Whether a small chunk may try a quarantined path again.
  bool may_probe(uint64_t now) const {
    return state_ == PathState::kQuarantined && lost_ == 0 && now >= until_;
  }

  // A copy is late, but may still complete. Until it has, the path gets no new chunks.
  void suspect(const std::string& why);
  // A copy failed, or was given up. The path rests, twice as long each time.
  void fail(uint64_t now, const std::string& why);
  // A chunk arrived. Rests get shorter again, but a path that failed is not forgotten at once.
  void succeed();
  // A copy was given up. The path gets no other chunk until find() says that the copy was seen
  // done. Such a chunk would do no better.
  void lose() { ++lost_; }
  void find(uint64_t now);

 private:
  PathState state_ = PathState::kHealthy;
  uint64_t until_ = 0, rest_ = 0;
  uint64_t failures_ = 0, good_ = 0;
  unsigned lost_ = 0;
  std::string why_;
};

}  // namespace glake::transfer

// Which of the caller's streams the driver may be asked about. A driver crashes on the handle of a
// destroyed stream (seen on an H200, driver 580: benchmarks/gpu/results/2026-11-27-NVIDIA-H200-4),
// and gives the handle to a later stream. So a stream may be asked about at any time until somebody
// says that it may end. Callers say so once (glake_stream_may_end), or say when it ends
// (glake_forget_stream). A stream that may end is asked about only while a caller names it. What
// was said does not hold for a later stream with the same handle. The driver's number tells the two
// apart.
#pragma once

#include <atomic>
#include <mutex>
#include <unordered_map>

#include "base/types.h"

namespace glake {

enum class StreamEnd { kNow, kAnyTime };

class StreamLives {
 public:
  // Open while the thread serves a call whose caller names the stream. The stream lives until that
  // call ends.
  class Named {
   public:
    Named(StreamLives& lives, uintptr_t stream);
    Named(const Named&) = delete;
    Named& operator=(const Named&) = delete;
    ~Named();

   private:
    friend class StreamLives;
    uintptr_t stream_;
    const Named* outer_;
  };

  // What was said outlives a shutdown, because the streams do.
  static StreamLives& of_process();

  // The stream may be destroyed at any time from now on, without notice.
  void may_end(uintptr_t stream);
  // The stream is destroyed soon. A later stream with this handle is another one.
  void ends(uintptr_t stream);

  // A caller names the stream. `number` is the driver's number of it, 0 if it is not known. If
  // may_end() was said of a stream with another number, it was said of an earlier stream with the
  // same handle, and does not count for this one.
  void seen(uintptr_t stream, uint64_t number);

  bool ending(uintptr_t stream) const;   // may_end() was said of it
  bool askable(uintptr_t stream) const;  // by the calling thread, now

 private:
  enum class Life { kMayEnd, kEnded };
  struct Said {
    Life life;
    uint64_t number;  // the stream's number; 0: not known yet
  };
  void say(uintptr_t stream, Life life);
  void unsay(std::unordered_map<uintptr_t, Said>::iterator said);

  static thread_local const Named* named_;

  mutable std::mutex mutex_;
  std::unordered_map<uintptr_t, Said> lives_;  // streams of which something was said
  std::atomic<size_t> count_{0};               // the size of lives_, which is mostly 0
};

}  // namespace glake

// Which of the caller's streams the driver may be asked about. A driver crashes on the handle of a
// destroyed stream (seen on an H200, driver 580: benchmarks/gpu/results/2026-11-27-NVIDIA-H200-4),
// and gives the handle to a later stream. So a stream is asked about at any time only as long as
// nobody has said that it may end: callers say so once (glake_stream_may_end), or say when it ends
// (glake_forget_stream). A stream that may end is asked about only while a caller names it. What
// was said is not of a later stream with its handle, which the driver's number tells apart.
#pragma once

#include <atomic>
#include <mutex>
#include <unordered_map>

#include "base/types.h"

namespace glake {

enum class StreamEnd { kNow, kAnyTime };

class StreamLives {
 public:
  // The calling thread serves a call whose caller names the stream: it lives until the call ends.
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

  // What was said outlives a shutdown: the streams do.
  static StreamLives& of_process();

  // May be destroyed at any time from now on, without a word.
  void may_end(uintptr_t stream);
  // Is destroyed soon: a stream that is named by this handle later is another one.
  void ends(uintptr_t stream);

  // A caller names the stream, and the driver's number of it is this one (0: not known). Another
  // number than when may_end() was said: nothing was said of this one.
  void seen(uintptr_t stream, uint64_t number);

  bool ending(uintptr_t stream) const;   // may_end() was said of it
  bool askable(uintptr_t stream) const;  // by the calling thread, now

 private:
  enum class Life { kMayEnd, kEnded };
  struct Said {
    Life life;
    uint64_t number;  // of whom; 0: not known yet
  };
  void say(uintptr_t stream, Life life);
  void unsay(std::unordered_map<uintptr_t, Said>::iterator said);

  static thread_local const Named* named_;

  mutable std::mutex mutex_;
  std::unordered_map<uintptr_t, Said> lives_;  // of which something was said
  std::atomic<size_t> count_{0};               // of them: mostly none
};

}  // namespace glake

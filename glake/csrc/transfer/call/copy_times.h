// How long plain copies take, and when a thread that waits for one should poll.
#pragma once

#include <atomic>
#include <memory>

#include "driver/driver.h"
#include "plan/plan.h"
#include "transfer/call/request.h"

namespace glake::transfer {

class CopyTimes {
 public:
  // Copies of about one size, in one direction, on one GPU.
  class Kind {
   public:
    Kind() = default;

   private:
    friend class CopyTimes;
    explicit Kind(size_t at) : index_(at) {}
    size_t index_ = 0;
  };

  explicit CopyTimes(int devices);
  Kind kind(const Request& request) const;
  // Notes that a copy took at most `ns`. The time includes other work of its stream, and the delay
  // of a caller who asked late.
  void note(Kind kind, Bytes bytes, uint64_t ns);
  // The expected end of a copy that began at `begun`. `rate` is the rate of its plan; 0: it has
  // none.
  ExpectedEnd expected(Kind kind, Bytes bytes, Rate rate, uint64_t begun) const;

 private:
  static constexpr size_t kWays = 3, kSizes = 64;

  std::unique_ptr<std::atomic<float>[]> ns_a_byte_;  // the least so far; 0: there was no copy
};

}  // namespace glake::transfer

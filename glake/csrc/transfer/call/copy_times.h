// How long plain copies take, and when the thread that waits for one should ask.
#pragma once

#include <atomic>
#include <memory>

#include "driver/driver.h"
#include "plan/plan.h"
#include "transfer/call/request.h"

namespace glake::transfer {

class CopyTimes {
 public:
  // Copies of about one size, one way, on one GPU.
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
  // A copy took at most `ns`: other work of its stream, and a caller who came late, count with it.
  void note(Kind kind, Bytes bytes, uint64_t ns);
  // The end of a copy that began at `begun`. `rate`: what its plan says; 0: it has none.
  ExpectedEnd expected(Kind kind, Bytes bytes, Rate rate, uint64_t begun) const;

 private:
  static constexpr size_t kWays = 3, kSizes = 64;

  std::unique_ptr<std::atomic<float>[]> ns_a_byte_;  // the least; 0: none was seen
};

}  // namespace glake::transfer

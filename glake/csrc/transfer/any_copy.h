// A copy of any kind. It allocates no memory.
#pragma once

#include <utility>
#include <variant>

#include "transfer/call/plain_copy.h"
#include "transfer/call/tracked_copy.h"
#include "transfer/run/enqueued_copy.h"
#include "transfer/run/routed_copy.h"

namespace glake::transfer {

class AnyCopy {
 public:
  template <typename Kind>
  explicit AnyCopy(Kind copy) : copy_(std::move(copy)) {}
  Copy* operator->() {
    return std::visit([](Copy& copy) { return &copy; }, copy_);
  }

 private:
  std::variant<PlainCopy, TrackedCopy, EnqueuedCopy, RoutedCopy> copy_;
};

}  // namespace glake::transfer

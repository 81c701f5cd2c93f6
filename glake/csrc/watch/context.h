// Where memory came from: a context (a stack) that the user's hooks, or our own, captured. Blocks'
// records, events and findings share one by count.
#pragma once

#include <atomic>
#include <string>
#include <utility>

#include "base/types.h"

namespace glake {

struct Context {
  const glake_context_hooks* hooks;
  void* value;
  std::atomic<uint32_t> users{1};
};

// A counted reference. The last one may go under any lock: the context is only put aside then, and
// dropped by drop_unused_contexts().
class ContextRef {
 public:
  ContextRef() = default;
  explicit ContextRef(Context* adopted) : context_(adopted) {}
  ContextRef(const ContextRef& other) : context_(other.context_) {
    if (context_ != nullptr) context_->users.fetch_add(1, std::memory_order_relaxed);
  }
  ContextRef(ContextRef&& other) noexcept : context_(std::exchange(other.context_, nullptr)) {}
  ContextRef& operator=(ContextRef other) noexcept {
    std::swap(context_, other.context_);
    return *this;
  }
  ~ContextRef();
  explicit operator bool() const { return context_ != nullptr; }

  // What the hooks now set captured, or null: a caller can make nothing of others' contexts.
  void* value_of(const glake_context_hooks* hooks) const {
    return context_ != nullptr && context_->hooks == hooks ? context_->value : nullptr;
  }
  // The stack as text, a line per frame; "" if there is none. No lock may be held.
  std::string describe() const;

 private:
  Context* context_ = nullptr;
};

// Captures with `hooks`, or this thread's C++ frames where hooks is null. No lock may be held.
ContextRef capture_context(const glake_context_hooks* hooks);

// Gives the contexts nobody refers to any more back to their hooks. No lock may be held.
void drop_unused_contexts();

}  // namespace glake

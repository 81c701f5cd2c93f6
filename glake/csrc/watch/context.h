// Where memory came from: a context (a stack) that the user's hooks or glake itself captured.
// Records of blocks, events and findings share a context by counted references.
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

// A counted reference. The last one may end under any lock, because that only sets the context
// aside. drop_unused_contexts() drops it later.
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

  // The value, if the hooks that are set now captured it; else null. A caller cannot read other
  // hooks' values.
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

// Gives contexts without a reference back to their hooks. No lock may be held.
void drop_unused_contexts();

}  // namespace glake

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

  // Puts the hooks' value and their `self` into a record for a visitor. glake's own stacks are not
  // shown, because they have no form but their text.
  template <typename Record>
  void show_in(Record* record) const {
    const bool shown = context_ != nullptr && !glake_made_it();
    record->context = shown ? context_->value : nullptr;
    record->context_owner = shown ? context_->hooks->self : nullptr;
  }
  // The stack as text, a line per frame; "" if there is none. No lock may be held.
  std::string describe() const;
  // The same under a title, in the form of messages; "" if there is no stack.
  std::string described(const char* title) const;

 private:
  bool glake_made_it() const;

  Context* context_ = nullptr;
};

// Captures with `hooks`, or this thread's C++ frames where hooks is null. No lock may be held.
ContextRef capture_context(const glake_context_hooks* hooks);

// Gives contexts without a reference back to their hooks. No lock may be held.
void drop_unused_contexts();

}  // namespace glake

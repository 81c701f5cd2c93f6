#include "watch/context.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <vector>

#include "base/alone.h"
#include "base/tuning.h"

namespace glake {
namespace {

constexpr int kOwnFrames = 2;  // capture_frames() and capture_context()

// Contexts whose last user has gone. Their lock may be taken under any other lock, and is held for
// a moment only.
struct Unused {
  std::mutex mutex;
  std::vector<Context*> contexts;
  std::atomic<bool> any{false};
};
Unused& unused() {
  static auto* instance = new Unused;
  return *instance;
}

struct Frames {
  int count = 0;
  void* at[Tuning::kNativeFrames] = {};
};

void* capture_frames(void*) {
  auto frames = std::make_unique<Frames>();
  frames->count = backtrace(frames->at, Tuning::kNativeFrames);
  return frames.release();
}

void drop_frames(void*, void* context) { delete static_cast<Frames*>(context); }

std::string name_of(const void* pc) {
  // The address is where a call returns to. That may be just behind the function that made the
  // call.
  const void* inside = static_cast<const char*>(pc) - 1;
  Dl_info info{};
  char text[64];
  std::snprintf(text, sizeof text, "%p", pc);
  if (dladdr(inside, &info) == 0 || info.dli_fname == nullptr) return text;
  std::string module = info.dli_fname;
  module = module.substr(module.rfind('/') + 1);
  if (info.dli_sname == nullptr) {
    auto base = reinterpret_cast<uintptr_t>(info.dli_fbase);
    std::snprintf(text, sizeof text, "+0x%zx",
                  static_cast<size_t>(reinterpret_cast<uintptr_t>(pc) - base));
    return module + text;
  }
  int failed = 0;
  std::unique_ptr<char, decltype(&std::free)> plain(
      abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, &failed), &std::free);
  return std::string(failed == 0 ? plain.get() : info.dli_sname) + " (" + module + ")";
}

size_t describe_frames(void*, void* context, char* text, size_t capacity) {
  const auto* frames = static_cast<const Frames*>(context);
  std::string lines;
  for (int i = kOwnFrames; i < frames->count; ++i) {
    std::string name = name_of(frames->at[i]);
    // The frames above the call of the C interface are glake's own.
    if (name.rfind("glake_", 0) == 0) {
      lines.clear();
    } else {
      lines += (lines.empty() ? "" : "\n") + name;
    }
  }
  std::snprintf(text, capacity, "%s", lines.c_str());
  return lines.size();
}

constexpr glake_context_hooks kFrames = {sizeof(glake_context_hooks), nullptr, capture_frames,
                                         drop_frames, describe_frames};

}  // namespace

ContextRef::~ContextRef() {
  if (context_ == nullptr || context_->users.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  Unused& set = unused();
  std::lock_guard<std::mutex> guard(set.mutex);
  set.contexts.push_back(context_);
  set.any.store(true, std::memory_order_release);
}

bool ContextRef::glake_made_it() const { return context_->hooks == &kFrames; }

std::string ContextRef::describe() const {
  if (context_ == nullptr || context_->hooks->describe == nullptr) return "";
  std::string text(Tuning::kContextText, '\0');
  size_t length = 0;
  {
    Alone alone(glake_made_it() && Alone::now());
    length =
        context_->hooks->describe(context_->hooks->self, context_->value, &text[0], text.size());
  }
  text.resize(std::min(length, text.size() - 1));
  return text;
}

std::string ContextRef::described(const char* title) const {
  std::string stack = describe();
  if (stack.empty()) return "";
  std::string text = std::string(title) + "\n    ";
  for (char c : stack) {
    text += c;
    if (c == '\n') text += "    ";
  }
  return text;
}

ContextRef capture_context(const glake_context_hooks* hooks) {
  if (hooks == nullptr) hooks = &kFrames;
  void* value = nullptr;
  {
    Alone alone(hooks == &kFrames && Alone::now());  // hooks of others may call glake
    value = hooks->capture(hooks->self);
  }
  return value != nullptr ? ContextRef(new Context{hooks, value, {1}}) : ContextRef();
}

void drop_unused_contexts() {
  Unused& set = unused();
  if (!set.any.load(std::memory_order_acquire)) return;
  std::vector<Context*> mine;
  {
    std::lock_guard<std::mutex> guard(set.mutex);
    mine.swap(set.contexts);
    set.any.store(false, std::memory_order_relaxed);
  }
  for (Context* context : mine) {
    if (context->hooks->drop != nullptr) {
      Alone alone(context->hooks == &kFrames && Alone::now());
      context->hooks->drop(context->hooks->self, context->value);
    }
    delete context;
  }
}

}  // namespace glake

// What is kept while somebody watches memory: tags, contexts, the last events of each device, an
// observer, and a note on every live block that was allocated meanwhile. There is one Watch for the
// process. Allocations and frees use it only if kWatched or kDebug is set (process/process.h).
#pragma once

#include <atomic>
#include <deque>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/types.h"
#include "driver/driver.h"
#include "watch/context.h"

namespace glake {

// What was known of a block when it was allocated.
struct Note {
  Bytes requested = 0;
  int device = 0;
  const char* tag = nullptr;
  ContextRef context;
};

struct Event {
  glake_event data;
  ContextRef context;
};

class Watch {
 public:
  static Watch& instance() { return *instance_; }

  // The tag's text must live as long as the process.
  static void set_tag(const char* tag) { tag_ = tag; }
  static const char* tag() { return tag_; }

  void set_hooks(const glake_context_hooks* hooks);
  const glake_context_hooks* hooks() const { return hooks_.load(std::memory_order_acquire); }
  void keep_history(size_t entries, int when, bool clear);
  void set_observer(void* self, void (*observe)(void*, const glake_event*));
  void use_tags();
  // For the option `debug`: notes are kept even if nobody else watches. `stacks`: each block has a
  // context.
  void set_debug(bool on, bool stacks);
  // True if allocations and frees must be reported here.
  bool active() const { return active_.load(); }

  // One allocation or free. All events during it, also those of segments, carry the context that
  // this object holds.
  class Operation {
   public:
    // Captures the context of the call, if keep_history() was called with `when` of at least
    // `least`. That is GLAKE_CONTEXT_STATE for allocations and GLAKE_CONTEXT_ALL for frees. No lock
    // may be held.
    explicit Operation(int least);
    ~Operation();
    Operation(const Operation&) = delete;
    Operation& operator=(const Operation&) = delete;
    const ContextRef& context() const { return context_; }

   private:
    friend class Watch;
    Operation* outer_;
    ContextRef context_;
  };

  void allocated(int device, Address block, Bytes requested, StreamHandle stream, glake_pool pool,
                 const Operation& op);
  // Called before the block's bytes can be used again. `held`: the event GLAKE_FREE_COMPLETED
  // follows later, when the free completes.
  void freed(int device, Address block, Bytes requested, StreamHandle stream, glake_pool pool,
             const Operation& op, bool held);
  static bool recording() { return recording_.load(std::memory_order_relaxed); }
  // Reports any event. It is cheap when nobody wants events. May be called under a device's locks.
  static void event(glake_action action, int device, Address address, Bytes bytes,
                    StreamHandle stream = 0, glake_pool pool = {0, 0}) {
    if (recording_.load(std::memory_order_relaxed)) {
      instance().record(action, device, address, bytes, stream, pool);
    }
  }

  std::vector<Event> history(int device);
  // The note on a live block, by its first byte; empty if there is none.
  Note note(Address block);
  // Says who holds most, as a sentence for an out-of-memory text; "" if nothing is known. No lock
  // may be held.
  std::string top_holders(int device);

  // These are called around a fork, so that a child that may still use glake finds no half-done
  // change.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  Watch() = default;
  void record(glake_action action, int device, Address address, Bytes bytes, StreamHandle stream,
              glake_pool pool);
  void push_locked(const glake_event& data, const ContextRef& context);
  void update_locked();

  static Watch* const instance_;  // never destroyed
  static thread_local const char* tag_;
  static thread_local Operation* operation_;
  static std::atomic<bool> recording_;

  std::mutex mutex_;                           // guards all below; taken under a device's locks
  std::deque<glake_context_hooks> all_hooks_;  // contexts refer to them
  std::atomic<const glake_context_hooks*> hooks_{nullptr};
  std::atomic<int> when_{GLAKE_CONTEXT_NEVER};
  std::atomic<bool> stacks_{false};
  std::atomic<bool> active_{false};
  bool debug_ = false, tags_ = false;
  size_t entries_ = 0;
  std::unordered_map<int, std::deque<Event>> rings_;
  void* observer_ = nullptr;
  void (*observe_)(void*, const glake_event*) = nullptr;
  std::unordered_map<Address, Note> notes_;
};

}  // namespace glake

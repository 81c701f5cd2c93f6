// torch's view of what glake watches: contexts (stacks) of blocks, the trace of events, trackers,
// annotations, and the metadata that a thread attaches to its allocations.
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "torch/cuda/routes.h"
#include "torch/library.h"

namespace glake::adapter {

class History {
 public:
  using Frames = std::shared_ptr<c10::GatheredContext>;

  explicit History(const CudaLibrary& library) : library_(library) {}

  // 0, or a glake_status whose text is in glake_last_error().
  int record(bool enabled, caching::CreateContextFn gather, size_t entries,
             caching::RecordContext when, bool clear, const std::vector<std::string>& skip);
  bool enabled() const { return enabled_.load(std::memory_order_acquire); }
  int track(caching::AllocatorTraceTracker tracker);
  void annotate(int device, const std::vector<std::pair<std::string, std::string>>& what);
  void annotate_block(int device, const void* ptr, size_t bytes, void* stream,
                      const std::string& metadata);

  // The events of the device, oldest first. annotations() are those of all devices.
  std::vector<caching::TraceEntry> trace(int device) const;
  std::vector<caching::AnnotationEntry> annotations() const;

  // The stack for a new block, if blocks' stacks are wanted now.
  Frames gather_for_block() const;
  // Null if others made the context.
  Frames frames_of(const void* context, const void* owner) const;

  // Sets the context of the device's later events, on any thread: a backward pass runs on a thread
  // of its own.
  void push_compile_context(int device, const std::string& context);
  void pop_compile_context(int device);
  void set_metadata(int device, const std::string& metadata);
  std::string metadata(int device) const;

  // While it lives, the calling thread is inside a free. Stacks of frees are wanted less often than
  // stacks of allocations. Without a history no stacks are wanted, so a free does not count its
  // thread's depth.
  class Freeing {
   public:
    explicit Freeing(const History& history) : counts_(history.enabled()) {
      if (C10_UNLIKELY(counts_)) depth() += 1;
    }
    ~Freeing() {
      if (C10_UNLIKELY(counts_)) depth() -= 1;
    }
    Freeing(const Freeing&) = delete;
    Freeing& operator=(const Freeing&) = delete;
    static int& depth();

   private:
    const bool counts_;
  };

 private:
  struct Context;
  struct Notes {
    std::vector<std::string> compile;
    std::string metadata;
  };
  Notes& notes(int device) { return notes_[static_cast<size_t>(device)]; }
  void add_notes(std::string* compile, std::string* metadata) const;
  const Context* own(const void* context, const void* owner) const {
    return owner == this ? static_cast<const Context*>(context) : nullptr;
  }
  static void* capture(void* self);
  static void drop(void* self, void* context);
  static size_t describe(void* self, void* context, char* text, size_t capacity);
  static void on_event(void* self, const glake_event* event);
  caching::TraceEntry entry(const glake_event& event, bool frames) const;
  bool wants(caching::RecordContext least) const {
    return enabled() && when_.load() >= static_cast<int>(least);
  }

  const CudaLibrary& library_;
  std::atomic<bool> enabled_{false};
  std::atomic<int> when_{0};
  std::atomic<caching::CreateContextFn> gather_{nullptr};
  std::atomic<uint32_t> skipped_{0};  // one bit for each action

  mutable std::mutex noting_;  // guards notes_; no other lock is taken under it
  std::array<Notes, kMaxDevices> notes_;

  mutable std::mutex mutex_;  // guards the three below; nothing is called with it held
  size_t most_ = 0;
  std::deque<caching::AnnotationEntry> annotations_;
  std::deque<caching::TraceEntry> annotated_;

  mutable std::shared_mutex tracking_;
  std::vector<caching::AllocatorTraceTracker> trackers_;
};

}  // namespace glake::adapter

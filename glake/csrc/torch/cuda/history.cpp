#include "torch/cuda/history.h"

#include <torch/csrc/profiler/combined_traceback.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

namespace glake::adapter {

using caching::RecordContext;
using caching::TraceEntry;

namespace {

int64_t now_us() {
  auto since = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::microseconds>(since).count();
}

uint32_t action_bit(const std::string& name) {
  constexpr const char* kNames[] = {"alloc",         "free_requested", "free_completed",
                                    "segment_alloc", "segment_free",   "segment_map",
                                    "segment_unmap", "snapshot",       "oom"};
  for (uint32_t action = 0; action < std::size(kNames); ++action) {
    if (name == kNames[action]) return uint32_t{1} << action;
  }
  TORCH_CHECK(name == "annotate", "glake: history has no action \"", name, "\"");
  return 0;
}

// Before torch 2.14 a block's metadata is shown, but has no action of its own.
uint32_t bit_of(const TraceEntry& entry) {
  return uint32_t{1} << static_cast<unsigned>(entry.action_);
}

// torch lists C++ and Python frames as one stack. C++ frames may have a file and line, too.
bool of_python(const torch::unwind::Frame& frame) {
  const std::string& file = frame.filename;
  return file.rfind('<', 0) == 0 ||
         (file.size() > 3 && file.compare(file.size() - 3, 3, ".py") == 0);
}

// Python's frames of a stack that torch gathered, a line each, in the form of glake's own Python
// stacks; C++ functions where it has no Python frames.
std::string frames_text(const History::Frames& gathered) {
  auto* traceback = dynamic_cast<torch::CapturedTraceback*>(gathered.get());
  if (traceback == nullptr) return "";
  const torch::SymbolizedTracebacks stacks = torch::symbolize({traceback});
  std::string python, native;
  for (uint64_t index : stacks.tracebacks.at(0)) {
    const torch::unwind::Frame& frame = stacks.all_frames.at(index);
    if (!of_python(frame)) {
      native += (native.empty() ? "" : "\n") + frame.funcname;
    } else {
      python += (python.empty() ? "" : "\n") + frame.filename + ":" + std::to_string(frame.lineno) +
                " " + frame.funcname;
    }
  }
  return python.empty() ? native : python;
}

}  // namespace

// What a block or an event of glake's holds for torch.
struct History::Context {
  Frames frames;
  std::string compile, metadata;
};

void History::push_compile_context(int device, const std::string& context) {
  std::lock_guard<std::mutex> guard(noting_);
  notes(device).compile.push_back(context);
}

void History::pop_compile_context(int device) {
  std::lock_guard<std::mutex> guard(noting_);
  auto& contexts = notes(device).compile;
  if (!contexts.empty()) contexts.pop_back();
}

void History::set_metadata(int device, const std::string& metadata) {
  std::lock_guard<std::mutex> guard(noting_);
  notes(device).metadata = metadata;
}

std::string History::metadata(int device) const {
  std::lock_guard<std::mutex> guard(noting_);
  return notes_[static_cast<size_t>(device)].metadata;
}

// Adds the notes of the calling thread's device.
void History::add_notes(std::string* compile, std::string* metadata) const {
  auto device = static_cast<size_t>(c10::cuda::current_device());
  std::lock_guard<std::mutex> guard(noting_);
  const Notes& now = notes_[device];
  if (!now.compile.empty()) *compile = now.compile.back();
  *metadata = now.metadata;
}

int& History::Freeing::depth() {
  thread_local int depth = 0;
  return depth;
}

// glake asks for a context for every event. This decides which of them get a stack, because torch's
// levels differ between a block and its trace entry.
void* History::capture(void* self) {
  auto& history = *static_cast<History*>(self);
  bool freeing = Freeing::depth() > 0;
  Context made;
  caching::CreateContextFn gather = history.gather_.load();
  // After the recording has ended, glake asks only if it wants a stack itself (debug=trace).
  const bool wanted =
      !history.enabled() || history.wants(freeing ? RecordContext::ALL : RecordContext::STATE);
  if (gather != nullptr && wanted) {
    made.frames = gather();
  }
  history.add_notes(&made.compile, &made.metadata);
  if (made.frames == nullptr && made.compile.empty() && made.metadata.empty()) return nullptr;
  return new Context(std::move(made));
}

void History::drop(void*, void* context) { delete static_cast<Context*>(context); }

size_t History::describe(void*, void* context, char* text, size_t capacity) {
  const auto& known = *static_cast<Context*>(context);
  std::string lines;
  for (const std::string& part : {known.compile, known.metadata, frames_text(known.frames)}) {
    if (!part.empty()) lines += (lines.empty() ? "" : "\n") + part;
  }
  std::snprintf(text, capacity, "%s", lines.c_str());
  return lines.size();
}

History::Frames History::frames_of(const void* context, const void* owner) const {
  const Context* known = own(context, owner);
  return known != nullptr ? known->frames : nullptr;
}

History::Frames History::gather_for_block() const {
  caching::CreateContextFn gather = gather_.load();
  return gather != nullptr && wants(RecordContext::STATE) ? gather() : nullptr;
}

int History::record(bool enabled, caching::CreateContextFn gather, size_t entries,
                    RecordContext when, bool clear, const std::vector<std::string>& skip) {
  TORCH_CHECK(!enabled || when == RecordContext::NEVER || gather != nullptr,
              "glake: stacks are wanted, and there is nothing that gathers them");
  uint32_t skipped = 0;
  for (const std::string& name : skip) skipped |= action_bit(name);
  if (enabled) {
    // The hooks are never taken back, because glake drops its contexts through them.
    glake_context_hooks hooks{sizeof hooks, this, &capture, &drop, &describe};
    if (int status = library_.set_context_hooks(&hooks); status != GLAKE_OK) return status;
  }
  if (enabled) gather_.store(gather);
  when_.store(enabled ? static_cast<int>(when) : 0);
  skipped_.store(skipped);
  enabled_.store(enabled);
  {
    std::lock_guard<std::mutex> guard(mutex_);
    most_ = enabled ? entries : 0;
    if (!enabled || clear) {
      annotations_.clear();
      annotated_.clear();
    }
  }
  return library_.history(enabled ? entries : 0, enabled ? GLAKE_CONTEXT_ALL : GLAKE_CONTEXT_NEVER,
                          clear ? 1 : 0);
}

TraceEntry History::entry(const glake_event& event, bool frames) const {
  const Context* context = own(event.context, event.context_owner);
  TraceEntry made(static_cast<TraceEntry::Action>(event.action),
                  static_cast<c10::DeviceIndex>(event.device), event.address, event.bytes,
                  event.stream, {event.pool.first, event.pool.second}, 0);
  if (context != nullptr) {
    if (frames) made.context_ = context->frames;
    made.compile_context_ = context->compile;
    made.user_metadata_ = context->metadata;
  }
  if (made.user_metadata_.empty() && event.tag != nullptr) made.user_metadata_ = event.tag;
  return made;
}

std::vector<TraceEntry> History::trace(int device) const {
  struct Visit {
    const History& history;
    bool frames;
    std::vector<TraceEntry> entries;
  } visit{*this, wants(RecordContext::ALLOC), {}};
  library_.visit_history(device, &visit, [](void* self, const glake_event* event) {
    auto& into = *static_cast<Visit*>(self);
    TraceEntry made = into.history.entry(*event, into.frames);
    if ((into.history.skipped_.load() & bit_of(made)) != 0) return;
    made.time_.t_ = static_cast<time_t>(event->time_ns / 1000);
    into.entries.push_back(std::move(made));
  });
  {
    std::lock_guard<std::mutex> guard(mutex_);
    for (const TraceEntry& each : annotated_) {
      if (each.device_ == device) visit.entries.push_back(each);
    }
  }
  std::stable_sort(
      visit.entries.begin(), visit.entries.end(),
      [](const TraceEntry& a, const TraceEntry& b) { return a.time_.t_ < b.time_.t_; });
  return std::move(visit.entries);
}

std::vector<caching::AnnotationEntry> History::annotations() const {
  std::lock_guard<std::mutex> guard(mutex_);
  return {annotations_.begin(), annotations_.end()};
}

void History::annotate(int device, const std::vector<std::pair<std::string, std::string>>& what) {
  if (!enabled()) return;
  caching::AnnotationEntry made(static_cast<c10::DeviceIndex>(device), 0);
  made.time_.t_ = now_us();
  for (const auto& [name, value] : what) made.recordUserMetadata(name, value);
  std::lock_guard<std::mutex> guard(mutex_);
  annotations_.push_back(std::move(made));
  if (annotations_.size() > most_) annotations_.pop_front();
}

void History::annotate_block(int device, const void* ptr, size_t bytes, void* stream,
                             const std::string& metadata) {
  if (!enabled() || !kAnnotates) return;
  std::string compile, unused;
  add_notes(&compile, &unused);
  TraceEntry made(kAnnotate, static_cast<c10::DeviceIndex>(device),
                  reinterpret_cast<uintptr_t>(ptr), bytes, stream, {0, 0}, 0, gather_for_block(),
                  compile, metadata);
  made.time_.t_ = now_us();
  std::lock_guard<std::mutex> guard(mutex_);
  annotated_.push_back(std::move(made));
  if (annotated_.size() > most_) annotated_.pop_front();
}

// It runs on the event's thread and under glake's locks. torch requires the same of its trackers.
void History::on_event(void* self, const glake_event* event) {
  auto& history = *static_cast<History*>(self);
  TraceEntry made = history.entry(*event, true);
  made.time_.approx_t_ = c10::getApproximateTime();
  std::shared_lock<std::shared_mutex> guard(history.tracking_);
  for (const auto& tracker : history.trackers_) tracker(made);
}

int History::track(caching::AllocatorTraceTracker tracker) {
  bool first = false;
  {
    std::unique_lock<std::shared_mutex> guard(tracking_);
    first = trackers_.empty();
    trackers_.push_back(std::move(tracker));
  }
  return first ? library_.observe(this, &on_event) : GLAKE_OK;
}

}  // namespace glake::adapter

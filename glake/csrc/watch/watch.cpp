#include "watch/watch.h"

#include <algorithm>
#include <ctime>
#include <map>

#include "base/tuning.h"
#include "base/utf8.h"

namespace glake {
namespace {

uint64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000 + static_cast<uint64_t>(now.tv_nsec);
}

void* pointer(StreamHandle stream) { return reinterpret_cast<void*>(stream); }

}  // namespace

Watch* const Watch::instance_ = new Watch;
thread_local const char* Watch::tag_ = nullptr;
thread_local Watch::Operation* Watch::operation_ = nullptr;
std::atomic<bool> Watch::recording_{false};

Watch::Operation::Operation(int least) : outer_(operation_) {
  Watch& watch = instance();
  operation_ = this;
  bool stacks = watch.stacks_.load(std::memory_order_relaxed);
  const glake_context_hooks* hooks = watch.hooks();
  if (hooks != nullptr && (stacks || watch.when_.load(std::memory_order_relaxed) >= least)) {
    context_ = capture_context(hooks);
  }
  if (stacks && !context_) context_ = capture_context(nullptr);
}

Watch::Operation::~Operation() { operation_ = outer_; }

void Watch::update_locked() {
  recording_.store(entries_ != 0 || observe_ != nullptr);
  bool active = recording_.load() || tags_;
  active_.store(active);
  // Frees are not seen from now on, so the notes would later describe other blocks.
  if (!active && !debug_) notes_.clear();
}

void Watch::set_hooks(const glake_context_hooks* hooks) {
  std::lock_guard<std::mutex> guard(mutex_);
  if (hooks == nullptr) {
    hooks_.store(nullptr, std::memory_order_release);
    return;
  }
  // Contexts belong to the hooks that made them. If the same hooks are set again, they still know
  // theirs.
  auto same = [hooks](const glake_context_hooks& h) {
    return h.self == hooks->self && h.capture == hooks->capture && h.drop == hooks->drop &&
           h.describe == hooks->describe;
  };
  auto known = std::find_if(all_hooks_.begin(), all_hooks_.end(), same);
  if (known == all_hooks_.end()) known = all_hooks_.insert(known, *hooks);
  hooks_.store(&*known, std::memory_order_release);
}

void Watch::keep_history(size_t entries, int when, bool clear) {
  std::lock_guard<std::mutex> guard(mutex_);
  entries_ = entries;
  when_.store(entries == 0 ? static_cast<int>(GLAKE_CONTEXT_NEVER) : when);
  if (clear || entries == 0) rings_.clear();
  for (auto& [device, ring] : rings_) {
    while (ring.size() > entries) ring.pop_front();
  }
  update_locked();
}

void Watch::set_observer(void* self, void (*observe)(void*, const glake_event*)) {
  std::lock_guard<std::mutex> guard(mutex_);
  observer_ = self;
  observe_ = observe;
  update_locked();
}

void Watch::use_tags() {
  std::lock_guard<std::mutex> guard(mutex_);
  tags_ = true;
  update_locked();
}

void Watch::set_debug(bool on, bool stacks) {
  std::lock_guard<std::mutex> guard(mutex_);
  debug_ = on;
  stacks_.store(stacks);
  update_locked();
}

void Watch::push_locked(const glake_event& data, const ContextRef& context) {
  if (observe_ != nullptr) observe_(observer_, &data);
  if (entries_ == 0) return;
  std::deque<Event>& ring = rings_[data.device];
  if (ring.size() >= entries_) ring.pop_front();
  ring.push_back({data, context});
}

void Watch::record(glake_action action, int device, Address address, Bytes bytes,
                   StreamHandle stream, glake_pool pool) {
  ContextRef context;
  if (operation_ != nullptr && when_.load() >= GLAKE_CONTEXT_ALLOC) {
    context = operation_->context();
  }
  glake_event data{action, device,   address, bytes,   pointer(stream),
                   pool,   now_ns(), tag_,    nullptr, nullptr};
  context.show_in(&data);
  std::lock_guard<std::mutex> guard(mutex_);
  push_locked(data, context);
}

void Watch::allocated(int device, Address block, Bytes requested, StreamHandle stream,
                      glake_pool pool, const Operation& op) {
  {
    std::lock_guard<std::mutex> guard(mutex_);
    if (active_.load() || debug_) notes_[block] = {requested, device, tag_, op.context()};
  }
  event(GLAKE_ALLOC, device, block, requested, stream, pool);
}

void Watch::freed(int device, Address block, Bytes requested, StreamHandle stream, glake_pool pool,
                  const Operation& op, bool held) {
  {
    std::lock_guard<std::mutex> guard(mutex_);
    notes_.erase(block);
  }
  if (!recording_.load()) return;
  ContextRef context = when_.load() >= GLAKE_CONTEXT_ALL ? op.context() : ContextRef();
  glake_event data{GLAKE_FREE_REQUESTED,
                   device,
                   block,
                   requested,
                   pointer(stream),
                   pool,
                   now_ns(),
                   tag_,
                   nullptr,
                   nullptr};
  context.show_in(&data);
  std::lock_guard<std::mutex> guard(mutex_);
  push_locked(data, context);
  data.action = GLAKE_FREE_COMPLETED;
  if (!held) push_locked(data, context);
}

std::vector<Event> Watch::history(int device) {
  std::lock_guard<std::mutex> guard(mutex_);
  auto found = rings_.find(device);
  if (found == rings_.end()) return {};
  return {found->second.begin(), found->second.end()};
}

Note Watch::note(Address block) {
  std::lock_guard<std::mutex> guard(mutex_);
  auto found = notes_.find(block);
  return found != notes_.end() ? found->second : Note{};
}

std::string Watch::top_holders(int device) {
  std::vector<Note> notes;
  {
    std::lock_guard<std::mutex> guard(mutex_);
    for (const auto& [address, note] : notes_) {
      if (note.device == device) notes.push_back(note);
    }
  }
  std::sort(notes.begin(), notes.end(),
            [](const Note& a, const Note& b) { return a.requested > b.requested; });
  struct Holder {
    Bytes bytes = 0;
    uint64_t blocks = 0;
  };
  std::map<std::string, Holder> holders;
  size_t described = 0;
  for (const Note& note : notes) {
    std::string who = note.tag != nullptr ? "tag \"" + printable(note.tag) + "\"" : "";
    if (note.tag == nullptr && note.context && described++ < Tuning::kHoldersDescribed) {
      who = note.context.described("blocks allocated at");
    }
    if (who.empty()) continue;
    holders[who].bytes += note.requested;
    ++holders[who].blocks;
  }
  std::vector<std::pair<std::string, Holder>> order(holders.begin(), holders.end());
  std::sort(order.begin(), order.end(),
            [](const auto& a, const auto& b) { return a.second.bytes > b.second.bytes; });
  std::string text;
  for (size_t i = 0; i < order.size() && i < Tuning::kHoldersNamed; ++i) {
    const auto& [who, held] = order[i];
    text += "\n  " + size_text(held.bytes) + " in " + counted(held.blocks, "block") + ": " + who;
  }
  return text.empty() ? "" : "\nLargest holders:" + text;
}

}  // namespace glake

// The C interface of watching: tags, contexts, history, snapshots, findings.
#include "capi/capi_call.h"
#include "debug/debug_device.h"
#include "process/process.h"
#include "watch/watch.h"

using namespace glake::capi;
using glake::Event;
using glake::Note;
using glake::Process;
using glake::Watch;

namespace {

// Called after a change of what is watched. It drops unused contexts here, where no lock is held.
void watch_changed() {
  Process::instance().hooks().set(glake::kWatched, Watch::instance().active());
  glake::drop_unused_contexts();
}

// A device that nobody has used holds nothing. It need not be opened to find that out.
glake::Snapshot snapshot_of(int device) {
  Process& process = Process::instance();
  process.check_usable();
  bool used = false;
  process.for_each_device([&](glake::DeviceAllocator& d) { used = used || d.number() == device; });
  if (used || device < 0 || device >= process.device_count()) {
    return process.device(device).snapshot();
  }
  return {};
}

void* pointer(glake::StreamHandle stream) { return reinterpret_cast<void*>(stream); }

// `told`: the history gets an event GLAKE_SNAPSHOT of this walk.
int visit(int device, void* self, void (*segment)(void* self, const glake_segment_info* segment),
          void (*block)(void* self, const glake_block_record* block), bool told) {
  return api_call([&] {
    require(segment != nullptr && block != nullptr,
            "segment and block must be functions, not NULL");
    {
      glake::Snapshot shot = snapshot_of(device);
      glake::Bytes active = 0;
      for (const glake::SegmentShot& s : shot) {
        glake_segment_info info{s.address, s.bytes, pointer(s.stream), s.pool, device,
                                s.large,   s.kind,  s.paused};
        glake::Alone outside(false);  // the caller's functions may call glake
        segment(self, &info);
        for (const glake::BlockShot& b : s.blocks) {
          if (b.state == GLAKE_ACTIVE) active += b.bytes;
          glake_block_record record{b.address,         b.bytes, b.requested, b.state,
                                    pointer(b.stream), b.tag,   nullptr,     nullptr};
          b.context.show_in(&record);
          block(self, &record);
        }
      }
      if (told) Watch::event(GLAKE_SNAPSHOT, device, 0, active);
    }
    glake::drop_unused_contexts();
  });
}

}  // namespace

extern "C" {

void glake_set_tag(const char* tag) {
  Watch::set_tag(tag);
  if (tag == nullptr) return;
  api_call([] {
    if (Process::instance().hooks().has(glake::kWatched)) return;
    Process::instance().check_usable();
    Watch::instance().use_tags();
    watch_changed();
  });
}

int glake_set_context_hooks(const glake_context_hooks* hooks) {
  return api_call([&] {
    Process::instance().check_usable();
    if (hooks == nullptr) return Watch::instance().set_hooks(nullptr);
    const glake_context_hooks here = as_here(*hooks, "glake_context_hooks", sizeof *hooks);
    require(here.capture != nullptr, "glake_set_context_hooks needs a capture function");
    Watch::instance().set_hooks(&here);
  });
}

int glake_history(size_t entries, int when, int clear) {
  return api_call([&] {
    Process::instance().check_usable();
    require(when >= GLAKE_CONTEXT_NEVER && when <= GLAKE_CONTEXT_ALL,
            "glake_history: `when` is one of GLAKE_CONTEXT_NEVER, STATE, ALLOC and ALL");
    Watch::instance().keep_history(entries, when, clear != 0);
    watch_changed();
  });
}

int glake_visit_history(int device, void* self,
                        void (*visit)(void* self, const glake_event* event)) {
  return api_call([&] {
    require(visit != nullptr, "glake_visit_history needs a function");
    Process::instance().check_usable();
    {
      // Each event's context is held until the visit has ended.
      std::vector<Event> events = Watch::instance().history(device);
      for (const Event& event : events) {
        glake::Alone outside(false);
        visit(self, &event.data);
      }
    }
    glake::drop_unused_contexts();
  });
}

int glake_observe(void* self, void (*observe)(void* self, const glake_event* event)) {
  return api_call([&] {
    Process::instance().check_usable();
    Watch::instance().set_observer(self, observe);
    watch_changed();
  });
}

int glake_visit_memory(int device, void* self,
                       void (*segment)(void* self, const glake_segment_info* segment),
                       void (*block)(void* self, const glake_block_record* block)) {
  return visit(device, self, segment, block, true);
}

int glake_visit_blocks(int device, void* self,
                       void (*segment)(void* self, const glake_segment_info* segment),
                       void (*block)(void* self, const glake_block_record* block)) {
  return visit(device, self, segment, block, false);
}

void* glake_block_context(const void* ptr, const void* owner) {
  glake_block_record record{};
  api_call([&] {
    const glake::Block& b = Process::instance().block(ptr, false);
    Note note = Watch::instance().note(b.ptr);
    note.context.show_in(&record);
  });
  return record.context_owner == owner ? record.context : nullptr;
}

size_t glake_findings(char* text, size_t capacity) {
  size_t length = 0;
  api_call([&] {
    static std::mutex mutex;
    // Findings whose text did not fit into a caller's buffer. The next call returns them again.
    static auto* waiting = new std::string;
    Process& process = Process::instance();
    process.check_usable();
    process.for_each_device([](glake::DeviceAllocator& device) {
      if (debug_of(device) != nullptr) debug_of(device)->poll();
    });
    std::string found = glake::FindingBook::instance().read();
    {
      std::lock_guard<std::mutex> guard(mutex);
      if (!waiting->empty() && !found.empty()) *waiting += "\n\n";
      *waiting += found;
      length = copy_out(*waiting, text, capacity);
      if (length < capacity) waiting->clear();
    }
    glake::drop_unused_contexts();
  });
  return length;
}

}  // extern "C"

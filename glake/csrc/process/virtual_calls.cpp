#include "process/virtual_calls.h"

#include <algorithm>

#include "debug/debug_device.h"
#include "watch/watch.h"

namespace glake {

namespace {

// Reports to those who watch that memory ran out, and adds to the text who holds most.
[[noreturn]] void refuse(int device, Bytes bytes, StreamHandle stream, const Error& error) {
  Watch::event(GLAKE_OOM, device, Process::instance().device(device).driver_free_bytes(), bytes,
               stream);
  throw Error(error.code(), error.what() + Watch::instance().top_holders(device));
}

Address address(void* ptr) { return reinterpret_cast<Address>(ptr); }

// The log of a call that takes or gives granules, with the context in which it was called.
class Recorded {
 public:
  explicit Recorded(Process& process) : process_(process), op_(GLAKE_CONTEXT_ALL) {}

  PageLog log() {
    return {[this](const Block& b) { taken(b); }, [this](const Block& b) { given(b); }};
  }

 private:
  bool watched() const { return process_.hooks().has(kWatched) || process_.hooks().has(kDebug); }
  void taken(const Block& b) {
    if (watched()) {
      Watch::instance().allocated(b.heap->number, b.ptr, b.requested, b.stream, {0, 0}, op_);
    }
    if (process_.hooks().has(kTraced)) {
      process_.trace().allocated(b.data(), b.requested, b.stream, Watch::tag());
    }
  }
  void given(const Block& b) {
    if (process_.hooks().has(kTraced)) process_.trace().freed(b.data());
    if (watched()) {
      Watch::instance().freed(b.heap->number, b.ptr, b.requested, b.stream, {0, 0}, op_,
                              Heap::frees_later(b));
    }
  }

  Process& process_;
  Watch::Operation op_;
};

}  // namespace

// The range may end meanwhile, on another thread. Its heap stays.
Heap& VirtualCalls::heap_of(void* range) {
  process_.check_usable();
  const BlockTable* table = PointerMap::find(address(range));
  if (table != nullptr) return *table->heap();
  throw Error(GLAKE_INVALID_POINTER,
              hex(range) + " is not glake's memory; pass what glake_virtual_reserve() gave");
}

void* VirtualCalls::reserve(Bytes bytes, int device) {
  return reinterpret_cast<void*>(process_.device(device).virtual_ranges().reserve(bytes));
}

void VirtualCalls::back(void* range, Bytes offset, Bytes bytes, StreamHandle stream) {
  Heap& heap = heap_of(range);
  {
    Recorded recorded(process_);
    const PageLog log = recorded.log();
    // What the debug modes keep from reuse may be enough.
    DebugDevice* debug = debug_of(heap);
    for (bool last = false;;) {
      try {
        VirtualRanges(heap).back(address(range), offset, bytes, stream, log);
        break;
      } catch (const Error& e) {
        if (e.code() != GLAKE_OUT_OF_MEMORY) throw;
        const bool more = !last && debug != nullptr && debug->release_kept();
        if (!more) refuse(heap.number, bytes, stream, e);
        process_.device(heap.number).forgive_refusal();
        last = true;
      }
    }
  }
  drop_unused_contexts();
}

void VirtualCalls::unback(void* range, Bytes offset, Bytes bytes, StreamHandle stream) {
  Heap& heap = heap_of(range);
  refuse_copied(range, offset, bytes);
  {
    Recorded recorded(process_);
    VirtualRanges(heap).unback(address(range), offset, bytes, stream, recorded.log());
  }
  drop_unused_contexts();
}

void VirtualCalls::alias(void* range, Bytes offset, void* from, Bytes from_offset, Bytes bytes,
                         StreamHandle stream) {
  Heap& heap = heap_of(range);
  if (&heap_of(from) != &heap) {
    throw Error(GLAKE_INVALID_ARGUMENT, "the virtual ranges at " + hex(range) + " and " +
                                            hex(from) +
                                            " are of two devices, which share no pages");
  }
  refuse_copied(range, offset, bytes);
  {
    Recorded recorded(process_);
    VirtualRanges(heap).alias(address(range), offset, address(from), from_offset, bytes, stream,
                              recorded.log());
  }
  drop_unused_contexts();
}

void VirtualCalls::end(void* range) {
  VirtualRanges ranges(heap_of(range));
  refuse_copied(range, 0, ranges.bytes(address(range)));
  {
    Recorded recorded(process_);
    ranges.end(address(range), recorded.log());
  }
  drop_unused_contexts();
}

VirtualInfo VirtualCalls::info(void* range, Bytes offset, Bytes bytes) {
  return VirtualRanges(heap_of(range)).info(address(range), offset, bytes);
}

void VirtualCalls::refuse_copied(void* range, Bytes offset, Bytes bytes) {
  if (!process_.hooks().has(kCopied)) return;
  process_.transfer().refuse_copied(reinterpret_cast<void*>(address(range) + offset), bytes);
}

}  // namespace glake

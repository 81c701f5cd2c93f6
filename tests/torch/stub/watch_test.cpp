// Snapshots, history, contexts, observers, metadata.
#include <ctime>
#include <mutex>
#include <set>
#include <thread>

#include "harness.h"

using namespace testing;
using native::RecordContext;
using native::TraceEntry;

static void record(RecordContext when, const std::vector<std::string>& skip = {},
                   size_t entries = 1000) {
  allocator()->recordHistory(true, &gather, entries, when, true, skip);
}

static std::vector<TraceEntry> trace() { return allocator()->snapshot().device_traces.at(0); }

static int count(const std::vector<TraceEntry>& entries, TraceEntry::Action action) {
  int found = 0;
  for (const auto& each : entries) found += each.action_ == action ? 1 : 0;
  return found;
}

static const native::BlockInfo* block_at(const native::SnapshotInfo& snapshot, void* ptr) {
  for (const auto& segment : snapshot.segments) {
    size_t address = segment.address;
    for (const auto& block : segment.blocks) {
      if (reinterpret_cast<void*>(address) == ptr) return &block;
      address += block.size;
    }
  }
  return nullptr;
}

// Every byte held is in one segment, and every byte of a segment in one block.
TEST(snapshot) {
  DataPtr small = allocator()->allocate(1000), large = allocator()->allocate(5 * kMiB);
  allocator()->allocate(7 * kMiB);
  native::SnapshotInfo snapshot = allocator()->snapshot();
  int64_t total = 0;
  size_t previous = 0;
  for (const auto& segment : snapshot.segments) {
    CHECK_EQ(int{segment.device}, 0);
    CHECK(segment.address >= previous);
    previous = segment.address;
    size_t bytes = 0, active = 0, allocated = 0, requested = 0;
    for (const auto& block : segment.blocks) {
      bytes += block.size;
      active += block.active ? block.size : 0;
      allocated += block.allocated ? block.size : 0;
      requested += block.active ? block.requested_size : 0;
    }
    CHECK_EQ(bytes, segment.total_size);
    CHECK_EQ(active, segment.active_size);
    CHECK_EQ(allocated, segment.allocated_size);
    CHECK_EQ(requested, segment.requested_size);
    total += static_cast<int64_t>(bytes);
  }
  CHECK_EQ(total, reserved());
  const native::BlockInfo* found = block_at(snapshot, small.get());
  CHECK(found != nullptr && found->allocated && found->active);
  CHECK_EQ(found->requested_size, size_t{1000});
  CHECK_EQ(found->size, size_t{1024});
  CHECK(block_at(snapshot, large.get()) != nullptr);
  CHECK(snapshot.config_metadata.expandable_segments);
  CHECK(has(snapshot.config_metadata.last_allocator_settings, "balanced"));
  CHECK_EQ(snapshot.device_traces.size(), size_t{1});
  CHECK(allocator()->snapshot(kNone, false).device_traces.empty());
}

TEST(recordHistory) {
  CHECK(!allocator()->isHistoryEnabled());
  record(RecordContext::ALL);
  CHECK(allocator()->isHistoryEnabled());
  CUDAStream stream = new_stream();
  OnStream on(stream);
  DataPtr ptr = allocator()->allocate(5 * kMiB);
  void* where = ptr.get();
  ptr.clear();
  auto entries = trace();
  CHECK_EQ(count(entries, TraceEntry::ALLOC), 1);
  CHECK_EQ(count(entries, TraceEntry::FREE_REQUESTED), 1);
  CHECK_EQ(count(entries, TraceEntry::FREE_COMPLETED), 1);
  CHECK(count(entries, TraceEntry::SEGMENT_ALLOC) + count(entries, TraceEntry::SEGMENT_MAP) > 0);
  int64_t now = static_cast<int64_t>(std::time(nullptr)) * 1000000;
  for (const auto& each : entries) {
    CHECK(std::abs(static_cast<int64_t>(each.time_.t_) - now) < int64_t{3600} * 1000000);
    if (each.action_ != TraceEntry::ALLOC && each.action_ != TraceEntry::FREE_REQUESTED) continue;
    CHECK(reinterpret_cast<void*>(each.addr_) == where);
    CHECK_EQ(each.size_, 5 * kMiB);
    CHECK(each.stream_ == stream.stream());
    CHECK(number_of(each.context_) >= 0);
  }
  allocator()->recordHistory(false, nullptr, 0, RecordContext::NEVER, true, {});
  CHECK(!allocator()->isHistoryEnabled());
  CHECK(trace().empty());
  CHECK(!thrown<c10::Error>([] {
           allocator()->recordHistory(true, nullptr, 1, RecordContext::ALL, true, {});
         }).empty());
  CHECK(!thrown<c10::Error>([] { record(RecordContext::ALL, {"sneeze"}); }).empty());
}

TEST(isHistoryEnabled) {
  CHECK(!allocator()->isHistoryEnabled());
  record(RecordContext::NEVER);
  CHECK(allocator()->isHistoryEnabled());
}

// The event of a snapshot shows in the next snapshot. No other call makes such an event.
TEST(history_of_snapshots) {
  record(RecordContext::NEVER);
  allocator()->createOrIncrefPool(0, {0, 5}, nullptr);
  CHECK_EQ(count(trace(), TraceEntry::SNAPSHOT), 0);
  allocator()->getDeviceStats(0);
  allocator()->getExpandableSegmentSizes(0);
  allocator()->checkPoolLiveAllocations(0, {0, 5}, {});
  CHECK_EQ(count(trace(), TraceEntry::SNAPSHOT), 1);
  CHECK_EQ(count(trace(), TraceEntry::SNAPSHOT), 2);
  allocator()->releasePool(0, {0, 5});
}

// Recorded events keep their stacks when recording is switched on again.
TEST(history_begun_again) {
  record(RecordContext::ALL);
  DataPtr ptr = allocator()->allocate(5 * kMiB);
  auto stack = [&] {
    return number_of(block_at(allocator()->snapshot(), ptr.get())->context_when_allocated);
  };
  int first = stack();
  CHECK(first >= 0);
  allocator()->recordHistory(true, &gather, 1000, RecordContext::ALL, false, {});
  CHECK_EQ(stack(), first);
  for (const auto& each : trace()) {
    if (each.action_ == TraceEntry::ALLOC) CHECK_EQ(number_of(each.context_), first);
  }
}

TEST(history_of_empty_cache) {
  record(RecordContext::ALL);
  allocator()->allocate(20 * kMiB);
  allocator()->setUserMetadata("who empties");
  allocator()->emptyCache();
  int unmapped = 0;
  for (const auto& each : trace()) {
    if (each.action_ != TraceEntry::SEGMENT_UNMAP) continue;
    ++unmapped;
    CHECK(number_of(each.context_) >= 0);
    CHECK_EQ(each.user_metadata_, std::string("who empties"));
  }
  CHECK(unmapped > 0);
}

// torch's default has no bound on the number of events.
TEST(history_without_bound) {
  allocator()->recordHistory(true, &gather, SIZE_MAX / 2, RecordContext::NEVER, true, {});
  for (int i = 0; i < 100; ++i) allocator()->allocate(5 * kMiB);
  CHECK_EQ(count(trace(), TraceEntry::ALLOC), 100);
}

TEST(history_levels) {
  auto with_frames = [](TraceEntry::Action action) {
    int found = 0;
    for (const auto& each : trace()) found += each.action_ == action && each.context_ ? 1 : 0;
    return found;
  };
  record(RecordContext::STATE);
  {
    DataPtr ptr = allocator()->allocate(5 * kMiB);
    CHECK(number_of(block_at(allocator()->snapshot(), ptr.get())->context_when_allocated) >= 0);
  }
  CHECK_EQ(with_frames(TraceEntry::ALLOC), 0);
  record(RecordContext::ALLOC);
  allocator()->allocate(5 * kMiB);
  CHECK_EQ(with_frames(TraceEntry::ALLOC), 1);
  CHECK_EQ(with_frames(TraceEntry::FREE_REQUESTED), 0);
  record(RecordContext::ALL);
  allocator()->allocate(5 * kMiB);
  CHECK_EQ(with_frames(TraceEntry::FREE_REQUESTED), 1);
  int before = gathered();
  record(RecordContext::NEVER);
  allocator()->allocate(5 * kMiB);
  CHECK_EQ(gathered(), before);
}

TEST(history_skips_actions) {
  record(RecordContext::ALL, {"free_requested", "segment_map"});
  allocator()->allocate(5 * kMiB);
  auto entries = trace();
  CHECK_EQ(count(entries, TraceEntry::FREE_REQUESTED), 0);
  CHECK_EQ(count(entries, TraceEntry::SEGMENT_MAP), 0);
  CHECK_EQ(count(entries, TraceEntry::ALLOC), 1);
}

TEST(history_of_out_of_memory) {
  record(RecordContext::ALL);
  CHECK(!thrown<c10::OutOfMemoryError>([] { allocator()->allocate(500 * kMiB); }).empty());
  CHECK_EQ(count(trace(), TraceEntry::OOM), 1);
}

TEST(getContextForPointer) {
  record(RecordContext::ALL);
  int before = gathered();
  DataPtr ptr = allocator()->allocate(5 * kMiB);
  CHECK_EQ(number_of(allocator()->getContextForPointer(ptr.get())), before);
  CHECK(allocator()->getContextForPointer(&before) == nullptr);
}

TEST(recordAnnotation) {
  allocator()->recordAnnotation({{"name", "ignored"}});
  record(RecordContext::NEVER);
  allocator()->recordAnnotation({{"name", "step"}, {"stage", "START"}});
  auto annotations = allocator()->snapshot().external_annotations;
  CHECK_EQ(annotations.size(), size_t{1});
  CHECK_EQ(annotations[0].metadata_["name"], std::string("step"));
  CHECK_EQ(annotations[0].metadata_["stage"], std::string("START"));
}

static TraceEntry allocation_entry() {
  for (const auto& each : trace()) {
    if (each.action_ == TraceEntry::ALLOC) return each;
  }
  CHECK(false);
  std::_Exit(1);
}

TEST(pushCompileContext) {
  record(RecordContext::ALL);
  std::string outer = "0/0", inner = "1/0";
  allocator()->pushCompileContext(outer);
  allocator()->pushCompileContext(inner);
  DataPtr ptr = allocator()->allocate(5 * kMiB);
  CHECK_EQ(allocation_entry().compile_context_, inner);
}

TEST(popCompileContext) {
  record(RecordContext::ALL);
  std::string outer = "0/0", inner = "1/0";
  allocator()->pushCompileContext(outer);
  allocator()->pushCompileContext(inner);
  allocator()->popCompileContext();
  DataPtr ptr = allocator()->allocate(5 * kMiB);
  CHECK_EQ(allocation_entry().compile_context_, outer);
  allocator()->popCompileContext();
  allocator()->popCompileContext();  // one call too many does nothing
}

TEST(setUserMetadata) {
  CHECK_EQ(allocator()->getUserMetadata(), std::string());
  record(RecordContext::ALL);
  allocator()->setUserMetadata("layer 3");
  CHECK_EQ(allocator()->getUserMetadata(), std::string("layer 3"));
  DataPtr ptr = allocator()->allocate(5 * kMiB);
  CHECK_EQ(allocation_entry().user_metadata_, std::string("layer 3"));
}

// Backward runs on a thread of its own, and its memory is described too.
TEST(metadata_of_other_threads) {
  record(RecordContext::ALL);
  std::string compile = "0/0";
  allocator()->setUserMetadata("layer 3");
  allocator()->pushCompileContext(compile);
  std::thread([] { allocator()->allocate(5 * kMiB); }).join();
  CHECK_EQ(allocation_entry().user_metadata_, std::string("layer 3"));
  CHECK_EQ(allocation_entry().compile_context_, compile);
  c10::DeviceGuard guard(c10::Device(c10::kCUDA, 1));
  CHECK_EQ(allocator()->getUserMetadata(), std::string());
}
OPTIONS(metadata_of_other_threads, {"devices", "2"});

TEST(attachAllocatorTraceTracker) {
  std::set<int> seen;
  std::mutex mutex;
  void* last = nullptr;
  for (int i = 0; i < 2; ++i) {
    allocator()->attachAllocatorTraceTracker([&, i](const TraceEntry& entry) {
      std::lock_guard<std::mutex> guard(mutex);
      seen.insert(10 * i + static_cast<int>(entry.action_));
      if (entry.action_ == TraceEntry::ALLOC) last = reinterpret_cast<void*>(entry.addr_);
    });
  }
  DataPtr ptr = allocator()->allocate(5 * kMiB);
  CHECK(last == ptr.get());
  ptr.clear();
  for (int i = 0; i < 2; ++i) {
    CHECK(seen.count(10 * i + TraceEntry::ALLOC) == 1);
    CHECK(seen.count(10 * i + TraceEntry::FREE_REQUESTED) == 1);
  }
}

TEST(attachOutOfMemoryObserver) {
  int called = 0;
  for (int i = 0; i < 2; ++i) {
    allocator()->attachOutOfMemoryObserver([&](int64_t, size_t, size_t, size_t) { ++called; });
  }
  CHECK(!thrown<c10::OutOfMemoryError>([] { allocator()->allocate(500 * kMiB); }).empty());
  CHECK_EQ(called, 2);
}

// Contexts die with the blocks and events that refer to them.
TEST(contexts_are_dropped) {
  record(RecordContext::ALL, {}, 4);
  DataPtr ptr = allocator()->allocate(5 * kMiB);
  std::weak_ptr<c10::GatheredContext> weak = allocator()->getContextForPointer(ptr.get());
  CHECK(!weak.expired());
  ptr.clear();
  for (int i = 0; i < 16; ++i) allocator()->allocate(5 * kMiB);
  CHECK(weak.expired());
}

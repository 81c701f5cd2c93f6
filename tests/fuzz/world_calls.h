// The rest of World: streams, threads, faults, the process, and the identities.
#pragma once

#include "base/tuning.h"
#include "world.h"

namespace fuzz {

// Another stream reads the block. The read is ordered after what was written, and recorded.
inline void World::record(int n, int stream) {
  if (live_.empty()) return;
  note("record", {n, stream});
  const Live& b = live_[pick(n)];
  auto on = static_cast<int>(stream_of(stream));
  if (b.device != 0 || ended_[static_cast<size_t>(on)]) return;
  OK(call([&] { return glake_record_stream(b.ptr, handle(on)); }));
  bool captures = capturing(on) || capturing(b.stream);  // an event would capture both
  if (b.stamped && !captures && !armed_ && !ended_[static_cast<size_t>(b.stream)]) {
    CUevent written = nullptr;
    CU(cuEventCreate(&written, CU_EVENT_DISABLE_TIMING));
    CU(cuEventRecord(written, handle(b.stream)));
    CU(cuStreamWaitEvent(handle(on), written, 0));
    CU(cuEventDestroy(written));
    read(b, on);
  }
  identities();
}

// Gives the block new contents, after its readers on other streams, which must still read the old
// contents.
inline void World::rewrite(int n) {
  if (live_.empty()) return;
  note("rewrite", {n});
  Live& b = live_[pick(n)];
  if (setup_.bytes == 0 || b.device != 0 || armed_ || capturing(b.stream)) return;
  stamps_.verify();
  write(b);
}

// Frees an interior, a foreign or a freed pointer.
inline void World::free_wrongly(int n, size_t offset) {
  note("free_wrongly", {n, static_cast<int64_t>(offset)});
  void* wrong = freed_;
  if (!live_.empty() && offset != 0) {
    const Live& b = live_[pick(n)];
    wrong = static_cast<char*>(b.ptr) + 1 + offset % (b.size - 1);
  }
  if (wrong == nullptr) wrong = this;
  for (const Live& b : live_) {
    if (b.ptr == wrong) return;
  }
  CHECK(call([&] { return glake_free(wrong); }) == GLAKE_INVALID_POINTER);
  identities();
}

inline void World::new_stream() {
  if (streams_.size() == 24) return;
  note("new_stream", {});
  CUstream made = nullptr;
  CU(cuStreamCreate(&made, CU_STREAM_NON_BLOCKING));
  // Every third stream ends without telling glake.
  const bool silent = streams_.size() % 3 == 0;
  if (silent) {
    for (int device = 0; device < setup_.devices; ++device) OK(glake_stream_may_end(device, made));
    exact_full_ = false;  // what is freed there serves others later
  }
  streams_.push_back(made);
  ended_.push_back(false);
  silent_.push_back(silent);
  // More streams than one free can have tickets.
  if (streams_.size() > static_cast<size_t>(glake::Tuning::kTickets)) exact_full_ = false;
}

// Destroys a stream. Its work goes on, and glake may hold memory that was last used on it.
inline void World::end_stream(int stream) {
  note("end_stream", {stream});
  size_t s = stream_of(stream);
  if (s == 0 || ended_[s] || capturing(static_cast<int>(s))) return;
  // The stream's blocks are used on the default stream from here on, after what was enqueued.
  if (setup_.bytes != 0) stamps_.verify();
  if (silent_[s]) {
    CU(cuStreamDestroy(streams_[s]));
  } else {
    test::end_stream(streams_[s]);
  }
  streams_[s] = nullptr;
  ended_[s] = true;
  exact_full_ = false;
}

inline void World::wait_stream(int stream) {
  note("wait_stream", {stream});
  size_t s = stream_of(stream);
  if (!ended_[s] && !capturing(static_cast<int>(s))) CU(cuStreamSynchronize(streams_[s]));
}

inline void World::begin_capture(int mode, int stream) {
  // With faults glake might not learn of the capture (see below).
  if (captured_ != nullptr || capturing_ != 0 || armed_) return;
  note("begin_capture", {mode, stream});
  constexpr CUstreamCaptureMode kModes[] = {CU_STREAM_CAPTURE_MODE_GLOBAL,
                                            CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                                            CU_STREAM_CAPTURE_MODE_RELAXED};
  CHECK(glake_capturing(0) == 0);  // opens the device
  const size_t s = stream_of(stream);
  if (stream % 4 == 0 || s == 0 || ended_[s]) {
    CU(cuStreamCreate(&captured_, CU_STREAM_NON_BLOCKING));
  } else {
    stamps_.verify();
    exact_full_ = false;  // what was freed on it cannot be waited for
    capturing_ = static_cast<int>(s);
  }
  const CUstream captured = captured_ != nullptr ? captured_ : handle(capturing_);
  CU(cuStreamBeginCapture(captured, kModes[mode % 3]));
  // glake learns of a capture when the stream is named to it. Its waits break other captures.
  if (glake_capturing(0) == 1) return;
  OK(glake_stream_may_end(0, captured));
  if (capturing_ != 0) silent_[s] = true;
  CHECK(glake_capturing(0) == 1);
}

inline void World::capture_get(size_t bytes, int pool) {
  if (capturing_ != 0) pool_get(bytes, capturing_, pool);
}

inline void World::end_capture() {
  if (captured_ == nullptr && capturing_ == 0) return;
  note("end_capture", {});
  CUgraph graph = nullptr;
  CU(cuStreamEndCapture(captured_ != nullptr ? captured_ : handle(capturing_), &graph));
  CU(cuGraphDestroy(graph));
  if (captured_ != nullptr) test::end_stream(captured_);
  captured_ = nullptr;
  // From now on glake may not ask this stream whether its capture is over.
  if (silent_[static_cast<size_t>(capturing_)]) OK(glake_stream_may_end(0, handle(capturing_)));
  capturing_ = 0;
}

inline void World::on_thread(int thread) {
  note("on_thread", {thread});
  thread_ = thread % 4;
  if (thread_ == 0) return;
  exact_peak_ = false;
  if (workers_[thread_ - 1] == nullptr) workers_[thread_ - 1] = std::make_unique<Worker>();
}

inline void World::end_thread(int thread) {
  note("end_thread", {thread});
  int t = thread % 4;
  if (t == 0) return;
  workers_[t - 1].reset();
  kinds_[t] = GLAKE_STITCHED;
  if (thread_ == t) thread_ = 0;
  identities();
}

inline void World::empty_cache(int device) {
  note("empty_cache", {device});
  int code = call([&] { return glake_empty_cache(device_of(device)); });
  CHECK(code == GLAKE_OK || (armed_ && (code == GLAKE_DRIVER_ERROR || code == GLAKE_MEMORY_OWED)));
  if (!armed_) books_[device_of(device)].owing = false;
  check_pins();
  identities();
}

inline void World::peer(int device, int peer) {
  if (setup_.devices < 2) return;
  note("peer", {device, peer});
  int d = device_of(device), p = device_of(peer);
  int code = call([&] { return glake_enable_peer_access(d, p); });
  if (d == p) {
    CHECK(code == GLAKE_INVALID_ARGUMENT);
  } else {
    CHECK(code == GLAKE_OK || (armed_ && code == GLAKE_DRIVER_ERROR));
    if (code == GLAKE_OK) books_[d].used = books_[p].used = true;
  }
  identities();
}

inline void World::step(int device) {
  note("step", {device});
  int code = call([&] { return glake_mark_step(device_of(device)); });
  CHECK(code == GLAKE_OK || (armed_ && code == GLAKE_DRIVER_ERROR));
}

inline void World::reset_peaks(int device) {
  note("reset_peaks", {device});
  Books& b = books_[device_of(device)];
  if (!b.used) return;
  OK(call([&] { return glake_reset_peak_stats(device_of(device)); }));
  b.peak = b.allocated;
  identities();
}

inline void World::trace(int on) {
  note("trace", {on});
  OK(call([&] { return glake_trace(on != 0 ? "/dev/null" : nullptr); }));
}

// Refused while blocks are live; else glake starts anew with the next call.
inline void World::shutdown() {
  note("shutdown", {});
  if (live_.empty()) {
    drop_checkpoint();
    end_capture();
  }
  int code = call([] { return glake_shutdown(); });
  if (!live_.empty() || !pins_.empty() || !hosts_.empty() || !ranges_.empty()) {
    // If the driver refuses the wait for a freed block's work, that error comes before the one for
    // pins.
    CHECK(code == GLAKE_INVALID_ARGUMENT ||
          (armed_ && live_.empty() && code == GLAKE_DRIVER_ERROR));
    identities();
    return;
  }
  CHECK(code == GLAKE_OK || (armed_ && code == GLAKE_DRIVER_ERROR));
  if (code != GLAKE_OK) {
    fail_no_more();
    OK(call([] { return glake_shutdown(); }));
  }
  freed_ = nullptr;
  open();
}

inline void World::fail(const char* symbol, int k, int code, int times) {
  notes_ += std::string("  w.fail(\"") + symbol + "\", " + std::to_string(k) + ", " +
            std::to_string(code) + ", " + std::to_string(times) + ");\n";
  // The bytes read so far are checked now, while the driver still works.
  if (setup_.bytes != 0) stamps_.verify();
  CHECK(simcuda_fail(symbol, k, code, times) == 0);
  armed_ = true;
  for (Books& b : books_) b.owing = true;
}

inline void World::fail_no_more() {
  note("fail_no_more", {});
  CHECK(simcuda_fail(nullptr, 1, 0, 1) == 0);
  armed_ = false;
  // The driver may have refused to say that their captures are over.
  for (size_t s = 1; s < streams_.size(); ++s) {
    if (silent_[s] && !ended_[s] && !capturing(static_cast<int>(s))) {
      OK(glake_stream_may_end(0, streams_[s]));
    }
  }
}

inline void World::identities() {
  for (int device = 0; device < setup_.devices; ++device) {
    if (books_[device].used) device_identities(device);
  }
  CHECK_TEXT(test::violations() == "[]", test::violations());
  if (++calls_ % 16 == 0) check_pins();
  check_hosts();
  if (checked()) check_findings();
}

// Gives the numbers of a JSON object, which must be asked for in the order of the text.
class InOrder {
 public:
  explicit InOrder(const std::string& json) : json_(json) {}
  int64_t operator()(const char* key) {
    at_ = json_.find(std::string("\"") + key + "\": ", at_);
    CHECK_TEXT(at_ != std::string::npos, std::string(key) + " in " + json_);
    at_ += std::strlen(key) + 4;
    return std::strtoll(json_.c_str() + at_, nullptr, 10);
  }

 private:
  const std::string& json_;
  size_t at_ = 0;
};

inline void World::device_identities(int device) {
  Books& b = books_[device];
  const std::string text = test::stats(device);
  InOrder n(text);
  CHECK_TEXT(n("allocation.all.current") == b.count, text);
  CHECK_TEXT(n("allocation.all.allocated") == b.allocations, text);
  CHECK_TEXT(n("allocation.all.freed") == b.allocations - b.count, text);
  CHECK_TEXT(n("allocated_bytes.all.current") == b.allocated, text);
  int64_t peak = n("allocated_bytes.all.peak");
  CHECK_TEXT(peak >= b.allocated && (!exact_peak_ || peak == b.peak), text);
  int64_t small = n("allocated_bytes.small_pool.current");
  CHECK_TEXT(small + n("allocated_bytes.large_pool.current") == b.allocated, text);
  int64_t reserved = n("reserved_bytes.all.current");
  int64_t physical = n("glake.physical_bytes");
  const int64_t owed = n("glake.owed_bytes");
  int64_t cached = n("glake.contiguous_cached_bytes"), free = n("glake.free_bytes");
  // Memory the driver refused to take back is still held, and no longer reserved.
  CHECK_TEXT(reserved + owed == physical && (owed == 0 || b.owing), text);
  CHECK_TEXT(physical <= std::max(b.limit, b.physical), text);
  b.physical = physical;
  CHECK_TEXT(n("glake.whole_free_bytes") <= free, text);
  // Memory that is neither free nor in a caller's block is in a thread's cache, or waits for
  // recorded streams.
  int64_t blocks = n("glake.live_blocks");
  int64_t known = free + cached + b.behind + b.allocated;
  CHECK_TEXT(blocks >= b.count && known <= reserved, text);
  CHECK_TEXT(blocks != b.count || b.pooled || known == reserved, text);
  CHECK(test::number_in(test::ledger(device), "used_bytes") == physical);
  glake_device_stats values{};
  OK(glake_get_stats(device, &values, sizeof values));
  CHECK(values.allocation[0].current == b.count);
  CHECK(values.allocated_bytes[0].current == b.allocated);
  // Blocks whose free has not completed still count as active.
  CHECK(values.active[0].current >= b.count && values.requested_bytes[0].current >= b.requested);
  bool waits = values.active[0].current != b.count;
  CHECK(waits || values.requested_bytes[0].current == b.requested);
  CHECK(values.reserved_bytes[0].current == reserved);
  check_memory(device, values);
  // With debug modes the check waits for all work. So it is made seldom. Otherwise no work would be
  // pending, and no wrong order could show.
  if (checked() && calls_ % 32 != 0) return;
  int code = glake_check(device);
  CHECK(code == GLAKE_OK || (checked() && armed_ && code == GLAKE_DRIVER_ERROR));
}

inline void World::finish() {
  fail_no_more();
  end_capture();
  stamps_.verify();
  while (!live_.empty()) release(live_.size() - 1);
  while (!pins_.empty()) unpin(0);
  while (!hosts_.empty()) host_drop(0);
  while (!ranges_.empty()) virtual_free(0);
  set_kind(GLAKE_STITCHED);
  OK(glake_history(0, GLAKE_CONTEXT_NEVER, 1));
  glake_set_tag(nullptr);
  identities();
  drop_checkpoint();
  stamps_.close();
  for (auto& worker : workers_) worker.reset();
  thread_ = 0;
  if (glake_set_kind(GLAKE_STITCHED) < 0) CHECK(false);
  OK(glake_shutdown());
  for (size_t s = 1; s < streams_.size(); ++s) {
    if (!ended_[s]) test::end_stream(streams_[s]);
  }
  context_.reset();
  for (int device = 0; device < setup_.devices; ++device) test::check_nothing_left(device);
}

}  // namespace fuzz

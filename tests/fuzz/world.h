// What the fuzzer plays with: one simulated machine and the C interface over it, checked after
// every call. Its calls take plain numbers, any of which means something (taken modulo what there
// is), and note themselves: the notes of a run that failed are a C++ test body that fails again.
//
// After each call: the statistics' identities, no byte in two live blocks, the driver's ledger; and
// glake_check(). Contents are read before every free, see stamps.h.
#pragma once

#include <cinttypes>
#include <memory>
#include <set>

#include "ownership.h"
#include "stamps.h"
#include "worker.h"

namespace fuzz {

using test::kGranule;
using test::kKiB;
using test::kMiB;

struct Setup {
  const char* policy = "balanced";
  int limit_mib = 24;
  int view_budget = 8;
  int devices = 1;
  int bytes = 1;  // 0: phantom memory, books only
  int seed = 0;   // of the order in which stream work runs
};

class World {
 public:
  explicit World(const Setup& setup);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  // Blocks: `n` names one of those live, in a fixed order.
  void get(size_t bytes, int stream = 0, int device = 0);
  void drop(int n);
  void drop_every(int step, int from);
  void fill(size_t bytes, int stream = 0, int device = 0);  // until nothing more fits
  void record(int n, int stream);
  void rewrite(int n);
  void free_wrongly(int n, size_t offset);

  // Streams and threads.
  void new_stream();
  void end_stream(int stream);
  void wait_stream(int stream);
  void begin_capture(int mode);  // of a stream glake does not know: nothing it does may spoil it
  void end_capture();
  void on_thread(int thread);  // makes the later calls
  void end_thread(int thread);

  // The device and the process.
  void empty_cache(int device);
  void peer(int device, int peer);
  void step(int device);
  void reset_peaks(int device);
  void trace(int on);
  void shutdown();

  // The k-th later call of `symbol` fails with `code`, `times` in a row (-1: for good).
  void fail(const char* symbol, int k, int code, int times);
  void fail_no_more();

  // Gives everything back and checks that nothing is left.
  void finish();

  // The calls so far, as C++.
  std::string reproducer() const;

 private:
  struct Live {
    void* ptr;
    size_t bytes;
    int device, stream;
    uint8_t stamp;
    size_t held() const { return (bytes + 511) / 512 * 512; }
  };
  // What a device should report.
  struct Books {
    int64_t count = 0, requested = 0, allocated = 0, peak = 0, allocations = 0;
    bool used = false;
    bool owing = false;  // the driver may have refused to take something back
  };

  void note(const char* call, std::initializer_list<int64_t> arguments);
  void open();
  int call(const std::function<int()>& work);  // on the thread of on_thread()
  bool allocate(size_t bytes, int stream, int device);
  void refused(size_t bytes, int device);
  void release(size_t n);
  void identities();
  void device_identities(int device);
  size_t pick(int n) const { return static_cast<size_t>(n) % live_.size(); }
  int device_of(int d) const { return d % setup_.devices; }
  size_t stream_of(int s) const { return static_cast<size_t>(s) % streams_.size(); }
  // Null, the default stream, in place of one that ended.
  CUstream handle(int stream) const { return streams_[static_cast<size_t>(stream)]; }

  Setup setup_;
  std::string notes_;
  std::unique_ptr<test::CurrentContext> context_;
  std::vector<CUstream> streams_{nullptr};
  std::vector<bool> ended_{false};
  CUstream captured_ = nullptr;
  std::vector<Live> live_;
  std::set<std::pair<uintptr_t, uintptr_t>> addresses_;
  Books books_[2];
  HomeBytes owned_;
  Stamps stamps_{streams_};
  uint8_t stamp_ = 0;
  std::unique_ptr<Worker> workers_[3];
  int thread_ = 0;
  void* freed_ = nullptr;
  bool armed_ = false;
  bool exact_peak_ = true;  // one thread only, so far
  bool exact_full_ = true;  // a refusal means that memory is really full
};

inline World::World(const Setup& setup) : setup_(setup) {
  test::fresh_simulator({{"memory", std::to_string(setup.limit_mib + 16) + "MiB"},
                         {"devices", std::to_string(setup.devices)},
                         {"phantom", setup.bytes != 0 ? "0" : "1"},
                         {"seed", std::to_string(setup.seed)}});
  context_ = std::make_unique<test::CurrentContext>();
  stamps_.open();
  open();
}

inline World::~World() {
  if (context_ != nullptr) finish();
}

inline void World::open() {
  test::configure({{"driver", "sim"},
                   {"policy", setup_.policy},
                   {"limit", std::to_string(setup_.limit_mib) + "MiB"},
                   {"view_budget", std::to_string(setup_.view_budget)}});
  for (Books& b : books_) b = {};
  exact_peak_ = thread_ == 0;
}

inline void World::note(const char* call, std::initializer_list<int64_t> arguments) {
  notes_ += std::string("  w.") + call + "(";
  const char* comma = "";
  for (int64_t a : arguments) {
    notes_ += comma + std::to_string(a);
    comma = ", ";
  }
  notes_ += ");\n";
}

inline std::string World::reproducer() const {
  const Setup& s = setup_;
  return std::string("  fuzz::World w({\"") + s.policy + "\", " + std::to_string(s.limit_mib) +
         ", " + std::to_string(s.view_budget) + ", " + std::to_string(s.devices) + ", " +
         std::to_string(s.bytes) + ", " + std::to_string(s.seed) + "});\n" + notes_;
}

inline int World::call(const std::function<int()>& work) {
  if (thread_ == 0) return work();
  int result = 0;
  workers_[thread_ - 1]->run([&] { result = work(); });
  return result;
}

inline void World::get(size_t bytes, int stream, int device) {
  note("get", {static_cast<int64_t>(bytes), stream, device});
  allocate(bytes, static_cast<int>(stream_of(stream)), device_of(device));
  identities();
}

inline void World::fill(size_t bytes, int stream, int device) {
  note("fill", {static_cast<int64_t>(bytes), stream, device});
  for (int i = 0; i < 64; ++i) {
    if (!allocate(bytes, static_cast<int>(stream_of(stream)), device_of(device))) break;
  }
  identities();
}

inline bool World::allocate(size_t bytes, int stream, int device) {
  if (ended_[static_cast<size_t>(stream)] || device != 0) stream = 0;
  void* ptr = nullptr;
  int code = call([&] {
    ptr = glake_malloc(bytes, device, handle(stream));
    return glake_last_error(nullptr, 0);
  });
  if (ptr == nullptr) {
    CHECK(code == GLAKE_OUT_OF_MEMORY || code == GLAKE_DRIVER_ERROR);
    CHECK_TEXT(armed_ || code == GLAKE_OUT_OF_MEMORY, "refused with no fault armed");
    if (!armed_) refused(bytes, device);
    return false;
  }
  Live block{ptr, bytes, device, stream, ++stamp_};
  auto begin = reinterpret_cast<uintptr_t>(ptr);
  CHECK(begin % 512 == 0);
  auto after = addresses_.lower_bound({begin, 0});
  CHECK(after == addresses_.end() || begin + block.held() <= after->first);
  CHECK(after == addresses_.begin() || std::prev(after)->second <= begin);
  addresses_.emplace(begin, begin + block.held());
  owned_.add(glake::Process::instance().block(ptr, false));
  Books& b = books_[device];
  b.used = true;
  ++b.count;
  ++b.allocations;
  b.requested += static_cast<int64_t>(bytes);
  b.allocated += static_cast<int64_t>(block.held());
  b.peak = std::max(b.peak, b.allocated);
  if (setup_.bytes != 0 && device == 0) {
    Stamps::write(ptr, block.held(), block.stamp, handle(stream));
  }
  size_t asked = 0;
  int where = -1;
  void* on = nullptr;
  OK(glake_block_info(ptr, &asked, &where, &on));
  CHECK(asked == bytes && where == device && on == handle(stream));
  live_.push_back(block);
  return true;
}

// Out of memory is true only if neither whole free granules nor the limit had room.
inline void World::refused(size_t bytes, int device) {
  if (!exact_full_ || !books_[device].used) return;
  const std::string text = test::stats(device);
  int64_t room = setup_.limit_mib * static_cast<int64_t>(kMiB) -
                 test::number_in(text, "glake.physical_bytes") +
                 test::number_in(text, "glake.whole_free_bytes");
  CHECK_TEXT(room < static_cast<int64_t>((bytes + kGranule - 1) / kGranule * kGranule), text);
}

inline void World::release(size_t n) {
  Live gone = live_[n];
  live_[n] = live_.back();
  live_.pop_back();
  if (setup_.bytes != 0 && gone.device == 0) {
    stamps_.read(gone.ptr, gone.held(), gone.stamp, handle(gone.stream));
    // glake does not know of the stream on which a block of an ended one is used now.
    if (ended_[static_cast<size_t>(gone.stream)]) stamps_.verify();
  }
  owned_.remove(glake::Process::instance().block(gone.ptr, false));
  auto begin = reinterpret_cast<uintptr_t>(gone.ptr);
  addresses_.erase({begin, begin + gone.held()});
  Books& b = books_[gone.device];
  --b.count;
  b.requested -= static_cast<int64_t>(gone.bytes);
  b.allocated -= static_cast<int64_t>(gone.held());
  freed_ = gone.ptr;
  OK(call([&] { return glake_free(gone.ptr); }));
}

inline void World::drop(int n) {
  if (live_.empty()) return;
  note("drop", {n});
  release(pick(n));
  identities();
}

// Releases move the last block into the gap: from the end, so that the others keep their numbers.
inline void World::drop_every(int step, int from) {
  note("drop_every", {step, from});
  for (size_t i = live_.size(); i-- > 0;) {
    if (static_cast<int>(i) % step == from % step) release(i);
  }
  identities();
}

}  // namespace fuzz

#include "world_calls.h"

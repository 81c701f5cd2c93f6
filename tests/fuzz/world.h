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

constexpr int kPools = 2;

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

  // Private pools of device 0, 1 to kPools; 0 is the device's own memory. world_pools.h.
  void pool_get(size_t bytes, int stream, int pool);
  void pool_users(int pool, int more);  // one more, or one less
  void pool_flags(int pool, int flags);
  void pool_empty_cache(int pool);
  void checkpoint(int pool);
  void restore();  // the last checkpoint's pool

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
  void limit(int percent);
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
    int device, stream, pool;
    uint8_t stamp;
    size_t size;  // what it was given
  };
  // What a device should report.
  struct Books {
    int64_t count = 0, requested = 0, allocated = 0, peak = 0, allocations = 0;
    int64_t limit = 0, physical = 0;  // as last seen
    bool used = false;
    bool pooled = false;  // has had a private pool: its free bytes are counted apart
    bool owing = false;   // the driver may have refused to take something back
  };

  void note(const char* call, std::initializer_list<int64_t> arguments);
  void open();
  int call(const std::function<int()>& work);  // on the thread of on_thread()
  bool allocate(size_t bytes, int stream, int device, int pool = 0);
  void born(void* ptr, size_t bytes, int stream, int device, int pool);
  void gone(size_t n);
  void drop_checkpoint();
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
  int users_[kPools + 1] = {};
  glake_checkpoint* checkpoint_ = nullptr;
  int checkpoint_pool_ = 0;
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
  for (Books& b : books_) {
    b = {};
    b.limit = setup_.limit_mib * static_cast<int64_t>(kMiB);
  }
  for (int& users : users_) users = 0;
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

inline glake_pool name_of(int pool) {
  return {pool == 1 ? uint64_t{1} : 0, pool == 2 ? uint64_t{7} : 0};
}

inline bool World::allocate(size_t bytes, int stream, int device, int pool) {
  if (ended_[static_cast<size_t>(stream)] || device != 0) stream = 0;
  void* ptr = nullptr;
  int code = call([&] {
    ptr = pool == 0 ? glake_malloc(bytes, device, handle(stream))
                    : glake_pool_malloc(bytes, device, handle(stream), name_of(pool));
    return glake_last_error(nullptr, 0);
  });
  if (ptr == nullptr) {
    CHECK(code == GLAKE_OUT_OF_MEMORY || code == GLAKE_DRIVER_ERROR);
    CHECK_TEXT(armed_ || code == GLAKE_OUT_OF_MEMORY, "refused with no fault armed");
    if (!armed_ && pool == 0) refused(bytes, device);
    return false;
  }
  born(ptr, bytes, stream, device, pool);
  size_t asked = 0;
  int where = -1;
  void* on = nullptr;
  OK(glake_block_info(ptr, &asked, &where, &on));
  CHECK(asked == bytes && where == device && on == handle(stream));
  return true;
}

// A block that the allocator has just given out.
inline void World::born(void* ptr, size_t bytes, int stream, int device, int pool) {
  const glake::Block& given = glake::Process::instance().block(ptr, false);
  Live block{ptr, bytes, device, stream, pool, ++stamp_, given.size};
  const size_t rounded = (bytes + 511) / 512 * 512;
  CHECK(block.size == rounded || (books_[device].pooled && block.size > rounded));  // NO_SPLIT
  auto begin = reinterpret_cast<uintptr_t>(ptr);
  CHECK(begin % 512 == 0);
  auto after = addresses_.lower_bound({begin, 0});
  CHECK(after == addresses_.end() || begin + block.size <= after->first);
  CHECK(after == addresses_.begin() || std::prev(after)->second <= begin);
  addresses_.emplace(begin, begin + block.size);
  owned_.add(given);
  Books& b = books_[device];
  b.used = true;
  ++b.count;
  ++b.allocations;
  b.requested += static_cast<int64_t>(bytes);
  b.allocated += static_cast<int64_t>(block.size);
  b.peak = std::max(b.peak, b.allocated);
  if (setup_.bytes != 0 && device == 0) {
    Stamps::write(ptr, block.size, block.stamp, handle(stream));
    if (ended_[static_cast<size_t>(stream)]) stamps_.verify();
  }
  live_.push_back(block);
}

// Out of memory is true only if neither whole free granules nor the limit had room.
inline void World::refused(size_t bytes, int device) {
  if (!exact_full_ || !books_[device].used) return;
  const std::string text = test::stats(device);
  int64_t physical = test::number_in(text, "glake.physical_bytes");
  int64_t room = std::max<int64_t>(0, books_[device].limit - physical) +
                 test::number_in(text, "glake.whole_free_bytes");
  CHECK_TEXT(room < static_cast<int64_t>((bytes + kGranule - 1) / kGranule * kGranule), text);
}

inline void World::release(size_t n) {
  const Live block = live_[n];
  if (setup_.bytes != 0 && block.device == 0) {
    stamps_.read(block.ptr, block.size, block.stamp, handle(block.stream));
    // glake does not know of the stream on which a block of an ended one is used now.
    if (ended_[static_cast<size_t>(block.stream)]) stamps_.verify();
  }
  owned_.remove(glake::Process::instance().block(block.ptr, false));
  gone(n);
  OK(call([&] { return glake_free(block.ptr); }));
}

// Takes a block off the books: the last takes its place.
inline void World::gone(size_t n) {
  const Live block = live_[n];
  live_[n] = live_.back();
  live_.pop_back();
  auto begin = reinterpret_cast<uintptr_t>(block.ptr);
  addresses_.erase({begin, begin + block.size});
  Books& b = books_[block.device];
  --b.count;
  b.requested -= static_cast<int64_t>(block.bytes);
  b.allocated -= static_cast<int64_t>(block.size);
  freed_ = block.ptr;
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
#include "world_pools.h"

// What the fuzzer plays with: one simulated machine and the C interface over it, checked after
// every call. Its calls take any numbers, modulo the number of things that there are. Each call
// notes itself. The notes of a run that failed are a C++ test body that fails again.
//
// After each call World checks that the statistics add up, that no byte is in two live blocks, the
// driver's ledger, and glake_check(). Contents are read before every free (stamps.h).
#pragma once

#include <array>
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
  int bytes = 1;  // 0: phantom memory, without contents
  int seed = 0;   // of the order in which stream work runs
  const char* debug = "none";
  const char* contiguous = "none";
};

constexpr int kPools = 2;
constexpr size_t kRangePages = 6;  // of each virtual range

class World {
 public:
  explicit World(const Setup& setup);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  // Blocks. `n` is a live block's number, in a fixed order.
  void get(size_t bytes, int stream = 0, int device = 0);
  void drop(int n);
  void drop_every(int step, int from);
  void fill(size_t bytes, int stream = 0, int device = 0);  // until nothing more fits
  void record(int n, int stream);
  void rewrite(int n);
  void free_wrongly(int n, size_t offset);

  // Contiguous blocks, pins, host memory and what watches: world_memory.h.
  void contiguous(size_t bytes, int stream, int device, int kind);
  void set_kind(int kind);  // of the thread that makes the later calls
  void pin(int n);
  void pin_wrongly();
  void unpin(int n);
  void host_get(size_t bytes);
  void host_drop(int n);
  void host_record(int n, int stream);
  void host_empty_cache();
  void history(int entries, int when);

  // Private pools of device 0, 1 to kPools; 0 is the device's own memory. world_pools.h.
  void pool_get(size_t bytes, int stream, int pool);
  // Asks for memory at a freed pointer of the pool or, for n % 4 = 0, inside a live block.
  void pool_get_at(int n, size_t bytes, int stream, int pool);
  void pool_users(int pool, int more);  // one more, or one less
  void pool_flags(int pool, int flags);
  void pool_empty_cache(int pool);
  void checkpoint(int pool);
  void restore();  // the last checkpoint's pool

  // Virtual ranges of device 0: world_virtual.h.
  void virtual_reserve(int stream);
  void virtual_back(int n, int first, int count);
  void virtual_unback(int n, int first, int count);
  void virtual_alias(int n, int first, int from, int from_first, int count);
  void virtual_free(int n);

  // Streams and threads.
  void new_stream();
  void end_stream(int stream);
  void wait_stream(int stream);
  // Begins a capture, which nothing that glake does may spoil. glake is told of the stream. For
  // stream % 4 = 0 it is a new one, on which nothing is allocated.
  void begin_capture(int mode, int stream = 0);
  void capture_get(size_t bytes, int pool);  // on the stream under capture
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
    uint8_t stamp = 0;
    size_t size = 0;       // what it was given
    uintptr_t begin = 0;   // where that begins: before `ptr`, if the block has guards
    size_t room = 0;       // what its owner may write
    size_t requested = 0;  // as the statistics count it: without guards
    size_t behind = 0;     // of a contiguous block: the rest of its driver allocation
    bool stamped = false;
  };
  struct Pinned {
    void* ptr;
    std::vector<std::pair<uintptr_t, uint64_t>> memory;  // driver handles behind some addresses
  };
  struct Host {
    uint8_t* ptr;
    size_t bytes;
    uint8_t stamp;
  };
  // Memory that a graph may use, by its home address.
  struct Captured {
    uintptr_t begin, end;
    int stream, pool;
  };
  // A virtual range. By page the stamp of its granule; null: not backed.
  struct Range {
    char* base;
    int stream;
    std::array<std::shared_ptr<uint8_t>, kRangePages> pages;
    char* at(size_t page) const { return base + page * kGranule; }
  };
  struct Pages {
    size_t begin, end;
    size_t bytes() const { return (end - begin) * kGranule; }
  };
  // What a device should report.
  struct Books {
    int64_t count = 0, requested = 0, allocated = 0, peak = 0, allocations = 0;
    int64_t behind = 0;               // the sum of Live::behind
    int64_t limit = 0, physical = 0;  // as last seen
    bool used = false;
    bool pooled = false;  // has had a private pool: its free bytes are counted apart
    bool owing = false;   // the driver may have refused to take something back
  };

  void note(const char* call, std::initializer_list<int64_t> arguments);
  void open();
  int call(const std::function<int()>& work);  // on the thread of on_thread()
  using Allocate = std::function<void*(size_t, int, CUstream)>;
  bool allocate(size_t bytes, int stream, int device, int pool, int kind, const Allocate& by);
  bool plain(size_t bytes, int stream, int device);
  void born(const Live& block, int kind);
  void settle_in(Live& block, const glake::Block& given, int kind);
  void note_captured(const Live& block, const glake::Block& given);
  void write(Live& block);
  void read(const Live& block, int stream);
  int kind_of(size_t bytes) const;
  bool capturing(int stream) const { return capturing_ != 0 && stream == capturing_; }
  bool guarded() const { return std::strstr(setup_.debug, "guard") != nullptr; }
  bool checked() const { return std::strcmp(setup_.debug, "none") != 0; }
  bool under_capture() const { return captured_ != nullptr || capturing_ != 0; }
  int stream_of_range(Range& range);
  static Pages pages_of(int first, int count);
  void read_pages(const Range& range, Pages pages);
  void page_taken(Range& range, size_t i);
  void page_given(std::shared_ptr<uint8_t>& page);
  void check_ranges();
  void check_pins();
  void check_memory(int device, const glake_device_stats& stats);
  void check_hosts();
  void check_findings();
  void gone(size_t n);
  void drop_checkpoint();
  void refused(size_t bytes, int device);
  void release(size_t n);
  void identities();
  void device_identities(int device);
  size_t pick(int n) const { return static_cast<size_t>(n) % live_.size(); }
  int device_of(int d) const { return d % setup_.devices; }
  size_t stream_of(int s) const { return static_cast<size_t>(s) % streams_.size(); }
  // Null, the default stream, if the stream has ended.
  CUstream handle(int stream) const { return streams_[static_cast<size_t>(stream)]; }

  Setup setup_;
  std::string notes_;
  std::unique_ptr<test::CurrentContext> context_;
  std::vector<CUstream> streams_{nullptr};
  std::vector<bool> ended_{false};
  std::vector<bool> silent_ = {false};  // whether the stream is destroyed without telling glake
  CUstream captured_ = nullptr;         // a captured stream that has no blocks
  int capturing_ = 0;                   // of streams_; 0: none
  std::vector<Captured> graphs_;
  std::vector<Pinned> pins_;
  std::vector<Host> hosts_;
  std::vector<Range> ranges_;
  bool host_used_ = false;
  std::vector<std::pair<void*, int>> gaps_;  // freed pointers of pools
  int kinds_[4] = {};
  uint64_t calls_ = 0;
  std::vector<Live> live_;
  std::set<std::pair<uintptr_t, uintptr_t>> addresses_;
  Books books_[2];
  HomeBytes owned_;
  Stamps stamps_{streams_, capturing_};
  uint8_t stamp_ = 0;
  std::unique_ptr<Worker> workers_[3];
  int thread_ = 0;
  void* freed_ = nullptr;
  int users_[kPools + 1] = {};
  glake_checkpoint* checkpoint_ = nullptr;
  int checkpoint_pool_ = 0;
  bool armed_ = false;
  bool exact_peak_ = true;  // only one thread has made calls so far
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
                   {"debug", setup_.debug},
                   {"contiguous", setup_.contiguous},
                   {"view_budget", std::to_string(setup_.view_budget)}});
  for (Books& b : books_) {
    b = {};
    b.owing = armed_;
    b.limit = setup_.limit_mib * static_cast<int64_t>(kMiB);
  }
  for (int& users : users_) users = 0;
  graphs_.clear();
  gaps_.clear();
  host_used_ = false;
  if (checked()) exact_full_ = false;  // debug modes keep freed blocks
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
         std::to_string(s.bytes) + ", " + std::to_string(s.seed) + ", \"" + s.debug + "\", \"" +
         s.contiguous + "\"});\n" + notes_;
}

inline int World::call(const std::function<int()>& work) {
  if (thread_ == 0) return work();
  int result = 0;
  workers_[thread_ - 1]->run([&] { result = work(); });
  return result;
}

}  // namespace fuzz

#include "world_blocks.h"
#include "world_calls.h"
#include "world_memory.h"
#include "world_pools.h"
#include "world_virtual.h"

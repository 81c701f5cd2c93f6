// 120,000 random operations at a tight limit in phantom mode, with both policies and several
// streams. After every step the statistics must add up, and no byte of physical memory may belong
// to two live blocks, whichever addresses they are reached through.
#include <algorithm>

#include "harness.h"
#include "process/process.h"

using namespace glake;

namespace {

constexpr Bytes kLimit = 96 * kMiB;
constexpr int kStreams = 4;

// Checks that each byte, known by its home address, is held once.
class HomeBytes {
 public:
  void add(const Block& b) {
    Bytes total = 0;
    for (const Span* p = b.pieces; p != nullptr; p = p->piece_next) {
      auto after = held_.lower_bound(p->begin);
      CHECK_TEXT(after == held_.end() || p->end() <= after->first, "a byte is in two blocks");
      CHECK_TEXT(after == held_.begin() || std::prev(after)->second <= p->begin,
                 "a byte is in two blocks");
      held_.emplace(p->begin, p->end());
      total += p->size;
    }
    CHECK(total == b.size);
  }
  void remove(const Block& b) {
    for (const Span* p = b.pieces; p != nullptr; p = p->piece_next) {
      CHECK(held_.erase(p->begin) == 1);
    }
  }

 private:
  std::map<Address, Address> held_;
};

struct Live {
  void* ptr;
  Bytes bytes;
};

class Drill {
 public:
  Drill(const char* policy, uint64_t seed) : dice_(seed) {
    test::fresh_simulator({{"phantom", "1"}, {"memory", "1GiB"}, {"devices", "1"}});
    test::configure({{"driver", "sim"},
                     {"policy", policy},
                     {"limit", std::to_string(kLimit)},
                     {"view_budget", seed % 2 == 0 ? "2" : "8"}});
    context_ = std::make_unique<test::CurrentContext>();
    for (int i = 1; i < kStreams; ++i) CU(cuStreamCreate(&streams_[i], CU_STREAM_NON_BLOCKING));
  }

  void steps(int count) {
    for (int i = 0; i < count; ++i) {
      // First there are more allocations, then more frees, and so on, so that there are holes of
      // all ages.
      int filling = i / 500 % 3 == 2 ? 30 : 60;
      if (live_.empty() || dice_.chance(filling)) {
        allocate();
      } else {
        free(dice_(0, live_.size() - 1));
      }
      if (dice_(0, 20000) == 0) OK(glake_empty_cache(0));
      check_identities();
      if (i % 1000 == 0) OK(glake_check(0));
    }
  }

  void finish() {
    while (!live_.empty()) free(live_.size() - 1);
    const std::string text = test::stats();
    CHECK(ooms_ > 10 && test::number_in(text, "glake.stitches") > 10);
    CHECK(test::number_in(text, "glake.evictions") > 10);
    std::printf("%lld stitches, %lld edge stitches, %lld evictions, %lld waits, %d refusals\n",
                static_cast<long long>(test::number_in(text, "glake.stitches")),
                static_cast<long long>(test::number_in(text, "glake.edge_stitches")),
                static_cast<long long>(test::number_in(text, "glake.evictions")),
                static_cast<long long>(test::number_in(text, "glake.stream_waits")), ooms_);
    OK(glake_check(0));
    OK(glake_shutdown());
    for (int i = 1; i < kStreams; ++i) test::end_stream(streams_[i]);
    context_.reset();
    test::check_nothing_left();
  }

 private:
  Bytes size() {
    switch (dice_(0, 9)) {
      case 0:
      case 1:
      case 2:
        return dice_(1, 4 * kKiB);
      case 3:
      case 4:
        return dice_(1, kSmallLimit);
      case 5:
        return dice_(1, 16) * kMiB;
      default:
        return dice_(kMiB, 14 * kMiB);
    }
  }

  void allocate() {
    Bytes bytes = size();
    int on = dice_.chance(70) ? 0 : static_cast<int>(dice_(1, kStreams - 1));
    void* ptr = glake_malloc(bytes, 0, streams_[on]);
    if (ptr == nullptr) {
      refused(bytes);
      return;
    }
    Block& b = Process::instance().block(ptr, false);
    CHECK(b.requested == bytes && b.size == round_up(bytes, kAlignment));
    bytes_.add(b);
    live_.push_back({ptr, bytes});
    requested_ += bytes;
    allocated_ += b.size;
    peak_ = std::max(peak_, allocated_);
    ++allocations_;
    if (dice_.chance(5)) OK(glake_record_stream(ptr, streams_[dice_(0, kStreams - 1)]));
  }

  // Out of memory is true only if neither whole free granules nor the limit had room.
  void refused(Bytes bytes) {
    CHECK(glake_last_error(nullptr, 0) == GLAKE_OUT_OF_MEMORY);
    ++ooms_;
    const std::string text = test::stats();
    auto whole = static_cast<Bytes>(test::number_in(text, "glake.whole_free_bytes"));
    auto physical = static_cast<Bytes>(test::number_in(text, "glake.physical_bytes"));
    CHECK_TEXT(whole + (kLimit - physical) < round_up(bytes, kGranule), test::last_error());
    for (size_t n = 0; n < 4 && !live_.empty(); ++n) free(dice_(0, live_.size() - 1));
  }

  void free(size_t i) {
    Live gone = live_[i];
    live_[i] = live_.back();
    live_.pop_back();
    Block& b = Process::instance().block(gone.ptr, false);
    CHECK(b.requested == gone.bytes);
    bytes_.remove(b);
    requested_ -= gone.bytes;
    allocated_ -= b.size;
    OK(glake_free(gone.ptr));
  }

  void check_identities() {
    const std::string text = test::stats();
    auto n = [&](const char* key) { return static_cast<Bytes>(test::number_in(text, key)); };
    CHECK(n("allocation.all.current") == live_.size());
    CHECK(n("requested_bytes.all.current") == requested_);
    CHECK(n("allocated_bytes.all.current") == allocated_);
    CHECK(n("allocated_bytes.all.peak") == peak_);
    CHECK(n("allocation.all.allocated") == allocations_);
    CHECK(n("allocation.all.freed") == allocations_ - live_.size());
    CHECK(n("allocated_bytes.small_pool.current") + n("allocated_bytes.large_pool.current") ==
          allocated_);
    Bytes physical = n("glake.physical_bytes"), free = n("glake.free_bytes");
    CHECK(n("reserved_bytes.all.current") == physical && physical <= kLimit);
    CHECK(n("segment.all.current") == 0);  // expandable segments are not counted
    CHECK(n("glake.whole_free_bytes") <= free);
    // The rest is in the thread's cache or waits for recorded streams.
    CHECK(free + allocated_ <= physical);
    CHECK(n("glake.live_blocks") >= live_.size());
    if (n("glake.live_blocks") == live_.size()) CHECK(free + allocated_ == physical);
    if (++checks_ % 64 == 0) {
      CHECK(static_cast<Bytes>(test::number_in(test::ledger(), "used_bytes")) == physical);
    }
  }

  test::Dice dice_;
  std::unique_ptr<test::CurrentContext> context_;
  CUstream streams_[kStreams] = {};
  std::vector<Live> live_;
  HomeBytes bytes_;
  Bytes requested_ = 0, allocated_ = 0, peak_ = 0, allocations_ = 0;
  uint64_t checks_ = 0;
  int ooms_ = 0;
};

int operations = 120000;

void drill(const char* policy, uint64_t seed) {
  test::running() = std::string(policy) + ", seed " + std::to_string(seed);
  Drill run(policy, seed);
  run.steps(operations / 4);
  run.finish();
}

TEST(balanced_first) { drill("balanced", 1); }
TEST(balanced_second) { drill("balanced", 2); }
TEST(compact_first) { drill("compact", 1); }
TEST(compact_second) { drill("compact", 2); }

}  // namespace

// An argument gives another number of operations than 120,000.
int main(int argc, char** argv) {
  operations = test::number_argument(argc, argv, operations);
  return test::run_cases(argc, argv);
}

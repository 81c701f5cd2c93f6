// Random programs of four and more streams run over a driver that tracks only the order of work
// (tests/order_driver). Every block is used from its first byte to its last as soon as it is
// allocated. The driver's vector clocks show that two blocks hold the same memory only if the
// earlier one was freed and its work comes first. They also show that nothing is unmapped under
// work that the host does not know to be finished.
#include <dlfcn.h>
#include <unistd.h>

#include "harness.h"
#include "tests/order_driver/order_driver.h"

namespace {

using test::kGranule;
using test::kKiB;
using test::kMiB;

constexpr uint64_t kGranules = 96;
constexpr int kSteps = 4000 / test::kSlowdown;
constexpr int kStep = 250;  // operations of one step, in programs that repeat a step
constexpr glake_pool kPool{4, 0};

// The driver's library, which lies beside this program.
std::string library() {
  char self[4096] = "";
  const ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
  CHECK(length > 0);
  const std::string path(self, static_cast<size_t>(length));
  return path.substr(0, path.rfind('/')) + "/liborder_driver.so";
}

const OrderDriver& driver() {
  static const OrderDriver* calls = [] {
    void* opened = dlopen(library().c_str(), RTLD_NOW | RTLD_LOCAL);
    CHECK_TEXT(opened != nullptr, dlerror());
    auto get = reinterpret_cast<const OrderDriver* (*)()>(dlsym(opened, "order_driver"));
    CHECK(get != nullptr);
    return get();
  }();
  return *calls;
}

// How many streams a program has, and whether it repeats the same step.
struct Shape {
  size_t streams = 4;
  bool repeats = false;
};

enum class Fault { kNone, kNoRecordStream, kNoWaits, kEmptyAnswers };

struct Block {
  uint64_t number;
  void* ptr;
  size_t bytes;
  size_t home;  // the stream it was allocated on
  uint64_t at() const { return reinterpret_cast<uint64_t>(ptr); }
};

class Program {
 public:
  Program(uint64_t seed, const char* policy, unsigned lag, Shape shape, Fault fault)
      : seed_(seed), dice_(seed), shape_(shape), fault_(fault), streams_(shape.streams) {
    test::running() = std::string("order, ") + policy + ", lag " + std::to_string(lag) + ", " +
                      std::to_string(shape.streams) + " streams, repeats " +
                      std::to_string(shape.repeats ? 1 : 0) + ", fault " +
                      std::to_string(static_cast<int>(fault)) + ", seed " + std::to_string(seed);
    driver().reset(kGranules, lag, seed);
    test::configure({{"driver", library()}, {"policy", policy}, {"limit", "160MiB"}});
    // Few views stay mapped, so that many are unmapped.
    test::configure({{"view_budget", dice_.chance(50) ? "1" : "3"}});
    for (uintptr_t& s : streams_) s = driver().stream();
    driver().break_waits(fault == Fault::kNoWaits ? 1 : 0);
    driver().break_queries(fault == Fault::kEmptyAnswers ? 1 : 0);
  }

  // Runs the program. Returns how many faults the driver found.
  uint64_t run() {
    for (int i = 0; i < kSteps; ++i) {
      step();
      if (i % 256 == 255) OK(glake_check(0));
      if (shape_.repeats && i % kStep == kStep - 1) {
        while (!blocks_.empty()) end(blocks_.size() - 1);
        dice_ = test::Dice(seed_);
      }
    }
    while (!blocks_.empty()) end(blocks_.size() - 1);
    OK(glake_check(0));
    stitches += test::stat("glake.stitches");
    evictions += test::stat("glake.evictions");
    extensions += test::stat("glake.view_extensions");
    repeats += test::stat("glake.repeats");
    crossings += driver().crossings();
    OK(glake_shutdown());
    char text[4096] = "";
    const uint64_t found = driver().found(text, sizeof text - 1);
    if (fault_ == Fault::kNone) {
      CHECK_TEXT(found == 0, text);
      CHECK(driver().left() == 0);
    }
    return found;
  }

  static inline int64_t stitches = 0, evictions = 0, extensions = 0, repeats = 0;
  static inline uint64_t crossings = 0;

 private:
  void step() {
    const uint64_t what = dice_(0, 99);
    if (what < 40) {
      allocate();
    } else if (what < 75) {
      if (!blocks_.empty()) end(dice_(0, blocks_.size() - 1));
    } else if (what < 95) {
      if (!blocks_.empty()) use(blocks_[dice_(0, blocks_.size() - 1)]);
    } else if (what < 97) {
      driver().order(any_stream(), any_stream());
    } else if (what < 98) {
      driver().wait(any_stream());
    } else if (what < 99) {
      OK(glake_empty_cache(0));
    } else if (fault_ == Fault::kNone) {
      OK(glake_pool_empty_cache(0, kPool));
    }
  }

  size_t any() { return dice_(0, streams_.size() - 1); }
  uintptr_t any_stream() { return streams_[any()]; }

  size_t any_size() {
    if (dice_.chance(30)) return dice_(1, kMiB);
    if (dice_.chance(70)) return dice_(1, 12) * kMiB + dice_(0, 1) * dice_(1, 2 * kMiB);
    return dice_(4, 24) * kGranule;
  }

  void allocate() {
    const size_t home = any();
    const size_t bytes = any_size();
    auto* stream = reinterpret_cast<void*>(streams_[home]);
    const bool pooled = dice_.chance(15);
    for (;;) {
      void* ptr =
          pooled ? glake_pool_malloc(bytes, 0, stream, kPool) : glake_malloc(bytes, 0, stream);
      if (ptr != nullptr) {
        blocks_.push_back({++last_, ptr, bytes, home});
        break;
      }
      CHECK(glake_last_error(nullptr, 0) == GLAKE_OUT_OF_MEMORY);
      if (blocks_.empty()) return;
      end(dice_(0, blocks_.size() - 1));
    }
    const Block& block = blocks_.back();
    driver().got(block.number, block.at(), bytes);
    driver().use(block.number, block.at(), bytes, streams_[home]);
  }

  // Uses the block on its own stream, or later on another one. Then the other stream is recorded,
  // or the own stream waits for it, as careful programs do.
  void use(Block& block) {
    const uintptr_t home = streams_[block.home];
    const size_t on = any();
    driver().order(streams_[on], home);
    driver().use(block.number, block.at(), block.bytes, streams_[on]);
    if (dice_.chance(50)) {
      driver().order(home, streams_[on]);
    } else if (fault_ != Fault::kNoRecordStream) {
      OK(glake_record_stream(block.ptr, reinterpret_cast<void*>(streams_[on])));
    }
  }

  void end(size_t i) {
    driver().gone(blocks_[i].number);
    OK(glake_free(blocks_[i].ptr));
    blocks_[i] = blocks_.back();
    blocks_.pop_back();
  }

  uint64_t seed_;
  test::Dice dice_;
  Shape shape_;
  Fault fault_;
  std::vector<uintptr_t> streams_;
  std::vector<Block> blocks_;
  uint64_t last_ = 0;
};

TEST(nothing_is_found) {
  uint64_t seed = 0;
  for (unsigned lag : {1U, 3U, 40U, 1000000U}) {
    for (const char* policy : {"balanced", "compact"}) {
      for (Shape shape : {Shape{}, Shape{4, true}, Shape{12, false}, Shape{12, true}}) {
        Program(++seed, policy, lag, shape, Fault::kNone).run();
      }
    }
  }
  const std::string told = std::to_string(Program::stitches) + " stitches, " +
                           std::to_string(Program::extensions) + " extensions, " +
                           std::to_string(Program::evictions) + " evictions, " +
                           std::to_string(Program::repeats) + " repeats, " +
                           std::to_string(Program::crossings) + " crossings";
  std::puts(told.c_str());
  CHECK_TEXT(Program::stitches > 100 && Program::extensions > 10 && Program::evictions > 100 &&
                 Program::repeats > 100 && Program::crossings > 100,
             told);
}

// Programs and drivers that break the rules are found out, so the driver does find faults.
TEST(what_is_wrong_is_found) {
  for (Fault fault : {Fault::kNoRecordStream, Fault::kNoWaits, Fault::kEmptyAnswers}) {
    CHECK(Program(90, "balanced", 40, {}, fault).run() > 0);
  }
}

}  // namespace

int main(int argc, char** argv) { return test::run_cases(argc, argv); }

// Work on four streams over blocks at a tight limit, on the driver itself with real memory: copies
// and fills, frees while work is pending, stitching and reuse across streams. Every 512 bytes of a
// block are known, and are read back at the end of its life. The simulator runs work as late as
// is legal, so unsafe reuse shows as foreign bytes. A negative control must show them.
// The program runs on a GPU too (tools/native.py --driver cuda).
#include <algorithm>
#include <memory>

#include "harness.h"

namespace {

using test::kMiB;
constexpr size_t kUnit = 512;
constexpr int kStreams = 4;

struct Block {
  void* ptr = nullptr;
  size_t units = 0;
  int stream = 0;               // the stream that it was allocated on
  std::vector<uint32_t> words;  // what each unit holds once all enqueued work is done
  CUevent last = nullptr;       // after the last work on it
  int last_stream = 0;
  CUdeviceptr at(size_t unit) const { return reinterpret_cast<CUdeviceptr>(ptr) + unit * kUnit; }
};

// A block's contents on their way to the host.
struct Readback {
  void* host = nullptr;
  std::vector<uint32_t> words;
};

struct Faults {
  bool forget_record_stream = false;
};

class Program {
 public:
  Program(uint64_t seed, const char* policy, Faults faults) : dice_(seed), faults_(faults) {
    test::fresh_simulator({{"memory", "64MiB"}, {"devices", "1"}, {"seed", std::to_string(seed)}});
    test::configure({{"driver", test::driver()}, {"policy", policy}, {"limit", "48MiB"}});
    context_ = std::make_unique<test::CurrentContext>();
    for (int i = 1; i < kStreams; ++i) CU(cuStreamCreate(&streams_[i], CU_STREAM_NON_BLOCKING));
  }

  // Returns how many units of 512 bytes came back with wrong bytes.
  int64_t run(int steps) {
    for (int i = 0; i < steps; ++i) {
      switch (dice_(0, 9)) {
        case 0:
        case 1:
        case 2:
          allocate();
          break;
        case 3:
        case 4:
          end(pick());
          break;
        case 5:
        case 6:
          fill(pick());
          break;
        default:
          copy(pick(), pick());
      }
      if (i % 64 == 63) OK(glake_check(0));
      if (readbacks_.size() >= 24) collect();
    }
    while (!blocks_.empty()) end(blocks_.size() - 1);
    collect();
    return finish();
  }

  int64_t crossings = 0, stitches = 0, waits = 0, lives = 0;
  std::string found;

 private:
  size_t pick() { return blocks_.empty() ? 0 : dice_(0, blocks_.size() - 1); }

  void allocate() {
    int on = static_cast<int>(dice_(0, kStreams - 1));
    size_t bytes = dice_.chance(25) ? dice_(1, kMiB)
                                    : dice_(1, dice_.chance(20) ? 17 : 6) * kMiB -
                                          dice_(0, 1) * dice_(1, kMiB - 1);
    void* ptr = glake_malloc(bytes, 0, streams_[on]);
    while (ptr == nullptr) {
      CHECK(glake_last_error(nullptr, 0) == GLAKE_OUT_OF_MEMORY);
      if (blocks_.empty()) return;
      end(pick());
      ptr = glake_malloc(bytes, 0, streams_[on]);
    }
    auto block = std::make_unique<Block>();
    block->ptr = ptr;
    block->units = (bytes + kUnit - 1) / kUnit;
    block->stream = block->last_stream = on;
    block->words.resize(block->units);
    CU(cuEventCreate(&block->last, CU_EVENT_DISABLE_TIMING));
    blocks_.push_back(std::move(block));
    write(*blocks_.back(), on, 0, blocks_.back()->units);
    ++lives;
  }

  // Orders this stream's next work after the block's last work, as the user must, and tells glake.
  void enter(Block& block, int on) {
    if (block.last_stream != on) CU(cuStreamWaitEvent(streams_[on], block.last, 0));
    if (on != block.stream && !faults_.forget_record_stream) {
      OK(glake_record_stream(block.ptr, streams_[on]));
    }
  }
  void leave(Block& block, int on) {
    CU(cuEventRecord(block.last, streams_[on]));
    block.last_stream = on;
  }

  void write(Block& block, int on, size_t unit, size_t units) {
    uint32_t word = ++stamp_;
    if (unit != 0 || units != block.units || on != block.stream) enter(block, on);
    CU(cuMemsetD32Async(block.at(unit), word, units * kUnit / 4, streams_[on]));
    leave(block, on);
    std::fill_n(block.words.begin() + static_cast<std::ptrdiff_t>(unit), units, word);
  }

  void fill(size_t i) {
    if (blocks_.empty()) return;
    Block& b = *blocks_[i];
    size_t unit = dice_(0, b.units - 1);
    write(b, static_cast<int>(dice_(0, kStreams - 1)), unit, dice_(1, b.units - unit));
  }

  void copy(size_t from, size_t to) {
    if (blocks_.empty() || from == to) return;
    Block& a = *blocks_[from];
    Block& b = *blocks_[to];
    int on = static_cast<int>(dice_(0, kStreams - 1));
    size_t units = dice_(1, std::min(a.units, b.units));
    size_t source = dice_(0, a.units - units), target = dice_(0, b.units - units);
    enter(a, on);
    enter(b, on);
    CU(cuMemcpyDtoDAsync(b.at(target), a.at(source), units * kUnit, streams_[on]));
    leave(a, on);
    leave(b, on);
    std::copy_n(a.words.begin() + static_cast<std::ptrdiff_t>(source), units,
                b.words.begin() + static_cast<std::ptrdiff_t>(target));
  }

  // Enqueues the copy back to the host, and frees the block at once.
  void end(size_t i) {
    if (blocks_.empty()) return;
    std::unique_ptr<Block> block = std::move(blocks_[i]);
    blocks_[i] = std::move(blocks_.back());
    blocks_.pop_back();
    int on = dice_.chance(50) ? block->stream : static_cast<int>(dice_(0, kStreams - 1));
    Readback back;
    CU(cuMemHostAlloc(&back.host, block->units * kUnit, 0));
    enter(*block, on);
    CU(cuMemcpyDtoHAsync(back.host, block->at(0), block->units * kUnit, streams_[on]));
    OK(glake_free(block->ptr));
    CU(cuEventDestroy(block->last));
    back.words = std::move(block->words);
    readbacks_.push_back(std::move(back));
  }

  void collect() {
    // Waits for one stream at a time. The others' work stays pending as long as is legal.
    for (int i = 0; i < kStreams; ++i) CU(cuStreamSynchronize(streams_[dice_.chance(50) ? i : 0]));
    for (CUstream s : streams_) CU(cuStreamSynchronize(s));
    for (Readback& back : readbacks_) {
      const auto* words = static_cast<const uint32_t*>(back.host);
      for (size_t u = 0; u < back.words.size(); ++u, words += kUnit / 4) {
        bool same = true;
        for (size_t w = 0; w < kUnit / 4; ++w) same = same && words[w] == back.words[u];
        foreign_ += !same;
      }
      CU(cuMemFreeHost(back.host));
    }
    readbacks_.clear();
  }

  int64_t finish() {
    const std::string text = test::stats();
    crossings = test::number_in(text, "glake.cross_stream_hits");
    stitches = test::number_in(text, "glake.stitches");
    waits = test::number_in(text, "glake.stream_waits");
    OK(glake_check(0));
    test::check_books({});
    OK(glake_shutdown());
    for (int i = 1; i < kStreams; ++i) test::end_stream(streams_[i]);
    found = test::violations();
    context_.reset();
    if (!faults_.forget_record_stream) test::check_nothing_left();
    return foreign_;
  }

  test::Dice dice_;
  Faults faults_;
  std::unique_ptr<test::CurrentContext> context_;
  CUstream streams_[kStreams] = {};
  std::vector<std::unique_ptr<Block>> blocks_;
  std::vector<Readback> readbacks_;
  uint32_t stamp_ = 0;
  int64_t foreign_ = 0;
};

TEST(all_bytes_are_right) {
  for (uint64_t seed = 1; seed <= (test::kSlowdown == 1 ? 3 : 1); ++seed) {
    for (const char* policy : {"balanced", "compact"}) {
      test::running() = "seed " + std::to_string(seed) + ", " + policy;
      Program program(seed, policy, {});
      int64_t foreign = program.run(test::kSlowdown == 1 ? 700 : 300);
      CHECK_TEXT(foreign == 0, std::to_string(foreign) + " units with foreign bytes");
      std::printf("seed %d %s: %d blocks, %d stitches, %d crossings, %d waits\n",
                  static_cast<int>(seed), policy, static_cast<int>(program.lives),
                  static_cast<int>(program.stitches), static_cast<int>(program.crossings),
                  static_cast<int>(program.waits));
      CHECK(program.lives > 40 && program.stitches > 3);
      CHECK(program.waits > 5 || !test::simulated());  // a GPU may be done before anyone asks
    }
  }
}

// The same program does not say which streams use a block. Some seed must show foreign bytes.
void forgetting_shows() {
  int64_t foreign = 0;
  for (uint64_t seed = 1; seed <= 3 && foreign == 0; ++seed) {
    test::running() = "negative control, seed " + std::to_string(seed);
    Program program(seed, "balanced", {true});
    foreign = program.run(600);
    if (program.found != "[]") ++foreign;
  }
  CHECK(foreign > 0);
}

TEST(what_forgets_a_stream_shows) {
  if (test::simulated()) forgetting_shows();  // a GPU may get away with it
}

}  // namespace

int main(int argc, char** argv) { return test::run_cases(argc, argv); }

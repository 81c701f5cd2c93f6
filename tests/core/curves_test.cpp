// Work grows at most with the logarithm of how many blocks, views or streams there are. The tests
// count work; benchmarks/allocator/curves.py takes times.
#include <memory>

#include "harness.h"
#include "memory/block.h"

namespace {

using test::kGranule;
using test::kKiB;
using test::kMiB;

class Fixture {
 public:
  Fixture(const char* what, const char* policy, const char* complete_after, int streams = 1) {
    test::running() = what;
    test::fresh_simulator({{"memory", "256GiB"},
                           {"devices", "1"},
                           {"phantom", "1"},
                           {"complete_after", complete_after}});
    test::configure({{"driver", "sim"}, {"policy", policy}});
    context_ = std::make_unique<test::CurrentContext>();
    s.resize(static_cast<size_t>(streams));
    for (CUstream& stream : s) CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  }
  ~Fixture() {
    for (void* ptr : held) OK(glake_free(ptr));
    OK(glake_check(0));
    OK(glake_shutdown());
    for (CUstream stream : s) test::end_stream(stream);
    context_.reset();
    test::configure({{"policy", "balanced"}});
    test::check_nothing_left();
  }
  void* get(size_t bytes, CUstream stream = nullptr) {
    void* ptr = glake_malloc(bytes, 0, stream);
    CHECK(ptr != nullptr);
    return ptr;
  }
  std::vector<CUstream> s;
  std::vector<void*> held;

 private:
  std::unique_ptr<test::CurrentContext> context_;
};

// How many extents are looked at for a request among `count` free pieces of its size class, all too
// small.
int64_t among_pieces(int count) {
  Fixture f("a request among pieces too small", "balanced", "0");
  constexpr size_t kPiece = kMiB + 512;
  std::vector<void*> pieces;
  for (int i = 0; i < count; ++i) {
    pieces.push_back(f.get(kPiece));
    f.held.push_back(f.get(kPiece));
  }
  for (void* ptr : pieces) OK(glake_free(ptr));
  f.held.push_back(f.get(kPiece + 512));
  const int64_t before = test::stat("glake.extents_walked");
  f.held.push_back(f.get(kPiece + 512));
  return test::stat("glake.extents_walked") - before;
}

// How many extents are looked at to stitch a view of four granules, among `count` free extents of
// one granule each.
int64_t among_extents(int count) {
  Fixture f("stitching among extents", "compact", "0");
  std::vector<void*> free;
  for (int i = 0; i < count; ++i) {
    free.push_back(f.get(kGranule));
    f.held.push_back(f.get(kGranule));
  }
  for (void* ptr : free) OK(glake_free(ptr));
  const int64_t before = test::stat("glake.extents_walked");
  f.held.push_back(f.get(4 * kGranule));
  CHECK(test::stat("glake.stitches") == 1);
  return test::stat("glake.extents_walked") - before;
}

// How many views are looked at for a block of a new size, after `count` other sizes.
int64_t among_views(int count) {
  Fixture f("views of every size", "compact", "0");
  std::vector<void*> free;
  for (int i = 0; i < 512; ++i) {
    free.push_back(f.get(kGranule));
    f.held.push_back(f.get(kGranule));
  }
  for (void* ptr : free) OK(glake_free(ptr));
  // Two blocks are live at a time, so that neither is served by a view of the other's granules.
  for (int i = 0; i < count; ++i) {
    void* a = f.get(static_cast<size_t>(2 + i * 37 % 241) * kGranule);
    void* b = f.get(static_cast<size_t>(2 + i * 53 % 239) * kGranule);
    OK(glake_free(i % 2 ? a : b));
    OK(glake_free(i % 2 ? b : a));
  }
  const int64_t before = test::stat("glake.views_walked");
  f.held.push_back(f.get(500 * kGranule));
  return test::stat("glake.views_walked") - before;
}

int64_t stream_calls() {
  int64_t sum = 0;
  for (const char* symbol : {"cuEventRecord", "cuEventQuery", "cuStreamQuery", "cuStreamGetId",
                             "cuStreamIsCapturing", "cuStreamWaitEvent"}) {
    sum += simcuda_calls(symbol);
  }
  return sum;
}

// Driver calls about streams and events for each allocation, on `count` streams whose work never
// ends.
double among_streams(int count) {
  Fixture f("streams whose work never ends", "balanced", "-1", count);
  auto turn = [&](int i) {
    CUstream stream = f.s[static_cast<size_t>(i % count)];
    void* large = f.get(static_cast<size_t>(2 + i % 5) * kMiB, stream);
    OK(glake_free(f.get(64 * kKiB, stream)));
    OK(glake_free(large));
  };
  for (int i = 0; i < 4 * count; ++i) turn(i);
  const int64_t before = stream_calls();
  for (int i = 0; i < 4 * count; ++i) turn(i);
  return static_cast<double>(stream_calls() - before) / (8 * count);
}

// Driver calls about streams and events where `count` streams reuse the memory they freed.
int64_t own_memory(int count) {
  Fixture f("streams that reuse their own memory", "balanced", "-1", count);
  std::vector<void*> blocks;
  for (CUstream stream : f.s) {
    blocks.push_back(f.get(2 * kGranule, stream));
    f.held.push_back(f.get(kGranule, stream));  // this block lies between the memory of two streams
  }
  for (void* ptr : blocks) OK(glake_free(ptr));
  const int64_t before = stream_calls();
  for (int i = 0; i < 20 * count; ++i) {
    CUstream stream = f.s[static_cast<size_t>(i % count)];
    void* large = f.get(2 * kGranule, stream);
    OK(glake_free(f.get(64 * kKiB, stream)));
    OK(glake_free(large));
  }
  return stream_calls() - before;
}

// A side stream used a block, which was then freed. Its own stream gets it again once the device
// has been synchronised, although nobody tells glake of that.
TEST(freed_after_recording) {
  Fixture f("a recorded block after a synchronisation", "balanced", "-1", 2);
  void* first = f.get(8 * kMiB, f.s[0]);
  CU(cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(first), 0, 1, f.s[1]));
  OK(glake_record_stream(first, f.s[1]));
  OK(glake_free(first));
  const int64_t held = test::stat("reserved_bytes.all.current");
  void* second = f.get(8 * kMiB, f.s[0]);
  CHECK(second != first && test::stat("reserved_bytes.all.current") > held);
  f.held.push_back(second);
  CU(cuCtxSynchronize());
  f.held.push_back(f.get(8 * kMiB, f.s[0]));
  CHECK(f.held.back() == first);
}

template <typename Value>
void at_most(const char* what, int n, Value cost, Value most) {
  std::printf("%s, %d: %s\n", what, n, std::to_string(cost).c_str());
  CHECK_TEXT(cost <= most, std::string(what) + " " + std::to_string(cost));
}

TEST(extents) {
  for (int n : {1000, 8000}) {
    at_most<int64_t>("extents looked at among pieces", n, among_pieces(n), 500);
    at_most<int64_t>("extents looked at among free extents", n, among_extents(n), 500);
  }
}

TEST(views) {
  for (int n : {50, 400}) at_most<int64_t>("views looked at", n, among_views(n), 3 * 128);
}

TEST(streams) {
  for (int n : {4, 64}) at_most("driver calls among streams", n, among_streams(n), 24.0);
  for (int n : {2, 16}) at_most<int64_t>("driver calls for own memory", n, own_memory(n), 0);
}

TEST(records) {
  at_most<size_t>("bytes of the records", 1, sizeof(glake::Block) + sizeof(glake::Span), 192);
}

}  // namespace

int main(int argc, char** argv) { return test::run_cases(argc, argv); }

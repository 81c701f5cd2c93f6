// While a graph is captured, pools grow and are reused on their own stream alone. No thread makes a
// call that would break the capture. Captured memory stays.
#include <algorithm>
#include <memory>
#include <thread>

#include "harness.h"

namespace {

using test::kGranule;
using test::kKiB;
using test::kMiB;

constexpr glake_pool kPool{1, 0};

class Fixture {
 public:
  explicit Fixture(const char* what, const char* limit = "64MiB",
                   unsigned flags = CU_STREAM_NON_BLOCKING, const test::Options& more = {}) {
    test::running() = what;
    test::Options options{{"memory", "128MiB"}, {"devices", "1"}};
    options.insert(options.end(), more.begin(), more.end());
    test::fresh_simulator(options);
    test::configure({{"driver", "sim"}, {"limit", limit}});
    context_ = std::make_unique<test::CurrentContext>();
    for (CUstream& stream : s) CU(cuStreamCreate(&stream, flags));
  }
  ~Fixture() {
    OK(glake_check(0));
    OK(glake_shutdown());
    for (CUstream stream : s) test::end_stream(stream);
    context_.reset();
    test::check_nothing_left();
  }
  void begin() { CU(cuStreamBeginCapture(s[0], CU_STREAM_CAPTURE_MODE_GLOBAL)); }
  // Ends the capture, and checks that nothing has broken it.
  void end() {
    CUgraph graph = nullptr;
    CU(cuStreamEndCapture(s[0], &graph));
    CU(cuGraphDestroy(graph));
  }
  CUstream s[3] = {};

 private:
  std::unique_ptr<test::CurrentContext> context_;
};

void* get(size_t bytes, CUstream stream, glake_pool pool = kPool) {
  void* ptr = glake_pool_malloc(bytes, 0, stream, pool);
  CHECK(ptr != nullptr);
  return ptr;
}
void* own(size_t bytes, CUstream stream) {
  void* ptr = glake_malloc(bytes, 0, stream);
  CHECK(ptr != nullptr);
  return ptr;
}
void fill(void* ptr, size_t bytes, CUstream stream) {
  CU(cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(ptr), 1, bytes, stream));
}

TEST(reuse_on_the_same_stream_only) {
  Fixture f("reuse on the same stream only");
  OK(glake_pool_retain(0, kPool));
  OK(glake_free(own(kMiB, f.s[1])));
  f.begin();
  void* a = get(6 * kMiB, f.s[0]);
  void* b = get(4 * kMiB, f.s[0]);
  void* small = get(1000, f.s[0]);
  OK(glake_free(a));
  OK(glake_free(small));
  CHECK(get(6 * kMiB, f.s[0]) == a && get(1000, f.s[0]) == small);
  OK(glake_free(a));
  CHECK(get(6 * kMiB, f.s[1]) != a);
  f.end();
  // Another stream gets none of this memory, even when its work is complete, because the graph may
  // be replayed.
  CU(cuCtxSynchronize());
  OK(glake_empty_cache(0));
  void* c = get(6 * kMiB, f.s[2]);
  CHECK(c != a);
  CHECK(get(6 * kMiB, f.s[0]) == a);
  for (void* ptr : {a, b, c, small}) OK(glake_free(ptr));
  OK(glake_pool_release(0, kPool));
  // 6 MiB of the second stream are still live.
  GIVES(GLAKE_INVALID_ARGUMENT, glake_shutdown());
  CHECK(test::stat("allocation.all.current") == 1);
  glake_checkpoint* rest = glake_pool_checkpoint(0, kPool);
  OK(glake_pool_restore(rest, nullptr, nullptr,
                        [](void*, void* ptr, size_t, void*) { OK(glake_free(ptr)); }));
  glake_checkpoint_free(rest);
}

TEST(recorded_blocks_wait_for_the_end) {
  Fixture f("recorded blocks wait for the end");
  OK(glake_pool_retain(0, kPool));
  f.begin();
  void* a = get(6 * kMiB, f.s[0]);
  OK(glake_record_stream(a, f.s[1]));
  OK(glake_free(a));
  void* b = get(6 * kMiB, f.s[0]);
  CHECK(b != a);
  OK(glake_check(0));
  f.end();
  CHECK(get(6 * kMiB, f.s[0]) == a);
  OK(glake_free(a));
  CHECK(get(6 * kMiB, f.s[1]) != a);  // only its own stream may have it
  OK(glake_check(0));
  OK(glake_pool_release(0, kPool));
  glake_checkpoint* rest = glake_pool_checkpoint(0, kPool);
  OK(glake_pool_restore(rest, nullptr, nullptr,
                        [](void*, void* ptr, size_t, void*) { OK(glake_free(ptr)); }));
  glake_checkpoint_free(rest);
}

// On a captured stream a mark would become part of the graph and never complete, and a query would
// end the capture. So glake asks about memory that was freed there only after the capture.
TEST(captured_streams_are_not_marked) {
  Fixture f("captured streams are not marked");
  void* b = own(3 * kMiB, f.s[1]);
  void* a = own(3 * kMiB, f.s[0]);
  f.begin();
  OK(glake_free(a));
  const int64_t records = simcuda_calls("cuEventRecord");
  OK(glake_free(b));
  void* c = own(9 * kMiB, f.s[1]);
  CHECK(c != a && simcuda_calls("cuEventRecord") == records);
  f.end();
  CU(cuCtxSynchronize());
  void* d = own(3 * kMiB, f.s[2]);
  void* e = own(3 * kMiB, f.s[2]);
  CHECK(std::min(d, e) == std::min(a, b) && std::max(d, e) == std::max(a, b));
  for (void* ptr : {c, d, e}) OK(glake_free(ptr));
}

// Does all that allocation may do while a capture in the strictest mode is under way.
void allocate_everything(Fixture& f) {
  std::vector<void*> blocks;
  for (int i = 0; i < 8; ++i) {
    blocks.push_back(own(4 * kMiB, i % 2 == 0 ? nullptr : f.s[1]));
    fill(blocks.back(), 4 * kMiB, i % 2 == 0 ? nullptr : f.s[1]);
  }
  for (size_t i = 0; i < blocks.size(); i += 2) OK(glake_free(blocks[i]));
  void* stitched = own(14 * kMiB, f.s[1]);  // across streams, out of holes
  OK(glake_free(stitched));
  CHECK(glake_malloc(60 * kMiB, 0, f.s[2]) == nullptr);
  CHECK(glake_last_error(nullptr, 0) == GLAKE_OUT_OF_MEMORY);
  OK(glake_empty_cache(0));
  for (size_t i = 1; i < blocks.size(); i += 2) OK(glake_free(blocks[i]));
  OK(glake_free(own(700 * kKiB, f.s[2])));
  OK(glake_empty_cache(0));
  OK(glake_check(0));
}

void others_go_on(unsigned flags, bool other_thread) {
  Fixture f(flags == CU_STREAM_DEFAULT ? "others go on, blocking streams" : "others go on", "40MiB",
            flags);
  OK(glake_pool_retain(0, kPool));
  for (CUstream s : f.s) OK(glake_free(own(3 * kMiB, s)));
  OK(glake_free(own(3 * kMiB, nullptr)));
  void* captured = nullptr;
  f.begin();
  int64_t syncs = simcuda_calls("cuCtxSynchronize");
  captured = get(6 * kMiB, f.s[0]);
  if (other_thread) {
    std::thread([&f] {
      test::CurrentContext context;
      // While a blocking stream is captured, no work may be enqueued on the legacy stream.
      unsigned kind = 0;
      CU(cuStreamGetFlags(f.s[0], &kind));
      if (kind == CU_STREAM_NON_BLOCKING) {
        allocate_everything(f);
      } else {
        void* a = own(3 * kMiB, nullptr);
        void* b = own(3 * kMiB, f.s[1]);
        OK(glake_free(a));
        OK(glake_free(b));
        OK(glake_free(own(20 * kMiB, f.s[2])));
        OK(glake_free(own(20 * kMiB, nullptr)));
      }
    }).join();
  } else {
    allocate_everything(f);
  }
  CHECK(simcuda_calls("cuCtxSynchronize") == syncs);
  OK(glake_free(captured));
  f.end();
  CHECK_TEXT(test::violations() == "[]", test::violations());
  OK(glake_pool_release(0, kPool));
}

// Room for a pool in a capture comes from idle memory whose work is done; no stream is waited for.
TEST(growth_at_the_limit) {
  Fixture f("growth at the limit", "16MiB");
  OK(glake_pool_retain(0, kPool));
  void* a = own(8 * kMiB, f.s[1]);
  void* b = own(8 * kMiB, f.s[2]);
  fill(a, 8 * kMiB, f.s[1]);
  OK(glake_free(a));
  OK(glake_free(b));
  CU(cuCtxSynchronize());
  OK(glake_free(own(1000, nullptr)));
  f.begin();
  int64_t syncs = simcuda_calls("cuCtxSynchronize");
  void* p = get(12 * kMiB, f.s[0]);
  CHECK(simcuda_calls("cuCtxSynchronize") == syncs);
  f.end();
  CHECK(test::stat("glake.pool.1.0.reserved_bytes") == static_cast<int64_t>(12 * kMiB));
  CHECK_TEXT(test::violations() == "[]", test::violations());
  OK(glake_free(p));
  OK(glake_pool_release(0, kPool));
}

// Before a request in a capture is refused, glake waits for work on streams that are not captured,
// and takes the memory that this work used. The three requests are for the captured pool, for
// another pool, and for a contiguous block.
TEST(a_capture_waits_for_other_streams_before_it_fails) {
  const auto mine = [](CUstream s) { return glake_pool_malloc(40 * kMiB, 0, s, kPool); };
  const auto others = [](CUstream s) {
    return glake_pool_malloc(40 * kMiB, 0, s, glake_pool{2, 0});
  };
  const auto whole = [](CUstream) {
    return glake_malloc_contiguous(40 * kMiB, 0, nullptr, GLAKE_CONTIGUOUS_VMM);
  };
  for (void* (*ask)(CUstream) : {+mine, +others, +whole}) {
    for (const bool works : {false, true}) {
      Fixture f("a capture waits for other streams before it fails", "100%", CU_STREAM_NON_BLOCKING,
                {{"memory", "96MiB"}});
      OK(glake_pool_retain(0, kPool));
      void* freed = own(60 * kMiB, nullptr);
      f.begin();
      void* captured = get(10 * kMiB, f.s[0]);
      if (works) fill(freed, 60 * kMiB, nullptr);
      OK(glake_free(freed));
      const int64_t syncs = simcuda_calls("cuCtxSynchronize");
      void* p = ask(f.s[0]);
      CHECK_TEXT(p != nullptr, test::last_error());
      CHECK(simcuda_calls("cuCtxSynchronize") == syncs);
      f.end();
      CHECK_TEXT(test::violations() == "[]", test::violations());
      for (void* block : {p, captured}) OK(glake_free(block));
      OK(glake_pool_release(0, kPool));
    }
  }
}

// glake cannot wait for memory that was freed on a stream under capture. Memory of other streams
// serves requests, and the message counts only that memory.
TEST(what_cannot_be_waited_for_is_left_out) {
  Fixture f("what cannot be waited for is left out", "24MiB");
  void* mine = own(12 * kMiB, f.s[0]);
  void* parts[3];
  for (void*& part : parts) part = own(4 * kMiB, f.s[1]);
  f.begin();
  OK(glake_free(mine));
  for (void* part : {parts[0], parts[2]}) {
    fill(part, 4 * kMiB, f.s[1]);
    OK(glake_free(part));
  }
  CHECK(glake_malloc(10 * kMiB, 0, f.s[2]) == nullptr);
  const std::string text = test::last_error();
  CHECK_TEXT(text.find("largest fit now 8.00 MiB") != std::string::npos &&
                 text.find("on a stream that is being captured") != std::string::npos,
             text);
  void* both = own(8 * kMiB, f.s[2]);
  f.end();
  CHECK_TEXT(test::violations() == "[]", test::violations());
  for (void* block : {both, parts[1], own(12 * kMiB, f.s[2])}) OK(glake_free(block));
}

TEST(captured_memory_stays) {
  Fixture f("captured memory stays", "32MiB");
  OK(glake_pool_retain(0, kPool));
  f.begin();
  std::vector<void*> blocks;
  for (int i = 0; i < 6; ++i) blocks.push_back(get(4 * kMiB, f.s[0]));
  for (size_t i = 0; i < blocks.size(); i += 2) OK(glake_free(blocks[i]));
  void* stitched = get(12 * kMiB, f.s[0]);  // a view
  OK(glake_free(stitched));
  f.end();
  for (size_t i = 1; i < blocks.size(); i += 2) OK(glake_free(blocks[i]));
  int64_t unmaps = simcuda_calls("cuMemUnmap");
  OK(glake_pool_set_flags(0, kPool, GLAKE_POOL_USE_ON_OOM));
  OK(glake_empty_cache(0));
  OK(glake_pool_empty_cache(0, kPool));
  for (CUstream s : f.s) {  // nor lent, as a replay would overwrite it
    CHECK(s == f.s[0] || glake_pool_malloc(12 * kMiB, 0, s, kPool) == nullptr);
    CHECK(glake_malloc(20 * kMiB, 0, s) == nullptr);
  }
  CHECK_TEXT(test::last_error().find("kept for CUDA graphs") != std::string::npos,
             test::last_error());
  CHECK(glake_pool_malloc(20 * kMiB, 0, f.s[1], {9, 9}) == nullptr);
  CHECK(simcuda_calls("cuMemUnmap") == unmaps);
  // A replay, here on another stream, is still under way when the last user leaves.
  fill(stitched, 12 * kMiB, f.s[2]);
  OK(glake_pool_release(0, kPool));
  void* own_block = own(20 * kMiB, f.s[1]);
  CHECK(simcuda_calls("cuMemUnmap") > unmaps);
  CHECK_TEXT(test::violations() == "[]", test::violations());
  OK(glake_free(own_block));
}

// The message counts only memory that the stream may have, and its advice holds.
void the_message_knows_streams(const char* limit) {
  Fixture f("the message knows streams", limit);
  OK(glake_pool_retain(0, kPool));
  f.begin();
  void* whole = get(20 * kMiB, f.s[0]);
  void* part = get(3 * kMiB, f.s[0]);
  OK(glake_free(whole));
  f.end();
  void* p = glake_pool_malloc(12 * kMiB, 0, f.s[1], kPool);
  if (std::string(limit) == "32MiB") {
    const std::string text = test::last_error();
    for (const char* says :
         {"idle 21.00 MiB: 20.00 MiB in whole granules", "20.00 MiB of it is kept for CUDA graphs",
          "largest fit now 9.00 MiB", "Raising GLAKE_LIMIT by 4.00 MiB would let"}) {
      CHECK_TEXT(p == nullptr && text.find(says) != std::string::npos, text);
    }
    p = get(9 * kMiB, f.s[1]);
  }
  CHECK(p != nullptr);
  for (void* block : {p, part, get(20 * kMiB, f.s[0])}) OK(glake_free(block));
  OK(glake_pool_release(0, kPool));
}

// A captured pool borrows nothing. The lender could get the bytes back while the graph may still be
// replayed.
TEST(a_graph_borrows_nothing) {
  Fixture f("a graph borrows nothing", "16MiB");
  constexpr glake_pool kLender{2, 0};
  OK(glake_pool_retain(0, kPool));
  OK(glake_pool_retain(0, kLender));
  OK(glake_pool_set_flags(0, kLender, GLAKE_POOL_USE_ON_OOM));
  OK(glake_free(get(12 * kMiB, f.s[0], kLender)));
  f.begin();
  void* a = get(2 * kMiB, f.s[0]);
  CHECK(glake_pool_malloc(8 * kMiB, 0, f.s[0], kPool) == nullptr);
  CHECK(glake_last_error(nullptr, 0) == GLAKE_OUT_OF_MEMORY);
  f.end();
  void* lent = own(8 * kMiB, f.s[0]);  // the device's own heap may borrow
  OK(glake_free(lent));
  OK(glake_free(a));
  OK(glake_pool_release(0, kLender));
  OK(glake_pool_release(0, kPool));
}

// A captured pool gets a new user before any other request needs its memory.
TEST(a_pool_used_again) {
  Fixture f("a pool used again");
  OK(glake_pool_retain(0, kPool));
  f.begin();
  void* a = get(6 * kMiB, f.s[0]);
  OK(glake_free(a));
  f.end();
  OK(glake_pool_release(0, kPool));
  OK(glake_pool_retain(0, kPool));
  CHECK(get(6 * kMiB, f.s[1]) != a);
  CHECK(get(6 * kMiB, f.s[0]) == a);
  GIVES(GLAKE_INVALID_ARGUMENT, glake_shutdown());
  OK(glake_pool_release(0, kPool));
  glake_checkpoint* rest = glake_pool_checkpoint(0, kPool);
  OK(glake_pool_restore(rest, nullptr, nullptr,
                        [](void*, void* ptr, size_t, void*) { OK(glake_free(ptr)); }));
  glake_checkpoint_free(rest);
}

// Once the driver has said that a stream is gone, glake does not ask about it again. A new stream
// may have the same handle. Memory of a capture on the new stream counts as captured, even if glake
// knows no other stream.
TEST(a_new_stream_with_an_old_handle) {
  Fixture f("a new stream with an old handle", "64MiB", CU_STREAM_NON_BLOCKING,
            {{"reuse_handles", "1"}});
  OK(glake_pool_retain(0, kPool));
  OK(glake_free(own(4 * kMiB, f.s[0])));
  const CUstream before = f.s[0];
  test::end_stream(before);
  OK(glake_empty_cache(0));  // asks about the stream, and learns that it is gone
  CU(cuStreamCreate(&f.s[0], CU_STREAM_NON_BLOCKING));
  CHECK(f.s[0] == before);
  f.begin();
  void* a = get(6 * kMiB, f.s[0]);
  OK(glake_free(a));
  f.end();
  CU(cuCtxSynchronize());
  OK(glake_empty_cache(0));
  void* b = get(6 * kMiB, f.s[1]);
  CHECK_TEXT(b != a, "the graph may be replayed at any time");
  OK(glake_free(b));
  OK(glake_pool_release(0, kPool));
}

// A freed block of a captured pool was recorded on a stream that has been destroyed since. As soon
// as the pool has no user, the block is free, and the next request gets its memory.
TEST(what_waited_for_a_graph_is_given_at_once) {
  Fixture f("what waited for a graph is given at once", "32MiB");
  OK(glake_pool_retain(0, kPool));
  f.begin();
  void* a = get(30 * kMiB, f.s[0]);
  OK(glake_record_stream(a, f.s[1]));
  OK(glake_free(a));
  f.end();
  test::end_stream(f.s[1]);
  OK(glake_pool_release(0, kPool));
  OK(glake_free(own(30 * kMiB, f.s[0])));
  CU(cuStreamCreate(&f.s[1], CU_STREAM_NON_BLOCKING));
}

// A captured pool had the flag NO_SPLIT. Its next user, without the flag, gets the blocks in parts.
TEST(whole_blocks_outlive_their_rule) {
  Fixture f("whole blocks outlive their rule", "8MiB");
  OK(glake_pool_retain(0, kPool));
  OK(glake_pool_set_flags(0, kPool, GLAKE_POOL_NO_SPLIT));
  f.begin();
  void* big = get(8 * kMiB, f.s[0]);
  f.end();
  OK(glake_free(big));
  OK(glake_pool_release(0, kPool));  // its last user; a graph may still be replayed
  OK(glake_pool_retain(0, kPool));   // with no flags, as a new pool
  void* first = get(4 * kMiB, f.s[0]);
  void* second = get(4 * kMiB, f.s[0]);
  OK(glake_free(first));
  OK(glake_free(second));
  OK(glake_pool_release(0, kPool));
}

TEST(non_blocking_streams_go_on) { others_go_on(CU_STREAM_NON_BLOCKING, false); }
TEST(non_blocking_streams_go_on_recorded) { others_go_on(CU_STREAM_NON_BLOCKING, true); }
TEST(default_streams_go_on_recorded) { others_go_on(CU_STREAM_DEFAULT, true); }
TEST(the_message_knows_streams_at_32_mib) { the_message_knows_streams("32MiB"); }
TEST(the_message_knows_streams_at_36_mib) { the_message_knows_streams("36MiB"); }

}  // namespace

int main(int argc, char** argv) { return test::run_cases(argc, argv); }

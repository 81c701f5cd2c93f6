// Copies that fail, stall, slow down or die. Each byte lands once, over another path. The faulty
// path rests, and is used again later. If no path is left, the error says what the destination
// holds. Every driver call fails in turn, and nothing is left behind.
#include <algorithm>

#include "plan/topology.h"
#include "transfer_play.h"

using test::await_settled;
using test::Buffer;
using test::Call;
using test::kMiB;
using test::kPinned;
using test::Node;

namespace {

constexpr size_t kBytes = 48 * kMiB;

struct Pair {
  Buffer dst, src;
  Pair(int to, int from, size_t bytes = kBytes) : dst(to, bytes), src(from, bytes) {
    dst.fill(1);
    src.fill(2);
    CHECK(simcuda_watch_landings(dst.at(), bytes) == 0);
  }
  ~Pair() { CHECK(simcuda_watch_landings(0, 0) == 0); }
  uint64_t start() { return Call(dst, 0, src, 0, dst.bytes()).start(); }
  void check_once() {
    CHECK_TEXT(simcuda_landed(dst.at(), dst.bytes(), 1) == dst.bytes(),
               std::to_string(simcuda_landed(dst.at(), dst.bytes(), 0)) + " never, " +
                   std::to_string(simcuda_landed(dst.at(), dst.bytes(), -1)) + " twice");
    CHECK(dst.holds(2, 0, dst.bytes(), 0));
  }
};

void disarm() { CHECK(simcuda_fail_copy(nullptr, nullptr, 1, 0, 1) == 0); }

struct Fault {
  const char* name;
  int to, from;
  const char *a, *b;  // the places of the copies that go wrong
  int k, times;
  bool stall;
};

TEST(one_path) {
  const Fault faults[] = {
      {"first hop fails once", 0, kPinned, "host", "g2", 2, 1, false},
      {"first hop fails for good", 0, kPinned, "host", "g4", 1, -1, false},
      {"push fails once", 0, kPinned, "g2", "g0", 3, 1, false},
      {"push fails for good", 0, kPinned, "g6", "g0", 1, -1, false},
      {"direct fails for good", 0, kPinned, "host", "g0", 2, -1, false},
      {"source's push fails", kPinned, 0, "g0", "g2", 1, -1, false},
      {"last hop to the host fails", kPinned, 0, "g4", "host", 2, 2, false},
      {"first hop stalls", 0, kPinned, "host", "g2", 2, 1, true},
      {"push stalls", 0, kPinned, "g4", "g0", 2, 1, true},
      {"direct stalls", 0, kPinned, "host", "g0", 2, 1, true},
      {"source's push stalls", kPinned, 0, "g0", "g2", 1, 1, true},
  };
  for (const Fault& fault : faults) {
    test::running() = fault.name;
    Node node("dgx_a100", {{"memory", "256MiB"}}, true, test::kHeld);
    Pair pair(fault.to, fault.from);
    if (fault.stall) {
      CHECK(simcuda_stall_copy(fault.a, fault.b, fault.k, 100'000'000) == 0);
    } else {
      CHECK(simcuda_fail_copy(fault.a, fault.b, fault.k, CUDA_ERROR_UNKNOWN, fault.times) == 0);
    }
    const std::string result = test::finish(pair.start());
    CHECK_TEXT(test::text_in(result, "state") == "done", result);
    pair.check_once();
    const bool writes = fault.stall && std::string(fault.b) == "g0";
    const std::string stats = test::transfer_stats();
    if (!writes) CHECK_TEXT(test::number_in(stats, "resent") > 0, stats);
    if (writes) CHECK_TEXT(test::number_in(stats, "resent") == 0, stats);
    if (fault.times < 0) {
      // The path rests for 2 ms at least. The next copy is done in that time.
      CHECK_TEXT(stats.find("quarantined") != std::string::npos, stats);
      test::finish(pair.start());
      CHECK_TEXT(
          test::number_in(test::transfer_stats(), "resent") == test::number_in(stats, "resent"),
          test::transfer_stats());
    }
    disarm();
    // The next copy is whole again, and a path that failed once is used again in time.
    int more = 0;
    do {
      test::finish(pair.start());
    } while (test::transfer_stats().find("quarantined") != std::string::npos && ++more < 100);
    CHECK_TEXT(more < 100, test::transfer_stats());
    CHECK(pair.dst.holds(2, 0, kBytes, 0));
    CHECK(test::violations() == "[]");
  }
}

// Half of the node's uplinks die in mid copy, with errors. The others carry the copy.
TEST(links_die) {
  test::running() = "links die";
  Node node("dgx_a100", {{"memory", "512MiB"}}, true, test::kHeld);
  CHECK(simcuda_configure("dead_link", std::to_string(CUDA_ERROR_UNKNOWN).c_str()) == 0);
  Pair pair(0, kPinned, 96 * kMiB);
  const uint64_t now = simcuda_now_ns();
  CHECK(simcuda_set_link_at(now + 200'000, "s0", "u1", 0) == 0);
  CHECK(simcuda_set_link_at(now + 300'000, "N", "g0", 0) == 0);
  const std::string result = test::finish(pair.start());
  CHECK_TEXT(test::text_in(result, "state") == "done", result);
  pair.check_once();
}

TEST(no_path_left) {
  test::running() = "no path left";
  Node node("dgx_a100", {{"memory", "256MiB"}}, true, test::kHeld);
  Pair pair(0, kPinned);
  CHECK(simcuda_fail_copy("*", "g0", 9, CUDA_ERROR_UNKNOWN, -1) == 0);
  const uint64_t id = pair.start();
  GIVES(GLAKE_COPY_FAILED, glake_copy_wait(id, test::kForever));
  const std::string text = test::last_error();
  CHECK_TEXT(text.find("no path is left") != std::string::npos, text);
  // The text has the destination's state before the paths, and names a shared reason once.
  const size_t state = text.find("bytes of the destination are written");
  CHECK_TEXT(state < text.find("; by path: cpu>cuda:0 (copy 1), cpu>"), text);
  CHECK_TEXT(text.find("CUDA_ERROR_UNKNOWN") == text.rfind("CUDA_ERROR_UNKNOWN"), text);
  const std::string result = test::result_of(id);
  CHECK(static_cast<uint64_t>(test::number_in(result, "landed")) ==
        simcuda_landed(pair.dst.at(), kBytes, 1));
  CHECK(simcuda_landed(pair.dst.at(), kBytes, -1) == 0);
  OK(glake_copy_release(id));
  disarm();
  test::finish(pair.start());
  CHECK(pair.dst.holds(2, 0, kBytes, 0));
}

// This process's parts of the limits of an A100 node. It has no part of `edges`, and all of the
// others.
std::vector<double> lent_away(const std::vector<std::string>& edges) {
  const auto topology = glake::topology::Topology::parse(test::platforms_text(), "dgx_a100");
  std::vector<double> parts(topology.limits().size(), 1.0);
  for (int edge = 0; edge < topology.edges(); ++edge) {
    for (const std::string& name : edges) {
      if (topology.name(edge) == name) parts[static_cast<size_t>(edge)] = 0;
    }
  }
  CHECK(std::count(parts.begin(), parts.end(), 0.0) == static_cast<std::ptrdiff_t>(edges.size()));
  return parts;
}

// The plan has relays only, as another process has the direct link. When the relays fail, the copy
// takes the direct path.
TEST(direct_unplanned) {
  test::running() = "direct, unplanned";
  Node node("dgx_a100", {{"memory", "256MiB"}, {"dead_link", std::to_string(CUDA_ERROR_UNKNOWN)}},
            true, test::kHeld);
  const std::vector<double> parts = lent_away({"u0>g0"});
  OK(glake_transfer_lend(~0u, parts.data(), parts.size()));
  Pair pair(0, kPinned);
  CHECK(simcuda_set_link_at(simcuda_now_ns() + 200'000, "N", "g0", 0) == 0);
  const std::string result = test::finish(pair.start());
  CHECK_TEXT(test::text_in(result, "state") == "done", result);
  CHECK_TEXT(result.find("\"path\": \"cpu>cuda:0\"") != std::string::npos, result);
  CHECK_TEXT(result.find(">cuda:2>cuda:0") != std::string::npos, result);
  pair.check_once();
}

// The relays go to other processes in mid copy, and then the direct link dies. The copy takes the
// relays again, where it may use them.
TEST(left_to_others) {
  for (const bool allowed : {true, false}) {
    test::running() = allowed ? "left to others" : "lent to others";
    Node node("dgx_a100", {{"memory", "256MiB"}, {"dead_link", std::to_string(CUDA_ERROR_UNKNOWN)}},
              true, test::kHeld);
    Pair pair(0, kPinned);
    const std::vector<double> parts = lent_away({"s0>u1", "s1>u2", "s1>u3"});
    CHECK(simcuda_thread(1) == 0);  // the new plan comes in time, however slow this thread is
    CHECK(simcuda_set_link_at(simcuda_now_ns() + 200'000, "u0", "g0", 0) == 0);
    const uint64_t id = pair.start();
    CHECK(simcuda_sleep(100'000) == 0);
    OK(glake_transfer_lend(allowed ? ~0u : 0u, parts.data(), parts.size()));
    CHECK(simcuda_thread(0) == 0);
    if (allowed) {
      const std::string result = test::finish(id);
      CHECK_TEXT(test::text_in(result, "state") == "done", result);
      pair.check_once();
      continue;
    }
    GIVES(GLAKE_COPY_FAILED, glake_copy_wait(id, test::kForever));
    const std::string text = test::last_error();
    CHECK_TEXT(text.find("no path is left") != std::string::npos, text);
    CHECK_TEXT(text.find("left to others by a new plan") != std::string::npos, text);
    OK(glake_copy_release(id));
  }
}

// With checksums a flipped bit is found, and its chunk is sent again. Without, it stays.
TEST(corrupted) {
  const struct {
    int to, from;
    const char *a, *b;
    size_t bytes;
  } cases[] = {{0, kPinned, "host", "g2", kBytes},
               {0, kPinned, "g4", "g0", kBytes},
               {kPinned, 0, "g0", "host", kBytes},
               {5, 2, "g2", "g5", kBytes},
               {0, kPinned, "host", "g0", 4097}};
  for (const auto& one : cases) {
    for (unsigned flags : {0u, unsigned{GLAKE_COPY_CHECKSUM}}) {
      test::running() = std::string("corrupted from ") + one.a + " to " + one.b;
      Node node("dgx_a100", {{"memory", "256MiB"}}, true, test::kHeld);
      Buffer dst(one.to, one.bytes), src(one.from, one.bytes);
      dst.fill(1);
      src.fill(2);
      CHECK(simcuda_corrupt_copy(one.a, one.b, 1, 1) == 0);
      const uint64_t id = Call(dst, 0, src, 0, one.bytes).flags(flags).start();
      CHECK_TEXT(id != 0, test::last_error());
      OK(glake_copy_wait(id, test::kForever));
      CHECK(dst.holds(2, 0, one.bytes, 0) == (flags != 0));
      const std::string result = test::result_of(id);
      CHECK_TEXT(flags == 0 || result.find("\"verified\": true") != std::string::npos, result);
      OK(glake_copy_release(id));
    }
  }
  {
    test::running() = "no link is slow for its chunks being summed";
    Node node("dgx_a100", {{"memory", "256MiB"}}, true, test::kHeld);
    Pair pair(0, kPinned);
    auto planned = [&](unsigned flags) {
      const uint64_t id = Call(pair.dst, 0, pair.src, 0, kBytes).flags(flags).start();
      OK(glake_copy_wait(id, test::kForever));
      const uint64_t rate = test::number_in(test::result_of(id), "planned");
      OK(glake_copy_release(id));
      return rate;
    };
    const uint64_t before = planned(0);
    for (int i = 0; i < 3; ++i) planned(GLAKE_COPY_CHECKSUM);
    CHECK(planned(0) == before && before > 80);
  }
  test::running() = "corrupted for good";
  Node node("a40x8_bridged", {{"memory", "256MiB"}}, true, test::kHeld);
  Pair pair(0, kPinned);
  CHECK(simcuda_corrupt_copy("*", "g0", 1, -1) == 0);
  const uint64_t id = Call(pair.dst, 0, pair.src, 0, kBytes).flags(GLAKE_COPY_CHECKSUM).start();
  GIVES(GLAKE_COPY_FAILED, glake_copy_wait(id, test::kForever));
  CHECK_TEXT(test::last_error().find("checksums") != std::string::npos, test::last_error());
  OK(glake_copy_release(id));
  disarm();
}

// A link dies under copies that write the destination. Until the engine sees that they are done,
// their memory is not reused, and no other chunk tries the path.
TEST(given_up) {
  for (const bool ordered : {false, true}) {
    test::running() = ordered ? "given up, ordered" : "given up";
    Node node("dgx_a100", {{"memory", "512MiB"}}, true, test::kHeld);
    test::CurrentContext context(0);
    CUstream stream = nullptr;
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    void* dst = glake_malloc(kBytes, 0, nullptr);
    void* src = glake_host_malloc(kBytes);
    CHECK(simcuda_set_link_at(simcuda_now_ns() + 200'000, "s0", "u0", 0) == 0);
    Call call({{reinterpret_cast<uint64_t>(dst), reinterpret_cast<uint64_t>(src), kBytes}}, 0,
              GLAKE_HOST);
    if (ordered) call.on(stream, 0);
    const uint64_t id = call.start();
    GIVES(GLAKE_COPY_FAILED, glake_copy_wait(id, test::kForever));
    const std::string text = test::last_error();
    CHECK_TEXT(text.find("cpu>cuda:0 stands still") != std::string::npos, text);
    CHECK(glake_copy_settled(id) == 0);
    OK(glake_copy_release(id));
    CHECK(glake_copy_settled(id) == 0);
    GIVES(GLAKE_INVALID_POINTER, glake_free(dst));
    GIVES(GLAKE_INVALID_POINTER, glake_host_free(src));
    {
      Pair other(0, kPinned);
      for (int i = 0; i < 40; ++i) test::finish(other.start());  // 100 ms: rests are over
      CHECK(other.dst.holds(2, 0, kBytes, 0));
      CHECK(simcuda_set_link("s0", "u0", 23.75) == 0);
      await_settled(id);
      std::string result;
      for (int i = 0; i < 40 && test::transfer_stats().find("quarantined") != std::string::npos;) {
        result = test::finish(other.start());
        ++i;
      }
      CHECK_TEXT(test::transfer_stats().find("quarantined") == std::string::npos,
                 test::transfer_stats());
    }
    OK(glake_free(dst));
    OK(glake_host_free(src));
    test::end_stream(stream);
  }
}

// A copy that writes the destination never ends. Its bytes count as unknown, and are not sent
// again.
TEST(stuck_for_good) {
  test::running() = "stuck for good";
  Node node("dgx_a100", {{"memory", "256MiB"}}, true, test::kHeld);
  Pair pair(0, kPinned);
  CHECK(simcuda_stall_copy("host", "g0", 2, 4'000'000'000) == 0);
  const uint64_t id = pair.start();
  GIVES(GLAKE_COPY_FAILED, glake_copy_wait(id, test::kForever));
  CHECK_TEXT(test::last_error().find("unknown are bytes [") != std::string::npos,
             test::last_error());
  CHECK(simcuda_landed(pair.dst.at(), kBytes, -1) == 0);
  OK(glake_copy_release(id));
  await_settled(id);
}

TEST(slow_uplink) {
  test::running() = "slow uplink";
  Node node("dgx_a100", {{"phantom", "1"}, {"host_node", "interleave"}}, true, test::kHeld);
  CHECK(glake_copy_wait(0, 0) != GLAKE_OK);
  Buffer dst(0, 1024 * kMiB), src(kPinned, 1024 * kMiB);
  CHECK(simcuda_set_link("s0", "u1", 11.875) == 0);
  const uint64_t begin = simcuda_now_ns();
  const std::string result = test::finish(Call(dst, 0, src, 0, dst.bytes()).start());
  const double rate =
      static_cast<double>(dst.bytes()) / static_cast<double>(simcuda_now_ns() - begin);
  std::printf("a relay's uplink at half speed: %.1f GB/s\n", rate);
  CHECK_TEXT(rate >= 78, result);
}

// The k-th driver call of a transfer fails, `times` times. The result is a typed error or a whole
// copy, with no byte twice, and afterwards all works. False if the transfer makes fewer calls than
// `k`.
bool call_fails(bool ordered, const char* order, int64_t k, int64_t times) {
  test::running() = std::string(ordered ? "ordered, " : "free, ") + order + ", call " +
                    std::to_string(k) + " fails " + std::to_string(times);
  Node node("a40x8_bridged", {{"memory", "64MiB"}}, true, {{"copy_order", order}});
  node.count_streams = false;
  test::CurrentContext context(0);
  CUstream stream;
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  Pair pair(0, kPinned, 8 * kMiB);
  if (ordered) CU(cuMemsetD8Async(pair.dst.at(), 5, 100, stream));
  const int64_t before = simcuda_calls("*");
  CHECK(simcuda_fail("*", k, CUDA_ERROR_UNKNOWN, times) == 0);
  Call call(pair.dst, 0, pair.src, 0, 8 * kMiB);
  if (ordered) call.on(stream, 0);
  const uint64_t id = call.flags(GLAKE_COPY_RELAYED).start();
  int end = glake_last_error(nullptr, 0);
  if (id != 0) end = glake_copy_wait(id, test::kForever);
  const bool fired = simcuda_calls("*") - before >= k;
  CHECK(simcuda_fail(nullptr, 1, 0, 1) == 0);
  CHECK_TEXT(end == GLAKE_OK || end == GLAKE_COPY_FAILED || end == GLAKE_DRIVER_ERROR ||
                 end == GLAKE_INVALID_POINTER,
             std::to_string(end));
  cuStreamSynchronize(stream);
  if (end == GLAKE_OK) {
    CHECK_TEXT(pair.dst.holds(2, 0, 8 * kMiB, 0),
               test::result_of(id) + std::to_string(simcuda_landed(pair.dst.at(), 8 * kMiB, 1)) +
                   test::violations());
  }
  if (id != 0) {
    await_settled(id);
    OK(glake_copy_release(id));
  }
  test::finish(Call(pair.dst, 0, pair.src, 0, 8 * kMiB).start());
  CHECK(pair.dst.holds(2, 0, 8 * kMiB, 0));
  cuStreamDestroy(stream);
  return fired;
}

TEST(each_call) {
  for (bool ordered : {false, true}) {
    for (int64_t times : {int64_t{1}, int64_t{-1}}) {
      const int step = (times == 1 ? 11 : 23) * test::kSlowdown;
      for (int64_t k = 1 + (ordered ? 1 : 0); call_fails(ordered, "held", k, times);) k += step;
    }
  }
}

// If an enqueue call of a path fails, the direct path takes the bytes of that path.
TEST(each_enqueued_call) {
  for (int64_t times : {int64_t{1}, int64_t{-1}}) {
    const int step = 11 * test::kSlowdown;
    int64_t k = 2;
    while (call_fails(true, "enqueued", k, times)) k += step;
    CHECK(k > 100);
  }
}

}  // namespace

int main(int argc, char** argv) { return test::run_cases(argc, argv); }

// Every byte is right, and no byte beside the destination changes. The copies differ in direction,
// ends, alignment, relays, batches, pageable memory and size. Also tests what is refused.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "transfer_play.h"

using test::Buffer;
using test::Call;
using test::kForever;
using test::kKiB;
using test::kMiB;
using test::kPageable;
using test::kPinned;
using test::Node;

namespace {

constexpr size_t kMargin = 4096;

// Copies `bytes` between odd places. Checks them, the bytes around them, and that each was written
// once. `device` is that of the stream in which the copy has its place.
std::string copy_once(int dst_place, int src_place, size_t bytes, size_t to, size_t from,
                      unsigned flags = 0, CUstream stream = nullptr, int device = 0) {
  Buffer dst(dst_place, bytes + 2 * kMargin), src(src_place, bytes + 2 * kMargin);
  dst.fill(1);
  src.fill(2);
  CHECK(simcuda_watch_landings(dst.at(), dst.bytes()) == 0);
  Call call(dst, kMargin + to, src, kMargin + from, bytes);
  if (stream != nullptr) call.on(stream, device);
  const std::string result = test::finish(call.flags(flags).start());
  CHECK_TEXT(test::text_in(result, "state") == "done", result);
  CHECK_TEXT(dst.holds(2, kMargin + to, bytes, kMargin + from), result);
  CHECK(dst.holds(1, 0, kMargin + to, 0));
  const size_t end = kMargin + to + bytes;
  CHECK(dst.holds(1, end, dst.bytes() - end, end));
  if (dst_place != kPageable) {
    CHECK_TEXT(simcuda_landed(dst.at(kMargin + to), bytes, 1) == bytes, result);
    CHECK(simcuda_landed(dst.at(), dst.bytes(), 0) == dst.bytes() - bytes);
  }
  CHECK(simcuda_watch_landings(0, 0) == 0);
  return result;
}

// A plain copy that no stream orders is in a stream of the engine's own. Its id names no handle of
// a stream that has ended with its engine.
TEST(ids_of_a_closed_engine_name_no_stream) {
  test::running() = "ids of a closed engine";
  Node node("dgx1v");
  Buffer dst(0, kMiB), src(kPinned, kMiB);
  src.fill(2);
  const uint64_t id = Call(dst, 0, src, 0, kMiB).start();
  OK(glake_copy_wait(id, kForever));
  CHECK(dst.holds(2, 0, kMiB, 0));
  OK(glake_transfer_close());
  OK(glake_transfer_open("", ""));
  OK(glake_copy_wait(id, kForever));
  CHECK(glake_copy_done(id) == 1 && glake_copy_settled(id) == 1);
  OK(glake_copy_stream_wait(id, 0, nullptr));
  const uint64_t next = Call(dst, 0, src, 0, kMiB).start();
  CHECK(next != id);
  OK(glake_copy_wait(next, kForever));
}

TEST(sizes_and_alignments) {
  const std::pair<int, int> ends[] = {{0, kPinned},   {kPinned, 0},   {5, 0},
                                      {0, kPageable}, {kPageable, 3}, {2, 2}};
  for (const char* seed : {"1", "2"}) {
    Node node("dgx1v", {{"memory", "256MiB"}, {"seed", seed}});
    test::Dice dice(std::strtoull(seed, nullptr, 10));
    for (auto [dst, src] : ends) {
      for (size_t bytes : {size_t{1}, size_t{4099}, 3 * kMiB + 13, 17 * kMiB + 4093}) {
        test::running() = "copy of " + std::to_string(bytes) + " from " + std::to_string(src) +
                          " to " + std::to_string(dst) + ", seed " + seed;
        const size_t to = dice(0, 511), from = dice(0, 511);
        const std::string result = copy_once(dst, src, bytes, to, from);
        const bool large = bytes > 16 * kMiB && dst != src;
        if (large && dst != kPageable && src != kPageable) {
          CHECK_TEXT(result.find("\"relayed\": true") != std::string::npos, result);
        }
      }
    }
    CHECK(test::violations() == "[]");
  }
}

// Copies are forced to use all relays, even if these do not pay.
TEST(forced_relays) {
  for (const char* preset : {"dgx_a100", "gb200_tray", "a40x8_bridged"}) {
    test::running() = std::string("relays on ") + preset;
    Node node(preset, {{"memory", "256MiB"}});
    const std::pair<int, int> ends[] = {{0, kPinned}, {kPinned, 1}, {1, 0}, {2, kPinned}};
    for (auto [dst, src] : ends) copy_once(dst, src, 9 * kMiB + 77, 3, 5, GLAKE_COPY_RELAYED);
  }
}

// Tests forced relays with enqueued copies, which are all in streams when the call returns. Only
// events order the hops of a chunk, and of the next chunk in the same buffer.
TEST(forced_relays_in_a_stream) {
  for (const char* preset : {"dgx_a100", "gb200_tray", "a40x8_bridged"}) {
    test::running() = std::string("relays in a stream on ") + preset;
    Node node(preset, {{"memory", "256MiB"}});
    const std::pair<int, int> ends[] = {{0, kPinned}, {kPinned, 1}, {1, 0}, {2, kPinned}};
    for (auto [dst, src] : ends) {
      const int device = dst >= 0 ? dst : src;
      test::CurrentContext context(device);
      CUstream stream = nullptr;
      CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
      copy_once(dst, src, 33 * kMiB + 77, 3, 5, GLAKE_COPY_RELAYED, stream, device);
      test::end_stream(stream);
    }
    CHECK(test::violations() == "[]");
  }
}

TEST(batches) {
  test::running() = "batches";
  Node node("dgx_a100", {{"memory", "256MiB"}});
  for (auto [to, from] : {std::pair<int, int>{0, kPinned}, {kPinned, 0}, {1, 0}}) {
    constexpr size_t kBlock = 48 * kKiB + 512, kCount = 400;
    Buffer dst(to, 2 * kBlock * kCount), src(from, 2 * kBlock * kCount);
    dst.fill(1);
    src.fill(2);
    CHECK(simcuda_watch_landings(dst.at(), dst.bytes()) == 0);
    std::vector<glake_copy_part> parts;
    for (size_t i = 0; i < kCount; ++i) {  // backwards, with gaps
      const size_t j = kCount - 1 - i;
      parts.push_back({dst.at(2 * i * kBlock), src.at(2 * j * kBlock), kBlock});
    }
    const std::string result =
        test::finish(Call(parts, dst.device(), src.device()).flags(GLAKE_COPY_RELAYED).start());
    for (size_t i = 0; i < kCount; ++i) {
      CHECK(dst.holds(2, 2 * i * kBlock, kBlock, 2 * (kCount - 1 - i) * kBlock));
      CHECK(dst.holds(1, (2 * i + 1) * kBlock, kBlock, (2 * i + 1) * kBlock));
      CHECK(simcuda_landed(parts[i].dst, kBlock, 1) == kBlock);
    }
    const bool host = to < 0 || from < 0;
    CHECK_TEXT(!host || result.find("\"relayed\": true") != std::string::npos, result);
    // Parts that follow each other become one copy.
    parts.clear();
    for (size_t i = 0; i < 8; ++i) {
      parts.push_back({dst.at(i * kKiB), src.at(i * kKiB), kKiB});
    }
    const auto copies = [] {
      return simcuda_calls("cuMemcpyAsync") + simcuda_calls("cuMemcpyPeerAsync");
    };
    const int64_t before = copies();
    test::finish(Call(parts, dst.device(), src.device()).start());
    CHECK(copies() == before + 1);
    CHECK(simcuda_watch_landings(0, 0) == 0);
  }
}

// The fast path makes one copy call, and no call that allocates or waits.
TEST(small_copies) {
  test::running() = "small copies";
  Node node("hgx_h100_h200", {{"memory", "64MiB"}});
  Buffer dst(0, 128 * kKiB), src(kPinned, 128 * kKiB);
  src.fill(3);
  test::CurrentContext context(0);
  CUstream stream;
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  uint64_t id = Call(dst, 0, src, 0, 64 * kKiB).on(stream, 0).start();
  OK(glake_copy_wait(id, test::kForever));
  std::map<std::string, int64_t> before;
  const char* const costly[] = {
      "cuEventCreate",          "cuEventRecord", "cuStreamSynchronize", "cuStreamWaitValue32",
      "cuPointerGetAttributes", "cuMemAlloc",    "cuStreamIsCapturing", "cuLaunchHostFunc"};
  for (const char* name : costly) before[name] = simcuda_calls(name);
  const int64_t copies = simcuda_calls("cuMemcpyAsync");
  id = Call(dst, 64 * kKiB, src, 64 * kKiB, 64 * kKiB).on(stream, 0).start();
  CHECK(id != 0);
  CHECK(simcuda_calls("cuMemcpyAsync") == copies + 1);
  for (const char* name : costly) CHECK_TEXT(simcuda_calls(name) == before[name], name);
  OK(glake_copy_wait(id, test::kForever));
  CHECK(glake_copy_done(id) == 1);
  CHECK(test::result_of(id).find("\"relayed\": false") != std::string::npos);
  CHECK(dst.holds(3, 0, 128 * kKiB, 0));
  CHECK(test::number_in(test::transfer_stats(), "threads") == 0);
  test::end_stream(stream);
}

// An id that no copy has is refused, whatever kind of copy its highest bits name.
TEST(ids_of_no_copy) {
  test::running() = "ids of no copy";
  Node node("dgx_a100", {{"memory", "64MiB"}});
  uint64_t done = 0, total = 0;
  for (int kind = 0; kind < 16; ++kind) {
    const uint64_t id = ~uint64_t{0} >> 4 | static_cast<uint64_t>(kind) << 60;
    CHECK_TEXT(glake_copy_done(id) == -GLAKE_INVALID_ARGUMENT, std::to_string(kind));
    GIVES(GLAKE_INVALID_ARGUMENT, glake_copy_wait(id, 0));
    GIVES(GLAKE_INVALID_ARGUMENT, glake_copy_progress(id, &done, &total));
    CHECK(test::last_error().find(std::to_string(id)) != std::string::npos);
  }
}

TEST(refusals) {
  test::running() = "refusals";
  Node node("dgx_a100", {{"memory", "64MiB"}});
  Buffer a(0, 4 * kMiB), b(1, 4 * kMiB), host(kPinned, 4 * kMiB), other(kPinned, 4 * kMiB);
  auto refused = [](int status, uint64_t id) {
    CHECK(id == 0);
    CHECK_TEXT(glake_last_error(nullptr, 0) == status, test::last_error());
  };
  refused(GLAKE_INVALID_ARGUMENT, glake_copy_start(nullptr));
  refused(GLAKE_INVALID_ARGUMENT, Call({}, 0, GLAKE_HOST).start());
  refused(GLAKE_INVALID_ARGUMENT, Call(a, 0, host, 0, 0).start());
  refused(GLAKE_INVALID_ARGUMENT, Call(a, 0, host, 0, size_t{1} << 60).start());
  refused(GLAKE_INVALID_POINTER, Call({{0, host.at(), 64}}, 0, GLAKE_HOST).start());
  refused(GLAKE_INVALID_DEVICE, Call({{a.at(), host.at(), 64}}, 9, GLAKE_HOST).start());
  // glake asks the driver about addresses that it does not know itself.
  refused(GLAKE_INVALID_DEVICE, Call({{a.at(), host.at(), 2 * kMiB}}, 1, GLAKE_HOST).start());
  refused(GLAKE_INVALID_DEVICE, Call({{a.at(), b.at(), 2 * kMiB}}, 0, GLAKE_HOST).start());
  refused(GLAKE_INVALID_POINTER, Call({{a.at(), 4096, 2 * kMiB}}, 0, GLAKE_ASK).start());
  refused(GLAKE_INVALID_POINTER, Call({{a.at(), 4096, 64}}, 0, GLAKE_ASK).start());
  refused(GLAKE_INVALID_ARGUMENT, Call(other, 0, host, 0, 2 * kMiB).start());
  refused(GLAKE_INVALID_ARGUMENT, Call(a, 0, a, 4096, 2 * kMiB).start());
  refused(GLAKE_INVALID_ARGUMENT, Call(a, 100, a, 0, 101).start());
  refused(GLAKE_INVALID_ARGUMENT,
          Call({{a.at(), host.at(), 64}, {a.at(32), host.at(64), 64}}, 0, GLAKE_HOST).start());
  refused(GLAKE_INVALID_ARGUMENT, Call(a, 0, host, 0, 64).flags(1u << 30).start());
  GIVES(GLAKE_INVALID_ARGUMENT, glake_copy_wait(12345, 0));
  GIVES(GLAKE_INVALID_ARGUMENT, glake_copy_release(12345));
  GIVES(GLAKE_INVALID_ARGUMENT, glake_transfer_open("", ""));
  CHECK(test::finish(Call({{a.at(), host.at(), 2 * kMiB}}, GLAKE_ASK, GLAKE_ASK).start()) != "");
  CHECK(test::number_in(test::transfer_stats(), "running") == 0);
}

// The copies of one call are enqueued side by side, but for those that streams put in an order: the
// second one has what the first one brought. The legacy stream comes before and behind all others.
TEST(a_batch_keeps_the_order_of_streams) {
  test::running() = "order in a batch";
  Node node("dgx_a100", {{"memory", "512MiB"}});
  constexpr size_t kBytes = 64 * kMiB, kEnd = 8 * kMiB;  // what arrives last is taken
  test::CurrentContext context(0);
  CUstream own, blocking;
  CU(cuStreamCreate(&own, CU_STREAM_NON_BLOCKING));
  CU(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
  Buffer src(kPinned, kBytes), dst(kPinned, kEnd), middle(0, kBytes), other(1, kBytes);
  src.fill(5);
  struct Order {
    const char* name;
    CUstream first, second;
    unsigned second_flags;
  };
  for (const Order& order : {Order{"one stream", own, own, GLAKE_COPY_RELAYED},
                             Order{"then a plain copy", own, own, GLAKE_COPY_DIRECT},
                             Order{"legacy first", nullptr, blocking, GLAKE_COPY_RELAYED},
                             Order{"legacy last", blocking, nullptr, GLAKE_COPY_RELAYED}}) {
    dst.fill(1);
    middle.fill(2);
    other.fill(3);
    Call brings(middle, 0, src, 0, kBytes), takes(dst, 0, middle, kBytes - kEnd, kEnd);
    Call beside(other, 0, src, 0, kBytes);
    brings.on(order.first, 0).flags(GLAKE_COPY_RELAYED);
    takes.on(order.second, 0).flags(order.second_flags);
    beside.on(nullptr, 1).flags(GLAKE_COPY_RELAYED);
    const std::vector<glake_copy_request> all{brings.request, beside.request, takes.request};
    std::vector<uint64_t> ids(all.size());
    OK(glake_copy_start_all(all.data(), all.size(), ids.data()));
    for (const uint64_t id : ids) test::finish(id);
    CHECK(middle.holds(5, 0, kBytes, 0) && other.holds(5, 0, kBytes, 0));
    CHECK_TEXT(dst.holds(5, 0, kEnd, kBytes - kEnd), order.name);
  }
  test::end_stream(own);
  test::end_stream(blocking);
}

// A blocking stream is captured while a copy in another stream begins. The capture goes on.
TEST(copies_do_not_end_the_capture_of_another_stream) {
  test::running() = "another stream's capture";
  Node node("dgx_a100", {{"memory", "128MiB"}});
  test::CurrentContext context(0);
  CUstream own, blocking;
  CU(cuStreamCreate(&own, CU_STREAM_NON_BLOCKING));
  CU(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
  constexpr size_t kBytes = 48 * kMiB;
  Buffer src(kPinned, kBytes), dst(0, kBytes);
  for (const uint64_t seed : {5, 6}) {
    src.fill(seed);
    CU(cuStreamBeginCapture(blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
    test::finish(Call(dst, 0, src, 0, kBytes).on(own, 0).flags(GLAKE_COPY_RELAYED).start());
    CUgraph graph = nullptr;
    CU(cuStreamEndCapture(blocking, &graph));
    CU(cuGraphDestroy(graph));
    CHECK(dst.holds(seed, 0, kBytes, 0));
  }
  test::end_stream(own);
  test::end_stream(blocking);
}

// A batch with one bad request begins nothing. Otherwise all begin, and what fails later does not
// undo what was begun.
TEST(requests_that_begin_together) {
  test::running() = "requests that begin together";
  Node node("dgx_a100", {{"memory", "64MiB"}});
  constexpr size_t kBytes = 4 * kMiB;
  Buffer src(kPinned, kBytes), first(0, kBytes), second(1, kBytes);
  src.fill(5);
  std::vector<uint64_t> ids(2, 7);
  OK(glake_copy_start_all(nullptr, 0, nullptr));
  GIVES(GLAKE_INVALID_ARGUMENT, glake_copy_start_all(nullptr, 1, ids.data()));
  Call one(first, 0, src, 0, kBytes), other(second, 0, src, 0, kBytes);
  GIVES(GLAKE_INVALID_ARGUMENT, glake_copy_start_all(&one.request, 1, nullptr));
  std::vector<glake_copy_request> both{one.request, other.request};
  const auto start = [&] { return glake_copy_start_all(both.data(), both.size(), ids.data()); };
  const auto begins_nothing = [&](int status) {
    first.fill(1);
    GIVES(status, start());
    CHECK(ids[0] == 0 && ids[1] == 0);
    CHECK(first.holds(1, 0, kBytes, 0));
  };
  both[1].size -= 8;
  begins_nothing(GLAKE_INVALID_ARGUMENT);
  both[1].size += 8;
  both[1].dst_device = 99;
  begins_nothing(GLAKE_INVALID_DEVICE);
  CHECK_TEXT(test::last_error().find("cpu to cuda:99: ") != std::string::npos, test::last_error());
  both[1].dst_device = 1;
  both[1].ordered = both[1].also_ordered = 1;
  both[1].stream_device = 1;
  both[1].also_device = 50;
  begins_nothing(GLAKE_INVALID_DEVICE);
  both[1].also_ordered = 0;
  for (const bool ordered : {false, true}) {
    for (size_t i = 0; i < both.size(); ++i) {
      both[i].ordered = ordered ? 1 : 0;
      both[i].stream_device = static_cast<int>(i);
    }
    first.fill(1);
    second.fill(1);
    OK(start());
    CHECK(ids[0] != 0 && ids[1] != 0);
    for (const uint64_t id : ids) test::finish(id);
    CHECK(first.holds(5, 0, kBytes, 0) && second.holds(5, 0, kBytes, 0));
  }
  // The second copy is refused only when its stream is looked at.
  both[1].flags = GLAKE_COPY_RELAYED;
  CUstream stream;
  {
    test::CurrentContext context(1);
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  }
  both[1].stream = stream;
  GIVES(GLAKE_COPY_REFUSED, start());
  CHECK(ids[0] != 0 && ids[1] == 0);
  test::finish(ids[0]);
  {
    test::CurrentContext context(1);
    CUgraph graph;
    CU(cuStreamEndCapture(stream, &graph));
    CU(cuGraphDestroy(graph));
  }
  test::end_stream(stream);
}

// Requests of programs that were compiled with an older or a newer glake.h.
TEST(requests_of_other_sizes) {
  test::running() = "requests of other sizes";
  Node node("dgx_a100", {{"memory", "64MiB"}});
  Buffer dst(0, kMiB), src(kPinned, kMiB);
  src.fill(3);
  Call call(dst, 0, src, 0, 4096);
  struct {
    glake_copy_request request;
    unsigned char more[64];
  } longer = {};
  auto start = [&](size_t size) {
    longer.request = call.request;
    longer.request.size = size;
    return glake_copy_start(&longer.request);
  };
  constexpr size_t kOldest = offsetof(glake_copy_request, also_stream);
  for (const size_t size : {kOldest, sizeof(glake_copy_request), sizeof longer}) {
    dst.fill(1);
    test::finish(start(size));
    CHECK(dst.holds(3, 0, 4096, 0));
  }
  // An older caller has no second stream, whatever lies behind its request.
  call.request.also_ordered = 1;
  call.request.also_device = 99;
  test::finish(start(kOldest));
  call.request.also_ordered = 0;
  // A newer caller must not ask for what this library does not know.
  longer.more[63] = 1;
  for (const size_t size : {size_t{0}, kOldest - 1, sizeof longer, size_t{4097}, SIZE_MAX}) {
    CHECK(start(size) == 0);
    CHECK_TEXT(glake_last_error(nullptr, 0) == GLAKE_INVALID_ARGUMENT, test::last_error());
  }
  test::finish(start(sizeof longer - 1));
}

// The paths as structs are those of the JSON, for copies by threads and for copies in a stream.
TEST(visited_paths) {
  test::running() = "visited paths";
  Node node("dgx_a100", {{"memory", "256MiB"}});
  struct Seen {
    uint64_t bytes = 0;
    int paths = 0, relayed = 0;
    std::vector<std::string> each;
  };
  const auto visit = [](void* self, const glake_copy_path* path) {
    auto* seen = static_cast<Seen*>(self);
    seen->bytes += path->bytes;
    seen->paths += 1;
    seen->relayed += path->relayed;
    seen->each.push_back(std::string("\"path\": \"") + path->name +
                         "\", \"bytes\": " + std::to_string(path->bytes));
    CHECK(glake_device_count() > 0);  // it may call glake
  };
  constexpr size_t kBytes = 33 * kMiB;
  Buffer dst(0, kBytes), src(kPinned, kBytes);
  for (const bool ordered : {false, true}) {
    Call call(dst, 0, src, 0, kBytes);
    if (ordered) call.on(nullptr, 0);
    const uint64_t id = call.flags(GLAKE_COPY_RELAYED).start();
    OK(glake_copy_wait(id, kForever));
    Seen seen;
    OK(glake_copy_visit_paths(id, &seen, visit));
    CHECK_TEXT(seen.bytes == kBytes && seen.paths > 1, test::result_of(id));
    CHECK_TEXT(seen.relayed > 0, test::result_of(id));
    const std::string json = test::result_of(id);
    for (const std::string& shown : seen.each) CHECK_TEXT(json.find(shown) != json.npos, json);
    GIVES(GLAKE_INVALID_ARGUMENT, glake_copy_visit_paths(id, &seen, nullptr));
    OK(glake_copy_release(id));
    GIVES(GLAKE_INVALID_ARGUMENT, glake_copy_visit_paths(id, &seen, visit));
  }
  Seen none;
  const uint64_t plain = Call(dst, 0, src, 0, 64).flags(GLAKE_COPY_TRACKED).start();
  OK(glake_copy_wait(plain, kForever));
  OK(glake_copy_visit_paths(plain, &none, visit));
  CHECK(none.paths == 0);
  OK(glake_copy_release(plain));
}

// With GLAKE_COPY_CHECKED glake checks every part, whatever its size.
TEST(checked) {
  test::running() = "checked";
  Node node("dgx_a100", {{"memory", "64MiB"}});
  Buffer a(0, 512), b(0, 512), large(0, 4 * kMiB), host(kPinned, 4 * kMiB);
  Buffer pageable(kPageable, 4096);
  auto copy = [](std::vector<glake_copy_part> parts, int dst, int src) {
    return Call(std::move(parts), dst, src).flags(GLAKE_COPY_CHECKED).start();
  };
  auto refused = [](int status, const std::string& why, uint64_t id) {
    CHECK(id == 0);
    CHECK_TEXT(glake_last_error(nullptr, 0) == status, test::last_error());
    CHECK_TEXT(test::last_error().find(why) != std::string::npos, test::last_error());
  };
  refused(GLAKE_INVALID_POINTER, "knows", copy({{a.at(), 4096, 64}}, 0, GLAKE_HOST));
  refused(GLAKE_INVALID_POINTER, "knows", copy({{4096, host.at(), 64}}, 0, GLAKE_HOST));
  refused(GLAKE_INVALID_DEVICE, "is host memory, not memory of cuda:0",
          copy({{pageable.at(), host.at(), 64}}, 0, GLAKE_HOST));
  refused(GLAKE_INVALID_DEVICE, "is memory of cuda:0, not host memory",
          copy({{a.at(), b.at(), 64}}, 0, GLAKE_HOST));
  refused(GLAKE_INVALID_DEVICE, "not memory of cuda:1", copy({{a.at(), host.at(), 64}}, 1, -1));
  refused(GLAKE_INVALID_POINTER, "beyond the last address",
          copy({{UINT64_MAX - 8, host.at(), 64}}, 0, GLAKE_HOST));
  // A part must not reach into a block's neighbours.
  refused(GLAKE_INVALID_POINTER, "which ends 512 bytes on (a block of 512 bytes",
          copy({{a.at(), host.at(), 513}}, 0, GLAKE_HOST));
  refused(GLAKE_INVALID_POINTER, "which ends 12 bytes on",
          copy({{host.at(), a.at(500), 13}}, GLAKE_HOST, 0));
  refused(GLAKE_INVALID_POINTER, "beyond", Call({{a.at(), host.at(), kMiB}}, 0, -1).start());
  refused(GLAKE_INVALID_POINTER, "beyond",
          copy({{large.at(), host.at(), 64}, {large.at(4 * kMiB - 8), host.at(64), 9}}, 0, -1));
  test::finish(copy({{large.at(3 * kMiB), host.at(), kMiB}}, 0, -1));
  // These parts follow each other and belong to two blocks.
  const uint64_t low = std::min(a.at(), b.at()), high = std::max(a.at(), b.at());
  host.fill(4);
  test::finish(copy({{low, host.at(), 512}, {high, host.at(512), 512}}, 0, GLAKE_HOST));
  CHECK((low == a.at() ? a : b).holds(4, 0, 512, 0) &&
        (low == a.at() ? b : a).holds(4, 0, 512, 512));
  // Freed blocks are refused: large and small ones, and contiguous ones, which are outside the
  // arenas.
  for (int kind : {0, int{GLAKE_CONTIGUOUS_VMM}, int{GLAKE_CONTIGUOUS_LEGACY}}) {
    for (size_t bytes : {size_t{4096}, 5 * kMiB}) {
      void* block = kind == 0 ? glake_malloc(bytes, 0, nullptr)
                              : glake_malloc_contiguous(bytes, 0, nullptr, kind);
      CHECK(block != nullptr);
      const auto at = reinterpret_cast<uint64_t>(block);
      test::finish(copy({{host.at(), at + bytes - 64, 64}}, GLAKE_HOST, 0));
      refused(GLAKE_INVALID_POINTER, "beyond", copy({{host.at(), at + bytes - 64, 65}}, -1, 0));
      OK(glake_free(block));
      for (size_t part : {size_t{64}, std::min<size_t>(bytes, 2 * kMiB)}) {
        refused(GLAKE_INVALID_POINTER, "freed already",
                copy({{host.at(), at, part}}, GLAKE_HOST, GLAKE_ASK));
      }
    }
  }
  refused(GLAKE_INVALID_ARGUMENT, "two destinations overlap",
          copy({{a.at(), host.at(), 64}, {a.at(), host.at(64), 64}}, 0, GLAKE_HOST));
  refused(GLAKE_INVALID_ARGUMENT, "source and destination overlap",
          copy({{large.at(), large.at(8), 64}}, 0, 0));
  CHECK(test::number_in(test::transfer_stats(), "running") == 0);
}

// Blocks of the debug modes lie between guards, which no copy may touch.
TEST(checked_between_guards) {
  test::running() = "checked between guards";
  Node node("dgx_a100", {{"memory", "64MiB"}}, true, {{"debug", "guard"}});
  Buffer a(0, 1000), host(kPinned, 8192);
  auto copy = [&](uint64_t at, size_t bytes) {
    return Call({{at, host.at(), bytes}}, 0, GLAKE_HOST).flags(GLAKE_COPY_CHECKED).start();
  };
  test::finish(copy(a.at(), 1000));
  test::finish(copy(a.at(999), 1));
  for (auto [at, bytes] : {std::pair<uint64_t, size_t>{a.at(), 1001}, {a.at() - 1, 2}}) {
    CHECK(copy(at, bytes) == 0);
    CHECK_TEXT(glake_last_error(nullptr, 0) == GLAKE_INVALID_POINTER, test::last_error());
  }
}

TEST(closed_and_forked) {
  test::running() = "closed and forked";
  {
    Node node("dgx_a100", {{"memory", "64MiB"}});
    Buffer a(0, 4 * kMiB), host(kPinned, 4 * kMiB);
    test::finish(Call(a, 0, host, 0, 4 * kMiB).flags(GLAKE_COPY_RELAYED).start());
    const pid_t child = fork();
    if (child == 0) {
      Call call(a, 0, host, 0, 64);
      const bool typed = call.start() == 0 && glake_last_error(nullptr, 0) == GLAKE_FORKED &&
                         glake_transfer_close() == GLAKE_FORKED;
      _exit(typed ? 0 : 1);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    OK(glake_transfer_close());
    OK(glake_transfer_close());
    CHECK(Call(a, 0, host, 0, 64).start() == 0);
    CHECK(glake_last_error(nullptr, 0) == GLAKE_TRANSFER_CLOSED);
    GIVES(GLAKE_INVALID_ARGUMENT, glake_transfer_open("{nonsense", ""));
    GIVES(GLAKE_INVALID_ARGUMENT, glake_transfer_open(test::platforms_text().c_str(), "no_such"));
    OK(glake_transfer_open("", ""));  // plain copies only
    a.fill(1);
    host.fill(2);
    test::finish(Call(a, 0, host, 0, 4 * kMiB).start());
    CHECK(a.holds(2, 0, 4 * kMiB, 0));
    CHECK(test::number_in(test::transfer_stats(), "plain_copies") == 1);
  }
}

}  // namespace

int main(int argc, char** argv) { return test::run_cases(argc, argv); }

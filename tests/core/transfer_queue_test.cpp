// Many copies in the order of one stream, which the engine enqueues one behind the other. They
// share streams and relay buffers. Every byte is right, few streams and buffers are made, and all
// of them come back, whatever the sizes, the threads, the waits and the driver's refusals.
#include <atomic>
#include <memory>
#include <thread>

#include "gpu_stream.h"
#include "transfer_play.h"

using test::Buffer;
using test::Call;
using test::Dice;
using test::kForever;
using test::kKiB;
using test::kMiB;
using test::kPinned;
using test::Node;
using test::Stream;

namespace {

int64_t slots() { return test::number_in(test::transfer_stats(), "slots"); }
int64_t under_way() { return test::number_in(test::transfer_stats(), "enqueued"); }

// Copies in one stream from the host to its GPU and back, over the same memory again and again. A
// book in the host's memory has what each byte should be in the end: the copies happen in order.
class Queue {
 public:
  Queue(const Stream& stream, size_t bytes)
      : stream_(stream),
        bytes_(bytes),
        device_(stream.device(), bytes),
        in_(kPinned, bytes),
        out_(kPinned, bytes),
        book_device_(bytes, 0),
        book_out_(bytes, 0) {
    static std::atomic<uint64_t> seed{0};
    in_.fill(++seed);
    std::memset(device_.data(), 0, bytes);
    std::memset(out_.data(), 0, bytes);
  }
  uint64_t into(size_t from, size_t to, size_t bytes, unsigned flags = 0) {
    std::memcpy(&book_device_[to], in_.data() + from, bytes);
    return Call(device_, to, in_, from, bytes)
        .on(stream_.get(), stream_.device())
        .flags(flags)
        .start();
  }
  uint64_t back(size_t from, size_t to, size_t bytes, unsigned flags = 0) {
    std::memcpy(&book_out_[to], &book_device_[from], bytes);
    return Call(out_, to, device_, from, bytes)
        .on(stream_.get(), stream_.device())
        .flags(flags)
        .start();
  }
  uint64_t any(Dice* dice, size_t least, size_t most, unsigned flags = 0) {
    const size_t bytes = (*dice)(least, most);
    const size_t from = (*dice)(0, bytes_ - bytes), to = (*dice)(0, bytes_ - bytes);
    return dice->chance(65) ? into(from, to, bytes, flags) : back(from, to, bytes, flags);
  }
  // All of its copies must be done.
  void check() {
    CHECK(std::memcmp(device_.data(), book_device_.data(), bytes_) == 0);
    CHECK(std::memcmp(out_.data(), book_out_.data(), bytes_) == 0);
  }

 private:
  const Stream& stream_;
  const size_t bytes_;
  Buffer device_, in_, out_;
  std::vector<unsigned char> book_device_, book_out_;
};

// Waits for some of the copies and lets go of some, in any order. Those that are left over stay.
void wait_for_some(Dice* dice, std::vector<uint64_t>* ids) {
  for (uint64_t turns = (*dice)(0, 3); turns-- > 0 && !ids->empty();) {
    const size_t which = (*dice)(0, ids->size() - 1);
    const uint64_t id = (*ids)[which];
    if (dice->chance(60)) OK(glake_copy_wait(id, kForever));
    if (dice->chance(50)) CHECK(glake_copy_done(id) >= 0);
    OK(glake_copy_release(id));
    ids->erase(ids->begin() + static_cast<std::ptrdiff_t>(which));
  }
}

void finish_all(Dice* dice, std::vector<uint64_t>* ids) {
  while (!ids->empty()) {
    const size_t which = (*dice)(0, ids->size() - 1);
    const std::string result = test::finish((*ids)[which]);
    CHECK_TEXT(test::text_in(result, "state") != "failed", result);
    ids->erase(ids->begin() + static_cast<std::ptrdiff_t>(which));
  }
}

// Nothing is under way, so no relay buffer is held. A question to the engine finds out copies whose
// handles nobody has any more.
void check_idle(const Stream& stream) {
  stream.synchronize();
  Buffer dst(stream.device(), 8 * kMiB), src(kPinned, 8 * kMiB);
  test::finish(Call(dst, 0, src, 0, dst.bytes())
                   .on(stream.get(), stream.device())
                   .flags(GLAKE_COPY_RELAYED)
                   .start());
  CHECK_TEXT(under_way() == 0 && slots() == 0, test::transfer_stats());
}

// How many streams the engine makes for copies of these sizes, all of them in one queue. It may
// have `most` relay buffers.
int64_t streams_for(const std::vector<size_t>& sizes, int64_t most, int64_t* most_slots) {
  Stream stream(0);
  Queue queue(stream, 24 * kMiB);
  const int64_t before = simcuda_calls("cuStreamCreate");
  // The GPUs' contexts must be open before the stream is held: a driver that opens one waits for
  // all work.
  test::finish(queue.into(0, 0, sizes.back(), GLAKE_COPY_RELAYED));
  std::vector<uint64_t> ids;
  stream.hold();
  for (const size_t bytes : sizes) {
    ids.push_back(queue.into(0, 24 * kMiB - bytes, bytes, GLAKE_COPY_RELAYED));
    CHECK_TEXT(ids.back() != 0, test::last_error());
    CHECK_TEXT(slots() <= most, "after copy " + std::to_string(ids.size()));
  }
  CHECK(under_way() == static_cast<int64_t>(sizes.size()));  // otherwise there is no queue
  const int64_t made = simcuda_calls("cuStreamCreate") - before;
  *most_slots = slots();
  stream.let_go();
  Dice dice(1);
  finish_all(&dice, &ids);
  queue.check();
  check_idle(stream);
  return made;
}

// A queue of a hundred copies takes the streams and buffers of a few, also if each copy is larger
// or smaller than the one before. Buffers have sizes that are powers of two. Of each size there may
// be as many as one copy has, and of pipelines one whose hops share streams and one whose hops do
// not.
TEST(a_queue_shares_its_pipelines) {
  const size_t least = 4 * kMiB, step = 160 * kKiB * test::kSlowdown, count = 100 / test::kSlowdown;
  std::vector<size_t> up, down, mixed;
  for (size_t i = 0; i < count; ++i) up.push_back(least + i * step);
  down.assign(up.rbegin(), up.rend());
  for (size_t i = 0; i < count; ++i) mixed.push_back(up[i * 37 % count]);
  // A hundred copies with pipelines of their own would have 1,100 streams and 600 buffers.
  constexpr int64_t kMost = 110;
  for (const auto& [name, sizes] :
       {std::pair<const char*, std::vector<size_t>>{"alone", {up.back()}},
        {"down", down},
        {"up", up},
        {"mixed", mixed}}) {
    test::running() = std::string("sizes ") + name;
    Node node("dgx_a100", {{"memory", "512MiB"}});
    int64_t most_slots = 0;
    const int64_t streams = streams_for(sizes, kMost, &most_slots);
    std::printf("%s: %zu copies, %lld streams, %lld slots\n", name, sizes.size(),
                static_cast<long long>(streams), static_cast<long long>(most_slots));
    CHECK(streams > 4 && streams <= kMost);
  }
}

// The first copy's buffers are too small for the chunks of the one behind it.
TEST(a_large_copy_behind_a_small_one) {
  test::running() = "small, large";
  Node node("dgx_a100", {{"memory", "1GiB"}});
  Buffer dst(0, 384 * kMiB), src(kPinned, dst.bytes());
  src.fill(3);
  Stream stream(0);
  const auto copy = [&](size_t bytes) {
    return Call(dst, 0, src, 0, bytes).on(stream.get(), 0).flags(GLAKE_COPY_RELAYED).start();
  };
  test::finish(copy(4 * kMiB));  // contexts and streams are open
  std::memset(dst.data(), 0, dst.bytes());
  stream.hold();
  const uint64_t small = copy(4 * kMiB), large = copy(dst.bytes());
  CHECK(under_way() == 2);
  stream.let_go();
  test::finish(small);
  test::finish(large);
  CHECK(dst.holds(3, 0, dst.bytes(), 0));
}

void random_queue(uint64_t seed) {
  test::running() = "queue, seed " + std::to_string(seed);
  Node node(seed % 2 == 0 ? "dgx_a100" : "dgx1v",
            {{"memory", "512MiB"}, {"seed", std::to_string(seed)}});
  Dice dice(seed);
  Stream stream(0);
  {
    Queue queue(stream, 24 * kMiB);
    std::vector<uint64_t> ids;
    for (int i = 0; i < 100; ++i) {
      const unsigned flags = dice.chance(30) ? GLAKE_COPY_RELAYED : 0;
      const bool small = dice.chance(25);
      ids.push_back(queue.any(&dice, small ? 1 : kMiB, (small ? 1 : 24) * kMiB, flags));
      CHECK_TEXT(ids.back() != 0, test::last_error());
      if (dice.chance(15)) wait_for_some(&dice, &ids);
    }
    finish_all(&dice, &ids);
    queue.check();
  }
  check_idle(stream);
  CHECK(test::violations() == "[]");
}

std::string way_of(const std::string& result) {
  const size_t at = result.find("\"paths\": [{\"path\": \"");
  return at == std::string::npos ? "" : test::text_in(result.substr(at), "path");
}

// Two streams copy in and out in turns, many times. Each copy goes by a plan for its own direction,
// also where the plans of the whole loop were made with its first copy.
TEST(streams_that_copy_both_ways) {
  test::running() = "both ways";
  Node node("dgx_a100", {{"memory", "512MiB"}, {"host_node", "local"}});
  constexpr size_t kBytes = 24 * kMiB;
  {
    Stream one(0), two(1);
    Queue first(one, kBytes), second(two, kBytes);
    int enqueued = 0;
    for (int round = 0; round < 4; ++round) {
      std::vector<std::pair<std::string, uint64_t>> ids;
      CHECK(simcuda_thread(1) == 0);  // only driver calls take time, and not the caller's own work
      CHECK(simcuda_configure("call_time", "1") == 0);
      for (int i = 0; i < 3; ++i) {
        ids.emplace_back("cpu>cuda:0", first.into(0, 0, kBytes));
        ids.emplace_back("cpu>cuda:1", second.into(0, 0, kBytes));
        ids.emplace_back("cuda:0>cpu", first.back(0, 0, kBytes));
        ids.emplace_back("cuda:1>cpu", second.back(0, 0, kBytes));
      }
      CHECK(simcuda_configure("call_time", "0") == 0);
      CHECK(simcuda_thread(0) == 0);
      for (const auto& [ends, id] : ids) {
        const std::string result = test::finish(id), way = way_of(result);
        if (way.empty()) continue;  // it was a plain copy
        ++enqueued;
        const bool same = way.substr(0, ends.find('>')) == ends.substr(0, ends.find('>')) &&
                          way.substr(way.rfind('>')) == ends.substr(ends.find('>'));
        CHECK_TEXT(same, "round " + std::to_string(round) + ", " + ends + " went " + way);
      }
      first.check();
      second.check();
    }
    CHECK(enqueued > 0);  // otherwise this tests nothing
  }
  CHECK(test::violations() == "[]");
}

// The plans of a loop's queues do not outlive the leave to use their relays.
TEST(relays_that_are_taken_back) {
  test::running() = "taken back";
  Node node("dgx_a100", {{"memory", "512MiB"}, {"host_node", "local"}});
  constexpr size_t kBytes = 24 * kMiB;
  Stream one(0), two(2);
  Queue first(one, kBytes), second(two, kBytes);
  const auto relayed = [](const std::string& result) {
    for (const int gpu : {1, 3, 4, 5, 6, 7}) {
      const std::string relay = ">cuda:" + std::to_string(gpu) + ">";
      if (result.find(relay) < result.find("\"refusals\"")) return true;
    }
    return false;
  };
  int before = 0;
  for (int round = 0; round < 6; ++round) {
    std::vector<uint64_t> ids;
    CHECK(simcuda_thread(1) == 0);  // only driver calls take time, and not the caller's own work
    CHECK(simcuda_configure("call_time", "1") == 0);
    for (int i = 0; i < 4; ++i) {
      if (round == 5 && i == 2) OK(glake_transfer_lend(0, nullptr, 0));
      ids.push_back(first.into(0, 0, kBytes));
      ids.push_back(second.into(0, 0, kBytes));
    }
    CHECK(simcuda_configure("call_time", "0") == 0);
    CHECK(simcuda_thread(0) == 0);
    for (size_t i = 0; i < ids.size(); ++i) {
      const bool by_others = relayed(test::finish(ids[i]));
      if (round == 5 && i < 4) before += by_others;
      CHECK_TEXT(round < 5 || i < 4 || !by_others, "copy " + std::to_string(i));
    }
    first.check();
    second.check();
  }
  CHECK(before > 0);  // otherwise this tests nothing
}

TEST(random_queues) {
  for (uint64_t seed = 1; seed <= static_cast<uint64_t>(16 / test::kShortened + 1); ++seed) {
    random_queue(seed);
  }
}

// Threads copy in streams of their own and in one that they share, and wait and let go as they
// like.
void threads(const char* schedule, uint64_t seed) {
  test::running() = std::string("threads, ") + schedule;
  Node node("dgx_a100", {{"memory", "512MiB"}, {"schedule", schedule}});
  Stream shared(0);
  const auto work = [&](int me) {
    Dice dice(seed * 10 + static_cast<uint64_t>(me));
    Stream own(me);
    Queue mine(own, 12 * kMiB), ours(shared, 12 * kMiB);
    std::vector<uint64_t> ids;
    for (int i = 0; i < 40 / test::kSlowdown + 5; ++i) {
      const unsigned flags = dice.chance(60) ? GLAKE_COPY_RELAYED : 0;
      ids.push_back((dice.chance(50) ? mine : ours).any(&dice, kMiB, 12 * kMiB, flags));
      CHECK_TEXT(ids.back() != 0, test::last_error());
      if (dice.chance(20)) wait_for_some(&dice, &ids);
      if (dice.chance(20)) test::transfer_stats();
      if (dice.chance(20) && !ids.empty()) test::result_of(ids[dice(0, ids.size() - 1)]);
    }
    finish_all(&dice, &ids);
    own.synchronize();
    shared.synchronize();
    mine.check();
    ours.check();
  };
  std::vector<std::thread> all;
  for (int me = 0; me < 3; ++me) all.emplace_back(work, me);
  for (std::thread& thread : all) thread.join();
  check_idle(shared);
  CHECK(test::violations() == "[]");
}

TEST(threads_lazily) {
  for (uint64_t seed = 1; seed <= 3; ++seed) threads("lazy", seed);
}
TEST(threads_threaded) { threads("threaded", 4); }

// One handle names a stream of each thread. The threads' queues do not wait for each other.
TEST(default_streams_of_threads) {
  test::running() = "default streams of threads";
  Node node("dgx_a100", {{"memory", "256MiB"}});
  std::atomic<int> turn{0};
  const auto wait_for = [&](int n) {
    while (turn != n) std::this_thread::yield();
  };
  const auto work = [&](int me) {
    Dice dice(static_cast<uint64_t>(me) + 1);
    Stream own(0, CU_STREAM_PER_THREAD);
    Queue queue(own, 12 * kMiB);
    std::vector<uint64_t> ids;
    const auto begin = [&] {
      for (int i = 0; i < 5; ++i) {
        ids.push_back(queue.into(0, 0, (4 + 2 * dice(0, 4)) * kMiB, GLAKE_COPY_RELAYED));
        CHECK_TEXT(ids.back() != 0, test::last_error());
      }
    };
    begin();
    finish_all(&dice, &ids);
    ++turn;
    wait_for(me + 2);
    if (me == 0) {
      own.hold();
      begin();  // these wait until the other thread's copies are done
      ++turn;
      wait_for(4);
      own.let_go();
    } else {
      begin();
      finish_all(&dice, &ids);
      ++turn;
    }
    finish_all(&dice, &ids);
    queue.check();
  };
  std::thread first(work, 0), second(work, 1);
  first.join();
  second.join();
  Stream stream(0);
  check_idle(stream);
  CHECK(test::violations() == "[]");
}

// More copies than may be under way. Those beyond the limit are plain copies.
TEST(more_than_may_be_under_way) {
  test::running() = "many";
  Node node("dgx_a100", {{"memory", "256MiB"}});
  Stream stream(0);
  {
    Queue queue(stream, 8 * kMiB);
    // The driver opens all that the copies need before the stream is held.
    test::finish(queue.into(0, 0, 8 * kMiB, GLAKE_COPY_RELAYED));
    test::finish(queue.back(0, 0, 8 * kMiB, GLAKE_COPY_RELAYED));
    Dice dice(3);
    std::vector<uint64_t> ids;
    stream.hold();
    for (int i = 0; i < 1030; ++i) {
      ids.push_back(queue.any(&dice, 2 * kMiB, 2 * kMiB, GLAKE_COPY_RELAYED));
      CHECK_TEXT(ids.back() != 0, test::last_error());
    }
    CHECK_TEXT(under_way() == 1024, test::transfer_stats());
    CHECK(slots() <= 100);
    stream.let_go();
    finish_all(&dice, &ids);
    queue.check();
  }
  check_idle(stream);
  CHECK(test::violations() == "[]");
}

// The engine closes while queues are under way whose handles were released, waited for, or neither.
TEST(closes_with_queues_under_way) {
  test::running() = "closes";
  Node node("dgx_a100", {{"memory", "256MiB"}});
  Stream one(0), two(3);
  Queue first(one, 16 * kMiB), second(two, 16 * kMiB);
  Dice dice(5);
  for (int i = 0; i < 24; ++i) {
    const uint64_t id =
        (i % 2 == 0 ? first : second).any(&dice, kMiB, 16 * kMiB, GLAKE_COPY_RELAYED);
    CHECK_TEXT(id != 0, test::last_error());
    if (i % 3 == 0) OK(glake_copy_release(id));
    if (i == 13) OK(glake_copy_wait(id, kForever));
  }
  OK(glake_transfer_close());
  first.check();
  second.check();
  OK(glake_transfer_open(test::platforms_text().c_str(), "dgx_a100"));
}

// A stream ends while its copies wait, and a new stream gets its handle. Glake was told of that.
// The new stream's copies do not wait for the old one's.
TEST(a_handle_that_is_used_again) {
  for (const bool told : {true, false}) {
    test::running() = told ? "used again, told" : "used again";
    Node node("dgx_a100", {{"memory", "256MiB"}, {"reuse_handles", "1"}});
    test::CurrentContext context(0);
    Buffer word(kPinned, 4), src(kPinned, 24 * kMiB), dst(0, 48 * kMiB);
    src.fill(7);
    CUstream old = nullptr, stream = nullptr;
    CU(cuStreamCreate(&old, CU_STREAM_NON_BLOCKING));
    const auto begin = [&](CUstream in, size_t to) {
      const uint64_t id =
          Call(dst, to, src, 0, src.bytes()).on(in, 0).flags(GLAKE_COPY_RELAYED).start();
      CHECK_TEXT(id != 0, test::last_error());
      return id;
    };
    test::finish(begin(old, 0));
    std::memset(dst.data(), 0, dst.bytes());
    std::memset(word.data(), 0, 4);
    CU(cuStreamWaitValue32(old, word.at(), 1, CU_STREAM_WAIT_VALUE_GEQ));
    const uint64_t before = begin(old, 0);
    if (told) OK(glake_forget_stream(0, old));
    CU(cuStreamDestroy(old));
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CHECK(stream == old);  // otherwise this tests nothing
    const uint64_t id = begin(stream, 24 * kMiB);
    if (told) {
      OK(glake_copy_wait(id, 1'000'000'000));
      CHECK(dst.holds(7, 24 * kMiB, 24 * kMiB, 0));
      CHECK(glake_copy_done(before) == 0 && dst.holds(7, 0, 1, 0) == false);
    }
    __atomic_store_n(reinterpret_cast<uint32_t*>(word.data()), 1, __ATOMIC_RELEASE);
    for (const uint64_t each : {id, before}) {
      CHECK(test::text_in(test::finish(each), "state") == "done");
    }
    CHECK(dst.holds(7, 0, 24 * kMiB, 0) && dst.holds(7, 24 * kMiB, 24 * kMiB, 0));
    test::end_stream(stream);
    CHECK_TEXT(under_way() == 0 && slots() == 0, test::transfer_stats());
  }
}

// One call of the driver is refused while a queue begins. Each copy says that it failed, or it is
// whole. Afterwards all works, and all buffers come back. False: there are fewer calls.
bool call_fails(int64_t k, int64_t times) {
  test::running() = "call " + std::to_string(k) + " fails " + std::to_string(times);
  Node node("a40x8_bridged", {{"memory", "64MiB"}});
  node.count_streams = false;  // calls that were refused count too
  test::CurrentContext context(0);
  CUstream stream = nullptr;
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  constexpr size_t kBytes = 4 * kMiB, kCopies = 3;
  Buffer dst(0, kCopies * kBytes), src(kPinned, kBytes);
  src.fill(3);
  const auto start = [&](size_t i) {
    // The second copy needs smaller buffers than the first, and the third larger ones.
    const size_t bytes = i == 1 ? kBytes / 2 : kBytes - (i == 0 ? kMiB : 0);
    Call call(dst, i * kBytes, src, 0, bytes);
    return call.on(stream, 0).flags(GLAKE_COPY_RELAYED).start();
  };
  test::finish(start(0));
  std::memset(dst.data(), 0, dst.bytes());
  const int64_t before = simcuda_calls("*");
  CHECK(simcuda_fail("*", k, CUDA_ERROR_OUT_OF_MEMORY, times) == 0);
  std::vector<uint64_t> ids;
  for (size_t i = 0; i < kCopies; ++i) ids.push_back(start(i));
  const bool fired = simcuda_calls("*") - before >= k;
  CHECK(simcuda_fail(nullptr, 1, 0, 1) == 0);
  for (size_t i = kCopies; i-- > 0;) {
    if (ids[i] == 0) continue;
    const int end = glake_copy_wait(ids[i], kForever);
    CHECK_TEXT(end == GLAKE_OK || end == GLAKE_COPY_FAILED, std::to_string(end));
    const size_t bytes = i == 1 ? kBytes / 2 : kBytes - (i == 0 ? kMiB : 0);
    if (end == GLAKE_OK) CHECK(dst.holds(3, i * kBytes, bytes, 0));
    OK(glake_copy_release(ids[i]));
  }
  test::finish(start(2));
  CHECK(dst.holds(3, 2 * kBytes, kBytes, 0));
  CHECK_TEXT(under_way() == 0 && slots() == 0, test::transfer_stats());
  cuStreamDestroy(stream);
  return fired;
}

TEST(each_call) {
  for (const int64_t times : {int64_t{1}, int64_t{-1}}) {
    const int64_t step = 13 * test::kSlowdown;
    int64_t k = 1;
    while (call_fails(k, times)) k += step;
    CHECK(k > 100);
  }
}

// Now and then a call of one kind is refused, while two queues begin beside each other and there is
// little memory for relay buffers.
void refusals(uint64_t seed) {
  test::running() = "refusals, seed " + std::to_string(seed);
  Node node(seed % 2 == 0 ? "dgx_a100" : "a40x8_bridged",
            {{"memory", "80MiB"}, {"seed", std::to_string(seed)}});
  node.count_streams = false;  // calls that were refused count too
  constexpr size_t kRoom = 2 * kMiB;
  const char* const calls[] = {"cuEventCreate",     "cuEventRecord", "cuStreamCreate",
                               "cuStreamWaitEvent", "cuMemCreate",   "cuMemcpyAsync",
                               "cuMemcpyPeerAsync"};
  Dice dice(seed);
  Stream one(0), two(1);
  {
    struct Copy {
      uint64_t id;
      size_t to, bytes;
      bool first;
    };
    Buffer first(0, 24 * kRoom), second(1, 24 * kRoom), src(kPinned, kRoom);
    src.fill(seed);
    std::vector<Copy> copies;
    for (size_t i = 0; i < 48; ++i) {
      if (dice.chance(25)) {
        const char* const call = calls[dice(0, std::size(calls) - 1)];
        CHECK(simcuda_fail(call, static_cast<int64_t>(dice(1, 8)), CUDA_ERROR_OUT_OF_MEMORY,
                           dice.chance(80) ? 1 : 3) == 0);
      }
      Copy copy{0, i / 2 * kRoom, dice(kRoom / 4, kRoom), i % 2 == 0};
      Call call(copy.first ? first : second, copy.to, src, 0, copy.bytes);
      const Stream& stream = copy.first ? one : two;
      copy.id = call.on(stream.get(), stream.device()).flags(GLAKE_COPY_RELAYED).start();
      if (copy.id != 0) copies.push_back(copy);
      CHECK(simcuda_fail(nullptr, 1, 0, 1) == 0);
    }
    CHECK(copies.size() > 24);
    while (!copies.empty()) {
      const size_t which = dice(0, copies.size() - 1);
      const Copy copy = copies[which];
      copies.erase(copies.begin() + static_cast<std::ptrdiff_t>(which));
      const int end = glake_copy_wait(copy.id, kForever);
      CHECK_TEXT(end == GLAKE_OK || end == GLAKE_COPY_FAILED, std::to_string(end));
      Buffer& dst = copy.first ? first : second;
      if (end == GLAKE_OK) CHECK(dst.holds(seed, copy.to, copy.bytes, 0));
      OK(glake_copy_release(copy.id));
    }
  }
  check_idle(one);
  check_idle(two);
  CHECK(test::violations() == "[]");
}

TEST(refusals) {
  for (uint64_t seed = 1; seed <= static_cast<uint64_t>(160 / test::kShortened); ++seed) {
    refusals(seed);
  }
}

// The driver refuses to say whether a copy is done, or to record the event behind it and then to
// wait for it. The copy goes on all the same, and its buffers must not go to others before it ends.
void questions_refused(const std::vector<const char*>& calls, bool at_end) {
  test::running() = std::string(calls.front()) + " is refused";
  Node node("dgx_a100", {{"memory", "256MiB"}, {"completion", "polled"}});
  node.count_streams = false;  // calls that were refused count too
  Stream stream(0), other(1);
  constexpr size_t kBytes = 96 * kMiB;
  Buffer dst(0, kBytes), src(kPinned, kBytes);
  src.fill(9);
  const auto start = [&] {
    return Call(dst, 0, src, 0, kBytes).on(stream.get(), 0).flags(GLAKE_COPY_RELAYED).start();
  };
  const auto refuse = [&](int64_t from, int64_t times) {
    for (const char* const call : calls) {
      CHECK(simcuda_fail(call, from, CUDA_ERROR_OUT_OF_MEMORY, times) == 0);
    }
  };
  test::finish(start());
  std::memset(dst.data(), 0, kBytes);
  if (!at_end) refuse(2, -1);  // the first event is in front of the copy
  const uint64_t id = start();
  CHECK_TEXT(id != 0, test::last_error());
  CHECK(simcuda_fail(nullptr, 1, 0, 1) == 0);
  if (at_end) refuse(1, 3);
  const int done = glake_copy_done(id);
  CHECK_TEXT(done == 0, std::to_string(done));
  CHECK_TEXT(under_way() == 1, test::transfer_stats());
  OK(glake_copy_stream_wait(id, 1, other.get()));
  {
    test::CurrentContext context(1);
    CU(cuStreamSynchronize(other.get()));
  }
  CHECK(dst.holds(9, 0, kBytes, 0));  // whole, whatever is known of it
  const int end = glake_copy_wait(id, kForever);
  CHECK_TEXT(end == (at_end ? GLAKE_OK : GLAKE_COPY_FAILED), test::last_error());
  CHECK(simcuda_fail(nullptr, 1, 0, 1) == 0);
  OK(glake_copy_release(id));
  test::finish(start());
  CHECK_TEXT(under_way() == 0 && slots() == 0, test::transfer_stats());
}

TEST(questions_refused) {
  questions_refused({"cuEventQuery"}, true);
  questions_refused({"cuEventQuery", "cuStreamQuery"}, true);
  questions_refused({"cuEventRecord", "cuStreamSynchronize"}, false);
}

// A relay's context dies in the middle of a queue. No copy is said to be done that is not, in
// whatever order they are asked about. Copies that begin later go by other ways.
void relay_dies(bool backwards) {
  test::running() = std::string("a relay dies, ") + (backwards ? "backwards" : "forwards");
  test::fresh_simulator({{"memory", "512MiB"}, {"preset", "dgx_a100"}, {"sticky_errors", "1"}});
  test::configure({{"driver", "sim"}});
  CHECK(glake_device_count() == 8);
  OK(glake_transfer_open(test::platforms_text().c_str(), "dgx_a100"));
  constexpr size_t kBytes = 24 * kMiB, kCopies = 6;
  static auto& kept = *new std::vector<Buffer*>;  // not given back: the error does not allow it
  kept.push_back(new Buffer(0, kCopies * kBytes));
  Buffer& dst = *kept.back();
  kept.push_back(new Buffer(kPinned, kBytes));
  Buffer& src = *kept.back();
  src.fill(4);
  test::CurrentContext context(0);
  CUstream stream = nullptr;
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  const auto start = [&](size_t i) {
    return Call(dst, i * kBytes, src, 0, kBytes).on(stream, 0).flags(GLAKE_COPY_RELAYED).start();
  };
  const std::string first = test::finish(start(0));
  CHECK_TEXT(first.find("cpu>cuda:2>cuda:0") != std::string::npos, first);
  std::memset(dst.data(), 0, dst.bytes());
  const auto chunks = test::number_in(first.substr(first.find("cpu>cuda:2>cuda:0")), "chunks");
  // In the third copy.
  CHECK(simcuda_fail_copy("host", "g2", static_cast<int>(2 * chunks + 1), CUDA_ERROR_LAUNCH_FAILED,
                          1) == 0);
  std::vector<uint64_t> ids;
  for (size_t i = 0; i < kCopies; ++i) {
    ids.push_back(start(i));
    CHECK_TEXT(ids.back() != 0, test::last_error());
  }
  int failed = 0;
  for (size_t k = 0; k < kCopies; ++k) {
    const size_t i = backwards ? kCopies - 1 - k : k;
    const int end = glake_copy_wait(ids[i], kForever);
    CHECK_TEXT(end == GLAKE_OK || end == GLAKE_COPY_FAILED, std::to_string(end));
    if (end == GLAKE_OK) CHECK(dst.holds(4, i * kBytes, kBytes, 0));
    failed += end != GLAKE_OK;
    OK(glake_copy_release(ids[i]));
  }
  CHECK(failed > 0);
  std::memset(dst.data(), 0, dst.bytes());
  const uint64_t id = start(1);
  CHECK_TEXT(id != 0, test::last_error());
  OK(glake_copy_wait(id, kForever));
  CHECK(dst.holds(4, kBytes, kBytes, 0));
}

int64_t chunks_of(const std::string& result) {
  int64_t chunks = 0;
  for (size_t at = 0; (at = result.find("\"chunks\": ", at)) != std::string::npos; ++at) {
    chunks += test::number_in(result.substr(at), "chunks");
  }
  return chunks;
}

// A relay makes both copies of a chunk, on its way in and on its way out. So they follow each other
// in one stream, with one buffer for each stream. Where the relay may not read the source, two GPUs
// copy. They tell each other by events.
TEST(a_chunk_goes_on_in_its_stream) {
  test::running() = "joined hops";
  Node node("dgx_a100", {{"memory", "2GiB"}});
  Buffer there(0, 512 * kMiB), here(kPinned, there.bytes()), back(kPinned, there.bytes());
  here.fill(7);
  const Stream stream(0);
  const auto copy = [&](Call&& call, int64_t* chunks) {
    const int64_t before = simcuda_calls("cuEventRecord");
    const uint64_t id = call.on(stream.get(), 0).start();
    const int64_t records = simcuda_calls("cuEventRecord") - before;
    const int64_t held = slots();
    const std::string result = test::finish(id);
    CHECK_TEXT(result.find("\"relayed\": true") != std::string::npos, result);
    *chunks = chunks_of(result);
    return std::make_pair(records, held);
  };
  int64_t chunks = 0;
  const auto [records_in, slots_in] = copy({there, 0, here, 0, there.bytes()}, &chunks);
  CHECK(there.holds(7, 0, there.bytes(), 0));
  CHECK_TEXT(records_in < chunks, std::to_string(records_in) + " of " + std::to_string(chunks));
  const auto [records_out, slots_out] = copy({back, 0, there, 0, back.bytes()}, &chunks);
  CHECK(back.holds(7, 0, back.bytes(), 0));
  CHECK_TEXT(records_out < chunks, std::to_string(records_out) + " of " + std::to_string(chunks));
  test::ForeignMapping mapped(back.bytes());
  Buffer::write(8, 0, mapped.data(), mapped.bytes());
  const auto [records, slots_apart] =
      copy({{{back.at(), mapped.at(), mapped.bytes()}}, GLAKE_HOST, 0}, &chunks);
  CHECK(back.holds(8, 0, back.bytes(), 0));
  CHECK_TEXT(records > chunks, std::to_string(records) + " of " + std::to_string(chunks));
  CHECK_TEXT(slots_in < slots_apart, std::to_string(slots_in) + ", " + std::to_string(slots_apart));
}

TEST(a_relay_dies) { relay_dies(false); }
TEST(a_relay_dies_asked_backwards) { relay_dies(true); }

}  // namespace

int main(int argc, char** argv) { return test::run_cases(argc, argv); }

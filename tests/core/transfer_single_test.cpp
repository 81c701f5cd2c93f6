// On a machine with one GPU a copy has a single path. The tests check its driver calls, and when
// the thread that waits for it sees its end.
#include <initializer_list>

#include "transfer_play.h"

using test::Buffer;
using test::Call;
using test::kMiB;
using test::kPageable;
using test::kPinned;
using test::Node;

namespace {

constexpr size_t kKiB = 1024;

test::Options single(test::Options more = {}) {
  more.insert(more.end(), {{"devices", "1"}, {"memory", "1GiB"}});
  return more;
}

// Copies, and returns the time on the simulator's clock.
uint64_t copied(const Buffer& dst, const Buffer& src, size_t bytes) {
  const uint64_t begin = simcuda_now_ns();
  const uint64_t id = Call(dst, 0, src, 0, bytes).flags(GLAKE_COPY_TRACKED).start();
  CHECK_TEXT(id != 0, test::last_error());
  OK(glake_copy_wait(id, test::kForever));
  const uint64_t end = simcuda_now_ns();
  OK(glake_copy_release(id));
  return end - begin;
}

// A transfer makes one copy call and records one event. An earlier transfer has used the same
// event.
TEST(one_copy_of_the_driver) {
  Node node("hgx_h100_h200", single());
  for (const int host : {kPinned, kPageable}) {
    for (const size_t bytes : {64 * kKiB, kMiB, 32 * kMiB}) {
      test::running() = std::to_string(host) + ", " + std::to_string(bytes);
      Buffer gpu(0, bytes), memory(host, bytes), back(host, bytes);
      memory.fill(bytes);
      for (int i = 0; i < 20; ++i) copied(gpu, memory, bytes);
      const int64_t copies = simcuda_calls("cuMemcpyAsync"), made = simcuda_calls("cuEventCreate"),
                    records = simcuda_calls("cuEventRecord"), all = simcuda_calls("*");
      copied(gpu, memory, bytes);
      CHECK(simcuda_calls("cuMemcpyAsync") == copies + 1);
      CHECK(simcuda_calls("cuEventCreate") == made);
      CHECK(simcuda_calls("cuEventRecord") == records + 1);
      CHECK(simcuda_calls("*") <= all + 24);
      copied(back, gpu, bytes);
      CHECK(back.holds(bytes, 0, bytes, 0));
    }
  }
}

// Longer copies go through buffers, in chunks that several threads fill. The call does not wait.
TEST(long_pageable_memory) {
  Node node("hgx_h100_h200", single());
  constexpr size_t kBytes = 96 * kMiB;
  Buffer gpu(0, kBytes), memory(kPageable, kBytes), back(kPageable, kBytes);
  memory.fill(3);
  copied(gpu, memory, kBytes);
  const int64_t copies = simcuda_calls("cuMemcpyAsync");
  copied(back, gpu, kBytes);
  CHECK(back.holds(3, 0, kBytes, 0));
  const int64_t chunks = simcuda_calls("cuMemcpyAsync") - copies;
  CHECK_TEXT(chunks > 1 && chunks < 32, std::to_string(chunks));
}

// Whatever the length of a copy, a thread that polls sees its end as early as a thread that is
// woken, apart from the time of one query.
TEST(the_end_is_seen_in_time) {
  const std::initializer_list<size_t> sizes = {
      64 * kKiB, 256 * kKiB, kMiB, 2 * kMiB, 5 * kMiB, 12 * kMiB, 16 * kMiB, 32 * kMiB, 256 * kMiB};
  std::vector<uint64_t> woken, asked;
  for (const char* completion : {"instant", "polled"}) {
    Node node("hgx_h100_h200", single({{"phantom", "1"}, {"completion", completion}}));
    for (const size_t bytes : sizes) {
      Buffer gpu(0, bytes), memory(kPinned, bytes);
      uint64_t longest = 0;
      for (int i = 0; i < 4; ++i) longest = std::max(longest, copied(gpu, memory, bytes));
      (completion[0] == 'i' ? woken : asked).push_back(longest);
    }
  }
  for (size_t i = 0; i < woken.size(); ++i) {
    test::running() = std::to_string(woken[i]) + " ns, asked " + std::to_string(asked[i]);
    CHECK(asked[i] <= woken[i] + 2'000);
  }
}

// A thread that waits for a late copy sleeps, and does not ask all the time.
TEST(a_late_copy_is_slept_for) {
  Node node("hgx_h100_h200", single({{"phantom", "1"}, {"completion", "polled"}}));
  constexpr size_t kAhead = 512 * kMiB, kBytes = 64 * kKiB;
  Buffer gpu(0, kAhead), memory(kPinned, kAhead);
  for (int i = 0; i < 4; ++i) copied(gpu, memory, kBytes);
  const uint64_t ahead = Call(gpu, 0, memory, 0, kAhead).flags(GLAKE_COPY_TRACKED).start();
  const int64_t questions = simcuda_calls("cuEventQuery");
  const uint64_t took = copied(gpu, memory, kBytes);
  const int64_t asked = simcuda_calls("cuEventQuery") - questions;
  CHECK_TEXT(took > 9'000'000 && asked < 500, std::to_string(took) + " " + std::to_string(asked));
  OK(glake_copy_wait(ahead, test::kForever));
  OK(glake_copy_release(ahead));
}

}  // namespace

int main(int argc, char** argv) { return test::run_cases(argc, argv); }

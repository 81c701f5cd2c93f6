// Virtual ranges: pages are backed and unbacked at addresses that stay, their memory serves every
// other request meanwhile, and nobody sees bytes of others.
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "harness.h"

using test::kGranule;
using test::kMiB;
using test::stat;

namespace {

constexpr auto kPage = static_cast<int64_t>(kGranule);

struct Session {
  explicit Session(const test::Options& glake = {}, const test::Options& simulator = {}) {
    test::Options all{{"memory", "128MiB"}, {"devices", "1"}};
    all.insert(all.end(), simulator.begin(), simulator.end());
    test::fresh_simulator(all);
    test::configure({{"driver", "sim"}});
    test::configure(glake);
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  ~Session() {
    OK(glake_check(0));
    OK(glake_shutdown());
    test::check_nothing_left();
  }
};

char* reserve(size_t bytes, int device = 0) {
  auto* range = static_cast<char*>(glake_virtual_reserve(bytes, device));
  CHECK(range != nullptr);
  return range;
}
void* get(size_t bytes, CUstream stream = nullptr) {
  void* ptr = glake_malloc(bytes, 0, stream);
  CHECK(ptr != nullptr);
  return ptr;
}
CUdeviceptr at(const void* ptr) { return reinterpret_cast<CUdeviceptr>(ptr); }
void fill(const void* ptr, unsigned char value, size_t bytes, CUstream stream = nullptr) {
  test::CurrentContext context;
  CU(cuMemsetD8Async(at(ptr), value, bytes, stream));
}
// True if all bytes are `value`.
bool holds(const void* ptr, unsigned char value, size_t bytes) {
  test::CurrentContext context;
  CU(cuCtxSynchronize());
  std::vector<unsigned char> found(bytes);
  CU(cuMemcpyDtoH(found.data(), at(ptr), bytes));
  return std::all_of(found.begin(), found.end(), [=](unsigned char b) { return b == value; });
}
bool is_mapped(void* ptr) {
  test::CurrentContext context;
  CUmemGenericAllocationHandle handle = 0;
  if (cuMemRetainAllocationHandle(&handle, ptr) != CUDA_SUCCESS) return false;
  CU(cuMemRelease(handle));
  return true;
}
int64_t mapping_calls() { return stat("glake.driver_calls"); }
glake_virtual info(void* range, size_t pages) {
  glake_virtual found{};
  OK(glake_virtual_info(range, 0, pages * kGranule, &found, sizeof found));
  return found;
}

TEST(pages_have_memory_only_while_they_are_backed) {
  Session session;
  char* range = reserve(1000 * kGranule);  // far more than the device has
  CHECK(stat("glake.physical_bytes") == 0);
  OK(glake_virtual_back(range, kMiB, 4 * kMiB, nullptr));  // of three pages
  CHECK(stat("glake.virtual_backed_bytes") == 3 * kPage);
  CHECK(stat("allocated_bytes.all.current") == 3 * kPage);
  CHECK(is_mapped(range) && is_mapped(range + 5 * kMiB) && !is_mapped(range + 6 * kMiB));
  fill(range, 7, 6 * kMiB);
  OK(glake_virtual_back(range, 0, 10 * kMiB, nullptr));  // two more; the three stay as they are
  CHECK(holds(range, 7, 6 * kMiB));
  OK(glake_virtual_unback(range, kMiB, 4 * kMiB, nullptr));  // only the second lies in it whole
  CHECK(info(range, 9).backed == 4 * kGranule && info(range, 9).mapped == 5 * kGranule);
  CHECK(info(range, 2).backed == kGranule && info(range, 2).bytes == 2 * kGranule);
  CHECK(holds(range, 7, kGranule) && holds(range + 2 * kGranule, 7, kGranule));
  OK(glake_virtual_free(range));
  CHECK(stat("allocated_bytes.all.current") == 0);
  CHECK(stat("glake.virtual_ranges") == 0);
}

// The granule behind a page is where a freed block was. The block's old pointer frees nothing.
TEST(an_old_pointer_frees_no_page) {
  Session session;
  void* block = get(kGranule);
  OK(glake_free(block));
  char* range = reserve(kGranule);
  OK(glake_virtual_back(range, 0, kGranule, nullptr));
  CHECK(stat("reserved_bytes.all.current") == kPage);  // the block's own
  GIVES(GLAKE_INVALID_POINTER, glake_free(block));
  CHECK(info(range, 1).backed == kGranule);
  OK(glake_virtual_free(range));
}

// A page whose memory nobody took is backed again without a driver call, and unback() makes none.
TEST(a_repeated_step_makes_no_driver_call) {
  Session session;
  char* range = reserve(32 * kGranule);
  OK(glake_virtual_back(range, 0, 8 * kGranule, nullptr));
  const int64_t calls = mapping_calls();
  for (int step = 0; step < 100; ++step) {
    OK(glake_virtual_unback(range, 0, 8 * kGranule, nullptr));
    OK(glake_virtual_back(range, 0, 8 * kGranule, nullptr));
  }
  CHECK(mapping_calls() == calls);
  OK(glake_virtual_free(range));
}

TEST(unbacked_memory_serves_blocks_and_the_reverse) {
  Session session(test::Options{{"limit", "16MiB"}});
  char* range = reserve(64 * kGranule);
  OK(glake_virtual_back(range, 0, 8 * kGranule, nullptr));
  fill(range, 1, 8 * kGranule);
  CHECK(glake_malloc(kGranule, 0, nullptr) == nullptr);
  OK(glake_virtual_unback(range, 2 * kGranule, 4 * kGranule, nullptr));
  void* block = get(8 * kMiB);  // all four granules, although none has left its page
  CHECK(stat("glake.physical_bytes") == 8 * kPage);
  fill(block, 2, 8 * kMiB);
  CHECK(holds(range, 1, 2 * kGranule) && holds(range + 6 * kGranule, 1, 2 * kGranule));
  GIVES(GLAKE_OUT_OF_MEMORY, glake_virtual_back(range, 2 * kGranule, kGranule, nullptr));
  OK(glake_free(block));
  OK(glake_virtual_back(range, 2 * kGranule, 4 * kGranule, nullptr));
  fill(range + 2 * kGranule, 3, 4 * kGranule);
  CHECK(holds(range, 1, 2 * kGranule) && holds(range + 6 * kGranule, 1, 2 * kGranule));
  OK(glake_virtual_free(range));
}

// Pages whose granules others have meanwhile are mapped anew, and the others keep their bytes.
TEST(pages_are_mapped_anew_where_their_memory_is_gone) {
  Session session;
  char* range = reserve(16 * kGranule);
  OK(glake_virtual_back(range, 0, 4 * kGranule, nullptr));
  OK(glake_virtual_unback(range, 0, 4 * kGranule, nullptr));
  void* block = get(4 * kGranule);
  CHECK(stat("glake.physical_bytes") == 4 * kPage);
  fill(block, 5, 4 * kGranule);
  OK(glake_virtual_back(range, 0, 4 * kGranule, nullptr));
  CHECK(stat("glake.physical_bytes") == 8 * kPage);
  fill(range, 6, 4 * kGranule);
  CHECK(holds(block, 5, 4 * kGranule) && holds(range, 6, 4 * kGranule));
  OK(glake_free(block));
  OK(glake_virtual_free(range));
}

TEST(out_of_memory_changes_nothing) {
  Session session(test::Options{{"limit", "20MiB"}});
  char* range = reserve(64 * kGranule);
  OK(glake_virtual_back(range, 0, 6 * kGranule, nullptr));
  fill(range, 9, 6 * kGranule);
  OK(glake_virtual_unback(range, 2 * kGranule, kGranule, nullptr));
  const int64_t ooms = stat("num_ooms");
  GIVES(GLAKE_OUT_OF_MEMORY, glake_virtual_back(range, 0, 11 * kGranule, nullptr));
  const std::string text = test::last_error();
  CHECK_TEXT(text.find("virtual range") != std::string::npos, text);
  CHECK_TEXT(text.find("largest fit now 8.00 MiB") != std::string::npos, text);
  CHECK(stat("num_ooms") == ooms + 1);
  CHECK(info(range, 64).backed == 5 * kGranule);
  CHECK(holds(range, 9, 2 * kGranule) && holds(range + 3 * kGranule, 9, 3 * kGranule));
  // As much as the text names does fit, beside the pages that are backed.
  OK(glake_virtual_back(range, 0, 10 * kGranule, nullptr));
  OK(glake_virtual_free(range));
}

// Terabytes that the device can never hold are refused before any page's books are made.
TEST(what_can_never_fit_is_refused_at_once) {
  Session session(test::Options{{"limit", "16MiB"}});
  constexpr size_t kAll = size_t{4} << 40;
  char* range = reserve(kAll);
  OK(glake_virtual_back(range, 0, 3 * kGranule, nullptr));
  rusage before{}, after{};
  CHECK(getrusage(RUSAGE_SELF, &before) == 0);
  GIVES(GLAKE_OUT_OF_MEMORY, glake_virtual_back(range, 0, kAll, nullptr));
  CHECK(getrusage(RUSAGE_SELF, &after) == 0);
  CHECK(after.ru_maxrss - before.ru_maxrss < 32 * 1024);  // KiB
  CHECK(test::last_error().find("Tried to allocate 4.00 TiB") != std::string::npos);
  CHECK(stat("num_ooms") == 1 && info(range, 8).backed == 3 * kGranule);
  // All that the limit allows is possible, and one page more is not.
  OK(glake_virtual_back(range, 0, 8 * kGranule, nullptr));
  OK(glake_virtual_unback(range, 0, kAll, nullptr));
  GIVES(GLAKE_OUT_OF_MEMORY, glake_virtual_back(range, kAll / 2, 9 * kGranule, nullptr));
  OK(glake_virtual_back(range, kAll / 2, 8 * kGranule, nullptr));
  OK(glake_virtual_unback(range, kAll / 2 + kGranule, kAll / 2 - kGranule, nullptr));
  CHECK(stat("allocated_bytes.all.current") == kPage);
  OK(glake_virtual_free(range));
}

TEST(aliases_share_memory_until_the_last_one_goes) {
  Session session;
  char* range = reserve(16 * kGranule);
  char* other = reserve(4 * kGranule);
  OK(glake_virtual_back(range, 0, 3 * kGranule, nullptr));
  OK(glake_virtual_alias(range, 8 * kGranule, range, 0, 3 * kGranule, nullptr));
  OK(glake_virtual_alias(other, kGranule, range, kGranule, kGranule, nullptr));
  CHECK(stat("allocated_bytes.all.current") == 3 * kPage);
  CHECK(stat("glake.virtual_backed_bytes") == 7 * kPage);
  CHECK(stat("glake.virtual_shared_bytes") == 4 * kPage);
  CHECK(info(range, 16).shared == 6 * kGranule && info(other, 4).shared == kGranule);
  fill(range + kGranule, 3, kGranule);
  CHECK(holds(range + 9 * kGranule, 3, kGranule) && holds(other + kGranule, 3, kGranule));
  OK(glake_virtual_unback(range, 0, 3 * kGranule, nullptr));
  CHECK(stat("allocated_bytes.all.current") == 3 * kPage);
  void* block = get(3 * kGranule);
  fill(block, 4, 3 * kGranule);
  CHECK(holds(range + 9 * kGranule, 3, kGranule));
  OK(glake_virtual_free(range));
  CHECK(stat("glake.virtual_shared_bytes") == 0);
  CHECK(holds(other + kGranule, 3, kGranule));
  // Backed again where the alias was: by memory of its own, though its old granule is in use.
  OK(glake_virtual_back(other, 0, 4 * kGranule, nullptr));
  fill(other, 8, kGranule);
  CHECK(holds(other + kGranule, 3, kGranule) && holds(block, 4, 3 * kGranule));
  OK(glake_virtual_free(other));
  OK(glake_free(block));
}

// A backed page gets the memory of another one. Its own serves others, after the work on it.
TEST(an_alias_replaces_what_a_page_had) {
  Session session(test::Options{{"limit", "6MiB"}});
  char* range = reserve(4 * kGranule);
  OK(glake_virtual_back(range, 0, 3 * kGranule, nullptr));
  fill(range, 1, kGranule);
  for (unsigned char i = 0; i < 20; ++i) fill(range + kGranule, i, kGranule);
  OK(glake_virtual_alias(range, kGranule, range, 0, kGranule, nullptr));
  void* block = get(kGranule);
  fill(block, 7, kGranule);
  CHECK(holds(range + kGranule, 1, kGranule) && holds(block, 7, kGranule));
  CHECK(stat("glake.virtual_shared_bytes") == kPage);
  OK(glake_free(block));
  OK(glake_virtual_free(range));
}

// Two idle pages whose mappings lead to one granule: backed again, they have one each.
TEST(former_aliases_have_memory_of_their_own) {
  Session session;
  char* range = reserve(4 * kGranule);
  OK(glake_virtual_back(range, 0, kGranule, nullptr));
  OK(glake_virtual_alias(range, kGranule, range, 0, kGranule, nullptr));
  OK(glake_virtual_unback(range, 0, 2 * kGranule, nullptr));
  CHECK(stat("allocated_bytes.all.current") == 0);
  OK(glake_virtual_back(range, 0, 2 * kGranule, nullptr));
  fill(range, 1, kGranule);
  fill(range + kGranule, 2, kGranule);
  CHECK(holds(range, 1, kGranule) && holds(range + kGranule, 2, kGranule));
  OK(glake_virtual_free(range));
}

TEST(idle_memory_goes_back_to_the_driver) {
  Session session;
  char* range = reserve(16 * kGranule);
  OK(glake_virtual_back(range, 0, 8 * kGranule, nullptr));
  fill(range, 1, 8 * kGranule);
  OK(glake_virtual_unback(range, 0, 6 * kGranule, nullptr));
  CHECK(stat("glake.virtual_idle_bytes") == 6 * kPage);
  OK(glake_empty_cache(0));
  CHECK(stat("glake.physical_bytes") == 2 * kPage);
  CHECK(stat("glake.virtual_idle_bytes") == 0);
  CHECK(holds(range + 6 * kGranule, 1, 2 * kGranule));
  OK(glake_virtual_free(range));
}

// A contiguous block needs new memory, and finds that idle pages can give theirs back.
TEST(idle_memory_makes_room_for_others) {
  Session session(test::Options{{"limit", "32MiB"}});
  char* range = reserve(16 * kGranule);
  OK(glake_virtual_back(range, 0, 16 * kGranule, nullptr));
  OK(glake_virtual_unback(range, 0, 12 * kGranule, nullptr));
  void* block = glake_malloc_contiguous(24 * kMiB, 0, nullptr, GLAKE_CONTIGUOUS_VMM);
  CHECK(block != nullptr);
  CHECK(stat("glake.physical_bytes") == 16 * kPage);
  OK(glake_free(block));
  OK(glake_virtual_free(range));
}

// Work that is enqueued before an unback may use the page, even while others want its memory.
TEST(later_users_come_after_enqueued_work) {
  Session session(test::Options{{"limit", "8MiB"}});
  CUstream first = nullptr, second = nullptr;
  char* range = reserve(8 * kGranule);
  {
    test::CurrentContext context;
    CU(cuStreamCreate(&first, CU_STREAM_NON_BLOCKING));
    CU(cuStreamCreate(&second, CU_STREAM_NON_BLOCKING));
  }
  for (int round = 0; round < 20; ++round) {
    OK(glake_virtual_back(range, 0, 4 * kGranule, first));
    for (unsigned char i = 0; i < 8; ++i) fill(range, i, 4 * kGranule, first);
    OK(glake_virtual_unback(range, 0, 4 * kGranule, first));
    void* block = get(4 * kGranule, second);
    fill(block, 0xab, 4 * kGranule, second);
    CHECK(holds(block, 0xab, 4 * kGranule));
    // Other pages need the same memory, while the last work on it may be under way.
    fill(block, 0xcd, 4 * kGranule, second);
    OK(glake_free(block));
    OK(glake_virtual_back(range, 4 * kGranule, 4 * kGranule, second));
    fill(range + 4 * kGranule, 0x11, 4 * kGranule, second);
    CHECK(holds(range + 4 * kGranule, 0x11, 4 * kGranule));
    OK(glake_virtual_unback(range, 4 * kGranule, 4 * kGranule, second));
  }
  OK(glake_virtual_free(range));
  test::end_stream(first);
  test::end_stream(second);
}

TEST(wrong_use_is_named) {
  Session session;
  char* range = reserve(4 * kGranule);
  GIVES(GLAKE_INVALID_ARGUMENT, glake_virtual_back(range, 0, 0, nullptr));
  GIVES(GLAKE_INVALID_ARGUMENT, glake_virtual_back(range, 8 * kMiB, 1, nullptr));
  GIVES(GLAKE_INVALID_ARGUMENT, glake_virtual_back(range, kMiB, SIZE_MAX, nullptr));
  GIVES(GLAKE_INVALID_ARGUMENT, glake_virtual_unback(range, 0, 9 * kMiB, nullptr));
  GIVES(GLAKE_INVALID_POINTER, glake_virtual_back(range + kGranule, 0, 1, nullptr));
  GIVES(GLAKE_INVALID_POINTER, glake_virtual_back(nullptr, 0, 1, nullptr));
  int here = 0;
  GIVES(GLAKE_INVALID_POINTER, glake_virtual_unback(&here, 0, 1, nullptr));
  void* block = get(kGranule);
  GIVES(GLAKE_INVALID_POINTER, glake_virtual_back(block, 0, 1, nullptr));
  GIVES(GLAKE_INVALID_POINTER, glake_virtual_alias(range, 0, block, 0, kGranule, nullptr));
  OK(glake_virtual_back(range, 0, kGranule, nullptr));
  OK(glake_virtual_alias(range, 0, range, 0, kGranule, nullptr));  // it is so already
  GIVES(GLAKE_INVALID_ARGUMENT, glake_virtual_alias(range, kGranule, range, 0, kMiB, nullptr));
  GIVES(GLAKE_INVALID_ARGUMENT,
        glake_virtual_alias(range, kGranule, range, 4 * kMiB, kGranule, nullptr));
  GIVES(GLAKE_INVALID_POINTER, glake_free(range));
  CHECK(test::last_error().find("virtual range") != std::string::npos);
  GIVES(GLAKE_INVALID_POINTER, glake_pin(range));
  GIVES(GLAKE_INVALID_ARGUMENT, glake_shutdown());
  CHECK(test::last_error().find("1 virtual range") != std::string::npos);
  CHECK(glake_virtual_reserve(0, 0) == nullptr);
  CHECK(glake_virtual_reserve(kGranule, 7) == nullptr);
  GIVES(GLAKE_INVALID_ARGUMENT, glake_virtual_info(range, 0, 1, nullptr, 8));
  OK(glake_virtual_free(nullptr));
  OK(glake_virtual_free(range));
  GIVES(GLAKE_INVALID_POINTER, glake_virtual_free(range));
  OK(glake_free(block));
}

// A captured graph keeps its addresses. What would have to be mapped anew there is refused, and
// works after the capture.
TEST(mappings_stay_during_a_capture) {
  Session session(test::Options{{"limit", "8MiB"}});
  CUstream stream = nullptr;
  CUgraph graph = nullptr;
  char* range = reserve(8 * kGranule);
  OK(glake_virtual_back(range, 0, 2 * kGranule, nullptr));
  test::CurrentContext context;
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  OK(glake_virtual_back(range, 2 * kGranule, kGranule, stream));  // never mapped before
  fill(range + 2 * kGranule, 4, kGranule, stream);
  OK(glake_virtual_unback(range, 2 * kGranule, kGranule, stream));
  void* block = get(kGranule, stream);  // the same granule, on the same stream
  GIVES(GLAKE_INVALID_ARGUMENT, glake_virtual_back(range, 2 * kGranule, kGranule, stream));
  GIVES(GLAKE_INVALID_ARGUMENT, glake_virtual_free(range));
  CU(cuStreamEndCapture(stream, &graph));
  CU(cuGraphDestroy(graph));
  OK(glake_virtual_back(range, 0, 3 * kGranule, stream));
  OK(glake_free(block));
  OK(glake_virtual_free(range));
  test::end_stream(stream);
}

TEST(other_devices_reach_pages) {
  Session session({}, {{"devices", "2"}});
  char* range = reserve(8 * kGranule);
  OK(glake_virtual_back(range, 0, 2 * kGranule, nullptr));
  OK(glake_virtual_unback(range, 0, kGranule, nullptr));
  OK(glake_enable_peer_access(0, 1));
  OK(glake_virtual_back(range, 0, 4 * kGranule, nullptr));
  {
    test::CurrentContext context(1);
    CU(cuMemsetD8(at(range), 5, 4 * kGranule));
    CU(cuCtxSynchronize());
  }
  CHECK(holds(range, 5, 4 * kGranule));
  OK(glake_virtual_free(range));
}

// Random calls of four threads on one range and on blocks. Each page has one owner at a time, who
// stamps it and checks the stamp before the page is unbacked.
TEST(threads_share_a_range) {
  Session session(test::Options{{"limit", "96MiB"}});
  constexpr int kThreads = 4, kEach = 12;
  char* range = reserve(kThreads * kEach * kGranule);
  std::atomic<int> wrong{0};
  auto work = [&](int t) {
    test::Dice dice(static_cast<uint64_t>(t) + 1);
    const size_t first = static_cast<size_t>(t) * kEach;
    for (int i = 0; i < 300 / test::kSlowdown; ++i) {
      const size_t page = first + dice(0, kEach - 3), n = dice(1, 3);
      const auto stamp = static_cast<unsigned char>(dice(1, 255));
      if (glake_virtual_back(range, page * kGranule, n * kGranule, nullptr) != GLAKE_OK) continue;
      void* block = glake_malloc(dice(1, 5) * kMiB, 0, nullptr);
      fill(range + page * kGranule, stamp, n * kGranule);
      if (block != nullptr) fill(block, static_cast<unsigned char>(~stamp), kMiB);
      if (!holds(range + (page + n - 1) * kGranule, stamp, 4096)) ++wrong;
      OK(glake_virtual_unback(range, page * kGranule, n * kGranule, nullptr));
      if (block != nullptr) OK(glake_free(block));
      if (dice.chance(3)) OK(glake_empty_cache(0));
    }
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) threads.emplace_back(work, t);
  for (std::thread& t : threads) t.join();
  CHECK(wrong == 0);
  OK(glake_check(0));
  CHECK(stat("allocated_bytes.all.current") == 0);
  OK(glake_virtual_free(range));
}

// A model of what pages hold, against random calls on three streams at a tight limit. The simulator
// runs work as late as is legal.
class Program {
 public:
  explicit Program(uint64_t seed) : dice_(seed) {
    test::running() = "seed " + std::to_string(seed);
    test::fresh_simulator({{"memory", "128MiB"}, {"devices", "1"}, {"seed", std::to_string(seed)}});
    test::configure({{"driver", "sim"}, {"limit", "40MiB"}});
    if (seed % 2 == 0) test::configure({{"policy", "compact"}});
    range_ = reserve(kPages * kGranule);
    test::CurrentContext context;
    CU(cuStreamCreate(&streams_[1], CU_STREAM_NON_BLOCKING));
    CU(cuStreamCreate(&streams_[2], CU_STREAM_NON_BLOCKING));
  }

  void run(int steps) {
    for (int i = 0; i < steps; ++i) step();
    verify();
    for (Held& h : blocks_) OK(glake_free(h.ptr));
    OK(glake_virtual_free(range_));
    for (CUstream s : streams_) {
      if (s != nullptr) test::end_stream(s);
    }
    OK(glake_shutdown());
    test::check_nothing_left();
  }

 private:
  static constexpr size_t kPages = 30;
  struct Held {
    void* ptr;
    size_t bytes;
    unsigned char value;
  };

  char* page(size_t i) { return range_ + i * kGranule; }
  CUstream stream() { return streams_[dice_(0, 2)]; }
  void synchronize() {
    test::CurrentContext context;
    CU(cuCtxSynchronize());
  }

  void step() {
    const size_t first = dice_(0, kPages - 1), n = dice_(1, std::min<size_t>(6, kPages - first));
    switch (dice_(0, 6)) {
      case 0:
      case 1:
        back(first, n);
        break;
      case 2:
        unback(first, n);
        break;
      case 3:
        alias(first, dice_(0, kPages - 1));
        break;
      case 4:
        allocate();
        break;
      case 5:
        if (!blocks_.empty()) drop(dice_(0, blocks_.size() - 1));
        break;
      default:
        if (dice_.chance(20)) OK(glake_empty_cache(0));
    }
    if (dice_.chance(10)) verify();
  }

  void back(size_t first, size_t n) {
    // Blocks and pages are written on one stream until the next synchronisation, and read after it.
    CUstream s = stream();
    synchronize();
    const int code = glake_virtual_back(range_, first * kGranule, n * kGranule, s);
    CHECK(code == GLAKE_OK || code == GLAKE_OUT_OF_MEMORY);
    if (code != GLAKE_OK) return;
    for (size_t i = first; i < first + n; ++i) {
      if (group_[i] == 0) group_[i] = ++groups_;
      const auto value = static_cast<unsigned char>(dice_(1, 255));
      fill(page(i), value, kGranule, s);
      values_[group_[i]] = value;
    }
    synchronize();
  }
  // The work that is enqueued just before goes on while the memory changes hands.
  void unback(size_t first, size_t n) {
    CUstream s = stream();
    for (size_t i = first; i < first + n; ++i) {
      if (group_[i] == 0 || shared(i)) continue;
      fill(page(i), 0xee, kGranule, s);
    }
    OK(glake_virtual_unback(range_, first * kGranule, n * kGranule, s));
    std::fill_n(group_ + first, n, 0);
  }
  bool shared(size_t i) const { return std::count(group_, group_ + kPages, group_[i]) > 1; }
  void alias(size_t to, size_t from) {
    CUstream s = stream();
    const bool possible = group_[from] != 0;
    if (possible && group_[to] != 0 && !shared(to)) fill(page(to), 0xee, kGranule, s);
    const int code =
        glake_virtual_alias(range_, to * kGranule, range_, from * kGranule, kGranule, s);
    CHECK(code == (possible ? GLAKE_OK : GLAKE_INVALID_ARGUMENT));
    if (possible && to == from) fill(page(to), values_[group_[to]], kGranule, s);
    if (possible) group_[to] = group_[from];
  }
  void allocate() {
    CUstream s = stream();
    const size_t bytes = dice_(1, 9) * kMiB;
    void* ptr = glake_malloc(bytes, 0, s);
    if (ptr == nullptr) return;
    blocks_.push_back({ptr, bytes, static_cast<unsigned char>(dice_(1, 255))});
    fill(ptr, blocks_.back().value, bytes, s);
  }
  void drop(size_t i) {
    synchronize();
    CHECK_TEXT(holds(blocks_[i].ptr, blocks_[i].value, blocks_[i].bytes), "a block's bytes");
    OK(glake_free(blocks_[i].ptr));
    blocks_.erase(blocks_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  void verify() {
    OK(glake_check(0));
    for (size_t i = 0; i < kPages; ++i) {
      if (group_[i] == 0) continue;
      CHECK_TEXT(holds(page(i), values_[group_[i]], kGranule), "page " + std::to_string(i));
    }
    for (Held& h : blocks_) CHECK_TEXT(holds(h.ptr, h.value, h.bytes), "a block's bytes");
    CHECK(test::violations() == "[]");
  }

  test::Dice dice_;
  char* range_ = nullptr;
  CUstream streams_[3] = {};
  int group_[kPages] = {};  // pages of one number share memory; 0: not backed
  int groups_ = 0;
  std::map<int, unsigned char> values_;  // by group
  std::vector<Held> blocks_;
};

TEST(random_programs) {
  for (uint64_t seed = 1; seed <= static_cast<uint64_t>(24 / test::kSlowdown); ++seed) {
    Program(seed).run(150);
  }
}

}  // namespace

int main(int argc, char** argv) { return test::run_cases(argc, argv); }

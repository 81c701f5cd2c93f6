// Regions that pause and resume keep their addresses and bytes, and the driver has their granules
// meanwhile. Refusals name the region. Budgets, and out of memory on resume.
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <thread>

#include "harness.h"

namespace {

using test::kGranule;
using test::kKiB;
using test::kMiB;

constexpr int kTo[] = {GLAKE_REGION_HOST, GLAKE_REGION_DISK, GLAKE_REGION_DISCARD};

class Fixture {
 public:
  explicit Fixture(const char* what, const char* limit = "64MiB", const test::Options& more = {}) {
    test::running() = what;
    test::Options options{{"memory", "128MiB"}, {"devices", "1"}};
    options.insert(options.end(), more.begin(), more.end());
    test::fresh_simulator(options);
    test::configure({{"driver", "sim"}, {"limit", limit}});
    context = std::make_unique<test::CurrentContext>();
    for (CUstream& stream : s) CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(glake_region_pool("weights", &weights));
  }
  ~Fixture() {
    OK(glake_check(0));
    OK(glake_shutdown());
    for (CUstream stream : s) test::end_stream(stream);
    context.reset();
    test::check_nothing_left();
  }
  std::unique_ptr<test::CurrentContext> context;
  CUstream s[3] = {};
  glake_pool weights{};
};

// A folder that is removed again; nothing may be left in it.
class Folder {
 public:
  Folder() { CHECK(mkdtemp(path_) != nullptr); }
  ~Folder() { CHECK_TEXT(rmdir(path_) == 0, path_); }
  const char* path() const { return path_; }

 private:
  char path_[32] = "/tmp/glake-regions-XXXXXX";
};

void* get(size_t bytes, glake_pool pool, CUstream stream = nullptr) {
  void* ptr = glake_pool_malloc(bytes, 0, stream, pool);
  CHECK(ptr != nullptr);
  return ptr;
}

CUdeviceptr address(const void* ptr) { return reinterpret_cast<CUdeviceptr>(ptr); }

void stamp(void* ptr, size_t bytes, uint32_t word, CUstream stream = nullptr) {
  CU(cuMemsetD32Async(address(ptr), word, bytes / 4, stream));
}

bool holds(const void* ptr, size_t bytes, uint32_t word, CUstream stream = nullptr) {
  std::vector<uint32_t> words(bytes / 4);
  CU(cuMemcpyDtoHAsync(words.data(), address(ptr), bytes, stream));
  CU(cuStreamSynchronize(stream));
  for (uint32_t w : words) {
    if (w != word) return false;
  }
  return true;
}

int64_t used() { return test::number_in(test::ledger(), "used_bytes"); }

bool says(const char* text) {
  CHECK_TEXT(test::last_error().find(text) != std::string::npos, std::string("wanted: ") + text);
  return true;
}

std::string regions() {
  return test::text_of([](char* to, size_t room) { return glake_regions(to, room); });
}

int64_t host_blocks() {
  return test::number_in(
      test::text_of([](char* to, size_t room) { return glake_host_stats(to, room); }),
      "live_blocks");
}

int pause(glake_pool pool, int to, const Folder& folder) {
  return glake_region_pause(0, pool, to, to == GLAKE_REGION_DISK ? folder.path() : nullptr);
}

TEST(there_and_back) {
  for (int to : kTo) {
    Fixture f("there and back");
    test::running() += ", to " + std::to_string(to);
    Folder folder;
    void* own = glake_malloc(3 * kMiB, 0, nullptr);
    stamp(own, 3 * kMiB, 9);
    void* large = get(37 * kMiB, f.weights, f.s[0]);
    void* small = get(1000, f.weights, f.s[1]);
    stamp(large, 37 * kMiB, 7, f.s[0]);
    stamp(small, 1000, 8, f.s[1]);
    const int64_t before = used();
    OK(pause(f.weights, to, folder));
    CHECK(used() == before - static_cast<int64_t>(38 * kMiB + kGranule));
    CHECK(test::stat("glake.paused_bytes") == before - used());
    CHECK(test::number_in(regions(), "state") == 1 && test::number_in(regions(), "blocks") == 2);
    OK(glake_check(0));
    test::check_books({{own, 3 * kMiB, 0}, {large, 37 * kMiB, 0}, {small, 1000, 0}});
    // Another block may have the memory meanwhile.
    void* other = glake_malloc(50 * kMiB, 0, nullptr);
    CHECK(other != nullptr);
    stamp(other, 50 * kMiB, 5);
    OK(glake_free(other));
    CHECK(glake_pool_malloc(kMiB, 0, nullptr, f.weights) == nullptr);
    CHECK(glake_last_error(nullptr, 0) == GLAKE_REGION_PAUSED && says("region \"weights\""));
    GIVES(GLAKE_REGION_REFUSED, pause(f.weights, to, folder));
    GIVES(GLAKE_REGION_PAUSED, glake_pin(large));
    OK(glake_record_stream(large, f.s[2]));
    OK(glake_region_resume(0, f.weights, 1));
    CHECK(test::stat("glake.paused_bytes") == 0);
    if (to != GLAKE_REGION_DISCARD) {
      CHECK(holds(large, 37 * kMiB, 7, f.s[0]) && holds(small, 1000, 8, f.s[1]));
    } else {
      stamp(large, 37 * kMiB, 7, f.s[0]);  // mapped, and may be written
    }
    CHECK(holds(own, 3 * kMiB, 9));
    GIVES(GLAKE_REGION_REFUSED, glake_region_resume(0, f.weights, 1));
    CHECK(says("is not paused"));
    for (void* ptr : {own, large, small}) OK(glake_free(ptr));
    CHECK(test::stat("glake.live_blocks") == 0);
  }
}

// A region has blocks in views. After a resume every mapping is back, and free bytes are still
// free.
TEST(views) {
  Fixture f("views", "24MiB");
  std::vector<void*> parts;
  for (int i = 0; i < 6; ++i) parts.push_back(get(4 * kMiB, f.weights));
  for (int i : {0, 2, 4}) OK(glake_free(parts[static_cast<size_t>(i)]));
  void* stitched = get(11 * kMiB, f.weights);
  CHECK(test::stat("glake.stitches") == 1);
  stamp(stitched, 11 * kMiB, 3);
  for (int i : {1, 3, 5}) stamp(parts[static_cast<size_t>(i)], 4 * kMiB, static_cast<uint32_t>(i));
  for (int round = 0; round < 3; ++round) {
    OK(glake_region_pause(0, f.weights, GLAKE_REGION_HOST, nullptr));
    CHECK(used() == 0);
    OK(glake_check(0));
    OK(glake_empty_cache(0));
    OK(glake_region_resume(0, f.weights, round % 2));
    OK(glake_check(0));
    CHECK(holds(stitched, 11 * kMiB, 3));
    for (int i : {1, 3, 5}) {
      CHECK(holds(parts[static_cast<size_t>(i)], 4 * kMiB, static_cast<uint32_t>(i)));
    }
  }
  OK(glake_region_pause(0, f.weights, GLAKE_REGION_HOST, nullptr));
  OK(glake_free(stitched));  // while it is paused: its granules need not come back
  OK(glake_region_resume(0, f.weights, 1));
  CHECK(used() == static_cast<int64_t>(12 * kMiB));
  for (int i : {1, 3, 5}) {
    CHECK(holds(parts[static_cast<size_t>(i)], 4 * kMiB, static_cast<uint32_t>(i)));
    OK(glake_free(parts[static_cast<size_t>(i)]));
  }
}

TEST(freed_while_paused) {
  Fixture f("freed while paused");
  void* a = get(9 * kMiB, f.weights, f.s[0]);
  void* b = get(700 * kKiB, f.weights, f.s[1]);
  OK(glake_region_pause(0, f.weights, GLAKE_REGION_HOST, nullptr));
  OK(glake_record_stream(b, f.s[2]));
  OK(glake_free(a));
  OK(glake_free(b));
  OK(glake_check(0));
  // The region has nothing left, as if it had never been paused.
  void* c = get(kMiB, f.weights);
  OK(glake_free(c));
  OK(glake_region_pause(0, f.weights, GLAKE_REGION_HOST, nullptr));
  OK(glake_free(get(5 * kMiB, f.weights)));
  void* d = get(5 * kMiB, f.weights);
  OK(glake_region_pause(0, f.weights, GLAKE_REGION_HOST, nullptr));
  GIVES(GLAKE_INVALID_ARGUMENT, glake_shutdown());  // d is live
  OK(glake_free(d));
}

// This process's file of a region's bytes, which has no name any more.
int kept_file() {
  for (int fd = 0; fd < 1024; ++fd) {
    char path[256] = "";
    if (readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), path, sizeof path - 1) <= 0)
      continue;
    if (std::strstr(path, "glake-region-") != nullptr) return fd;
  }
  return -1;
}

// A bit that has changed on the disk is found, wherever it is. Nothing is lost once the bit is
// right again.
TEST(damaged_bytes_are_not_put_back) {
  Fixture f("damaged bytes");
  Folder folder;
  constexpr size_t kBytes = 20 * kMiB + 512;
  void* block = get(kBytes, f.weights);
  stamp(block, kBytes, 7);
  OK(pause(f.weights, GLAKE_REGION_DISK, folder));
  const int file = kept_file();
  CHECK(file >= 0);
  const auto flip = [file](size_t at) {
    char byte = 0;
    const auto offset = static_cast<off_t>(at);
    CHECK(pread(file, &byte, 1, offset) == 1);
    byte = static_cast<char>(byte ^ 1);
    CHECK(pwrite(file, &byte, 1, offset) == 1);
  };
  for (size_t at : {size_t{0}, 9 * kMiB + 3, kBytes - 1}) {
    flip(at);
    GIVES(GLAKE_CORRUPTED, glake_region_resume(0, f.weights, 0));
    CHECK(says("something has written there"));
    CHECK(test::number_in(regions(), "state") == 1);
    flip(at);
  }
  OK(glake_region_resume(0, f.weights, 0));
  CHECK(holds(block, kBytes, 7));
  OK(glake_free(block));
}

TEST(refused_by_name) {
  Fixture f("refused by name");
  Folder folder;
  GIVES(GLAKE_INVALID_ARGUMENT, glake_region_pause(0, f.weights, GLAKE_REGION_HOST, nullptr));
  void* a = get(5 * kMiB, f.weights);
  stamp(a, 5 * kMiB, 1);
  OK(glake_pin(a));
  GIVES(GLAKE_REGION_REFUSED, glake_region_pause(0, f.weights, GLAKE_REGION_HOST, nullptr));
  CHECK(says("region \"weights\" on cuda:0 cannot be paused: 6.00 MiB of it are pinned"));
  OK(glake_unpin(a));
  char handle[640];
  CHECK(glake_ipc_share(a, handle, sizeof handle) != 0);
  GIVES(GLAKE_REGION_REFUSED, glake_region_pause(0, f.weights, GLAKE_REGION_HOST, nullptr));
  CHECK(says("may be opened by other processes"));
  OK(glake_free(a));
  a = get(5 * kMiB, f.weights);
  stamp(a, 5 * kMiB, 1);
  glake_pool pool{3, 0};
  OK(glake_pool_retain(0, pool));
  void* captured = get(kMiB, pool, f.s[0]);
  CU(cuStreamBeginCapture(f.s[0], CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(glake_free(get(kMiB, pool, f.s[0])));
  GIVES(GLAKE_REGION_REFUSED, glake_region_pause(0, f.weights, GLAKE_REGION_HOST, nullptr));
  CHECK(says("a stream is being captured"));
  CUgraph graph = nullptr;
  CU(cuStreamEndCapture(f.s[0], &graph));
  CU(cuGraphDestroy(graph));
  OK(glake_free(captured));
  OK(glake_pool_release(0, pool));
  GIVES(GLAKE_INVALID_ARGUMENT, glake_region_pause(0, f.weights, 4, nullptr));
  GIVES(GLAKE_INVALID_ARGUMENT, glake_region_pause(0, f.weights, GLAKE_REGION_DISK, nullptr));
  GIVES(GLAKE_INVALID_ARGUMENT, glake_region_pause(0, f.weights, GLAKE_REGION_HOST, "/tmp"));
  GIVES(GLAKE_REGION_REFUSED,
        glake_region_pause(0, f.weights, GLAKE_REGION_DISK, "/no/such/folder"));
  CHECK(says("/no/such/folder") && holds(a, 5 * kMiB, 1));
  glake_pool bad{};
  for (const char* name : {"", "a\"b", "a\nb"}) {
    GIVES(GLAKE_INVALID_ARGUMENT, glake_region_pool(name, &bad));
  }
  GIVES(GLAKE_INVALID_ARGUMENT, glake_region_budget({3, 0}, 1));
  OK(glake_free(a));
}

// Memory that a region has lent belongs to the borrower, and stays where it is when the region
// pauses.
TEST(lent) {
  Fixture f("lent", "16MiB");
  glake_pool pool{3, 0};
  OK(glake_pool_retain(0, pool));
  OK(glake_pool_set_flags(0, pool, GLAKE_POOL_USE_ON_OOM));
  void* keeps = get(4 * kMiB, pool);
  OK(glake_free(get(10 * kMiB, pool)));
  void* borrowed = glake_malloc(9 * kMiB, 0, nullptr);
  CHECK(borrowed != nullptr);
  GIVES(GLAKE_REGION_REFUSED, glake_region_pause(0, pool, GLAKE_REGION_HOST, nullptr));
  CHECK(says("pool {3, 0}") && says("lent to other pools"));
  OK(glake_free(borrowed));
  OK(glake_region_pause(0, pool, GLAKE_REGION_HOST, nullptr));
  CHECK(glake_malloc(15 * kMiB, 0, nullptr) != nullptr);  // takes free memory, borrows none
  GIVES(GLAKE_OUT_OF_MEMORY, glake_region_resume(0, pool, 1));
  OK(glake_free(keeps));
  OK(glake_pool_release(0, pool));
  OK(glake_check(0));
  const std::string held = test::stats();
  CHECK(test::number_in(held, "glake.live_blocks") == 1);
  struct Live {
    void* ptr = nullptr;
  } live;
  OK(glake_visit_memory(
      0, &live, [](void*, const glake_segment_info*) {},
      [](void* self, const glake_block_record* b) {
        if (b->state == GLAKE_ACTIVE) {
          static_cast<Live*>(self)->ptr = reinterpret_cast<void*>(b->address);
        }
      }));
  OK(glake_free(live.ptr));
}

// A region borrows nothing, because it could not be paused with a borrowed block. So the largest
// fit of a region leaves out what pools would lend.
TEST(a_region_borrows_nothing) {
  Fixture f("a region borrows nothing", "32MiB");
  const glake_pool lender{3, 0};
  OK(glake_pool_retain(0, lender));
  OK(glake_pool_set_flags(0, lender, GLAKE_POOL_USE_ON_OOM));
  void* keeps = get(4 * kMiB, lender);
  OK(glake_free(get(20 * kMiB, lender)));
  CHECK(glake_pool_malloc(16 * kMiB, 0, nullptr, f.weights) == nullptr);
  CHECK(says("largest fit now 8.00 MiB"));
  void* fits = get(8 * kMiB, f.weights);
  CHECK(glake_pool_malloc(kMiB, 0, nullptr, f.weights) == nullptr);
  CHECK(says("largest fit now 0 bytes"));
  for (void* ptr : {keeps, fits}) OK(glake_free(ptr));
  OK(glake_pool_release(0, lender));
}

TEST(out_of_memory_leaves_it_paused) {
  for (int to : {GLAKE_REGION_HOST, GLAKE_REGION_DISK}) {
    Fixture f("out of memory leaves it paused", "32MiB");
    Folder folder;
    void* a = get(20 * kMiB, f.weights);
    stamp(a, 20 * kMiB, 4);
    OK(pause(f.weights, to, folder));
    void* other = glake_malloc(20 * kMiB, 0, nullptr);
    CHECK(other != nullptr);
    for (int i = 0; i < 2; ++i) {
      GIVES(GLAKE_OUT_OF_MEMORY, glake_region_resume(0, f.weights, 1));
      CHECK(says("Tried to resume region \"weights\" on cuda:0, which needs 20.00 MiB") &&
            says("Free about 8.00 MiB, or raise GLAKE_LIMIT"));
      OK(glake_check(0));
      CHECK(test::stat("glake.paused_bytes") == static_cast<int64_t>(20 * kMiB));
    }
    CHECK(glake_malloc(20 * kMiB, 0, nullptr) == nullptr);
    CHECK(says("region \"weights\" on cuda:0 is paused (20.00 MiB)"));
    OK(glake_free(other));  // idle memory is given back for it
    OK(glake_region_resume(0, f.weights, 1));
    CHECK(holds(a, 20 * kMiB, 4));
    OK(glake_free(a));
  }
}

// The same where the driver has no more memory.
TEST(the_driver_has_no_more) {
  Fixture f("the driver has no more", "120MiB");
  void* a = get(60 * kMiB, f.weights);
  stamp(a, 60 * kMiB, 4);
  OK(glake_region_pause(0, f.weights, GLAKE_REGION_HOST, nullptr));
  CUdeviceptr others = 0;
  CU(cuMemAlloc(&others, 100 * kMiB));
  GIVES(GLAKE_OUT_OF_MEMORY, glake_region_resume(0, f.weights, 1));
  CHECK(says("which has no more: it said"));
  OK(glake_check(0));
  CHECK(used() == static_cast<int64_t>(100 * kMiB));
  CU(cuMemFree(others));
  OK(glake_region_resume(0, f.weights, 1));
  CHECK(holds(a, 60 * kMiB, 4));
  OK(glake_free(a));
}

TEST(budgets) {
  Fixture f("budgets");
  OK(glake_region_budget(f.weights, 11 * kMiB));
  void* a = get(6 * kMiB, f.weights);
  void* own = glake_malloc(6 * kMiB, 0, nullptr);
  CHECK(own != nullptr);
  CHECK(glake_pool_malloc(6 * kMiB, 0, nullptr, f.weights) == nullptr);
  CHECK(glake_last_error(nullptr, 0) == GLAKE_OUT_OF_MEMORY);
  CHECK(says("region \"weights\" on cuda:0 holds 6.00 MiB of its budget of 11.00 MiB") &&
        says("raise the budget by 2.00 MiB") &&
        says("region \"weights\" on cuda:0 has idle 0 bytes"));
  // Memory of others is of no use to it.
  CHECK(test::last_error().find("besides") == std::string::npos);
  void* b = get(4 * kMiB, f.weights);
  OK(glake_region_budget(f.weights, 12 * kMiB));
  void* c = get(2 * kMiB, f.weights);
  OK(glake_region_pause(0, f.weights, GLAKE_REGION_HOST, nullptr));
  OK(glake_region_budget(f.weights, kGranule));  // lower than what it has
  OK(glake_region_resume(0, f.weights, 1));
  CHECK(test::number_in(regions(), "reserved_bytes") == static_cast<int64_t>(12 * kMiB));
  OK(glake_region_budget(f.weights, 0));
  for (void* ptr : {a, own, b, c}) OK(glake_free(ptr));
}

// Each thread has a region of its own, and the innermost one counts. A contiguous block is in none.
TEST(threads_and_nesting) {
  Fixture f("threads and nesting");
  glake_pool cache{}, again{}, before{1, 1};
  OK(glake_region_pool("cache", &cache));
  OK(glake_region_pool("weights", &again));
  CHECK(again.second == f.weights.second && cache.second != f.weights.second);
  OK(glake_set_pool(f.weights, &before));
  CHECK(before.first == 0 && before.second == 0);
  void* a = glake_malloc(3 * kMiB, 0, nullptr);
  OK(glake_set_pool(cache, &before));
  CHECK(before.second == f.weights.second);
  void* b = glake_malloc(5 * kMiB, 0, nullptr);
  void* c = nullptr;
  std::thread([&] { c = glake_malloc(kMiB, 0, nullptr); }).join();
  OK(glake_set_kind(GLAKE_CONTIGUOUS_VMM));
  CHECK(glake_malloc(kMiB, 0, nullptr) == nullptr);
  CHECK(glake_last_error(nullptr, 0) == GLAKE_REGION_REFUSED && says("region \"cache\""));
  CHECK(glake_set_kind(GLAKE_STITCHED) == GLAKE_CONTIGUOUS_VMM);
  OK(glake_set_pool({0, 0}, nullptr));
  const std::string now = test::stats();
  auto reserved = [&](const std::string& name) {
    return test::number_in(now, "glake.region." + name + ".reserved_bytes");
  };
  CHECK_TEXT(reserved("weights") == static_cast<int64_t>(4 * kMiB), now);
  CHECK_TEXT(reserved("cache") == static_cast<int64_t>(6 * kMiB), now);
  OK(glake_region_pause(0, cache, GLAKE_REGION_HOST, nullptr));
  stamp(a, 3 * kMiB, 1);
  CHECK(holds(a, 3 * kMiB, 1));
  for (void* ptr : {a, b, c}) OK(glake_free(ptr));
}

// A block that is freed while its region is paused needs no memory and no saved bytes any more. The
// other blocks come back whole. A region with no block left is paused until its resume().
TEST(what_is_freed_is_given_up) {
  for (int to : {GLAKE_REGION_HOST, GLAKE_REGION_DISK}) {
    Fixture f("what is freed is given up", "128MiB", {{"memory", "256MiB"}});
    test::running() += ", to " + std::to_string(to);
    Folder folder;
    std::vector<void*> blocks;
    for (uint32_t i = 0; i < 3; ++i) {
      blocks.push_back(get(40 * kMiB, f.weights));
      stamp(blocks.back(), 40 * kMiB, i);
    }
    auto region = [](const char* key) { return test::number_in(regions(), key); };
    OK(pause(f.weights, to, folder));
    CHECK(region("paused_bytes") == static_cast<int64_t>(120 * kMiB));
    CHECK(region("saved_bytes") == static_cast<int64_t>(120 * kMiB));
    OK(glake_free(blocks[0]));
    OK(glake_free(blocks[1]));
    CHECK(test::stat("glake.paused_bytes") == static_cast<int64_t>(40 * kMiB));
    CHECK(region("paused_bytes") == static_cast<int64_t>(40 * kMiB));
    // Of four portions of at most 32 MiB the last two have bytes of the last block.
    CHECK_TEXT(region("saved_bytes") == static_cast<int64_t>(56 * kMiB), regions());
    CHECK(host_blocks() == (to == GLAKE_REGION_HOST ? 2 : 0));
    OK(glake_region_resume(0, f.weights, 1));
    CHECK(used() == static_cast<int64_t>(40 * kMiB) && holds(blocks[2], 40 * kMiB, 2));
    OK(pause(f.weights, to, folder));
    OK(glake_free(blocks[2]));
    OK(glake_empty_cache(0));
    CHECK(region("state") == 1 && region("paused_bytes") == 0 && region("saved_bytes") == 0);
    CHECK(host_blocks() == 0);
    OK(glake_region_resume(0, f.weights, 1));
    CHECK(used() == 0);
    GIVES(GLAKE_INVALID_ARGUMENT, glake_region_resume(0, f.weights, 1));
  }
}

// One thread pauses and resumes. Others allocate elsewhere, ask for statistics, and free the
// region's blocks.
TEST(beside_other_threads) {
  Fixture f("beside other threads", "96MiB");
  std::vector<void*> kept, freed;
  for (int i = 0; i < 8; ++i) kept.push_back(get(kMiB + 512, f.weights));
  for (int i = 0; i < 200; ++i) freed.push_back(get(9 * kKiB, f.weights));
  for (void* ptr : kept) stamp(ptr, kMiB + 512, 6);
  CU(cuCtxSynchronize());
  std::atomic<bool> over{false};
  std::thread busy([&] {
    while (!over.load()) {
      void* ptr = glake_malloc(3 * kMiB, 0, nullptr);
      CHECK(ptr != nullptr);
      OK(glake_free(ptr));
      CHECK(!regions().empty() && !test::stats().empty());
    }
  });
  std::thread freeing([&] {
    for (void* ptr : freed) {
      OK(glake_free(ptr));
      std::this_thread::yield();
    }
  });
  for (int i = 0; i < 20; ++i) {
    OK(glake_region_pause(0, f.weights, GLAKE_REGION_HOST, nullptr));
    OK(glake_check(0));
    OK(glake_region_resume(0, f.weights, i % 2));
  }
  over.store(true);
  busy.join();
  freeing.join();
  for (void* ptr : kept) {
    CHECK(holds(ptr, kMiB + 512, 6));
    OK(glake_free(ptr));
  }
}

// A graph over a region's blocks is replayed after a resume. If a graph has captured a pool, a
// pause of the pool saves its freed memory too.
TEST(graphs) {
  Fixture f("graphs");
  void* from = get(3 * kMiB, f.weights);
  void* to = get(3 * kMiB, f.weights);
  stamp(from, 3 * kMiB, 11);
  glake_pool pool{5, 0};
  OK(glake_pool_retain(0, pool));
  OK(glake_free(get(kMiB, pool, f.s[0])));
  CU(cuCtxSynchronize());
  CU(cuStreamBeginCapture(f.s[0], CU_STREAM_CAPTURE_MODE_GLOBAL));
  void* between = get(3 * kMiB, pool, f.s[0]);
  CU(cuMemcpyDtoDAsync(address(between), address(from), 3 * kMiB, f.s[0]));
  CU(cuMemcpyDtoDAsync(address(to), address(between), 3 * kMiB, f.s[0]));
  OK(glake_free(between));
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  CU(cuStreamEndCapture(f.s[0], &graph));
  CU(cuGraphInstantiate(&exec, graph, 0));
  CU(cuGraphLaunch(exec, f.s[0]));
  for (glake_pool p : {f.weights, pool}) {
    OK(glake_region_pause(0, p, GLAKE_REGION_HOST, nullptr));
  }
  CHECK(used() == 0);
  OK(glake_empty_cache(0));
  for (glake_pool p : {f.weights, pool}) OK(glake_region_resume(0, p, 1));
  CU(cuStreamSynchronize(f.s[0]));
  CHECK(holds(to, 3 * kMiB, 11) && holds(between, 3 * kMiB, 11));
  stamp(from, 3 * kMiB, 12, f.s[0]);
  CU(cuGraphLaunch(exec, f.s[0]));
  CHECK(holds(to, 3 * kMiB, 12, f.s[0]));
  CU(cuGraphExecDestroy(exec));
  CU(cuGraphDestroy(graph));
  OK(glake_pool_release(0, pool));
  for (void* ptr : {from, to}) OK(glake_free(ptr));
}

TEST(snapshots_tell) {
  Fixture f("snapshots tell");
  void* a = get(3 * kMiB, f.weights);
  OK(glake_region_pause(0, f.weights, GLAKE_REGION_HOST, nullptr));
  struct Seen {
    int64_t paused = 0, other = 0;
  } seen;
  OK(glake_visit_memory(
      0, &seen,
      [](void* self, const glake_segment_info* s) {
        auto& sums = *static_cast<Seen*>(self);
        (s->paused != 0 ? sums.paused : sums.other) += static_cast<int64_t>(s->bytes);
      },
      [](void*, const glake_block_record*) {}));
  CHECK(seen.paused == static_cast<int64_t>(4 * kMiB) && seen.other == 0);
  OK(glake_free(a));
}

}  // namespace

int main(int argc, char** argv) { return test::run_cases(argc, argv); }

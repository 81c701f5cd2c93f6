// Tests the contiguous pool. Each block is one driver allocation. A call, a thread or an option
// chooses the kind. Also tested: reuse in stream order, the limit, trimming, statistics and errors.
#include <functional>
#include <thread>

#include "harness.h"

using test::kGranule;
using test::kMiB;
using test::stat;

namespace {

struct Session {
  explicit Session(const test::Options& glake = {}, const char* phantom = "0") {
    test::fresh_simulator({{"memory", "64MiB"}, {"devices", "2"}, {"phantom", phantom}});
    test::configure({{"driver", "sim"}});
    test::configure(glake);
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  ~Session() {
    OK(glake_shutdown());
    for (int device = 0; device < 2; ++device) test::check_nothing_left(device);
  }
};

void* whole(size_t bytes, int kind = GLAKE_CONTIGUOUS_VMM, void* stream = nullptr) {
  void* ptr = glake_malloc_contiguous(bytes, 0, stream, kind);
  CHECK(ptr != nullptr);
  return ptr;
}
CUdeviceptr at(void* ptr) { return reinterpret_cast<CUdeviceptr>(ptr); }

// How many bytes cuMemGetAddressRange reports for a block. NCCL, UCX and RDMA registration use this
// number.
size_t seen(void* ptr) {
  CUdeviceptr base = 0;
  size_t bytes = 0;
  CU(cuMemGetAddressRange(&base, &bytes, at(ptr)));
  return base == at(ptr) ? bytes : 0;
}

TEST(one_driver_allocation_each) {
  test::running() = "one driver allocation each";
  Session session;
  void* stitched = glake_malloc(10 * kMiB, 0, nullptr);
  void* vmm = whole(9 * kMiB);
  void* legacy = whole(5 * kMiB, GLAKE_CONTIGUOUS_LEGACY);
  {
    test::CurrentContext context;
    CHECK(seen(stitched) <= kGranule);  // a granule at a time
    CHECK(seen(vmm) == 10 * kMiB);
    CHECK(seen(legacy) >= 5 * kMiB);
    unsigned capable = 7;
    CU(cuPointerGetAttribute(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, at(vmm)));
    CHECK(capable == 0);
    CU(cuPointerGetAttribute(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
                             at(legacy)));
    CHECK(capable == 1);
    CUipcMemHandle handle;
    CU(cuIpcGetMemHandle(&handle, at(legacy)));
    CHECK(cuIpcGetMemHandle(&handle, at(stitched)) != CUDA_SUCCESS);
    CU(cuMemsetD8(at(vmm), 7, 9 * kMiB));
    CU(cuMemsetD8(at(legacy), 7, 5 * kMiB));
  }
  size_t bytes = 0;
  int device = -1;
  void* stream = &device;
  OK(glake_block_info(legacy, &bytes, &device, &stream));
  CHECK(bytes == 5 * kMiB && device == 0 && stream == nullptr);
  std::vector<test::Held> held{{stitched, 10 * kMiB, 0}, {vmm, 9 * kMiB, 0}, {legacy, 5 * kMiB, 0}};
  test::check_books(held);
  CHECK(stat("glake.contiguous_bytes") == 16 * static_cast<int64_t>(kMiB));
  CHECK(stat("reserved_bytes.all.current") == stat("glake.physical_bytes"));
  CHECK(stat("glake.shareable") == 1 && stat("glake.rdma_capable") == 1);
  OK(glake_check(0));
  GIVES(GLAKE_INVALID_POINTER, glake_free(static_cast<char*>(vmm) + 512));
  CHECK(test::last_error().find("inside a block") != std::string::npos);
  for (void* ptr : {stitched, vmm, legacy}) OK(glake_free(ptr));
  GIVES(GLAKE_INVALID_POINTER, glake_free(vmm));
  CHECK(test::last_error().find("freed already") != std::string::npos);
  OK(glake_check(0));
  OK(glake_empty_cache(0));
  CHECK(stat("glake.physical_bytes") == 0);
  GIVES(GLAKE_INVALID_POINTER, glake_free(vmm));
}

// No thread's cache keeps small contiguous blocks, because it would give them to other requests.
TEST(small_ones_stay_apart) {
  test::running() = "small contiguous blocks";
  Session session;
  void* small = whole(1000);
  OK(glake_free(small));
  void* plain = glake_malloc(1000, 0, nullptr);
  CHECK(plain != small);
  CHECK(whole(1000) == small);
  OK(glake_free(small));
  OK(glake_free(plain));
}

TEST(reuse_by_size) {
  test::running() = "reuse by size";
  Session session;
  void* a = whole(8 * kMiB);
  void* b = whole(16 * kMiB);
  OK(glake_free(a));
  OK(glake_free(b));
  const int64_t made = stat("glake.driver_calls.create");
  CHECK(whole(7 * kMiB) == a);   // best fit
  CHECK(whole(13 * kMiB) == b);  // at most a quarter longer
  OK(glake_free(a));
  OK(glake_free(b));
  CHECK(stat("glake.driver_calls.create") == made);
  void* c = whole(2 * kMiB);  // both are too long
  CHECK(c != a && c != b);
  void* legacy = whole(8 * kMiB, GLAKE_CONTIGUOUS_LEGACY);
  CHECK(legacy != a);  // kinds are kept apart
  OK(glake_free(c));
  OK(glake_free(legacy));
}

// A block is freed while work on it is pending. Another stream gets it only after a wait.
TEST(stream_order) {
  test::running() = "stream order";
  Session session(test::Options{{"policy", "compact"}});
  CUstream one = nullptr, two = nullptr;
  test::CurrentContext context;
  CU(cuStreamCreate(&one, CU_STREAM_NON_BLOCKING));
  CU(cuStreamCreate(&two, CU_STREAM_NON_BLOCKING));
  void* a = whole(8 * kMiB, GLAKE_CONTIGUOUS_VMM, one);
  OK(glake_record_stream(a, two));
  for (int round = 0; round < 5; ++round) {
    CU(cuMemsetD8Async(at(a), 1, 8 * kMiB, two));
    OK(glake_free(a));
    void* b = whole(8 * kMiB, GLAKE_CONTIGUOUS_VMM, one);
    CHECK(b == a);  // the policy `compact` waits before it grows
    CU(cuMemsetD8Async(at(b), 2, 8 * kMiB, one));
    CU(cuStreamSynchronize(one));
    CU(cuStreamSynchronize(two));  // work that nobody waited for runs now
    unsigned char last = 0;
    CU(cuMemcpyDtoH(&last, at(b) + 8 * kMiB - 1, 1));
    CHECK_TEXT(last == 2, "the earlier stream's work came later");
    OK(glake_record_stream(b, two));
  }
  OK(glake_free(a));
  test::end_stream(one);
  test::end_stream(two);
}

TEST(the_limit_is_shared) {
  test::running() = "the limit is shared";
  Session session(test::Options{{"limit", "32MiB"}});
  // Free granules go back to the driver to make room for a contiguous block.
  std::vector<void*> blocks;
  for (int i = 0; i < 6; ++i) blocks.push_back(glake_malloc(5 * kMiB, 0, nullptr));
  for (void* ptr : blocks) OK(glake_free(ptr));
  void* big = whole(30 * kMiB);
  CHECK(stat("glake.physical_bytes") <= 32 * static_cast<int64_t>(kMiB));
  OK(glake_check(0));
  CHECK(glake_malloc(5 * kMiB, 0, nullptr) == nullptr);
  CHECK(glake_last_error(nullptr, 0) == GLAKE_OUT_OF_MEMORY);
  CHECK_TEXT(test::last_error().find("30.00 MiB in contiguous blocks") != std::string::npos,
             test::last_error());
  CHECK(glake_malloc_contiguous(5 * kMiB, 0, nullptr, GLAKE_CONTIGUOUS_LEGACY) == nullptr);
  CHECK(glake_last_error(nullptr, 0) == GLAKE_OUT_OF_MEMORY);
  // A cached contiguous block goes back to make room for granules, of either size class.
  OK(glake_free(big));
  CHECK(stat("glake.contiguous_cached_bytes") == 30 * static_cast<int64_t>(kMiB));
  void* plain = glake_malloc(20 * kMiB, 0, nullptr);
  CHECK(plain != nullptr);
  CHECK(stat("glake.contiguous_bytes") == 0);
  void* legacy = whole(6 * kMiB, GLAKE_CONTIGUOUS_LEGACY);
  OK(glake_free(legacy));
  // Cached blocks of one kind go back for a block of the other kind.
  void* vmm = whole(10 * kMiB);
  CHECK(stat("glake.contiguous_bytes") == 10 * static_cast<int64_t>(kMiB));
  OK(glake_free(vmm));
  void* tiny = glake_malloc(100, 0, nullptr);
  CHECK(tiny != nullptr);
  OK(glake_free(tiny));
  OK(glake_free(plain));
  OK(glake_check(0));
}

TEST(kinds_of_a_thread) {
  test::running() = "kinds of a thread";
  Session session;
  CHECK(glake_set_kind(GLAKE_CONTIGUOUS_VMM) == GLAKE_STITCHED);
  void* mine = glake_malloc(3 * kMiB, 0, nullptr);
  void* theirs = nullptr;
  std::thread other([&] {
    theirs = glake_malloc(3 * kMiB, 0, nullptr);
    glake_set_kind(GLAKE_CONTIGUOUS_LEGACY);  // the thread ends with the kind set
  });
  other.join();
  CHECK(glake_set_kind(GLAKE_CONTIGUOUS_LEGACY) == GLAKE_CONTIGUOUS_VMM);
  void* legacy = glake_malloc(3 * kMiB, 0, nullptr);
  CHECK(glake_set_kind(GLAKE_STITCHED) == GLAKE_CONTIGUOUS_LEGACY);
  void* plain = glake_malloc(3 * kMiB, 0, nullptr);
  {
    test::CurrentContext context;
    CHECK(seen(mine) == 4 * kMiB && seen(legacy) >= 3 * kMiB);
    CHECK(seen(theirs) <= kGranule && seen(plain) <= kGranule);
  }
  CHECK(glake_set_kind(3) == -GLAKE_INVALID_ARGUMENT);
  CHECK(glake_malloc_contiguous(5, 0, nullptr, -1) == nullptr);
  CHECK(glake_last_error(nullptr, 0) == GLAKE_INVALID_ARGUMENT);
  for (void* ptr : {mine, theirs, legacy, plain}) OK(glake_free(ptr));
}

// The option also holds for the very first allocation, before which nobody has read the options.
TEST(by_option) {
  for (const char* value : {"4MiB", "legacy:4MiB"}) {
    test::running() = std::string("option contiguous=") + value;
    Session session;
    OK(glake_configure("contiguous", "none"));
    CHECK(setenv("GLAKE_CONTIGUOUS", value, 1) == 0 && setenv("GLAKE_DRIVER", "sim", 1) == 0);
    OK(glake_shutdown());
    void* large = glake_malloc(4 * kMiB, 0, nullptr);
    void* small = glake_malloc(4 * kMiB - 1, 0, nullptr);
    {
      test::CurrentContext context;
      CHECK(seen(large) == 4 * kMiB && seen(small) <= kGranule);
    }
    CHECK(unsetenv("GLAKE_CONTIGUOUS") == 0);
    OK(glake_free(large));
    OK(glake_free(small));
  }
}

TEST(peers_reach_them) {
  test::running() = "peers";
  Session session;
  void* vmm = whole(4 * kMiB);
  OK(glake_enable_peer_access(0, 1));
  void* later = whole(4 * kMiB);
  {
    test::CurrentContext context;
    CUmemLocation one{};
    one.type = CU_MEM_LOCATION_TYPE_DEVICE;
    one.id = 1;
    for (void* ptr : {vmm, later}) {
      unsigned long long flags = 0;
      CU(cuMemGetAccess(&flags, &one, at(ptr)));
      CHECK(flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    }
  }
  OK(glake_free(vmm));
  OK(glake_free(later));
}

// The driver refuses two properties that glake asks for: first the one for the network, then the
// one for other processes.
TEST(traits_are_given_up) {
  test::running() = "traits are given up";
  Session session;
  CHECK(stat("glake.rdma_capable") == 1);
  CHECK(simcuda_fail("cuMemCreate", 1, CUDA_ERROR_NOT_SUPPORTED, 1) == 0);
  void* ptr = glake_malloc(3 * kMiB, 0, nullptr);
  CHECK(ptr != nullptr);
  CHECK(stat("glake.rdma_capable") == 0 && stat("glake.shareable") == 1);
  CHECK(simcuda_fail("cuMemCreate", 1, CUDA_ERROR_NOT_SUPPORTED, 1) == 0);
  void* next = whole(3 * kMiB);
  CHECK(stat("glake.shareable") == 0);
  char text[600];
  CHECK(glake_ipc_share(next, text, sizeof text) == 0);
  CHECK(glake_last_error(nullptr, 0) == GLAKE_INVALID_ARGUMENT);
  CHECK(test::last_error().find("GLAKE_CONTIGUOUS_LEGACY") != std::string::npos);
  OK(glake_free(ptr));
  OK(glake_free(next));
}

// Every driver call of a contiguous block's life is refused once, twice and for good.
TEST(every_call_refused) {
  for (int kind : {GLAKE_CONTIGUOUS_VMM, GLAKE_CONTIGUOUS_LEGACY}) {
    for (int64_t times : {1, 2, -1}) {
      for (int code : {CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_UNKNOWN}) {
        for (int64_t k = 1;; k += test::kSlowdown) {
          test::running() = "kind " + std::to_string(kind) + ", call " + std::to_string(k) +
                            " refused " + std::to_string(times) + " times with " +
                            std::to_string(code);
          Session session(test::Options{{"limit", "32MiB"}}, "1");
          void* before = glake_malloc(20 * kMiB, 0, nullptr);
          CHECK(before != nullptr);
          OK(glake_free(before));
          const int64_t calls = simcuda_calls("*");
          CHECK(simcuda_fail("*", k, code, times) == 0);
          void* a = glake_malloc_contiguous(6 * kMiB, 0, nullptr, kind);
          int status = glake_last_error(nullptr, 0);
          CHECK(a != nullptr || status == GLAKE_OUT_OF_MEMORY || status == GLAKE_DRIVER_ERROR);
          void* b = glake_malloc_contiguous(20 * kMiB, 0, nullptr, kind);
          if (a != nullptr) OK(glake_free(a));
          glake_empty_cache(0);
          const bool past = simcuda_calls("*") - calls < k;
          CHECK(simcuda_fail(nullptr, 1, 0, 1) == 0);
          OK(glake_check(0));
          CHECK(stat("glake.physical_bytes") == test::number_in(test::ledger(), "used_bytes"));
          if (b != nullptr) OK(glake_free(b));
          void* after = glake_malloc_contiguous(22 * kMiB, 0, nullptr, kind);
          CHECK(after != nullptr);
          OK(glake_free(after));
          if (past) break;
        }
      }
    }
  }
}

TEST(many_threads) {
  test::running() = "many threads";
  Session session;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      test::Dice dice(static_cast<uint64_t>(t));
      std::vector<void*> mine;
      for (int i = 0; i < 300 / test::kSlowdown; ++i) {
        int kind = static_cast<int>(dice(0, 2));
        void* ptr = glake_malloc_contiguous(dice(1, 3 * kMiB), 0, nullptr, kind);
        if (ptr != nullptr) mine.push_back(ptr);
        if (mine.size() > 2 || (ptr == nullptr && !mine.empty())) {
          OK(glake_free(mine.back()));
          mine.pop_back();
        }
      }
      for (void* ptr : mine) OK(glake_free(ptr));
    });
  }
  for (std::thread& t : threads) t.join();
  OK(glake_check(0));
  CHECK(stat("allocation.all.current") == 0);
}

}  // namespace

int main(int argc, char** argv) { return test::run_cases(argc, argv); }

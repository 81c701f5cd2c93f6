// Giving memory back: what it costs, and what is held afterwards.
#include <chrono>
#include <memory>

#include "harness.h"

namespace {

using test::kKiB;
using test::kMiB;

class Fixture {
 public:
  Fixture(const char* what, const char* memory, const char* limit) {
    test::running() = what;
    test::fresh_simulator(
        {{"memory", memory}, {"devices", "1"}, {"phantom", "1"}, {"complete_after", "-1"}});
    test::configure({{"driver", "sim"}, {"limit", limit}});
    context_ = std::make_unique<test::CurrentContext>();
    for (CUstream& stream : s) CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  }
  ~Fixture() {
    OK(glake_check(0));
    OK(glake_shutdown());
    for (CUstream stream : s) test::end_stream(stream);
    context_.reset();
    test::check_nothing_left();
  }
  CUstream s[2] = {};

 private:
  std::unique_ptr<test::CurrentContext> context_;
};

void* get(size_t bytes, CUstream stream) {
  void* ptr = glake_malloc(bytes, 0, stream);
  CHECK(ptr != nullptr);
  return ptr;
}

struct Cost {
  int64_t walked;
  double ms;
};

// empty_cache() after `count` frees. Neighbours are of two streams, so that no free block merges.
Cost empty_after(int count) {
  Fixture f("empty_cache after many frees", "64GiB", "60GiB");
  std::vector<void*> held;
  for (int i = 0; i < count; ++i) held.push_back(get(1536 * kKiB, f.s[i % 2]));
  for (void* ptr : held) OK(glake_free(ptr));
  const auto begin = std::chrono::steady_clock::now();
  OK(glake_empty_cache(0));
  std::chrono::duration<double, std::milli> spent = std::chrono::steady_clock::now() - begin;
  CHECK(test::stat("reserved_bytes.all.current") == 0);
  return {test::stat("glake.segments_walked"), spent.count()};
}

// Checks how many segments are looked at. The time is only printed.
TEST(giving_back_is_linear) {
  for (int count : {1000, 2000, 4000, 8000}) {
    Cost cost = empty_after(count / test::kSlowdown);
    std::printf("empty_cache after %d frees: %lld segments looked at, %.1f ms\n",
                count / test::kSlowdown, static_cast<long long>(cost.walked), cost.ms);
    CHECK_TEXT(cost.walked <= 4 * count / test::kSlowdown, std::to_string(cost.walked));
  }
}

// glake may grow instead of waiting, up to the most that was live since the cache was emptied. So a
// small phase after a large one does not grow to the large one's size.
TEST(what_was_given_back_is_not_hoarded_again) {
  Fixture f("what was given back is not hoarded again", "1GiB", "512MiB");
  OK(glake_free(get(320 * kMiB, f.s[0])));
  OK(glake_empty_cache(0));
  for (int i = 0; i < 64; ++i) {  // each is pending on the other stream until that is waited for
    void* ptr = get(8 * kMiB, f.s[1]);
    OK(glake_record_stream(ptr, f.s[0]));
    void* other = get(8 * kMiB, f.s[0]);
    CU(cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(ptr), 1, 8 * kMiB, f.s[0]));
    OK(glake_free(other));
    OK(glake_free(ptr));
  }
  const int64_t now = test::stat("reserved_bytes.all.current");
  CHECK_TEXT(now <= static_cast<int64_t>(48 * kMiB), std::to_string(now));
}

}  // namespace

int main(int argc, char** argv) { return test::run_cases(argc, argv); }

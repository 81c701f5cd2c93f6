// What threads keep of their freed small blocks, and when they give it back.
#include "harness.h"

namespace {

using test::kGranule;
using test::kMiB;

class Job {
 public:
  explicit Job(const test::Options& options) {
    test::fresh_simulator({{"phantom", "1"}, {"memory", "8GiB"}, {"devices", "1"}});
    test::configure({{"driver", "sim"}});
    test::configure(options);
  }
  ~Job() {
    OK(glake_check(0));
    test::check_books({});
    OK(glake_shutdown());
    test::check_nothing_left();
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  void* take(size_t bytes) {
    void* ptr = glake_malloc(bytes, 0, nullptr);
    CHECK_TEXT(ptr != nullptr, test::last_error());
    return ptr;
  }
};

// Requests of random lengths, as of a server: the thread keeps blocks of which no later request has
// the size. Only one block is live, and 8 MiB may be kept.
void sizes_that_never_return(const char* policy) {
  Job job(test::Options{{"policy", policy}});
  test::Dice dice{7};
  for (int i = 0; i < 20000; ++i) OK(glake_free(job.take(dice(1, kMiB))));
  CHECK(test::stat("glake.physical_bytes") <= static_cast<int64_t>(3 * kGranule));
}
TEST(sizes_that_never_return_take_no_new_memory) { sizes_that_never_return("balanced"); }
TEST(nor_by_the_policy_compact) { sizes_that_never_return("compact"); }

}  // namespace

int main(int argc, char** argv) { return test::run_cases(argc, argv); }

// A signal handler that allocates while its own thread is inside glake: a deadlock, as with malloc;
// with the option `debug` the call fails and says so.
#include <csignal>

#include "harness.h"

namespace {

using test::kMiB;

int calls = 0, refused = 0;
std::string text;

void handler(int) {
  ++calls;
  int outer = glake_last_error(nullptr, 0);
  bool all =
      glake_malloc(1000, 0, nullptr) == nullptr && glake_last_error(nullptr, 0) == GLAKE_REENTERED;
  char said[256] = "";
  glake_last_error(said, sizeof said);
  text = said;
  int local = 0;
  all = all && glake_free(&local) == GLAKE_REENTERED &&
        glake_record_stream(&local, nullptr) == GLAKE_REENTERED &&
        glake_empty_cache(0) == GLAKE_REENTERED && glake_stats(0, nullptr, 0) == 0 &&
        glake_pool_malloc(1000, 0, nullptr, {1, 1}) == nullptr &&
        glake_last_error(nullptr, 0) == GLAKE_REENTERED &&
        glake_malloc_contiguous(1000, 0, nullptr, GLAKE_CONTIGUOUS_VMM) == nullptr &&
        glake_last_error(nullptr, 0) == GLAKE_REENTERED;
  refused += all ? 1 : 0;
  (void)outer;
}

// Observers run with glake's locks held: what a signal interrupts there is what it must not.
void observe(void*, const glake_event* event) {
  if (event->action == GLAKE_ALLOC || event->action == GLAKE_SEGMENT_MAP ||
      event->action == GLAKE_FREE_REQUESTED || event->action == GLAKE_SEGMENT_UNMAP) {
    std::raise(SIGUSR1);
  }
}

}  // namespace

int main() {
  test::running() = "a signal inside glake";
  test::fresh_simulator({{"memory", "256MiB"}, {"devices", "1"}});
  test::configure({{"driver", "sim"}, {"limit", "64MiB"}, {"debug", "guard"}});
  struct sigaction action{};
  action.sa_handler = handler;
  CHECK(sigaction(SIGUSR1, &action, nullptr) == 0);
  OK(glake_observe(nullptr, observe));
  void* ptr = glake_malloc(5 * kMiB, 0, nullptr);
  CHECK_TEXT(ptr != nullptr && calls >= 2 && refused == calls, text);
  CHECK_TEXT(text.find("signal handler") != std::string::npos, text);
  CHECK(glake_last_error(nullptr, 0) == GLAKE_OK);
  OK(glake_free(ptr));
  OK(glake_empty_cache(0));
  CHECK_TEXT(calls >= 4 && refused == calls, text);
  OK(glake_observe(nullptr, nullptr));
  // Outside glake a handler's calls are any other's.
  ptr = glake_malloc(1000, 0, nullptr);
  CHECK(ptr != nullptr);
  OK(glake_free(ptr));
  OK(glake_check(0));
  OK(glake_shutdown());
  test::check_nothing_left();
  return 0;
}

// Watching: which events come, in which order, with which tag and context. Contexts are captured
// with no lock held, and each is dropped once. Without a watcher nothing is watched.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <set>
#include <thread>

#include "harness.h"
#include "process/process.h"

using test::kKiB;
using test::kMiB;

namespace {

// Contexts are numbers, alive or dropped.
struct Hooks {
  std::mutex mutex;
  std::set<uintptr_t> alive;
  uintptr_t next = 1;
  glake_context_hooks as_hooks() {
    return {sizeof(glake_context_hooks), this, &capture, &drop, &describe};
  }

  static void* capture(void* self) {
    auto* hooks = static_cast<Hooks*>(self);
    // This would not return if a lock of glake's were held here.
    if (glake::Process::instance().hooks().has(glake::kWatched))
      glake_visit_history(0, self, ignore);
    std::lock_guard<std::mutex> guard(hooks->mutex);
    hooks->alive.insert(hooks->next);
    return reinterpret_cast<void*>(hooks->next++);
  }
  static void drop(void* self, void* context) {
    auto* hooks = static_cast<Hooks*>(self);
    glake_visit_history(0, self, ignore);
    std::lock_guard<std::mutex> guard(hooks->mutex);
    CHECK(hooks->alive.erase(reinterpret_cast<uintptr_t>(context)) == 1);
  }
  static size_t describe(void*, void* context, char* text, size_t capacity) {
    return static_cast<size_t>(
        std::snprintf(text, capacity, "frame %zu", reinterpret_cast<size_t>(context)));
  }
  static void ignore(void*, const glake_event*) {}
};

std::vector<glake_event> history(int device = 0) {
  std::vector<glake_event> events;
  OK(glake_visit_history(device, &events, [](void* self, const glake_event* event) {
    static_cast<std::vector<glake_event>*>(self)->push_back(*event);
  }));
  return events;
}

std::vector<int> actions(const std::vector<glake_event>& events) {
  std::vector<int> result;
  for (const glake_event& e : events) result.push_back(e.action);
  return result;
}

void start(const test::Options& options = {{"limit", "32MiB"}}) {
  test::fresh_simulator({{"phantom", "1"}, {"memory", "256MiB"}, {"devices", "1"}});
  test::configure({{"driver", "sim"}});
  test::configure(options);
}

void finish() {
  OK(glake_history(0, GLAKE_CONTEXT_NEVER, 1));
  OK(glake_shutdown());
  test::check_nothing_left();
}

uint64_t address(void* ptr) { return reinterpret_cast<uint64_t>(ptr); }

TEST(events_tell_the_story) {
  test::running() = "events";
  start();
  void* unknown = glake_malloc(2 * kMiB, 0, nullptr);
  OK(glake_history(1000, GLAKE_CONTEXT_NEVER, 0));
  glake_set_tag("layer");
  void* ptr = glake_malloc(5 * kMiB + 1, 0, nullptr);
  glake_set_tag(nullptr);
  OK(glake_free(ptr));
  OK(glake_empty_cache(0));
  std::vector<glake_event> events = history();
  CHECK((actions(events) == std::vector<int>{GLAKE_SEGMENT_MAP, GLAKE_ALLOC, GLAKE_FREE_REQUESTED,
                                             GLAKE_FREE_COMPLETED, GLAKE_SEGMENT_UNMAP}));
  CHECK(events[1].address == address(ptr) && events[1].bytes == 5 * kMiB + 1);
  CHECK(std::string(events[1].tag) == "layer" && events[2].tag == nullptr);
  CHECK(events[0].bytes == events[4].bytes && events[0].bytes == 6 * kMiB);
  uint64_t before = 1700000000ull * 1000000000;
  for (const glake_event& e : events) {
    CHECK(e.time_ns >= before && e.device == 0 && e.context == nullptr);
    before = e.time_ns;
  }
  // A stitched block maps a view. A request for more than there is makes an oom event.
  OK(glake_history(1000, GLAKE_CONTEXT_NEVER, 1));
  CHECK(history().empty());
  std::vector<void*> blocks;
  for (int i = 0; i < 7; ++i) blocks.push_back(glake_malloc(4 * kMiB, 0, nullptr));
  for (int i = 0; i < 7; i += 2) OK(glake_free(blocks[static_cast<size_t>(i)]));
  void* wide = glake_malloc(12 * kMiB, 0, nullptr);
  CHECK(wide != nullptr && test::stat("glake.stitches") == 1);
  CHECK(glake_malloc(20 * kMiB, 0, nullptr) == nullptr);
  events = history();
  bool view = false;
  for (const glake_event& e : events) {
    view = view || (e.action == GLAKE_SEGMENT_MAP && e.address == address(wide));
  }
  CHECK(view && events.back().action == GLAKE_OOM && events.back().bytes == 20 * kMiB);
  CHECK(events.back().address ==
        256 * kMiB - static_cast<uint64_t>(test::stat("glake.physical_bytes")));
  OK(glake_free(wide));
  OK(glake_free(unknown));
  for (size_t i = 1; i < 7; i += 2) OK(glake_free(blocks[i]));
  finish();
}

TEST(the_ring_keeps_the_last) {
  test::running() = "ring";
  start();
  OK(glake_history(4, GLAKE_CONTEXT_NEVER, 1));
  void* last = nullptr;
  for (size_t i = 1; i <= 9; ++i) {
    last = glake_malloc(i * 1000, 0, nullptr);
    OK(glake_free(last));
  }
  std::vector<glake_event> events = history();
  CHECK((actions(events) == std::vector<int>{GLAKE_FREE_COMPLETED, GLAKE_ALLOC,
                                             GLAKE_FREE_REQUESTED, GLAKE_FREE_COMPLETED}));
  CHECK(events[3].address == address(last) && events[3].bytes == 9000);
  CHECK(history(5).empty());
  GIVES(GLAKE_INVALID_ARGUMENT, glake_history(1, 7, 0));
  OK(glake_history(0, GLAKE_CONTEXT_NEVER, 0));
  CHECK(history().empty());
  CHECK(!glake::Process::instance().hooks().any());  // nothing is watched any more
  finish();
}

TEST(hooks_of_other_sizes) {
  start();
  Hooks hooks;
  struct {
    glake_context_hooks hooks;
    unsigned char more[16];
  } longer = {hooks.as_hooks(), {}};
  longer.hooks.size = sizeof longer;
  OK(glake_set_context_hooks(&longer.hooks));
  longer.more[7] = 1;
  for (const size_t size : {size_t{0}, sizeof longer.hooks - 1, sizeof longer, SIZE_MAX}) {
    longer.hooks.size = size;
    CHECK(glake_set_context_hooks(&longer.hooks) == GLAKE_INVALID_ARGUMENT);
  }
  // Contexts that were captured before stay with their blocks.
  OK(glake_history(6, GLAKE_CONTEXT_ALL, 1));
  void* ptr = glake_malloc(1000, 0, nullptr);
  CHECK(glake_block_context(ptr, &hooks) != nullptr);
  OK(glake_free(ptr));
  finish();
}

TEST(contexts_are_counted) {
  test::running() = "contexts";
  start();
  Hooks hooks;
  glake_context_hooks table = hooks.as_hooks();
  OK(glake_set_context_hooks(&table));
  void* before = glake_malloc(1000, 0, nullptr);
  CHECK(hooks.alive.empty());  // nobody asked for contexts yet
  OK(glake_history(6, GLAKE_CONTEXT_ALL, 1));
  CHECK(glake_block_context(before, &hooks) == nullptr);
  void* ptr = glake_malloc(1000, 0, nullptr);
  void* context = glake_block_context(ptr, &hooks);
  CHECK(context != nullptr && hooks.alive.count(reinterpret_cast<uintptr_t>(context)) == 1);
  CHECK(history().back().context == context && history().back().context_owner == &hooks);
  CHECK(glake_block_context(ptr, &table) == nullptr);  // others ask for theirs
  // A context stays in the ring after its block is gone. It stays with the block after it has left
  // the ring.
  void* kept = glake_malloc(2000, 0, nullptr);
  void* kept_context = glake_block_context(kept, &hooks);
  OK(glake_free(ptr));
  CHECK(hooks.alive.count(reinterpret_cast<uintptr_t>(context)) == 1);
  for (int i = 0; i < 4; ++i) OK(glake_free(glake_malloc(3000, 0, nullptr)));
  CHECK(hooks.alive.count(reinterpret_cast<uintptr_t>(context)) == 0);
  CHECK(glake_block_context(kept, &hooks) == kept_context);
  CHECK(hooks.alive.count(reinterpret_cast<uintptr_t>(kept_context)) == 1);
  // Growth carries the context of the allocation that needed it.
  OK(glake_history(6, GLAKE_CONTEXT_ALLOC, 1));
  void* grown = glake_malloc(9 * kMiB, 0, nullptr);
  std::vector<glake_event> events = history();
  CHECK(events.size() == 2 && events[0].action == GLAKE_SEGMENT_MAP);
  CHECK(events[0].context == events[1].context && events[1].context != nullptr);
  OK(glake_free(grown));
  CHECK(history().back().context == nullptr);  // frees carry none with ALLOC
  OK(glake_history(6, GLAKE_CONTEXT_STATE, 1));
  void* state = glake_malloc(100, 0, nullptr);
  CHECK(glake_block_context(state, &hooks) != nullptr && history().back().context == nullptr);
  // After the hooks have changed, the old hooks still own their contexts, and drop them.
  Hooks others;
  glake_context_hooks other_table = others.as_hooks();
  OK(glake_set_context_hooks(&other_table));
  void* later = glake_malloc(100, 0, nullptr);
  CHECK(glake_block_context(state, &hooks) != nullptr);
  CHECK(glake_block_context(state, &others) == nullptr);
  CHECK(glake_block_context(later, &hooks) == nullptr);
  CHECK(glake_block_context(later, &others) != nullptr);
  OK(glake_set_context_hooks(nullptr));
  for (void* p : {before, kept, state, later}) OK(glake_free(p));
  finish();
  CHECK(hooks.alive.empty() && others.alive.empty());
}

TEST(blocks_held_for_streams_complete_later) {
  test::running() = "held back";
  start();
  auto context = std::make_unique<test::CurrentContext>();
  std::vector<CUstream> streams(9);
  for (CUstream& s : streams) CU(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  OK(glake_history(100, GLAKE_CONTEXT_NEVER, 1));
  void* ptr = glake_malloc(9 * kMiB, 0, nullptr);
  for (CUstream s : streams) OK(glake_record_stream(ptr, s));
  OK(glake_free(ptr));
  CHECK(history().back().action == GLAKE_FREE_REQUESTED);
  OK(glake_empty_cache(0));
  std::vector<int> seen = actions(history());
  CHECK(std::count(seen.begin(), seen.end(), GLAKE_FREE_COMPLETED) == 1);
  OK(glake_shutdown());
  for (CUstream s : streams) test::end_stream(s);
  context.reset();
  finish();
}

TEST(one_observer_sees_all) {
  test::running() = "observer";
  start();
  int seen = 0;
  OK(glake_observe(&seen, [](void* self, const glake_event* e) {
    CHECK(e->device == 0);
    ++*static_cast<int*>(self);
  }));
  OK(glake_free(glake_malloc(1000, 0, nullptr)));
  CHECK(seen == 4);  // the growth is one of the events
  OK(glake_observe(nullptr, nullptr));
  OK(glake_free(glake_malloc(1000, 0, nullptr)));
  CHECK(seen == 4 && !glake::Process::instance().hooks().has(glake::kWatched));
  finish();
}

// Threads allocate while the watch is turned on and off.
TEST(threads_and_switches) {
  test::running() = "threads";
  start();
  Hooks hooks;
  glake_context_hooks table = hooks.as_hooks();
  OK(glake_set_context_hooks(&table));
  auto work = [](uint64_t seed) {
    test::Dice dice(seed);
    std::vector<void*> mine;
    for (int i = 0; i < 4000 / test::kSlowdown; ++i) {
      if (mine.size() < 6) {
        mine.push_back(glake_malloc(dice.chance(90) ? dice(1, 5000) : 2 * kMiB, 0, nullptr));
        CHECK(mine.back() != nullptr);
      } else {
        OK(glake_free(mine[0]));
        mine.erase(mine.begin());
      }
    }
    for (void* ptr : mine) OK(glake_free(ptr));
  };
  std::thread one(work, 1), two(work, 2);
  for (int i = 0; i < 60; ++i) {
    OK(glake_history(i % 3 == 2 ? 0 : 50, i % 3 == 0 ? GLAKE_CONTEXT_ALL : GLAKE_CONTEXT_STATE, 0));
    CHECK(history().size() <= 50);
  }
  one.join();
  two.join();
  OK(glake_set_context_hooks(nullptr));
  finish();
  CHECK(hooks.alive.empty());
}

// A program that ends without glake_shutdown() is told on stderr that its trace is not whole.
TEST(a_trace_that_ends_with_the_process_is_checked) {
  test::running() = "a trace that ends with the process";
  int ends[2];
  CHECK(pipe(ends) == 0);
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    dup2(ends[1], STDERR_FILENO);
    close(ends[0]);
    close(ends[1]);
    OK(glake_configure("driver", "sim"));
    OK(glake_configure("trace", "/dev/full"));
    for (int i = 0; i < 10; ++i) OK(glake_free(glake_malloc(1000, 0, nullptr)));
    std::exit(0);
  }
  close(ends[1]);
  std::string told;
  char part[512];
  for (ssize_t got = 0; (got = read(ends[0], part, sizeof part)) > 0;) {
    told.append(part, static_cast<size_t>(got));
  }
  close(ends[0]);
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  CHECK_TEXT(told.find("glake: the trace /dev/full is not whole") != std::string::npos, told);
}

}  // namespace

int main(int argc, char** argv) { return test::run_cases(argc, argv); }

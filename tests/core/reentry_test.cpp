// A signal handler allocates while its own thread is inside glake. Without the option `debug` that
// is a deadlock, as with malloc. With the option the call fails, and the message says why.
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <ctime>

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

// An observer runs while glake's locks are held. A signal there interrupts glake at the worst
// point.
void observe(void*, const glake_event* event) {
  if (event->action == GLAKE_ALLOC || event->action == GLAKE_SEGMENT_MAP ||
      event->action == GLAKE_FREE_REQUESTED || event->action == GLAKE_SEGMENT_UNMAP) {
    std::raise(SIGUSR1);
  }
}

// --- interrupts of a real timer, wherever they come ---

constexpr int kInterrupts = 3000 / test::kSlowdown;
constexpr int kDeadline = 60 * test::kSlowdown;  // seconds for each mode, which takes about two
volatile sig_atomic_t interrupts = 0, allowed = 0, held_off = 0, wrong = 0;

// A handler that allocates and frees, as in the program that showed the fault. Each call ends,
// whatever the handler interrupts, and a refused call says why.
void allocate_in_handler(int) {
  interrupts = interrupts + 1;
  void* ptr = interrupts % 2 == 0
                  ? glake_malloc(3 * kMiB, 0, nullptr)
                  : glake_malloc_contiguous(3 * kMiB, 0, nullptr, GLAKE_CONTIGUOUS_VMM);
  if (ptr != nullptr) {
    allowed = allowed + 1;
    if (glake_free(ptr) != GLAKE_OK) wrong = wrong + 1;
    return;
  }
  held_off = held_off + 1;
  char said[64] = "";
  int local = 0;
  if (glake_last_error(said, sizeof said) != GLAKE_REENTERED || said[0] != 'c' ||
      glake_free(&local) != GLAKE_REENTERED || glake_mark_step(0) != GLAKE_REENTERED ||
      glake_stats(0, nullptr, 0) != 0 || glake_check(0) != GLAKE_REENTERED) {
    wrong = wrong + 1;
  }
}

void too_late(int) {
  constexpr char kText[] = "reentry_test: a call in a signal handler never ended\n";
  ssize_t written = write(STDERR_FILENO, kText, sizeof kText - 1);
  _exit(written > 0 ? 1 : 2);
}

void handle(int signal, void (*handler)(int)) {
  struct sigaction action{};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  CHECK(sigaction(signal, &action, nullptr) == 0);
}

void interrupt_every(int microseconds) {
  itimerval interval{{0, microseconds}, {0, microseconds}};
  CHECK(setitimer(ITIMER_REAL, &interval, nullptr) == 0);
}

// Calls nothing but glake. The handler may not interrupt the program's own malloc, of which glake
// knows nothing. The caller checks the status that comes back.
int work(int turn) {
  void* ptr = glake_malloc(static_cast<size_t>(turn % 7 + 1) * kMiB, 0, nullptr);
  if (ptr == nullptr) return GLAKE_OUT_OF_MEMORY;
  int status = turn % 16 == 1 ? glake_record_stream(ptr, nullptr) : GLAKE_OK;
  if (status == GLAKE_OK) status = glake_free(ptr);
  if (turn % 32 == 7 && status == GLAKE_OK) status = glake_mark_step(0);
  if (turn % 64 == 9 && status == GLAKE_OK) status = glake_empty_cache(0);
  int local = 0;
  if (turn % 64 == 11 && glake_free(&local) != GLAKE_INVALID_POINTER) return GLAKE_INTERNAL;
  static char text[16384];
  if (turn % 64 == 13 && glake_stats(0, text, sizeof text) == 0) return GLAKE_INTERNAL;
  if (turn % 64 == 15) glake_findings(text, sizeof text);
  if (turn % 128 == 17) {  // glake holds its locks during this call
    pid_t child = fork();
    if (child == 0) _exit(0);
    if (child < 0 || waitpid(child, nullptr, 0) != child) return GLAKE_INTERNAL;
  }
  // This time is spent outside glake. It is long enough for the timer to hit it too, although
  // poisoning takes milliseconds.
  for (volatile int i = 0; i < 100000; i = i + 1) {
  }
  return status;
}

void interrupted(const char* mode) {
  test::running() = std::string("interrupts of a timer, debug=") + mode;
  test::fresh_simulator({{"memory", "512MiB"}, {"devices", "1"}});
  CHECK(setenv("GLAKE_DEBUG", mode, 1) == 0);  // the first call is as safe as any
  handle(SIGALRM, allocate_in_handler);
  handle(SIGUSR2, too_late);
  sigevent late{};
  late.sigev_notify = SIGEV_SIGNAL;
  late.sigev_signo = SIGUSR2;
  timer_t deadline{};
  itimerspec at{{0, 0}, {kDeadline, 0}};
  CHECK(timer_create(CLOCK_MONOTONIC, &late, &deadline) == 0);
  CHECK(timer_settime(deadline, 0, &at, nullptr) == 0);
  interrupts = allowed = held_off = wrong = 0;
  interrupt_every(300);
  int status = GLAKE_OK;
  for (int turn = 0; interrupts < kInterrupts && status == GLAKE_OK && wrong == 0; ++turn) {
    status = work(turn);
  }
  interrupt_every(0);
  std::string counts = std::to_string(interrupts) + " interrupts, " + std::to_string(allowed) +
                       " allocated, " + std::to_string(held_off) + " refused, " +
                       std::to_string(wrong) + " wrong";
  CHECK_TEXT(status == GLAKE_OK && wrong == 0, counts);
  CHECK_TEXT(allowed > 0 && held_off > 0, counts);
  OK(glake_check(0));
  OK(glake_shutdown());
  test::check_nothing_left();
  CHECK(timer_delete(deadline) == 0);
  CHECK(unsetenv("GLAKE_DEBUG") == 0);
}

TEST(refused_under_locks) {
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
  // A handler that interrupts nothing of glake's may call it as any code does.
  ptr = glake_malloc(1000, 0, nullptr);
  CHECK(ptr != nullptr);
  OK(glake_free(ptr));
  OK(glake_check(0));
  OK(glake_shutdown());
  test::check_nothing_left();
}

TEST(interrupted_with_guards) { interrupted("guard"); }
TEST(interrupted_with_poison) { interrupted("poison"); }
TEST(interrupted_with_traces) { interrupted("trace"); }
TEST(interrupted_with_sync) { interrupted("sync"); }
TEST(interrupted_with_all) { interrupted("guard,poison,trace,sync"); }

}  // namespace

int main(int argc, char** argv) { return test::run_cases(argc, argv); }

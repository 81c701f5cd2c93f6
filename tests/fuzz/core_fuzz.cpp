// Random calls of the C interface on simulated machines with little memory, all checked after every
// call (world.h). With clang this is a libFuzzer target (make fuzz). As a program of its own it
// plays files, or random input from a seed:
//
//   core_fuzz [--seed N] [--operations N | --seconds S]    random input; 20,000 operations
//   core_fuzz FILE...                                      those inputs
//   core_fuzz --reduce FILE                                the fewest calls that still fail
//
// A failure prints its calls (World::reproducer) as the body of a test, for a file of tests/core.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <fstream>

#include "operations.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(GLAKE_LIBFUZZER)
#include <sanitizer/common_interface_defs.h>
#define GLAKE_SANITIZED 1
#endif

namespace {

using Input = std::vector<uint8_t>;

void show_reproducer() {
  fuzz::World* world = fuzz::current();
  fuzz::current() = nullptr;
  if (world == nullptr) return;
  std::fprintf(stderr, "\n// What failed, as a test:\n{\n%s  w.finish();\n}\n",
               world->reproducer().c_str());
  std::fflush(stderr);
}

void on_signal(int number) {
  show_reproducer();
  std::signal(number, SIG_DFL);
  std::raise(number);
}

void report_failures() {
  test::on_failure() = show_reproducer;
#ifdef GLAKE_SANITIZED
  __sanitizer_set_death_callback(show_reproducer);
#else
  for (int number : {SIGSEGV, SIGABRT, SIGBUS, SIGFPE}) std::signal(number, on_signal);
#endif
  // A call that never returns is a finding too, so an alarm ends it. Under libFuzzer its own
  // timeout does that.
  std::signal(SIGALRM, on_signal);
}

}  // namespace

#ifdef GLAKE_LIBFUZZER

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  report_failures();
  test::on_failure() = [] {
    show_reproducer();
    std::abort();  // libFuzzer keeps the input
  };
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::play(data, size);
  return 0;
}

#else

namespace {

constexpr unsigned kPatience = 60;  // seconds for one input
constexpr size_t kUnits = 800;      // calls in one random input

// What the children play, and how far they are. It is in memory that all of them share.
struct Board {
  size_t size;
  uint64_t operations, inputs;
  uint8_t data[1 << 16];
};

Board& board() {
  static auto* shared = static_cast<Board*>(
      mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  return *shared;
}

// Runs `work` in a child; true if it ended well.
template <typename Work>
bool in_child(bool quiet, Work work) {
  std::fflush(nullptr);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    int nowhere = quiet ? open("/dev/null", O_WRONLY) : -1;
    if (nowhere >= 0) {
      dup2(nowhere, 1);
      dup2(nowhere, 2);
    }
    work();
    std::fflush(nullptr);
    _exit(0);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  return status == 0;
}

void play(const Input& input) {
  Board& b = board();
  b.size = std::min(input.size(), sizeof b.data);
  std::memcpy(b.data, input.data(), b.size);
  alarm(kPatience);
  b.operations += fuzz::play(b.data, b.size);
  alarm(0);
  ++b.inputs;
}

bool fails(const Input& input) {
  return !in_child(true, [&] { play(input); });
}

// Leaves out ever shorter runs of calls, as long as the rest still fails.
Input reduce(Input input) {
  constexpr size_t kUnit = sizeof(fuzz::Bytes4);
  input.resize(input.size() / kUnit * kUnit);
  for (size_t chunk = input.size() / kUnit / 2; chunk != 0; chunk = chunk > 1 ? chunk / 2 : 0) {
    for (size_t at = 1; at + chunk <= input.size() / kUnit;) {
      Input shorter = input;
      auto begin = shorter.begin() + static_cast<std::ptrdiff_t>(at * kUnit);
      shorter.erase(begin, begin + static_cast<std::ptrdiff_t>(chunk * kUnit));
      if (fails(shorter)) {
        input = shorter;
      } else {
        at += chunk;
      }
    }
  }
  return input;
}

void keep(const Input& input, const char* path) {
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(input.data()),
             static_cast<std::streamsize>(input.size()));
}

int explain(const Input& input) {
  // Several processes may run at once in one folder.
  const std::string name = "core_fuzz-failed-" + std::to_string(getpid()) + ".bin";
  const char* path = name.c_str();
  keep(input, path);  // first, because to reduce an input that hangs takes long
  std::fprintf(stderr, "failed; the input is in %s; reducing\n", path);
  const Input least = reduce(input);
  keep(least, path);
  in_child(false, [&] { play(least); });
  std::fprintf(stderr, "the reduced input is in %s\n", path);
  return 1;
}

Input read_file(const char* path) {
  std::ifstream file(path, std::ios::binary);
  CHECK_TEXT(file.good(), std::string("cannot read ") + path);
  return Input(std::istreambuf_iterator<char>(file), {});
}

int play_random(uint64_t seed, uint64_t operations, double seconds) {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  auto spent = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
  bool well = in_child(false, [&] {
    test::Dice dice(seed);
    while (seconds > 0 ? spent() < seconds : board().operations < operations) {
      Input input((1 + kUnits) * sizeof(fuzz::Bytes4));
      for (uint8_t& byte : input) byte = static_cast<uint8_t>(dice(0, 255));
      play(input);
    }
  });
  Board& b = board();
  std::printf("%llu operations in %llu inputs from seed %llu, %.1f s%s\n",
              static_cast<unsigned long long>(b.operations),
              static_cast<unsigned long long>(b.inputs), static_cast<unsigned long long>(seed),
              spent(), well ? "" : ": FAILED");
  return well ? 0 : explain(Input(b.data, b.data + b.size));
}

}  // namespace

int main(int argc, char** argv) {
  board();  // before any child
  report_failures();
  uint64_t seed = 1, operations = 20000 / static_cast<uint64_t>(test::kShortened);
  double seconds = 0;
  int status = 0;
  bool files = false;
  for (int i = 1; i < argc; ++i) {
    const std::string option = argv[i];
    auto next = [&] { return i + 1 < argc ? argv[++i] : "0"; };
    if (option == "--seed") {
      seed = std::strtoull(next(), nullptr, 10);
    } else if (option == "--operations") {
      operations = std::strtoull(next(), nullptr, 10);
    } else if (option == "--seconds") {
      seconds = std::strtod(next(), nullptr);
    } else if (option == "--reduce") {
      return explain(read_file(next()));
    } else {
      files = true;
      const Input input = read_file(argv[i]);
      bool well = in_child(false, [&] { play(input); });
      std::printf("%s: %s\n", argv[i], well ? "ok" : "FAILED");
      status |= well ? 0 : 1;
    }
  }
  return files ? status : play_random(seed, operations, seconds);
}

#endif

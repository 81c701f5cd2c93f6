// Test cases by name. A program's cases are registered where they are defined:
//
//   TEST(a_block_is_found) { CHECK(...); }
//   int main(int argc, char** argv) { return test::run_cases(argc, argv); }
//
// `PROGRAM --list` prints their names, `PROGRAM --filter 'GLOB'` runs those that match. Any other
// word that begins with -- is refused, unless main() takes it. Each case runs in a process of its
// own, so the other cases run even if one fails or crashes. If only one case is chosen, it runs in
// the program itself, where a debugger finds it. Each case ends with a line `NAME: ok (3 ms)` or
// `NAME: FAILED why`.
#pragma once

#include <fnmatch.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace test {

// What the command line chooses of a program's cases.
struct Choice {
  bool list = false;
  std::string filter;

  // Ends the program for --help, and for a --filter that is empty.
  Choice(int argc, char** argv) : program_(argv[0]) {
    for (int i = 1; i < argc; ++i) {
      const std::string word = argv[i];
      if (word == "--help" || word == "-h") end(stdout, 0);
      if (word == "--filter") {
        if (i + 1 == argc || *argv[i + 1] == '\0') end(stderr, 2, "--filter: which cases?");
        filter = argv[++i];
      } else if (word == "--list") {
        list = true;
      } else if (other_.empty() && word.compare(0, 2, "--") == 0) {
        other_ = word;
      }
    }
  }
  // Ends the program if the command line has an option that is not known here.
  void refuse_others() const {
    if (!other_.empty()) end(stderr, 2, "no option is called " + other_);
  }
  // True if the case is to be run; with --list, its name is printed instead.
  bool takes(const char* name) const {
    if (!filter.empty() && fnmatch(filter.c_str(), name, 0) != 0) return false;
    if (list) std::puts(name);
    return !list;
  }

 private:
  [[noreturn]] void end(FILE* out, int status, const std::string& why = "") const {
    if (!why.empty()) std::fprintf(out, "%s\n", why.c_str());
    std::fprintf(
        out,
        "usage: %s [--list | --filter GLOB]\n"
        "Runs its cases. --list prints their names instead; --filter runs those whose name "
        "matches.\n",
        program_.c_str());
    std::exit(status);
  }

  std::string program_, other_;
};

struct Case {
  const char* name;
  void (*run)();

  Case(const char* called, void (*body)()) : name(called), run(body) { all().push_back(*this); }
  static std::vector<Case>& all() {
    static std::vector<Case> cases;
    return cases;
  }
};

#define TEST(name)                                \
  void name();                                    \
  const ::test::Case case_of_##name(#name, name); \
  void name()

// The first argument as a number. `otherwise` if there is none, or if it is an option.
inline int number_argument(int argc, char** argv, int otherwise) {
  return argc > 1 && argv[1][0] != '-' ? std::atoi(argv[1]) : otherwise;
}

// Why the child process did not end well; "": it did.
inline std::string run_apart(const Case& one) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child < 0) return "no process could be started";
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // a program that is killed leaves no case behind
    one.run();
    std::exit(0);
  }
  int end = 0;
  if (waitpid(child, &end, 0) != child) return "its process was lost";
  if (WIFSIGNALED(end)) return std::string("killed: ") + strsignal(WTERMSIG(end));
  return WEXITSTATUS(end) == 0 ? "" : "exit status " + std::to_string(WEXITSTATUS(end));
}

// Runs what the command line chooses; returns main()'s exit status.
inline int run_cases(int argc, char** argv) {
  const Choice choice(argc, argv);
  choice.refuse_others();
  std::vector<Case> chosen;
  for (const Case& each : Case::all()) {
    if (choice.takes(each.name)) chosen.push_back(each);
  }
  if (choice.list) return 0;
  if (chosen.empty()) {
    std::printf("no case is called %s\n", choice.filter.c_str());
    return 2;
  }
  int failed = 0;
  for (const Case& each : chosen) {
    using Clock = std::chrono::steady_clock;
    const auto begun = Clock::now();
    std::string why;
    if (chosen.size() == 1) {
      each.run();  // a check that fails ends the program
    } else {
      why = run_apart(each);
    }
    const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begun);
    if (why.empty()) {
      std::printf("%s: ok (%lld ms)\n", each.name, static_cast<long long>(took.count()));
    } else {
      std::printf("%s: FAILED %s\n", each.name, why.c_str());
      ++failed;
    }
    std::fflush(stdout);
  }
  std::printf("%zu passed, %d failed\n", chosen.size() - static_cast<size_t>(failed), failed);
  return failed == 0 ? 0 : 1;
}

}  // namespace test

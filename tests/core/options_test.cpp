// Options: what each takes and refuses, sizes with suffixes, the environment.
#include "base/options.h"

#include <cstdlib>
#include <utility>
#include <vector>

#include "harness.h"

using namespace glake;

namespace {

// The status that setting an option throws; GLAKE_OK if none. The text must name the option.
int code_of(const std::string& key, const std::string& value) {
  Options options;
  try {
    options.set(key, value);
  } catch (const Error& e) {
    CHECK_TEXT(std::string(e.what()).find(key) != std::string::npos, e.what());
    return e.code();
  }
  return GLAKE_OK;
}

TEST(limits) {
  Options o;
  o.set("LIMIT", "0.5");
  CHECK(o.limit.fraction == 0.5 && o.limit.bytes == 0);
  o.set("limit", "90%");
  CHECK(o.limit.fraction > 0.899 && o.limit.fraction < 0.901);
  o.set("limit", "70GiB");
  CHECK(o.limit.bytes == 70 * kGiB);
  o.set("limit", "2097152");
  CHECK(o.limit.bytes == kGranule);
  o.set("limit", "none");
  CHECK(o.limit.bytes == 0 && o.limit.fraction == 1.0);
  for (const char* bad :
       {" 1", "0.0000001", "0.000001%", "1e-9", "0x10000000", "0,9", "0", "-1", "nan", "inf", "0%",
        "101%", "1MiB", "5 GiB", "5GB", "70GiBs", "1e30", "ten"}) {
    CHECK_TEXT(code_of("limit", bad) == GLAKE_INVALID_OPTION, bad);
  }
}

TEST(others) {
  CHECK(code_of("policy", "compact") == GLAKE_OK && code_of("POLICY", "balanced") == GLAKE_OK);
  CHECK(code_of("policy", "Compact") == GLAKE_INVALID_OPTION);
  CHECK(code_of("peers", "all") == GLAKE_OK && code_of("peers", "1") == GLAKE_INVALID_OPTION);
  for (const char* bad : {"1e2", "0", "0.5", "1001", "8x", "-3"}) {
    CHECK_TEXT(code_of("view_budget", bad) == GLAKE_INVALID_OPTION, bad);
  }
  CHECK(code_of("view_budget", "1.5") == GLAKE_OK);
  CHECK(code_of("view_bugdet", "2") == GLAKE_UNKNOWN_OPTION);
  CHECK(code_of("", "2") == GLAKE_UNKNOWN_OPTION);
}

TEST(bytes) {
  CHECK(parse_size("1.5KiB") == 1536 && parse_size("2TiB") == 2048 * kGiB);
  CHECK(parse_size("7") == 7 && parse_size("7B") == 7 && parse_size(".5KiB") == 512);
  for (const char* bad :
       {"", ".", "5.", "0", "0.9", "1,5KiB", "1e3", "65TiB", "-1", "7 B", "inf"}) {
    CHECK_TEXT(!parse_size(bad), bad);
  }
}

// Tests the kinds of values that options of the simulator have. An option of the core may have any
// of them.
TEST(kinds) {
  const OptionRow row{"new_way", "", "what", "how"};
  const auto refuses = [&row](const auto& kind, const char* text) {
    try {
      read_option(row, kind, text);
    } catch (const Error& e) {
      CHECK_TEXT(std::string(e.what()).find("new_way does not take") != std::string::npos,
                 e.what());
      return true;
    }
    return false;
  };
  const Size plain{1, ""}, granules{kGranule, "0"};
  CHECK(read_option(row, plain, "4MiB") == 4 * kMiB && show_option(plain, 4 * kMiB) == "4194304");
  CHECK(refuses(plain, "0") && refuses(plain, "") && refuses(plain, "none"));
  CHECK(read_option(row, granules, "0") == 0 && show_option(granules, 0) == "0");
  CHECK(refuses(granules, "1MiB") && read_option(row, granules, "2MiB") == kGranule);
  CHECK(read_option(row, Flag{}, "Yes") && !read_option(row, Flag{}, "off"));
  CHECK(refuses(Flag{}, "2") && refuses(Flag{}, ""));
  const Whole whole{-1, 9};
  CHECK(read_option(row, whole, "-1") == -1 && read_option(row, whole, "9") == 9);
  CHECK(refuses(whole, "10") && refuses(whole, "1.0") && refuses(whole, ""));
  const WholeOrWord either{0, 9, {"auto"}};
  CHECK(read_option(row, either, "auto") == "auto" && read_option(row, either, "9") == "9");
  CHECK(refuses(either, "10") && refuses(either, "Auto"));
  CHECK(read_option(row, FileName{4}, "a.-_") == "a.-_" &&
        read_option(row, FileName{4}, "").empty());
  CHECK(refuses(FileName{4}, ".a") && refuses(FileName{4}, "a/b") && refuses(FileName{4}, "abcde"));
  const CallTimes times{2, 1e9};
  const auto read = read_option(row, times, "a=1+.5,,b=2");
  CHECK(read.size() == 2 && read[0].call == "a" && read[0].us == std::vector<double>({1, 0.5}));
  CHECK(read[1].call == "b" && read[1].us == std::vector<double>({2}));
  for (const char* bad : {"a", "a=", "a=1+", "a=1+2+3", "a=1000000000", "a=-1"}) {
    CHECK_TEXT(refuses(times, bad), bad);
  }
}

// A value of each kind is shown as a text that reads as the same value, because an option of the
// core may have any kind.
TEST(kinds_are_shown) {
  const OptionRow row{"new_way", "", "what", "how"};
  const auto check = [&row](const auto& kind, const char* text, const std::string& shown) {
    const std::string first = show_option(kind, read_option(row, kind, text));
    CHECK_TEXT(first == shown, first);
    CHECK(show_option(kind, read_option(row, kind, first)) == shown);
  };
  check(Choice{{"one", "two"}}, "two", "two");
  check(Number{0, 9}, "1.50", "1.5");
  check(LimitText{0, 1}, "90%", "0.9");
  check(ContiguousText{1}, "2MiB", "vmm:2097152");
  check(Size{1, ""}, "1KiB", "1024");
  check(Flag{}, "Yes", "1");
  check(Flag{}, "off", "0");
  check(Whole{-9, 9}, "-7", "-7");
  check(WholeOrWord{0, 9, {"auto"}}, "auto", "auto");
  check(FileName{9}, "name", "name");
  check(CallTimes{2, 1e9}, "a=1+.5,,b=2", "a=1+0.5,b=2");
  check(DriverName{}, "sim", "sim");
  check(AnyText{}, "any", "any");
  struct Switches {
    bool a, b;
  };
  check(Modes<Switches>{{{"a", &Switches::a}, {"b", &Switches::b}}}, "b,a", "a,b");
}

// A misspelt driver is refused when it is set, not when it is opened.
TEST(drivers) {
  for (const char* bad : {"simm", "sim:", "libcuda.so", "CUDA"}) {
    CHECK_TEXT(code_of("driver", bad) == GLAKE_INVALID_OPTION, bad);
  }
  CHECK(code_of("driver", "sim:dgx_a100") == GLAKE_OK && code_of("driver", "./lib.so") == GLAKE_OK);
}

// An empty value means the default.
TEST(empty) {
  Options o;
  for (const auto& [key, value] : {std::pair("limit", "0.5"),
                                   {"debug", "guard"},
                                   {"policy", "compact"},
                                   {"driver", "sim"},
                                   {"trace", "x"},
                                   {"contiguous", "64MiB"},
                                   {"view_budget", "2"}}) {
    o.set(key, value);
    CHECK_TEXT(o.describe() != Options().describe(), key);
    const std::string told = o.get(key);
    Options again;
    again.set(key, told);
    CHECK_TEXT(again.get(key) == told && told != Options().get(key), key);
    o.set(key, "");
    CHECK_TEXT(o.get(key) == Options().get(key) && o.describe() == Options().describe(), key);
  }
}

// Names of the Python side and of the simulator are known; a misspelt one is an error.
TEST(environment) {
  setenv("GLAKE_LIMIT", "64MiB", 1);
  setenv("GLAKE_SIM_SEED", "3", 1);
  setenv("GLAKE_STRICT", "1", 1);
  setenv("GLAKE_DEBUG", "", 1);
  CHECK(Options::from_environment().limit.bytes == 64 * kMiB);
  setenv("GLAKE_LIMTI", "64MiB", 1);
  bool refused = false;
  try {
    Options::from_environment();
  } catch (const Error& e) {
    refused = e.code() == GLAKE_UNKNOWN_OPTION;
  }
  CHECK(refused);
}

}  // namespace

int main(int argc, char** argv) { return test::run_cases(argc, argv); }

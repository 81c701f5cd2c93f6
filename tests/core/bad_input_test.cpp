// Mistakes of callers. Each has a status of its own and a sentence that names the value, and loses
// no memory.
#include <algorithm>
#include <cstdint>

#include "harness.h"

using test::kGranule;
using test::kKiB;
using test::kMiB;

namespace {

bool says(const std::string& text, std::initializer_list<const char*> words) {
  for (const char* word : words) {
    if (text.find(word) == std::string::npos) return false;
  }
  return true;
}
#define SAYS(...) CHECK(says(test::last_error(), {__VA_ARGS__}))

void refuse_malloc(int status, size_t bytes, int device) {
  CHECK(glake_malloc(bytes, device, nullptr) == nullptr);
  CHECK_TEXT(glake_last_error(nullptr, 0) == status, test::last_error());
}

void start(const char* limit = "none") {
  test::fresh_simulator({{"phantom", "1"}, {"memory", "256MiB"}, {"devices", "2"}});
  test::configure({{"driver", "sim"}, {"limit", limit}});
}

void finish() {
  OK(glake_check(0));
  OK(glake_shutdown());
  test::check_nothing_left();
}

TEST(sizes_and_devices) {
  test::running() = "sizes and devices";
  start();
  refuse_malloc(GLAKE_INVALID_ARGUMENT, 0, 0);
  SAYS("0 bytes");
  refuse_malloc(GLAKE_INVALID_ARGUMENT, static_cast<size_t>(-5), 0);
  SAYS("negative");
  refuse_malloc(GLAKE_INVALID_ARGUMENT, SIZE_MAX, 0);
  refuse_malloc(GLAKE_INVALID_ARGUMENT, (size_t{1} << 46) + 1, 0);
  refuse_malloc(GLAKE_OUT_OF_MEMORY, size_t{1} << 46, 0);
  refuse_malloc(GLAKE_OUT_OF_MEMORY, size_t{1} << 40, 0);
  SAYS("Tried to allocate 1.00 TiB", "live 0 bytes in 0 blocks", "can never fit");
  CHECK(!says(test::last_error(), {"ree about"}));
  for (int device : {-1, 2, 63, 64, 1 << 20, INT32_MIN}) {
    refuse_malloc(GLAKE_INVALID_DEVICE, 100, device);
    SAYS(std::to_string(device).c_str());
    GIVES(GLAKE_INVALID_DEVICE, glake_empty_cache(device));
    GIVES(GLAKE_INVALID_DEVICE, glake_check(device));
    CHECK(glake_stats(device, nullptr, 0) == 0 &&
          glake_last_error(nullptr, 0) == GLAKE_INVALID_DEVICE);
  }
  GIVES(GLAKE_INVALID_DEVICE, glake_enable_peer_access(0, 9));
  GIVES(GLAKE_INVALID_ARGUMENT, glake_enable_peer_access(0, 0));
  CHECK(glake_device_count() == 2);
  test::check_books({});
  finish();
}

TEST(pointers) {
  test::running() = "pointers";
  start("32MiB");
  int local = 0;
  auto* small = static_cast<char*>(glake_malloc(1000, 0, nullptr));
  auto* large = static_cast<char*>(glake_malloc(5 * kMiB, 0, nullptr));
  const std::vector<test::Held> held{{small, 1000, 0}, {large, 5 * kMiB, 0}};
  for (void* foreign :
       {static_cast<void*>(&local), reinterpret_cast<void*>(8),
        reinterpret_cast<void*>(~uintptr_t{0}), reinterpret_cast<void*>(uintptr_t{1} << 48)}) {
    GIVES(GLAKE_INVALID_POINTER, glake_free(foreign));
    GIVES(GLAKE_INVALID_POINTER, glake_record_stream(foreign, nullptr));
    GIVES(GLAKE_INVALID_POINTER, glake_block_info(foreign, nullptr, nullptr, nullptr));
  }
  for (void* interior :
       {small + 1, small + 512, large + 1, large + 512, large + 2 * kMiB, large + 5 * kMiB - 1}) {
    GIVES(GLAKE_INVALID_POINTER, glake_free(interior));
    SAYS("inside a block");
  }
  GIVES(GLAKE_INVALID_POINTER, glake_free(large + 64 * kMiB));
  GIVES(GLAKE_INVALID_POINTER, glake_record_stream(nullptr, nullptr));
  test::check_books(held);
  for (char* ptr : {small, large}) {
    OK(glake_free(ptr));
    for (int i = 0; i < 3; ++i) GIVES(GLAKE_INVALID_POINTER, glake_free(ptr));
    SAYS("freed");
    GIVES(GLAKE_INVALID_POINTER, glake_block_info(ptr, nullptr, nullptr, nullptr));
  }
  OK(glake_free(nullptr));
  test::check_books({});
  finish();
}

// Interior and double frees of a block that is reached through a view.
TEST(pointers_into_views) {
  test::running() = "pointers into views";
  start("32MiB");
  void* parts[8];
  for (void*& p : parts) p = glake_malloc(4 * kMiB, 0, nullptr);
  for (int i = 0; i < 8; i += 2) OK(glake_free(parts[i]));
  auto* block = static_cast<char*>(glake_malloc(13 * kMiB, 0, nullptr));
  CHECK(block != nullptr && test::stat("glake.stitches") == 1);
  for (size_t at : {size_t{1}, 2 * kMiB, 12 * kMiB}) {
    GIVES(GLAKE_INVALID_POINTER, glake_free(block + at));
    SAYS("inside a block");
  }
  GIVES(GLAKE_INVALID_POINTER, glake_free(block + 13 * kMiB));
  OK(glake_free(block));
  GIVES(GLAKE_INVALID_POINTER, glake_free(block));
  GIVES(GLAKE_INVALID_POINTER, glake_free(block + 2 * kMiB));
  test::check_books({{parts[1], 4 * kMiB, 0},
                     {parts[3], 4 * kMiB, 0},
                     {parts[5], 4 * kMiB, 0},
                     {parts[7], 4 * kMiB, 0}});
  for (int i = 1; i < 8; i += 2) OK(glake_free(parts[i]));
  finish();
}

TEST(capacity) {
  test::running() = "capacity";
  start("32MiB");
  std::vector<test::Held> held;
  for (int i = 0; i < 8; ++i) held.push_back({glake_malloc(3 * kMiB, 0, nullptr), 3 * kMiB, 0});
  for (size_t i : {6, 4, 2}) {
    OK(glake_free(held[i].ptr));
    held.erase(held.begin() + static_cast<std::ptrdiff_t>(i));
  }
  const int64_t ooms = test::stat("num_ooms");
  refuse_malloc(GLAKE_OUT_OF_MEMORY, 100 * kMiB, 0);
  SAYS("100.00 MiB", "limit 32.00 MiB", "live 15.00 MiB in 5 blocks", "idle", "largest fit",
       "GLAKE_LIMIT");
  CHECK(test::stat("num_ooms") == ooms + 1);
  test::check_books(held);
  OK(glake_check(0));
  void* fits = glake_malloc(14 * kMiB, 0, nullptr);  // nothing was lost: this still stitches
  CHECK(fits != nullptr && glake_last_error(nullptr, 0) == GLAKE_OK);
  OK(glake_free(fits));
  for (const auto& h : held) OK(glake_free(h.ptr));
  finish();
}

// The largest fit that the text names does fit, and a granule more does not.
TEST(largest_fit_is_true) {
  test::running() = "largest fit";
  start("16MiB");
  void* parts[4];
  for (void*& p : parts) p = glake_malloc(4 * kMiB, 0, nullptr);
  OK(glake_free(parts[0]));
  OK(glake_free(parts[2]));
  refuse_malloc(GLAKE_OUT_OF_MEMORY, 9 * kMiB, 0);
  SAYS("largest fit now 8.00 MiB");
  void* ptr = glake_malloc(8 * kMiB, 0, nullptr);
  CHECK(ptr != nullptr);
  for (void* p : {ptr, parts[1], parts[3]}) OK(glake_free(p));
  finish();
}

// The text names what helps: a higher limit, memory freed, or both.
TEST(advice_is_true) {
  test::running() = "advice";
  start("200MiB");
  void* held = glake_malloc(100 * kMiB, 0, nullptr);
  refuse_malloc(GLAKE_OUT_OF_MEMORY, 150 * kMiB, 0);
  SAYS("live 100.00 MiB in 1 block\n", "Raising GLAKE_LIMIT by 50.00 MiB would let");
  refuse_malloc(GLAKE_OUT_OF_MEMORY, 190 * kMiB, 0);
  SAYS("Free about 90.00 MiB, or");
  refuse_malloc(GLAKE_OUT_OF_MEMORY, 220 * kMiB, 0);
  SAYS("Raise GLAKE_LIMIT by 56.00 MiB (GLAKE_LIMIT=256MiB) and free about 64.00 MiB, or");
  OK(glake_free(held));
  OK(glake_shutdown());
  test::configure({{"driver", "sim"}, {"limit", "256MiB"}});
  held = glake_malloc(220 * kMiB, 0, nullptr);
  CHECK(held != nullptr);
  OK(glake_free(held));
  void* parts[2];
  for (void*& p : parts) p = glake_malloc(128 * kMiB, 0, nullptr);
  CHECK(glake_malloc_contiguous(3 * kMiB, 0, nullptr, GLAKE_CONTIGUOUS_VMM) == nullptr);
  SAYS("contiguous block", "Tried to allocate 3.00 MiB, which is 4.00 MiB in whole granules",
       "largest fit now 0 bytes", "Free about 4.00 MiB");
  GIVES(GLAKE_INVALID_ARGUMENT, glake_shutdown());
  SAYS("2 live blocks;");
  OK(glake_free(parts[0]));
  GIVES(GLAKE_INVALID_ARGUMENT, glake_shutdown());
  SAYS("1 live block;");
  OK(glake_free(parts[1]));
  finish();
}

TEST(options) {
  test::running() = "options";
  test::fresh_simulator({{"phantom", "1"}, {"memory", "256MiB"}});
  GIVES(GLAKE_UNKNOWN_OPTION, glake_configure("polciy", "compact"));
  SAYS("polciy", "policy");
  GIVES(GLAKE_INVALID_OPTION, glake_configure("limit", "-3"));
  GIVES(GLAKE_INVALID_OPTION, glake_configure("policy", "best"));
  GIVES(GLAKE_INVALID_ARGUMENT, glake_configure(nullptr, "x"));
  GIVES(GLAKE_INVALID_ARGUMENT, glake_configure("limit", nullptr));
  test::configure({{"driver", "sim"}, {"LIMIT", "64MiB"}});
  void* ptr = glake_malloc(100, 0, nullptr);
  GIVES(GLAKE_INVALID_OPTION, glake_configure("limit", "32MiB"));
  SAYS("before the first use");
  OK(glake_configure("limit", "64MiB"));  // the value that it has already
  CHECK(test::stat("glake.limit_bytes") == static_cast<int64_t>(64 * kMiB));
  OK(glake_free(ptr));
  finish();
  OK(glake_configure("limit", "32MiB"));
  OK(glake_configure("driver", "sim"));
  OK(glake_free(glake_malloc(100, 0, nullptr)));
  CHECK(test::stat("glake.limit_bytes") == static_cast<int64_t>(32 * kMiB));
  finish();
}

TEST(drivers) {
  test::running() = "drivers";
  test::fresh_simulator({{"phantom", "1"}, {"memory", "256MiB"}});
  OK(glake_configure("driver", "/nonexistent/libcuda.so"));
  for (int i = 0; i < 2; ++i) {
    refuse_malloc(GLAKE_DRIVER_ABSENT, 100, 0);
    SAYS("/nonexistent/libcuda.so");
    CHECK(glake_device_count() == -GLAKE_DRIVER_ABSENT);
    GIVES(GLAKE_DRIVER_ABSENT, glake_empty_cache(0));
  }
  CHECK(std::string(glake_driver_path()).empty());
  GIVES(GLAKE_INVALID_OPTION, glake_configure("driver", "simm"));
  SAYS("\"simm\"");
  OK(glake_configure("driver", "/lib/x86_64-linux-gnu/libm.so.6"));
  if (glake_malloc(100, 0, nullptr) == nullptr) {
    CHECK(glake_last_error(nullptr, 0) == GLAKE_DRIVER_ABSENT);
  }
  OK(glake_configure("driver", "sim"));
  void* ptr = glake_malloc(100, 0, nullptr);
  CHECK(ptr != nullptr);
  const std::string path = glake_driver_path();
  CHECK(path.find("libsimcuda.so") != std::string::npos);
  OK(glake_free(ptr));
  finish();
  // A path to the same library is accepted too.
  OK(glake_configure("driver", path.c_str()));
  ptr = glake_malloc(100, 0, nullptr);
  CHECK_TEXT(ptr != nullptr && path == glake_driver_path(), test::last_error());
  OK(glake_free(ptr));
  finish();
}

TEST(text_buffers) {
  test::running() = "text buffers";
  start();
  refuse_malloc(GLAKE_INVALID_DEVICE, 1, 7);
  char text[8];
  std::memset(text, 'x', sizeof text);
  CHECK(glake_last_error(text, 4) == GLAKE_INVALID_DEVICE && text[3] == '\0' && text[4] == 'x');
  CHECK(glake_last_error(nullptr, 100) == GLAKE_INVALID_DEVICE);
  CHECK(glake_last_error(text, 0) == GLAKE_INVALID_DEVICE);
  size_t length = glake_stats(0, nullptr, 0);
  std::string json(length + 1, 'x');
  CHECK(glake_stats(0, &json[0], json.size()) == length && json[length] == '\0');
  CHECK(json[0] == '{' && json[length - 1] == '}');
  CHECK(glake_last_error(text, sizeof text) == GLAKE_OK && text[0] == '\0');
  CHECK(glake_options(nullptr, 0) > 100);
  refuse_malloc(GLAKE_INVALID_DEVICE, 1, 7);
  OK(glake_free(nullptr));
  CHECK(glake_last_error(nullptr, 0) == GLAKE_OK);
  finish();
}

}  // namespace

int main(int argc, char** argv) { return test::run_cases(argc, argv); }

// Shared by the tests of the allocator core: checks that name their place in the source, the
// simulator, and the books that glake and the simulator keep. A test program exits 0 only if every
// check held.
#pragma once

#include <cuda.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cases.h"
#include "glake/glake.h"
#include "simcuda/simcuda.h"

namespace test {

// Sanitizers are slow. Under them the long programs do only one part in kSlowdown of their work,
// always from its beginning.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kSlowdown = 8;
#else
constexpr int kSlowdown = 1;
#endif

// The longest programs do one part in kShortened of their work, also without sanitizers. With
// TEST_FULL=1 (make test-all) they do as much as the others.
inline bool full_width() {
  const char* given = std::getenv("TEST_FULL");
  return given != nullptr && std::strcmp(given, "1") == 0;
}
inline const int kShortened = full_width() ? kSlowdown : 8;

constexpr size_t kKiB = 1024, kMiB = 1024 * kKiB, kGranule = 2 * kMiB;

// What the test is doing now, for the message of a failed check. It has enough to run that case
// alone.
inline std::string& running() {
  static std::string text;
  return text;
}

inline std::string last_error() {
  char text[4096] = "";
  int code = glake_last_error(text, sizeof text);
  return "glake status " + std::to_string(code) + ": " + text;
}

// A failed check calls this function before it ends the program. It prints how to reproduce the
// failure.
inline void (*&on_failure())() {
  static void (*hook)() = nullptr;
  return hook;
}

[[noreturn]] inline void die(const char* file, int line, const std::string& text) {
  std::fprintf(stderr, "%s:%d: %s\n  while: %s\n  last error: %s\n", file, line, text.c_str(),
               running().c_str(), last_error().c_str());
  if (on_failure() != nullptr) on_failure()();
  std::fflush(nullptr);
  std::_Exit(1);
}

#define CHECK(condition) \
  ((condition) ? (void)0 : ::test::die(__FILE__, __LINE__, "not true: " #condition))
#define CHECK_TEXT(condition, text) \
  ((condition)                      \
       ? (void)0                    \
       : ::test::die(__FILE__, __LINE__, std::string("not true: " #condition ": ") + (text)))
#define OK(call) CHECK((call) == GLAKE_OK)
#define GIVES(status, call)                                                             \
  do {                                                                                  \
    int got_ = (call);                                                                  \
    CHECK_TEXT(got_ == (status), "gave " + std::to_string(got_) + ", wanted " #status); \
    CHECK(glake_last_error(nullptr, 0) == (status));                                    \
  } while (0)
#define CU(call)                                                                            \
  do {                                                                                      \
    CUresult got_ = (call);                                                                 \
    CHECK_TEXT(got_ == CUDA_SUCCESS, "CUresult " + std::to_string(static_cast<int>(got_))); \
  } while (0)

// The driver under test: the simulator, unless TEST_DRIVER names another one. The programs that
// tools/native.py calls neutral can run on another driver. Their own cu* calls then go to that
// driver too (LD_PRELOAD), and checks that only the simulator allows are left out.
inline const char* driver() {
  const char* given = std::getenv("TEST_DRIVER");
  return given == nullptr ? "sim" : given;
}
inline bool simulated() { return std::strcmp(driver(), "sim") == 0; }

// A number of a flat JSON object; dies if it is not there.
inline int64_t number_in(const std::string& json, const std::string& key) {
  size_t at = json.find("\"" + key + "\": ");
  CHECK_TEXT(at != std::string::npos, key + " in " + json.substr(0, 200));
  return std::strtoll(json.c_str() + at + key.size() + 4, nullptr, 10);
}

template <typename Read>
std::string text_of(Read read) {
  std::string text(16384, '\0');
  size_t length = read(&text[0], text.size());
  CHECK(length < text.size());
  text.resize(length);
  return text;
}

inline std::string stats(int device = 0) {
  std::string text = text_of([=](char* to, size_t room) { return glake_stats(device, to, room); });
  CHECK(!text.empty());
  return text;
}
inline int64_t stat(const std::string& key, int device = 0) {
  return number_in(stats(device), key);
}

inline std::string ledger(int device = 0) {
  if (!simulated()) return "{}";
  return text_of([=](char* to, size_t room) { return simcuda_ledger(device, to, room); });
}

inline std::string violations() {
  if (!simulated()) return "[]";
  return text_of([](char* to, size_t room) { return simcuda_violations(to, room, 0); });
}

// Tells glake that the stream ends, and destroys it. On a GPU no call may ask about it afterwards.
inline void end_stream(CUstream stream) {
  for (int device = 0; device < 16; ++device) {
    CHECK(glake_forget_stream(device, stream) == GLAKE_OK);
  }
  CHECK(cuStreamDestroy(stream) == CUDA_SUCCESS);
}

using Options = std::vector<std::pair<std::string, std::string>>;

// The simulated driver of every test unless it says otherwise. It has the lock that a real driver
// may have, and a failed copy ends its GPU's contexts.
inline const Options kStrict = {{"driver_lock", "1"}, {"sticky_errors", "1"}};

// A simulator as if just loaded. glake must have been shut down.
inline void fresh_simulator(const Options& options) {
  if (!simulated()) return;
  CHECK(simcuda_reset() == 0);
  for (const Options& given : {kStrict, options}) {
    for (const auto& [key, value] : given) {
      CHECK_TEXT(simcuda_configure(key.c_str(), value.c_str()) == 0, key + "=" + value);
    }
  }
}

inline void configure(const Options& options) {
  for (const auto& [key, value] : options) {
    CHECK_TEXT(glake_configure(key.c_str(), value.c_str()) == GLAKE_OK, key + "=" + value);
  }
}

// Checks that glake has left nothing on the device, and that no call was undefined.
inline void check_nothing_left(int device = 0) {
  const std::string books = ledger(device);
  if (books == "{}") return;  // the driver was never started
  for (const char* key : {"reservations", "handles", "mapped_granules", "granted_granules",
                          "used_bytes", "events", "context_refs"}) {
    CHECK_TEXT(number_in(books, key) == 0, std::string(key) + " in " + books);
  }
  CHECK_TEXT(violations() == "[]", violations());
}

// The device's primary context, held and current while this lives.
class CurrentContext {
 public:
  explicit CurrentContext(int device = 0) : device_(device) {
    CU(cuInit(0));
    CUcontext context = nullptr;
    CU(cuDevicePrimaryCtxRetain(&context, device));
    CU(cuCtxPushCurrent(context));
  }
  ~CurrentContext() {
    CUcontext popped = nullptr;
    CU(cuCtxPopCurrent(&popped));
    CU(cuDevicePrimaryCtxRelease(device_));
  }
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;

 private:
  int device_;
};

// A number in [low, high], the same on every machine.
class Dice {
 public:
  explicit Dice(uint64_t seed) : engine_(seed) {}
  uint64_t operator()(uint64_t low, uint64_t high) { return low + engine_() % (high - low + 1); }
  bool chance(int percent) { return (*this)(1, 100) <= static_cast<uint64_t>(percent); }

 private:
  std::mt19937_64 engine_;
};

// A block that the test holds. check_books() compares all of them with what glake says it has
// given.
struct Held {
  void* ptr;
  size_t bytes;
  int device;
};

inline void check_books(const std::vector<Held>& held, int device = 0) {
  int64_t count = 0, requested = 0, allocated = 0;
  for (const Held& h : held) {
    if (h.device != device) continue;
    ++count;
    requested += static_cast<int64_t>(h.bytes);
    allocated += static_cast<int64_t>((h.bytes + 511) / 512 * 512);
  }
  const std::string text = stats(device);
  CHECK_TEXT(number_in(text, "allocation.all.current") == count, text);
  // The total includes the requests of blocks whose free has not completed.
  int64_t waiting =
      number_in(text, "active.all.current") - number_in(text, "allocation.all.current");
  int64_t told = number_in(text, "requested_bytes.all.current");
  CHECK_TEXT(waiting == 0 ? told == requested : told > requested, text);
  CHECK_TEXT(number_in(text, "allocated_bytes.all.current") == allocated, text);
  const int64_t physical = number_in(text, "glake.physical_bytes");
  CHECK(number_in(text, "reserved_bytes.all.current") + number_in(text, "glake.owed_bytes") ==
        physical);
  if (!simulated()) return;
  CHECK(physical == number_in(ledger(device), "used_bytes"));
}

}  // namespace test

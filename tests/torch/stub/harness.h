// Tests of the CUDA adapter. Each runs in a process of its own, with the adapter installed as
// Python installs it. Usage: `PROGRAM --list`, `PROGRAM --functions` or
// `PROGRAM ADAPTER LIBGLAKE TEST`.
#pragma once

#include <c10/core/DeviceGuard.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <map>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "glake/glake.h"
#include "simcuda/simcuda.h"

#define CHECK(condition)                                                   \
  do {                                                                     \
    if (!(condition)) {                                                    \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
      std::_Exit(1);                                                       \
    }                                                                      \
  } while (0)
#define CHECK_EQ(a, b)                                                              \
  do {                                                                              \
    auto a_ = (a);                                                                  \
    std::common_type_t<decltype(a_), decltype(b)> b_ = (b);                         \
    if (!(a_ == b_)) {                                                              \
      std::fprintf(stderr, "%s:%d: %s == %s: %s, %s\n", __FILE__, __LINE__, #a, #b, \
                   testing::shown(a_).c_str(), testing::shown(b_).c_str());         \
      std::_Exit(1);                                                                \
    }                                                                               \
  } while (0)
#define CUDA(call) CHECK_EQ(static_cast<int>(call), 0)

#define TEST(name)                                                    \
  static void test_##name();                                          \
  static const bool added_##name = testing::add(#name, &test_##name); \
  static void test_##name()

// The options of the simulator with which a test runs. They are set before anything uses it.
#define OPTIONS(name, ...) static const bool with_##name = testing::with(#name, {__VA_ARGS__})

namespace testing {

namespace native = c10::cuda::CUDACachingAllocator;
using c10::DataPtr;
using c10::MempoolId_t;
using c10::cuda::CUDAStream;
constexpr size_t kMiB = size_t{1} << 20;
constexpr MempoolId_t kNone{0, 0};

using Options = std::vector<std::pair<std::string, std::string>>;
struct Test {
  void (*body)() = nullptr;
  Options options;
};
std::map<std::string, Test>& tests();
bool add(const char* name, void (*body)());
bool with(const char* name, Options options);
void* adapter_symbol(const char* name);
std::string install();  // "", or why it failed
extern std::string libglake_path;
extern std::vector<std::string> command;  // to run this program again: program, adapter, libglake

template <typename T>
std::string shown(const T& value) {
  if constexpr (std::is_arithmetic_v<T>) return std::to_string(value);
  if constexpr (std::is_same_v<T, std::string>) return value;
  return "?";
}

inline native::CUDAAllocator* allocator() { return native::get(); }

inline glake_device_stats stats(int device = 0) {
  glake_device_stats now{};
  CHECK_EQ(glake_get_stats(device, &now, sizeof now), 0);
  return now;
}
inline int64_t reserved(int device = 0) { return stats(device).reserved_bytes[0].current; }
inline int64_t live_bytes(int device = 0) { return stats(device).requested_bytes[0].current; }

inline c10::cuda::CUDAStream new_stream(int device = 0) {
  return c10::cuda::getStreamFromPool(false, static_cast<c10::DeviceIndex>(device));
}

// Makes a stream its device's current one, until the end of the scope.
class OnStream {
 public:
  explicit OnStream(CUDAStream stream)
      : before_(c10::cuda::getCurrentCUDAStream(stream.device_index())) {
    c10::cuda::setCurrentCUDAStream(stream);
  }
  ~OnStream() { c10::cuda::setCurrentCUDAStream(before_); }
  OnStream(const OnStream&) = delete;
  OnStream& operator=(const OnStream&) = delete;

 private:
  CUDAStream before_;
};

// The text of the exception that the call threw, "" if none. `Kind` must be its type.
template <typename Kind, typename Call>
std::string thrown(Call call) {
  try {
    call();
  } catch (const Kind& error) {
    return error.what();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "another exception: %s\n", error.what());
    std::_Exit(1);
  }
  return "";
}

inline bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

inline std::string violations() {
  std::string text(1 << 16, '\0');
  text.resize(simcuda_violations(&text[0], text.size(), 0));
  return text;
}

inline bool filled(const void* ptr, unsigned char value, size_t bytes) {
  auto* at = static_cast<const unsigned char*>(ptr);
  for (size_t i = 0; i < bytes; ++i) {
    if (at[i] != value) return false;
  }
  return true;
}

// A context that knows how many were made before it.
struct Frames : c10::GatheredContext {
  explicit Frames(int number) : number(number) {}
  int number;
};
std::shared_ptr<c10::GatheredContext> gather();
int gathered();  // how many contexts were made
inline int number_of(const std::shared_ptr<c10::GatheredContext>& context) {
  auto* frames = dynamic_cast<Frames*>(context.get());
  return frames != nullptr ? frames->number : -1;
}

}  // namespace testing

// Shared by the tests of the debug modes.
#pragma once

#include <memory>

#include "harness.h"

namespace debugging {

using test::kKiB;
using test::kMiB;

constexpr int kStreams = 3;

inline std::string findings() {
  return test::text_of([](char* to, size_t room) { return glake_findings(to, room); });
}

inline bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

inline size_t count_of(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

inline CUdeviceptr at(void* ptr, int64_t offset) {
  return reinterpret_cast<CUdeviceptr>(ptr) + offset;
}

// A device with streams, in a debug mode. At its end all memory must have been given back.
class Bench {
 public:
  explicit Bench(const char* debug, const char* limit = "64MiB", const char* seed = "1") {
    test::fresh_simulator({{"memory", "128MiB"}, {"devices", "1"}, {"seed", seed}});
    test::configure({{"driver", "sim"}, {"limit", limit}, {"debug", debug}});
    context_ = std::make_unique<test::CurrentContext>();
    for (int i = 1; i < kStreams; ++i) CU(cuStreamCreate(&stream[i], CU_STREAM_NON_BLOCKING));
  }
  ~Bench() {
    OK(glake_shutdown());
    CHECK(test::number_in(test::ledger(), "host_blocks") == 0);
    for (int i = 1; i < kStreams; ++i) test::end_stream(stream[i]);
    context_.reset();
    test::check_nothing_left();
    OK(glake_configure("debug", "none"));
  }
  CUstream stream[kStreams] = {};

 private:
  std::unique_ptr<test::CurrentContext> context_;
};

inline void* get(size_t bytes, CUstream stream = nullptr) {
  void* ptr = glake_malloc(bytes, 0, stream);
  CHECK(ptr != nullptr && reinterpret_cast<uintptr_t>(ptr) % 512 == 0);
  return ptr;
}

}  // namespace debugging

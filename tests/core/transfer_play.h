// Shared by the tests of transfers: a simulated machine with the engine open on its topology,
// buffers with contents that can be told apart, and one copy from start to end.
#pragma once

#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <sstream>
#include <thread>
#include <utility>

#include "glake/glake.h"
#include "harness.h"

namespace test {

inline std::string platforms_text() {
  Dl_info info{};
  dladdr(reinterpret_cast<void*>(&simcuda_configure), &info);
  const std::string library = info.dli_fname;
  std::ifstream file(library.substr(0, library.rfind('/') + 1) + "platforms.json");
  std::stringstream text;
  text << file.rdbuf();
  CHECK(!text.str().empty());
  return text.str();
}

constexpr int kGpus = 16;

// Under this option threads carry ordered copies, which can then go around a link that fails.
inline const Options kHeld = {{"copy_order", "held"}};
// A driver under which held copies can do that. It has no lock, which would keep out the threads
// that a held stream waits for. An error leaves the contexts as they are, so that chunks can be
// sent again.
inline const Options kLenient = {{"driver_lock", "0"}, {"sticky_errors", "0"}};

// A machine of its own. The engine is open while this lives, and nothing is left behind after.
class Node {
 public:
  explicit Node(const std::string& preset, Options simulator = {}, bool topology = true,
                Options options = {}) {
    simulator.emplace_back("preset", preset);
    const char* order = std::getenv("GLAKE_COPY_ORDER");
    const bool held = std::find(options.begin(), options.end(), kHeld[0]) != options.end() ||
                      (order != nullptr && order == kHeld[0].second);
    const Options given = std::exchange(simulator, held ? kLenient : Options{});
    simulator.insert(simulator.end(), given.begin(), given.end());
    fresh_simulator(simulator);
    options.emplace_back("driver", "sim");
    configure(options);
    count_ = glake_device_count();
    CHECK(count_ > 0);
    OK(glake_transfer_open(topology ? platforms_text().c_str() : "", preset.c_str()));
  }
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;
  ~Node() {
    OK(glake_transfer_close());
    OK(glake_shutdown());
    for (int device = 0; device < count_; ++device) check_nothing_left(device);
    CHECK(number_in(ledger(), "host_blocks") == 0);
    if (count_streams) {  // calls that were refused count too
      CHECK(simcuda_calls("cuStreamCreate") == simcuda_calls("cuStreamDestroy"));
    }
  }
  int gpus() const { return count_; }

  bool count_streams = true;

 private:
  int count_ = 0;
};

// Memory of a GPU (device >= 0), pinned or pageable host memory.
constexpr int kPinned = -1, kPageable = -3;

class Buffer {
 public:
  Buffer(int device, size_t bytes) : device_(device), bytes_(bytes) {
    ptr_ = device >= 0         ? glake_malloc(bytes, device, nullptr)
           : device == kPinned ? glake_host_malloc(bytes)
                               : std::malloc(bytes);
    CHECK(ptr_ != nullptr);
  }
  ~Buffer() {
    if (device_ >= 0) {
      OK(glake_free(ptr_));
    } else if (device_ == kPinned) {
      OK(glake_host_free(ptr_));
    } else {
      std::free(ptr_);
    }
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  uint64_t at(size_t offset = 0) const { return reinterpret_cast<uint64_t>(ptr_) + offset; }
  int device() const { return device_ >= 0 ? device_ : GLAKE_HOST; }
  size_t bytes() const { return bytes_; }

  // The simulator's device memory is host memory. It is written and read at once, past all streams.
  unsigned char* data() { return static_cast<unsigned char*>(ptr_); }
  void fill(uint64_t seed) { write(seed, 0, data(), bytes_); }
  // Whether [offset, offset + bytes) holds the bytes of the sequence of `seed` from place `from`
  // on.
  bool holds(uint64_t seed, size_t offset, size_t bytes, size_t from) {
    unsigned char expected[4096];
    for (size_t i = 0; i < bytes; i += sizeof expected) {
      const size_t some = std::min(bytes - i, sizeof expected);
      write(seed, from + i, expected, some);
      if (std::memcmp(data() + offset + i, expected, some) != 0) return false;
    }
    return true;
  }
  static unsigned char byte(uint64_t seed, size_t i) {
    unsigned char one;
    write(seed, i, &one, 1);
    return one;
  }
  // Writes the bytes [from, from + bytes) of the sequence of `seed`.
  static void write(uint64_t seed, size_t from, unsigned char* to, size_t bytes) {
    for (size_t i = 0; i < bytes;) {
      const size_t skip = (from + i) % 8, some = std::min(8 - skip, bytes - i);
      uint64_t word = ((from + i) / 8 + seed * 131 + 1) * 0x9e3779b97f4a7c15;
      word ^= word >> 29;
      if (some == 8) {
        std::memcpy(to + i, &word, 8);
      } else {
        std::memcpy(to + i, reinterpret_cast<unsigned char*>(&word) + skip, some);
      }
      i += some;
    }
  }

 private:
  int device_;
  size_t bytes_;
  void* ptr_ = nullptr;
};

// Memory of GPU 0 that others than glake have mapped, as PyTorch's expandable segments are.
class ForeignMapping {
 public:
  explicit ForeignMapping(size_t bytes) : bytes_(bytes) {
    CUmemAllocationProp prop{};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    CU(cuMemCreate(&handle_, bytes, &prop, 0));
    CU(cuMemAddressReserve(&at_, bytes, 0, 0, 0));
    CU(cuMemMap(at_, bytes, 0, handle_, 0));
    const CUmemAccessDesc access{prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CU(cuMemSetAccess(at_, bytes, &access, 1));
  }
  ~ForeignMapping() {
    CU(cuMemUnmap(at_, bytes_));
    CU(cuMemRelease(handle_));
    CU(cuMemAddressFree(at_, bytes_));
  }
  ForeignMapping(const ForeignMapping&) = delete;
  ForeignMapping& operator=(const ForeignMapping&) = delete;

  uint64_t at() const { return at_; }
  size_t bytes() const { return bytes_; }
  unsigned char* data() { return reinterpret_cast<unsigned char*>(at_); }

 private:
  const size_t bytes_;
  CUmemGenericAllocationHandle handle_ = 0;
  CUdeviceptr at_ = 0;
};

struct Call {
  std::vector<glake_copy_part> parts;
  glake_copy_request request{};

  Call(std::vector<glake_copy_part> all, int dst, int src) : parts(std::move(all)) {
    request.size = sizeof request;
    request.parts = parts.data();
    request.count = parts.size();
    request.dst_device = dst;
    request.src_device = src;
  }
  Call(const Buffer& dst, size_t to, const Buffer& src, size_t from, size_t bytes)
      : Call({{dst.at(to), src.at(from), bytes}}, dst.device(), src.device()) {}
  Call(Call&&) = delete;

  Call& on(CUstream stream, int device) {
    request.stream = stream;
    request.stream_device = device;
    request.ordered = 1;
    return *this;
  }
  Call& flags(unsigned flags) {
    request.flags = flags;
    return *this;
  }
  uint64_t start() { return glake_copy_start(&request); }
};

constexpr uint64_t kForever = UINT64_MAX;

inline std::string result_of(uint64_t id) {
  return text_of([=](char* to, size_t room) { return glake_copy_result(id, to, room); });
}
inline std::string transfer_stats() {
  return text_of([](char* to, size_t room) { return glake_transfer_stats(to, room); });
}
inline std::string text_in(const std::string& json, const std::string& key) {
  const size_t at = json.find("\"" + key + "\": \"");
  CHECK_TEXT(at != std::string::npos, key + " in " + json.substr(0, 200));
  const size_t begin = at + key.size() + 5;
  return json.substr(begin, json.find('"', begin) - begin);
}

// Waits until copies that the transfer gave up are done. Each question moves the clock.
inline void await_settled(uint64_t id) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::seconds(30);
  while (glake_copy_settled(id) == 0) {
    CHECK_TEXT(Clock::now() < end, transfer_stats());
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  CHECK(glake_copy_settled(id) == 1);
}

// Waits for a copy, and returns its result.
inline std::string finish(uint64_t id) {
  CHECK_TEXT(id != 0, last_error());
  OK(glake_copy_wait(id, kForever));
  const std::string result = result_of(id);
  OK(glake_copy_release(id));
  return result;
}

}  // namespace test

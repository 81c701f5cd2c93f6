// Counts of a policy's driver calls, and their cost by tables of prices. Policies count and know no
// price, so that one replay can be priced by several tables.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace glake::replay {

constexpr uint64_t kKiB = 1024;
constexpr uint64_t kMiB = 1024 * kKiB;
constexpr uint64_t kGranule = 2 * kMiB;

constexpr uint64_t round_up(uint64_t bytes, uint64_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

// First come the calls of memory management, then the calls that wait, then the other calls about
// events and streams.
enum class Call : uint8_t {
  kReserve,
  kCreate,
  kMap,
  kAccess,
  kUnmap,
  kRelease,
  kMalloc,
  kFree,
  kStreamWait,
  kEventWait,
  kStreamSynchronize,
  kContextSynchronize,
  kEventCreate,
  kEventDestroy,
  kRecord,
  kQuery,
  kStreamQuery,
  kIsCapturing,
  kStreamId,
};
constexpr auto kFirstWait = static_cast<size_t>(Call::kStreamWait);
constexpr auto kFirstOfEvents = static_cast<size_t>(Call::kEventCreate);
// The names of these calls in simcuda.
constexpr std::array kCallNames = {
    "cuMemAddressReserve", "cuMemCreate",         "cuMemMap",
    "cuMemSetAccess",      "cuMemUnmap",          "cuMemRelease",
    "cuMemAlloc",          "cuMemFree",           "cuStreamWaitEvent",
    "cuEventSynchronize",  "cuStreamSynchronize", "cuCtxSynchronize",
    "cuEventCreate",       "cuEventDestroy",      "cuEventRecord",
    "cuEventQuery",        "cuStreamQuery",       "cuStreamIsCapturing",
    "cuStreamGetId"};
constexpr size_t kCalls = kCallNames.size();
static_assert(kCalls == static_cast<size_t>(Call::kStreamId) + 1);

struct CallCount {
  uint64_t calls = 0;
  uint64_t further = 0;   // granules beyond the first of each call
  uint64_t mappings = 0;  // mappings in a call's range beyond the first
};

class DriverCalls {
 public:
  // Adds `times` calls. Each is over `bytes` and one mapping.
  void add(Call call, uint64_t bytes = 0, uint64_t times = 1) {
    const uint64_t granules = (bytes + kGranule - 1) / kGranule;
    CallCount& count = at(call);
    count.calls += times;
    count.further += times * (granules > 1 ? granules - 1 : 0);
  }
  // Adds one call over a range of `mappings` mappings.
  void add_range(Call call, uint64_t bytes, uint64_t mappings) {
    add(call, bytes);
    at(call).mappings += mappings > 1 ? mappings - 1 : 0;
  }
  // Adds new memory of `bytes`. Each handle is created and mapped by its own calls. Access is set
  // by one call.
  void add_handles(uint64_t bytes, uint64_t handle) {
    const uint64_t handles = (bytes + handle - 1) / handle;
    add(Call::kCreate, handle, handles);
    add(Call::kMap, handle, handles);
    add_range(Call::kAccess, bytes, handles);
  }
  CallCount& at(Call call) { return counts_[static_cast<size_t>(call)]; }
  const std::array<CallCount, kCalls>& counts() const { return counts_; }
  uint64_t of_memory() const { return sum(0, kFirstWait); }
  // Calls that make a stream wait for another stream's work, or the host for a stream's work.
  uint64_t waits() const { return sum(kFirstWait, kFirstOfEvents); }
  uint64_t of_events() const { return sum(kFirstWait, kCalls); }

  friend DriverCalls operator-(DriverCalls a, const DriverCalls& b) {
    for (size_t i = 0; i < kCalls; ++i) {
      a.counts_[i].calls -= b.counts_[i].calls;
      a.counts_[i].further -= b.counts_[i].further;
      a.counts_[i].mappings -= b.counts_[i].mappings;
    }
    return a;
  }
  DriverCalls& operator+=(const DriverCalls& other) {
    for (size_t i = 0; i < kCalls; ++i) {
      counts_[i].calls += other.counts_[i].calls;
      counts_[i].further += other.counts_[i].further;
      counts_[i].mappings += other.counts_[i].mappings;
    }
    return *this;
  }

 private:
  uint64_t sum(size_t from, size_t to) const {
    uint64_t total = 0;
    for (size_t i = from; i < to; ++i) total += counts_[i].calls;
    return total;
  }

  std::array<CallCount, kCalls> counts_{};
};

// The modelled microseconds of one call: for its first granule, for each further granule of a
// mapping, and for the first granule of each further mapping.
struct CallPrice {
  double first = 0;
  double further = 0;
  double mapping = 0;
};

struct DriverTime {
  double all = 0;  // of every call
  // The part that creates and maps new handles, as far as memory rises above its highest value so
  // far.
  double growth = 0;
  double events = 0;  // the part for calls about events and streams
};

struct PriceTable {
  std::string name;
  std::array<CallPrice, kCalls> prices{};

  DriverTime of(const DriverCalls& calls, const DriverCalls& growth) const;
};

// The tables with these `names` in the simulator at `driver_path` ("": beside libglake). Throws
// ReplayError.
std::vector<PriceTable> price_tables(const std::string& driver_path,
                                     const std::vector<std::string>& names);

}  // namespace glake::replay

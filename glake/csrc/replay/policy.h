// What an allocation policy must offer to be replayed. One instance is one fresh device.
//
// The engine releases every block that it still holds before it destroys a policy, so a policy need
// not track what is live. Failures other than out-of-memory (broken books, a driver's refusal) are
// thrown as ReplayError.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "driver_calls.h"
#include "replay_error.h"

namespace glake::replay {

constexpr uint64_t kUnlimited = UINT64_MAX;
// The capacity of a device without a limit, for every policy. It is more than any GPU has, and
// small enough for the tables of the simulator and of the models.
constexpr uint64_t kUnlimitedBytes = uint64_t{1} << 40;
// The largest capacity that a device can have: as many granules as the simulator has handles.
constexpr uint64_t kMostBytes = uint64_t{1} << 43;
constexpr int64_t kNever = -1;

enum class BlockState : uint8_t { kLive, kFree, kPending };

// kPending: the job has freed the block, and it is not reused until recorded streams are done with
// it.
struct LayoutBlock {
  uint64_t offset = 0;  // in the segment
  uint64_t bytes = 0;
  BlockState state = BlockState::kFree;
  uint32_t stream = 0;  // 0 for idle memory that belongs to no stream
};

// A contiguous stretch of physical memory, tiled by blocks in address order.
struct LayoutSegment {
  uint64_t address = 0;
  std::string name;
  uint64_t bytes = 0;
  std::vector<LayoutBlock> blocks;
};

// What a device holds at one moment, in address order. Each physical byte is in exactly one
// segment.
using Layout = std::vector<LayoutSegment>;

class Policy {
 public:
  virtual ~Policy() = default;
  // Returns a block handle (never 0), or 0 when out of memory. Then oom_message() says why.
  virtual uint64_t allocate(uint64_t bytes, uint32_t stream) = 0;
  virtual void release(uint64_t block) = 0;
  virtual void record_stream(uint64_t block, uint32_t stream) = 0;
  // One trace event has passed: work enqueued `complete_after` events ago is now complete.
  virtual void tick() = 0;
  virtual uint64_t physical_bytes() const = 0;
  // All calls so far.
  virtual DriverCalls calls() const = 0;
  // The calls that create handles for `bytes` and map them for the first time.
  virtual DriverCalls growth_calls(uint64_t bytes) const = 0;
  virtual std::string oom_message() const = 0;
  // Where the memory and its blocks are now; empty if the policy places nothing.
  virtual Layout layout() const { return {}; }
  // Checks the policy's own books after the last event; throws ReplayError with what is broken.
  virtual void check() const {}
};

struct PolicyConfig {
  uint64_t capacity = kUnlimited;  // bytes of physical memory the device has, up to kMostBytes
  int64_t complete_after = 0;      // events until enqueued work completes; kNever
  std::string driver_path;         // simcuda, for glake's own policies; "" = beside libglake
};

enum class PolicyKind {
  kOwn,    // one of this library
  kModel,  // a model of another allocator
  kBound   // places nothing: no layout, no driver calls, no host time
};

// One policy, as lists and reports show it.
struct PolicyTitle {
  const char* name;   // as make_policy() takes it
  const char* title;  // in words
  PolicyKind kind;
};

// All policies. make_policy() also takes `gmlake` with a size, `gmlake:64MiB` (gmlake_policy.h).
const std::vector<PolicyTitle>& policies();

// Throws a ReplayError that lists the known names, if make_policy() would not know this one.
void require_policy(const std::string& name);

// A fresh device with the named policy. Throws ReplayError for an unknown policy, or a capacity
// above kMostBytes.
std::unique_ptr<Policy> make_policy(const std::string& name, const PolicyConfig& config);

}  // namespace glake::replay

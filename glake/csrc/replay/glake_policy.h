// `glake` and `compact`: the real allocator core, through its C interface, over simcuda in phantom
// mode (books without memory). So a replay runs the code that runs on a GPU.
//
// A process has one core and one simulator. An instance shuts both down, and starts them on a
// device of the wanted capacity. Its destructor shuts them down and restores the options. The
// constructor throws while the process holds glake blocks. Streams of the trace other than 0 are
// real streams of the driver.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "policy.h"

namespace glake::replay {

struct SimDriver;

class GlakePolicy : public Policy {
 public:
  // `mode` is the core's option `policy`. Throws ReplayError if the core or the simulator refuses.
  GlakePolicy(const char* mode, const PolicyConfig& config);
  ~GlakePolicy() override;
  GlakePolicy(const GlakePolicy&) = delete;
  GlakePolicy& operator=(const GlakePolicy&) = delete;

  uint64_t allocate(uint64_t bytes, uint32_t stream) override;
  void release(uint64_t block) override;
  void record_stream(uint64_t block, uint32_t stream) override;
  void tick() override;
  uint64_t physical_bytes() const override;
  DriverCalls calls() const override;
  DriverCalls growth_calls(uint64_t bytes) const override;
  std::string oom_message() const override { return oom_message_; }
  // A stitched block is a segment of its own. The memory under it is left out of its home segment.
  Layout layout() const override;
  // Runs the core's own check, and throws if the simulator has recorded a misuse of the driver.
  void check() const override;

 private:
  void start(const char* mode, const PolicyConfig& config);
  void stop();
  void set_option(const char* key, const std::string& value);
  void* stream_of(uint32_t stream);
  uint32_t number_of(const void* stream) const;
  void work_on(void* stream);

  std::unique_ptr<SimDriver> driver_;
  void* context_ = nullptr;
  std::vector<std::pair<uint32_t, void*>> streams_;
  std::vector<std::pair<std::string, std::string>> saved_options_;
  struct Users {
    void* own = nullptr;
    std::vector<void*> recorded;
  };
  std::unordered_map<uint64_t, Users> users_;  // of live blocks
  uint64_t made_ = 0, freed_ = 0;              // in this event; 0: none
  void* made_on_ = nullptr;
  void* work_ = nullptr;  // the event that is recorded behind the job's work
  mutable int64_t seen_calls_ = -1;
  mutable uint64_t physical_ = 0;
  std::string oom_message_;
};

}  // namespace glake::replay

// Adapts the replay's policy interface to the core's C interface.
#include "glake_policy.h"

#include <algorithm>

#include "base/numbers.h"
#include "caching_policy.h"
#include "glake/glake.h"
#include "sim_driver.h"

namespace glake::replay {
namespace {

constexpr int kDevice = 0;
constexpr unsigned kNonBlockingStream = 1;  // CU_STREAM_NON_BLOCKING
constexpr unsigned kNoTiming = 2;           // CU_EVENT_DISABLE_TIMING

std::string last_error() {
  std::string text(4096, '\0');
  glake_last_error(text.data(), text.size());
  text.resize(text.find('\0') == std::string::npos ? text.size() : text.find('\0'));
  return text;
}

// The present value of an option.
std::string option_value(const char* key) {
  const int64_t length = glake_option(key, nullptr, 0);
  if (length < 0) throw ReplayError(std::string("option ") + key + ": " + last_error());
  std::string value(static_cast<size_t>(length) + 1, '\0');
  glake_option(key, value.data(), value.size());
  value.pop_back();
  return value;
}

void require_core(int status, const std::string& what) {
  if (status != GLAKE_OK) throw ReplayError("the allocator core: " + what + ": " + last_error());
}

void require_driver(int result, const std::string& what) {
  if (result != 0) throw ReplayError("simulator: " + what + ": CUresult " + std::to_string(result));
}

}  // namespace

GlakePolicy::GlakePolicy(const char* mode, const PolicyConfig& config) {
  driver_ = std::make_unique<SimDriver>(config.driver_path);
  require_core(glake_shutdown(), "a replay needs the allocator of this process to be idle");
  try {
    start(mode, config);
  } catch (...) {
    stop();
    throw;
  }
}

GlakePolicy::~GlakePolicy() { stop(); }

void GlakePolicy::start(const char* mode, const PolicyConfig& config) {
  if (config.capacity < kGranule) {
    throw ReplayError("a device of " + std::to_string(config.capacity) +
                      " bytes: the allocator core needs at least one granule of 2 MiB");
  }
  const auto set = [this](const char* key, const std::string& value) {
    require_driver(driver_->configure(key, value.c_str()), std::string(key) + "=" + value);
  };
  require_driver(driver_->reset(), "reset");
  set("phantom", "1");
  set("devices", "1");
  // Physical memory comes in granules, and a part of one holds nothing.
  set("memory", std::to_string(config.capacity / kGranule * kGranule));
  set("complete_after", std::to_string(config.complete_after));
  set_option("driver", driver_->path);
  set_option("policy", mode);
  set_option("limit", "none");
  set_option("trace", "");
  if (glake_device_count() <= kDevice)
    throw ReplayError("the allocator core: no device: " + last_error());
  require_driver(driver_->init(0), "cuInit");
  require_driver(driver_->retain_context(&context_, kDevice), "cuDevicePrimaryCtxRetain");
  require_driver(driver_->set_context(context_), "cuCtxSetCurrent");
  require_driver(driver_->create_event(&work_, kNoTiming), "cuEventCreate");
  driver_->reset_calls();
}

// Sets an option until the end of the replay.
void GlakePolicy::set_option(const char* key, const std::string& value) {
  saved_options_.emplace_back(key, option_value(key));
  require_core(glake_configure(key, value.c_str()), std::string("option ") + key);
}

// Errors are ignored, because this also runs after a failure. The next start() refuses what is
// wrong.
void GlakePolicy::stop() {
  glake_shutdown();
  for (const auto& [stream, handle] : streams_) driver_->destroy_stream(handle);
  streams_.clear();
  if (work_ != nullptr) driver_->destroy_event(work_);
  work_ = nullptr;
  if (context_ != nullptr) {
    driver_->set_context(nullptr);
    driver_->release_context(kDevice);
    context_ = nullptr;
  }
  for (const auto& [key, value] : saved_options_) glake_configure(key.c_str(), value.c_str());
  saved_options_.clear();
  driver_->reset();
}

void* GlakePolicy::stream_of(uint32_t stream) {
  if (stream == 0) return nullptr;
  for (const auto& [number, handle] : streams_) {
    if (number == stream) return handle;
  }
  void* handle = nullptr;
  require_driver(driver_->create_stream(&handle, kNonBlockingStream), "cuStreamCreate");
  streams_.emplace_back(stream, handle);
  return handle;
}

uint64_t GlakePolicy::allocate(uint64_t bytes, uint32_t stream) {
  // The core may refuse such a size as bad input. In a replay it counts as out of memory.
  if (bytes > kMostBytes) {
    oom_message_ = "out of memory: " + size_text(bytes) + " asked for on stream " +
                   std::to_string(stream) + ", more than the " + size_text(kMostBytes) +
                   " of the largest device";
    return 0;
  }
  made_on_ = stream_of(stream);
  void* block = glake_malloc(bytes, kDevice, made_on_);
  made_ = reinterpret_cast<uintptr_t>(block);
  if (made_ != 0) return made_;
  oom_message_ = last_error();
  if (glake_last_error(nullptr, 0) != GLAKE_OUT_OF_MEMORY) {
    throw ReplayError("the allocator core: allocation of " + std::to_string(bytes) +
                      " bytes: " + oom_message_);
  }
  return 0;
}

void GlakePolicy::release(uint64_t block) {
  require_core(glake_free(reinterpret_cast<void*>(static_cast<uintptr_t>(block))), "free");
  freed_ = block;
}

void GlakePolicy::record_stream(uint64_t block, uint32_t stream) {
  require_core(glake_record_stream(reinterpret_cast<void*>(static_cast<uintptr_t>(block)),
                                   stream_of(stream)),
               "record_stream");
  const auto users = users_.find(block);
  if (users != users_.end()) users->second.recorded.push_back(stream_of(stream));
}

// Enqueues a piece of the job's work on the stream, such as a kernel. It completes `complete_after`
// ticks later.
void GlakePolicy::work_on(void* stream) {
  require_driver(driver_->record_with_flags(work_, stream, 0), "cuEventRecordWithFlags");
}

// When a block is freed, its streams still have work that may use it. That work is enqueued here
// and not in release(), because the time of release() is measured.
void GlakePolicy::tick() {
  if (made_ != 0) users_[made_] = {made_on_, {}};
  if (const auto users = users_.find(freed_); users != users_.end()) {
    work_on(users->second.own);
    for (void* stream : users->second.recorded) work_on(stream);
    users_.erase(users);
  }
  made_ = freed_ = 0;
  driver_->tick(1);
}

// The replay calls this after every event. So it reads the driver's books only when memory was
// created or released.
uint64_t GlakePolicy::physical_bytes() const {
  const int64_t calls = driver_->calls("cuMemCreate") + driver_->calls("cuMemRelease");
  if (calls != seen_calls_) {
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    require_driver(driver_->memory_info(&free_bytes, &total_bytes), "cuMemGetInfo");
    physical_ = total_bytes - free_bytes;
    seen_calls_ = calls;
  }
  return physical_;
}

// The replay's own work is recorded by cuEventRecordWithFlags, which is not counted here.
DriverCalls GlakePolicy::calls() const {
  DriverCalls made;
  for (size_t i = 0; i < kCalls; ++i) {
    const char* name = kCallNames[i];
    made.at(static_cast<Call>(i)) = {static_cast<uint64_t>(driver_->calls(name)),
                                     static_cast<uint64_t>(driver_->further_pages(name)),
                                     static_cast<uint64_t>(driver_->further_mappings(name))};
  }
  return made;
}

DriverCalls GlakePolicy::growth_calls(uint64_t bytes) const {
  DriverCalls calls;
  calls.add_handles(bytes, kGranule);
  return calls;
}

uint32_t GlakePolicy::number_of(const void* stream) const {
  for (const auto& [number, handle] : streams_) {
    if (handle == stream) return number;
  }
  return 0;
}

Layout GlakePolicy::layout() const {
  struct Walk {
    const GlakePolicy& policy;
    Layout out;
  } walk{*this, {}};
  const auto on_segment = [](void* self, const glake_segment_info* segment) {
    const char* name = segment->kind == GLAKE_STITCHED ? "" : "contiguous";
    if (*name == '\0') name = segment->large != 0 ? "large" : "small";
    static_cast<Walk*>(self)->out.push_back({segment->address, name, segment->bytes, {}});
  };
  const auto on_block = [](void* self, const glake_block_record* block) {
    Walk& walk = *static_cast<Walk*>(self);
    const BlockState state = block->state == GLAKE_ACTIVE          ? BlockState::kLive
                             : block->state == GLAKE_AWAITING_FREE ? BlockState::kPending
                                                                   : BlockState::kFree;
    LayoutSegment& segment = walk.out.back();
    segment.blocks.push_back({block->address - segment.address, block->bytes, state,
                              walk.policy.number_of(block->stream)});
  };
  require_core(glake_visit_memory(kDevice, &walk, on_segment, on_block), "walk over the memory");
  std::sort(walk.out.begin(), walk.out.end(),
            [](const LayoutSegment& a, const LayoutSegment& b) { return a.address < b.address; });
  return walk.out;
}

void GlakePolicy::check() const {
  require_core(glake_check(kDevice), "check of the books");
  std::string text(4096, '\0');
  const size_t length = driver_->violations(text.data(), text.size(), 0);
  text.resize(std::min(length, text.size() - 1));
  if (text.find('{') != std::string::npos) throw ReplayError("driver misused: " + text);
}

}  // namespace glake::replay

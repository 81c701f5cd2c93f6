#include "process/region_copier.h"

#include <chrono>
#include <string>
#include <thread>

#include "base/transfer_tuning.h"
#include "base/tuning.h"
#include "process/transfer_use.h"
#include "transfer/engine.h"

namespace glake {

RegionCopier::RegionCopier(Driver& driver, HostPool& host, int device)
    : driver_(driver), host_(host), device_(device) {
  host_.attach(device_);
  try {
    engine_ = std::make_unique<TransferUse>();
  } catch (const Error& e) {
    if (e.code() != GLAKE_TRANSFER_CLOSED) throw;  // without the engine all copies are plain
  }
  scope_ = std::make_unique<DeviceScope>(driver_, device_);
  require(scope_->status(), "to make its context current");
  require(driver_.create_stream(&stream_), "a stream to copy a region's bytes");
}

// After a failure the caller gives the host memory up next, so no copy may use it any more.
RegionCopier::~RegionCopier() {
  for (uint64_t id : transfers_) {
    std::string text;
    (*engine_)->copy(id)->wait(kNoTimeout, &text);
    while (!(*engine_)->settled(id))
      std::this_thread::sleep_for(std::chrono::milliseconds(Tuning::kRegionPollMs));
    (*engine_)->copy(id)->release();
  }
  if (stream_ == 0) return;
  host_.forget(stream_, driver_.synchronize_stream(device_, stream_).ok());
  (void)driver_.destroy_stream(stream_);
}

void RegionCopier::require(Status s, const char* what) const {
  if (s.ok()) return;
  throw Error(GLAKE_DRIVER_ERROR, "the driver refused " + device_text(device_) + " " + what + ": " +
                                      driver_.describe(s));
}

void RegionCopier::record(void* host) {
  if (!idle_) host_.record(host, device_, stream_);
}

bool RegionCopier::copying(Address begin, Address end) const {
  return engine_ != nullptr && (*engine_)->copying(begin, end);
}

void RegionCopier::start(const std::vector<SavedPart>& parts, char* host, Bytes base,
                         bool to_host) {
  to_host_ = to_host;
  auto at_host = [&](const SavedPart& part) {
    return reinterpret_cast<Address>(host) + part.offset - base;
  };
  auto large = [&](const SavedPart& part) {
    return engine_ != nullptr && part.block && part.bytes >= TransferTuning::kAlwaysPlain;
  };
  for (size_t i = 0; i < parts.size();) {
    const SavedPart& part = parts[i];
    const Address there = at_host(part);
    if (large(part)) {
      parts_.push_back(to_host ? glake_copy_part{there, part.at, part.bytes}
                               : glake_copy_part{part.at, there, part.bytes});
      ++i;
      continue;
    }
    // Parts that are neighbours on both sides become one copy.
    Bytes bytes = part.bytes;
    for (++i; i < parts.size() && !large(parts[i]); ++i) {
      const bool next = parts[i].at == part.at + bytes && at_host(parts[i]) == there + bytes;
      if (!next) break;
      bytes += parts[i].bytes;
    }
    idle_ = false;
    Status s = to_host ? driver_.copy(there, part.at, bytes, stream_)
                       : driver_.copy(part.at, there, bytes, stream_);
    require(s, "a copy of a region's bytes");
  }
}

void RegionCopier::submit() {
  if (parts_.empty()) return;
  const std::vector<glake_copy_part> parts = std::move(parts_);
  parts_.clear();
  glake_copy_request request{};
  request.size = sizeof request;
  request.parts = parts.data();
  request.count = parts.size();
  request.dst_device = to_host_ ? GLAKE_HOST : device_;
  request.src_device = to_host_ ? device_ : GLAKE_HOST;
  request.flags = GLAKE_COPY_TRACKED;
  transfers_.push_back((*engine_)->begin(request));
}

void RegionCopier::finish_oldest() {
  if (!transfers_.empty()) {
    std::string text;
    const int end = (*engine_)->copy(transfers_.front())->wait(kNoTimeout, &text);
    if (end != GLAKE_OK) throw Error(static_cast<glake_status>(end), text);
    (*engine_)->copy(transfers_.front())->release();
    transfers_.pop_front();
  }
  if (idle_) return;
  require(driver_.synchronize_stream(device_, stream_), "to wait for copies of a region's bytes");
  idle_ = true;
}

void RegionCopier::finish() {
  submit();
  do finish_oldest();
  while (!transfers_.empty());
}

}  // namespace glake

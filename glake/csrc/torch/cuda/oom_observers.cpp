#include "torch/cuda/oom_observers.h"

#include <algorithm>

#include "base/numbers.h"
#include "torch/cuda/calls.h"

namespace glake::adapter {

namespace {

// A size as PyTorch's own allocator prints it, because software reads its text.
std::string torch_size_text(size_t bytes) {
  constexpr const char* kUnits[] = {"bytes", "KiB", "MiB", "GiB"};
  auto size = static_cast<double>(bytes);
  size_t unit = 0;
  for (; size > 1024 && unit < 3; ++unit) size /= 1024;
  return fixed_text(size, unit == 0 ? 0 : 2) + " " + kUnits[unit];
}

}  // namespace

void OomObservers::attach_oom(native::OutOfMemoryObserver observer) {
  std::lock_guard<std::mutex> guard(mutex_);
  on_oom_.push_back(std::move(observer));
}

void OomObservers::attach_rejection(OomRejectionObserver observer) {
  std::lock_guard<std::mutex> guard(mutex_);
  on_rejection_.push_back(std::move(observer));
}

int64_t OomObservers::rejections(int device) const {
  std::lock_guard<std::mutex> guard(mutex_);
  return rejections_[static_cast<size_t>(device)];
}

void OomObservers::forgive(int device, int64_t times) {
  std::lock_guard<std::mutex> guard(mutex_);
  forgiven_[static_cast<size_t>(device)] += times;
}

int64_t OomObservers::forgiven(int device) const {
  std::lock_guard<std::mutex> guard(mutex_);
  return forgiven_[static_cast<size_t>(device)];
}

void OomObservers::reset_counts(int device) {
  std::lock_guard<std::mutex> guard(mutex_);
  rejections_[static_cast<size_t>(device)] = forgiven_[static_cast<size_t>(device)] = 0;
}

OomObservers::Room OomObservers::room(int device) const {
  glake_device_stats stats{};
  Room room;
  library_.get_stats(device, &stats, sizeof stats);
  library_.memory_info(device, &room.free, &room.total);
  double fraction = library_.limit_fraction(device);
  room.allowed = static_cast<size_t>(static_cast<double>(room.total) * fraction);
  if (fraction <= 0 || fraction > 1) room.allowed = room.total;
  room.allocated = static_cast<size_t>(stats.allocated_bytes[0].current);
  room.reserved = static_cast<size_t>(stats.reserved_bytes[0].current);
  foreign_.visit(
      device, [&](const ForeignSegment& each) { room.reserved += each.bytes; },
      [&](void*, const ForeignBlock& block) { room.allocated += block.live ? block.bytes : 0; });
  return room;
}

// The text begins with PyTorch's own sentences, which other software reads. The core's account
// follows.
std::string OomObservers::account(size_t bytes, int device, const Room& room,
                                  const std::string& text) {
  if (bytes >= size_t{1} << 60) return out_of_memory_text(text);  // "more than 1EB memory"
  std::string made(kOutOfMemoryPhrase);
  made += "Tried to allocate " + torch_size_text(bytes) + ". GPU " + std::to_string(device) +
          " has a total capacity of " + torch_size_text(room.total) + " of which " +
          torch_size_text(room.free) + " is free. ";
  if (room.allowed < room.total) made += torch_size_text(room.allowed) + " allowed; ";
  made += "Of the allocated memory " + torch_size_text(room.allocated) +
          " is allocated by PyTorch, and " +
          torch_size_text(room.reserved - std::min(room.reserved, room.allocated)) +
          " is reserved by PyTorch but unallocated. glake:";
  const bool ours = text.compare(0, kOutOfMemoryPhrase.size(), kOutOfMemoryPhrase) == 0;
  const size_t facts = ours ? text.find('\n') : text.npos;
  return made + (facts == text.npos ? " " + text : text.substr(facts));
}

void OomObservers::refuse(size_t bytes, int device, const std::string& text) {
  const Room now = room(device);
  c10::reportOutOfMemoryToProfiler(static_cast<int64_t>(bytes), now.allocated, now.reserved,
                                   c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(device)));
  std::vector<native::OutOfMemoryObserver> observers;
  std::vector<OomRejectionObserver> rejection_observers;
  {
    std::lock_guard<std::mutex> guard(mutex_);
    observers = on_oom_;
    if (now.allowed < now.total && now.allocated + bytes > now.allowed) {
      rejection_observers = on_rejection_;
      ++rejections_[static_cast<size_t>(device)];
    }
  }
  for (const auto& each : rejection_observers) each(device, bytes, now.allocated, now.total);
  for (const auto& each : observers) each(device, bytes, now.allowed, now.free);
  TORCH_CHECK_WITH(OutOfMemoryError, false, account(bytes, device, now, text));
}

}  // namespace glake::adapter

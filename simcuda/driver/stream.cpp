#include "stream.h"

#include <algorithm>

#include "per_thread.h"

namespace simcuda {
namespace {

// Each thread's default streams, by context. A handle of an earlier driver is not found.
std::vector<std::pair<uint64_t, uint64_t>>& per_thread_streams() {
  return simcuda::per_thread<std::vector<std::pair<uint64_t, uint64_t>>, Streams>();
}

}  // namespace

uint64_t Streams::create(const Context& context, unsigned flags, int priority) {
  Stream stream;
  stream.device = context.device;
  stream.context = context.id;
  stream.flags = flags;
  stream.priority = priority;
  stream.number = ++numbers_;
  const uint64_t id = streams_.add(std::move(stream));
  streams_.find(id)->id = id;
  return id;
}

uint64_t Streams::default_stream(const Context& context, bool per_thread) {
  auto& known = per_thread ? per_thread_streams() : legacy_;
  for (auto& [owner, stream] : known) {
    if (owner == context.id && streams_.find(stream) != nullptr) return stream;
  }
  known.emplace_back(context.id, create(context, CU_STREAM_DEFAULT, 0));
  streams_.find(known.back().second)->legacy = !per_thread;
  return known.back().second;
}

Stream* Streams::resolve(CUstream handle, const Context* current) {
  const bool per_thread = handle == CU_STREAM_PER_THREAD;
  if (handle != nullptr && handle != CU_STREAM_LEGACY && !per_thread) {
    return streams_.find(reinterpret_cast<uint64_t>(handle));
  }
  return current == nullptr ? nullptr : streams_.find(default_stream(*current, per_thread));
}

Stream* Streams::legacy_of(uint64_t context) {
  for (const auto& [owner, stream] : legacy_) {
    if (owner == context) return streams_.find(stream);
  }
  return nullptr;
}

std::vector<uint64_t> Streams::forget(uint64_t context) {
  std::vector<uint64_t> streams, gone;
  streams_.for_each([&](uint64_t id, const Stream& stream) {
    if (stream.context == context) streams.push_back(id);
  });
  for (const uint64_t id : streams) streams_.remove(id);
  events_.for_each([&](uint64_t id, const Event& event) {
    if (event.context == context) gone.push_back(id);
  });
  for (const uint64_t id : gone) events_.remove(id);
  return streams;
}

}  // namespace simcuda

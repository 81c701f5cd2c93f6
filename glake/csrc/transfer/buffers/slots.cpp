#include "transfer/buffers/slots.h"

#include "driver/device_scope.h"
#include "memory/host_pool.h"

namespace glake::transfer {

// On a machine with one socket all host memory counts as the same place.
int Slots::place_of(const Place& place) const {
  if (!place.host()) return place.gpu;
  if (place.node < 0 || topology_ == nullptr || topology_->sockets() == 1) return kAnyHost;
  return elsewhere_.count(place.node) != 0 ? kAnyHost : kAnyHost - 1 - place.node;
}

// Sizes are powers of two, so that one transfer's buffers serve the next.
Slot Slots::lend(Place place, Bytes bytes, Bytes least) {
  Bytes size = least;
  while (size < bytes) size *= 2;
  if (remote_.remote(place.gpu)) return {this, place.gpu, size, remote_.lend(place.gpu, size)};
  int where = 0;
  {
    std::lock_guard<std::mutex> guard(mutex_);
    where = place_of(place);
    for (Bytes larger = size; larger <= TransferTuning::kLarger * size; larger *= 2) {
      std::vector<Address>& spare = free_[{where, larger}];
      if (spare.empty()) continue;
      const Address at = spare.back();
      spare.pop_back();
      return {this, where, larger, at};
    }
  }
  const Address at = fresh(&where, size);
  std::lock_guard<std::mutex> guard(mutex_);
  if (where >= kAnyHost) ++count_;
  keep_room(where, size);
  return {this, where, size, at};
}

std::vector<Slot> Slots::lend_several(Place place, Bytes bytes, size_t count) {
  std::vector<Slot> lent;
  lent.reserve(count);
  if (place.host() || remote_.remote(place.gpu)) {
    while (lent.size() < count) lent.push_back(lend(place, bytes));
    return lent;
  }
  Bytes size = TransferTuning::kLeastChunk;
  while (size < bytes) size *= 2;
  {
    std::lock_guard<std::mutex> guard(mutex_);
    std::vector<Address>& spare = free_[{place.gpu, size}];
    for (; !spare.empty() && lent.size() < count; spare.pop_back()) {
      lent.emplace_back(this, place.gpu, size, spare.back());
    }
  }
  if (lent.size() == count) return lent;
  const std::vector<Address> made = fresh_device(place.gpu, size, count - lent.size());
  std::lock_guard<std::mutex> guard(mutex_);
  count_ += made.size();
  keep_room(place.gpu, size);
  for (const Address at : made) lent.emplace_back(this, place.gpu, size, at);
  return lent;
}

// Called under the lock. It reserves room, so that taking a buffer back cannot fail.
void Slots::keep_room(int place, Bytes bytes) {
  free_[{place, bytes}].reserve(count_ + placed_.size());
}

Slot Slots::lend_shared(Bytes bytes) {
  Bytes size = TransferTuning::kLeastChunk;
  while (size < bytes) size *= 2;
  return {this, kSharedHost, size, remote_.lend_stage(size, allocator_.used_device())};
}

// If the system has no memory on that socket, or permits no choice, memory from anywhere is used.
Address Slots::fresh(int* place, Bytes bytes) {
  if (*place >= 0) return fresh_device(*place, bytes, 1).front();
  const int socket = kAnyHost - 1 - *place;
  if (*place != kAnyHost) {
    try {
      return fresh_host(socket, bytes);
    } catch (const Error&) {
      std::lock_guard<std::mutex> guard(mutex_);
      elsewhere_.insert(socket);
      *place = kAnyHost;
    }
  }
  return reinterpret_cast<Address>(allocator_.host().allocate(bytes));
}

Address Slots::fresh_host(int socket, Bytes bytes) {
  auto made =
      std::make_unique<PlacedBuffer>(driver_, allocator_.used_device(), topology_, socket, bytes);
  const Address at = made->at();
  std::lock_guard<std::mutex> guard(mutex_);
  placed_.push_back(std::move(made));
  return at;
}

// A new block is safe only for work of the stream that it was allocated on. Chunks use it on
// several streams, so this waits for that stream, which is almost always idle.
std::vector<Address> Slots::fresh_device(int gpu, Bytes bytes, size_t count) {
  allocator_.open_device(gpu);
  const StreamHandle stream = stream_of(gpu);
  std::vector<Address> made;
  made.reserve(count);
  try {
    while (made.size() < count) made.push_back(allocator_.allocate(gpu, bytes, stream));
    const Status s = driver_.synchronize_stream(gpu, stream);
    if (s.ok()) return made;
    throw Error(GLAKE_DRIVER_ERROR, "a relay buffer's stream: " + driver_.describe(s));
  } catch (const Error&) {
    for (const Address at : made) give(gpu, at);
    throw;
  }
}

// The stream for which the GPU's buffers are allocated.
StreamHandle Slots::stream_of(int gpu) {
  {
    std::lock_guard<std::mutex> guard(mutex_);
    if (const StreamHandle known = streams_[gpu]; known != 0) return known;
  }
  StreamHandle stream = 0;
  DeviceScope scope(driver_, gpu);
  const Status s = scope.status().ok() ? driver_.create_stream(&stream) : scope.status();
  if (!s.ok())
    throw Error(GLAKE_DRIVER_ERROR, "no stream for relay buffers: " + driver_.describe(s));
  std::lock_guard<std::mutex> guard(mutex_);
  StreamHandle& known = streams_[gpu];
  if (known == 0) return known = stream;
  driver_.destroy_stream(stream);  // another thread was first
  return known;
}

void Slots::give(int place, Address at) {
  if (place >= 0) return allocator_.free(at);
  allocator_.host().free(reinterpret_cast<void*>(at));
}

void Slots::take_back(int place, Bytes bytes, Address at) noexcept {
  if (place == kSharedHost) return remote_.give_stage(at, bytes);
  if (remote_.remote(place)) return remote_.give_back(at, bytes);
  std::lock_guard<std::mutex> guard(mutex_);
  free_[{place, bytes}].push_back(at);  // room was reserved when the buffer was made
}

void Slots::trim() noexcept {
  std::map<Key, std::vector<Address>> going;
  {
    std::lock_guard<std::mutex> guard(mutex_);
    for (auto& [key, buffers] : free_) {
      if (key.first >= kAnyHost) going[key].swap(buffers);
    }
  }
  for (auto& [key, buffers] : going) {
    for (; !buffers.empty(); buffers.pop_back()) {
      try {
        give(key.first, buffers.back());
      } catch (const Error&) {
        break;  // the rest is kept until the next trim()
      }
      std::lock_guard<std::mutex> guard(mutex_);
      --count_;
    }
    std::lock_guard<std::mutex> guard(mutex_);
    std::vector<Address>& spare = free_[key];
    spare.insert(spare.end(), buffers.begin(), buffers.end());
    spare.reserve(count_ + placed_.size());
  }
}

size_t Slots::count() const {
  std::lock_guard<std::mutex> guard(mutex_);
  return count_;
}

void Slots::close() {
  trim();
  free_.clear();
  for (; !placed_.empty(); placed_.pop_back()) placed_.back()->unpin();
  for (auto& [gpu, stream] : streams_) {
    if (stream == 0) continue;
    allocator_.forget_stream(gpu, stream);
    Status s = driver_.destroy_stream(stream);
    if (!s.ok()) {
      throw Error(GLAKE_DRIVER_ERROR, "relay buffers' stream: " + driver_.describe(s));
    }
    stream = 0;
  }
}

}  // namespace glake::transfer

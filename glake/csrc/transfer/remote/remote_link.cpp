#include "transfer/remote/remote_link.h"

#include <poll.h>

#include <chrono>
#include <utility>

#include "base/transfer_tuning.h"
#include "driver/device_scope.h"

namespace glake::transfer {
namespace {

[[noreturn]] void refuse_order(const std::string& why) {
  throw Error(GLAKE_COPY_REFUSED, "the relay service: " + why);
}

}  // namespace

RemoteLink::RemoteLink(Driver& driver, int device, const std::string& path)
    : driver_(driver),
      device_(device),
      socket_(connect_to(path)),
      process_(process_behind(socket_.get())) {
  Order hello;
  hello.at = kWireVersion;
  await(send(hello));
}

RemoteLink::~RemoteLink() {
  for (auto& [gpu, buffer] : buffers_) unmap(&buffer);
}

uint32_t RemoteLink::send(Order order, int descriptor) {
  Lock lock(mutex_);
  if (broken_.empty()) {
    order.order_id = ++last_;
    awaited_[order.order_id];
    if (send_packet(socket_.get(), &order, sizeof order, descriptor)) return order.order_id;
    awaited_.erase(order.order_id);
    broken_ = "it has ended, or takes no orders";
  }
  refuse_order(broken_);
}

// Waits for the answer to an order that is no copy. Other threads may receive the answer meanwhile.
RemoteLink::Awaited RemoteLink::await(uint32_t order_id) {
  const auto end = std::chrono::steady_clock::now() + TransferTuning::kPatience;
  for (;;) {
    {
      Lock lock(mutex_);
      pump();
      const auto found = awaited_.find(order_id);
      if (found->second.over) {
        Awaited answer = std::move(found->second);
        awaited_.erase(found);
        if (answer.why.empty()) return answer;
        refuse_order(answer.why);
      }
      // An answer that comes later is ignored.
      const bool late = std::chrono::steady_clock::now() > end;
      if (late || !broken_.empty()) {
        awaited_.erase(found);
        refuse_order(late ? "it does not answer" : broken_);
      }
    }
    pollfd one{socket_.get(), POLLIN, 0};
    poll(&one, 1, TransferTuning::kLookMs);
  }
}

// The service stops using all memory before it sends its last packet. If it was killed, it does not
// send one. Then copies that it has begun may go on until its process is gone.
void RemoteLink::pump() {
  take_answers();
  if (!hung_up_ || (!let_go_ && process_ && !has_ended(process_.get()))) return;
  let_go_ = true;
  for (auto& [id, each] : awaited_) {
    if (std::exchange(each.over, true)) continue;
    each.why = broken_;
  }
}

void RemoteLink::take_answers() {
  while (!hung_up_) {
    Answer answer;
    Descriptor descriptor;
    const Got got = take_packet(socket_.get(), &answer, sizeof answer, &descriptor, false);
    if (got == Got::kNone) return;
    answer.why[sizeof answer.why - 1] = 0;
    hung_up_ = got == Got::kGone || answer.order_id == 0;
    if (hung_up_) {
      let_go_ = got != Got::kGone;
      broken_ = let_go_ ? answer.why : "it has ended";
      return;
    }
    const auto found = awaited_.find(answer.order_id);
    if (found == awaited_.end()) continue;  // an answer about shared memory, for which nobody waits
    found->second.over = true;
    found->second.bytes = answer.bytes;
    found->second.descriptor = std::move(descriptor);
    if (answer.failed != 0) found->second.why = answer.why[0] != 0 ? answer.why : "it failed";
  }
}

void RemoteLink::open(int gpu, int there, bool near) {
  if (has(gpu)) return;
  Order order;
  order.kind = Order::kOpen;
  order.gpu = there;
  const Awaited answer = await(send(order));
  Buffer buffer;
  buffer.there = there;
  buffer.bytes = answer.bytes;
  if (!answer.descriptor || answer.bytes == 0 || answer.bytes % kGranule != 0) {
    throw Error(GLAKE_COPY_REFUSED, "the relay service gave no buffer");
  }
  map(&buffer, answer.descriptor.get(), near);
  Lock lock(mutex_);
  buffers_[gpu] = std::move(buffer);
}

// No reference of CUDA says that a process may map memory of a GPU that it does not see for one
// that it does. NCCL relies on it (src/transport/p2p.cc: "CUDA 10.1 and later can use P2P with
// invisible devices"). If a driver does not allow it, this fails.
void RemoteLink::map(Buffer* buffer, int fd, bool near) {
  DeviceScope scope(driver_, device_);
  Status s = scope.status();
  const char* what = "a context";
  const auto step = [&](const char* name, auto&& call) {
    if (!s.ok()) return;
    what = name;
    s = call();
  };
  step("addresses", [&] { return driver_.reserve(buffer->bytes, &buffer->at); });
  if (!near && s.ok()) return;
  step("importing it", [&] { return driver_.import_fd(fd, &buffer->handle); });
  if (!s.ok()) buffer->handle = 0;
  step("mapping it", [&] { return driver_.map(buffer->at, buffer->handle, buffer->bytes); });
  buffer->mapped = s.ok() && buffer->handle != 0;
  step("access", [&] { return driver_.set_access(buffer->at, buffer->bytes, {device_}); });
  if (s.ok()) return;
  unmap(buffer);
  throw Error(GLAKE_COPY_REFUSED, "this process may not use memory of a GPU it does not see (" +
                                      std::string(what) + ": " + driver_.describe(s) +
                                      "): let it see all GPUs of the node");
}

void RemoteLink::unmap(Buffer* buffer) {
  DeviceScope scope(driver_, device_);
  if (buffer->mapped) driver_.unmap(buffer->at, buffer->bytes);
  if (buffer->at != 0) driver_.free_range(buffer->at, buffer->bytes);
  if (buffer->handle != 0) driver_.release(buffer->handle);
  *buffer = Buffer{};
}

bool RemoteLink::has(int gpu) {
  Lock lock(mutex_);
  return buffers_.count(gpu) != 0;
}

bool RemoteLink::alive() {
  Lock lock(mutex_);
  pump();
  return broken_.empty();
}

bool RemoteLink::idle() {
  Lock lock(mutex_);
  for (const auto& [gpu, buffer] : buffers_) {
    if (!buffer.lent.empty()) return false;
  }
  return true;
}

// Finds the first gap that is long enough.
bool RemoteLink::find_room(const Buffer& buffer, Bytes bytes, Bytes* at) const {
  *at = 0;
  for (const auto& [from, until] : buffer.lent) {
    if (from - *at >= bytes) return true;
    *at = until;
  }
  return buffer.bytes - *at >= bytes;
}

bool RemoteLink::room(int gpu, Bytes bytes) {
  Lock lock(mutex_);
  const auto found = buffers_.find(gpu);
  Bytes at = 0;
  return found == buffers_.end() || find_room(found->second, bytes, &at);
}

Address RemoteLink::lend(int gpu, Bytes bytes) {
  Lock lock(mutex_);
  const auto found = buffers_.find(gpu);
  if (found == buffers_.end()) {
    throw Error(GLAKE_COPY_REFUSED, "the relay service has given no buffer on " + device_text(gpu));
  }
  Bytes at = 0;
  if (!find_room(found->second, bytes, &at)) return 0;
  found->second.lent.insert({at, at + bytes});
  return found->second.at + at;
}

bool RemoteLink::give_back(Address at, Bytes bytes) {
  Lock lock(mutex_);
  for (auto& [gpu, buffer] : buffers_) {
    if (at < buffer.at || at - buffer.at >= buffer.bytes) continue;
    const Bytes from = at - buffer.at;
    buffer.lent.erase({from, from + bytes});
    return true;
  }
  return false;
}

// The service obeys orders one after the other. So copies may be ordered at once. They fail if this
// order failed.
void RemoteLink::share(uint64_t id, const SharedMemory& memory) {
  Order order;
  order.kind = Order::kShare;
  order.memory = id;
  order.bytes = memory.bytes();
  const uint32_t order_id = send(order, memory.descriptor());
  Lock lock(mutex_);
  awaited_.erase(order_id);
}

void RemoteLink::forget(uint64_t id) {
  Order order;
  order.kind = Order::kForget;
  order.memory = id;
  await(send(order));
}

Order RemoteLink::copy_order(uint32_t kind, int gpu, Address buffer, Bytes bytes) {
  Lock lock(mutex_);
  const auto known = buffers_.find(gpu);
  if (known == buffers_.end()) {
    throw Error(GLAKE_COPY_REFUSED, "the relay service has given no buffer on " + device_text(gpu));
  }
  const Buffer& found = known->second;
  Order order;
  order.kind = kind;
  order.gpu = found.there;
  order.bytes = bytes;
  order.to = buffer - found.at;
  return order;
}

RemoteCopy RemoteLink::in(int gpu, Address buffer, uint64_t shared, Bytes at, Bytes bytes) {
  Order order = copy_order(Order::kIn, gpu, buffer, bytes);
  order.memory = shared;
  order.at = at;
  return {send(order)};
}

RemoteCopy RemoteLink::out(int gpu, Address buffer, uint64_t shared, Bytes at, Bytes bytes) {
  Order order = copy_order(Order::kOut, gpu, buffer, bytes);
  order.memory = shared;
  order.at = at;
  return {send(order)};
}

RemoteCopy RemoteLink::across(int gpu, Address from, int peer, Address to, Bytes bytes) {
  Order order = copy_order(Order::kAcross, gpu, from, bytes);
  order.at = order.to;
  const Order other = copy_order(Order::kAcross, peer, to, bytes);
  order.peer = other.gpu;
  order.to = other.to;
  return {send(order)};
}

RemoteCopy::State RemoteLink::state(RemoteCopy copy, std::string* why) {
  Lock lock(mutex_);
  pump();
  const auto found = awaited_.find(copy.order_id);
  if (found == awaited_.end()) return RemoteCopy::State::kDone;
  if (!found->second.over) return RemoteCopy::State::kUnderWay;
  *why = found->second.why;
  awaited_.erase(found);
  return why->empty() ? RemoteCopy::State::kDone : RemoteCopy::State::kFailed;
}

}  // namespace glake::transfer

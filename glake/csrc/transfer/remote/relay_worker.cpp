#include "transfer/remote/relay_worker.h"

#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

#include "base/transfer_tuning.h"
#include "driver/device_scope.h"

namespace glake::transfer {
namespace {

[[noreturn]] void bad(const std::string& text) { throw Error(GLAKE_INVALID_ARGUMENT, text); }

}  // namespace

RelayWorker::RelayWorker(RelayGpus& gpus, Descriptor socket)
    : gpus_(gpus),
      driver_(gpus.driver()),
      socket_(std::move(socket)),
      process_(process_behind(socket_.get())) {
  thread_ = std::thread([this] { run(); });
}

RelayWorker::~RelayWorker() {
  shutdown(socket_.get(), SHUT_RD);  // the client hears of it when its copies have ended
  thread_.join();
}

void RelayWorker::run() {
  pthread_setname_np(pthread_self(), "glake-relay");
  std::string why = "it has ended";
  try {
    serve();
    // The orders make no sense, so the client is told why and sent away.
  } catch (const std::exception& e) {
    why = e.what();
  }
  release();
  answer(0, why);  // the last packet: nothing touches the client's memory any more
  // The socket is closed only after this thread has ended. The destructor may be using its number
  // now, which must not become another file's.
  shutdown(socket_.get(), SHUT_RDWR);
  over_ = true;
}

void RelayWorker::serve() {
  while (!gone_) {
    if (flights_.empty() && !await_order()) return;
    if (!take_orders()) return;
    look();
  }
}

// False: the client's process has ended. A child that it forked may hold the connection open.
bool RelayWorker::await_order() {
  pollfd both[] = {{socket_.get(), POLLIN, 0}, {process_.get(), POLLIN, 0}};
  poll(both, 2, -1);
  return both[1].revents == 0;
}

bool RelayWorker::take_orders() {
  for (;;) {
    Order order;
    Descriptor descriptor;
    const Got got = take_packet(socket_.get(), &order, sizeof order, &descriptor, false);
    if (got == Got::kNone) return true;
    if (got == Got::kGone) return false;
    obey(order, std::move(descriptor));
  }
}

void RelayWorker::obey(const Order& order, Descriptor descriptor) {
  if (!greeted_) {
    if (order.kind != Order::kHello || order.at != kWireVersion) {
      bad("another version of glake: the service's is " + std::to_string(kWireVersion));
    }
    greeted_ = true;
    return answer(order.order_id, "");
  }
  try {
    switch (order.kind) {
      case Order::kOpen:
        return open(order);
      case Order::kShare: {
        if (shared_.size() >= TransferTuning::kMostShared) bad("too many pieces of host memory");
        if (shared_.count(order.memory) != 0) bad("host memory that is there");
        shared_[order.memory] = std::make_unique<SharedMemory>(driver_, gpus_.any(), order.bytes,
                                                               std::move(descriptor));
        return answer(order.order_id, "");
      }
      case Order::kForget: {
        drain();
        shared_.erase(order.memory);
        return answer(order.order_id, "");
      }
      case Order::kIn:
      case Order::kOut:
      case Order::kAcross:
        return copy(order);
      default:
        break;
    }
  } catch (const Error& e) {
    return answer(order.order_id, e.what());
  }
  bad("an order of kind " + std::to_string(order.kind));
}

void RelayWorker::open(const Order& order) {
  gpus_.open(order.gpu);
  Gpu& gpu = open_[order.gpu];
  if (gpu.buffer == nullptr) {
    gpu.buffer = std::make_unique<RelayBuffer>(gpus_, order.gpu, TransferTuning::kClientBuffer);
    for (auto& [number, other] : open_) {
      if (number != order.gpu && other.buffer != nullptr) other.buffer->grant();
    }
  }
  DeviceScope scope(driver_, order.gpu);
  for (auto& way : gpu.streams) {
    for (StreamHandle& stream : way) {
      if (stream != 0) continue;
      const Status s = scope.status().ok() ? driver_.create_stream(&stream) : scope.status();
      if (!s.ok()) throw Error(GLAKE_DRIVER_ERROR, "a stream: " + driver_.describe(s));
    }
  }
  const Descriptor descriptor = gpu.buffer->exported();
  answer(order.order_id, "", TransferTuning::kClientBuffer, descriptor.get());
}

RelayWorker::Gpu& RelayWorker::known(int gpu) {
  const auto found = open_.find(gpu);
  if (found == open_.end() || found->second.buffer == nullptr) {
    bad("no buffer on " + device_text(gpu));
  }
  return found->second;
}

Address RelayWorker::in_buffer(int gpu, Bytes at, Bytes bytes) {
  const RelayBuffer& buffer = *known(gpu).buffer;
  if (bytes == 0 || !buffer.holds(at, bytes)) bad("beyond a buffer's end");
  return buffer.at() + at;
}

Address RelayWorker::in_shared(const Order& order) {
  const auto found = shared_.find(order.memory);
  if (found == shared_.end()) bad("host memory that is not there");
  if (!found->second->holds_part(order.at, order.bytes)) bad("beyond the end of host memory");
  return found->second->at() + order.at;
}

EventId RelayWorker::event_on(Gpu* gpu, int number) {
  if (!gpu->spare.empty()) {
    const EventId event = gpu->spare.back();
    gpu->spare.pop_back();
    return event;
  }
  EventId event = 0;
  const Status s = driver_.create_event(number, &event);
  if (!s.ok()) throw Error(GLAKE_DRIVER_ERROR, "an event: " + driver_.describe(s));
  return event;
}

void RelayWorker::copy(const Order& order) {
  if (flights_.size() >= TransferTuning::kMostFlights) bad("too many copies at once");
  Gpu& gpu = known(order.gpu);
  const Bytes bytes = order.bytes;
  const bool across = order.kind == Order::kAcross;
  const Address here = in_buffer(order.gpu, across ? order.at : order.to, bytes);
  const Address other = across ? in_buffer(order.peer, order.to, bytes) : in_shared(order);
  const Way way = across ? kAway : order.kind == Order::kIn ? kInward : kOutward;
  const EventId event = event_on(&gpu, order.gpu);
  const StreamHandle stream = gpu.streams[way][gpu.turn[way]++ % TransferTuning::kFlows];
  DeviceScope scope(driver_, order.gpu);
  Status s = scope.status();
  if (s.ok()) {
    s = across ? driver_.copy_peer(other, order.peer, here, order.gpu, bytes, stream)
               : driver_.copy(way == kInward ? here : other, way == kInward ? other : here, bytes,
                              stream);
  }
  const bool begun = s.ok();
  if (begun) s = driver_.record(order.gpu, event, stream);
  if (s.ok()) {
    flights_.push_back({order.order_id, order.gpu, event});
    return;
  }
  gpus_.note(order.gpu, s);
  gpu.spare.push_back(event);
  if (begun) driver_.synchronize_stream(order.gpu, stream);
  throw Error(GLAKE_DRIVER_ERROR, driver_.describe(s));
}

// Waits a short time for copies, and answers those that are done.
void RelayWorker::look() {
  if (flights_.empty()) return;
  std::vector<EventId> events;
  for (const Flight& flight : flights_) events.push_back(flight.event);
  driver_.wait_any(events, TransferTuning::kOrdersLook, UINT64_MAX / 2);
  const auto done = [&](const Flight& flight) {
    const Status s = driver_.query(flight.event);
    if (s.not_ready()) return false;
    gpus_.note(flight.gpu, s);
    if (!s.ok()) drain();  // the buffers must be free before the client is told
    open_.at(flight.gpu).spare.push_back(flight.event);
    answer(flight.order_id, s.ok() ? "" : driver_.describe(s));
    return true;
  };
  flights_.erase(std::remove_if(flights_.begin(), flights_.end(), done), flights_.end());
}

// A client that reads no answers counts as gone.
void RelayWorker::answer(uint32_t order_id, const std::string& why, Bytes bytes, int descriptor) {
  Answer answer;
  answer.order_id = order_id;
  answer.failed = why.empty() ? 0 : 1;
  answer.bytes = bytes;
  why.copy(answer.why, sizeof answer.why - 1);
  if (!send_packet(socket_.get(), &answer, sizeof answer, descriptor)) gone_ = true;
}

// Waits until no stream has work. Each failed copy makes one wait for its stream fail, so a stream
// is asked several times.
void RelayWorker::drain() {
  for (auto& [number, gpu] : open_) {
    for (const auto& way : gpu.streams) {
      for (const StreamHandle stream : way) {
        for (int i = 0; stream != 0 && i < TransferTuning::kQuestions; ++i) {
          if (driver_.synchronize_stream(number, stream).ok()) break;
        }
      }
    }
  }
}

void RelayWorker::release() {
  drain();
  for (const Flight& flight : flights_) open_.at(flight.gpu).spare.push_back(flight.event);
  flights_.clear();
  for (auto& [number, gpu] : open_) {
    DeviceScope scope(driver_, number);
    for (const EventId event : gpu.spare) driver_.destroy_event(event);
    for (const auto& way : gpu.streams) {
      for (const StreamHandle stream : way) {
        if (stream != 0) driver_.destroy_stream(stream);
      }
    }
  }
  shared_.clear();
  open_.clear();
}

}  // namespace glake::transfer

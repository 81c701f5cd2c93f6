#include "transfer/run/timing.h"

#include <algorithm>
#include <utility>

#include "base/transfer_tuning.h"
#include "driver/device_scope.h"

namespace glake::transfer {
namespace {

[[noreturn]] void refuse_to_time(const std::string& text) {
  throw Error(GLAKE_INVALID_ARGUMENT, text);
}

void expect_ok(Driver& driver, Status s, const char* what) {
  if (s.ok()) return;
  const glake_status code = s.out_of_memory() ? GLAKE_OUT_OF_MEMORY : GLAKE_DRIVER_ERROR;
  throw Error(code, std::string("timing copies: ") + what + ": " + driver.describe(s));
}

}  // namespace

// An event that goes back to the timer. It may go back at once after its use, because the driver
// has then what it needs.
class CopyTimer::Event {
 public:
  explicit Event(CopyTimer& timer) : timer_(&timer) {}
  Event(Event&& other) noexcept
      : timer_(other.timer_), device_(other.device_), event_(std::exchange(other.event_, 0)) {}
  Event& operator=(Event&&) = delete;
  ~Event() {
    if (event_ != 0) timer_->events_[device_].push_back(event_);
  }
  void record(int device, StreamHandle stream) {
    Driver& driver = timer_->driver_;
    if (event_ == 0) {
      device_ = device;
      std::vector<EventId>& spare = timer_->events_[device];
      if (spare.empty()) {
        expect_ok(driver, driver.create_timer(device, &event_), "an event");
      } else {
        event_ = spare.back();
        spare.pop_back();
      }
    }
    expect_ok(driver, driver.record(device, event_, stream), "an event");
  }
  EventId id() const { return event_; }

 private:
  CopyTimer* timer_;
  int device_ = 0;
  EventId event_ = 0;
};

// The streams, events and buffers of one copy.
struct CopyTimer::Running {
  int device;
  StreamHandle stream;
  Address dst, src;
  Bytes dst_room, src_room;  // the rounds use the room of the buffers in turn
  Event start;
  std::vector<Event> ends;
};

CopyTimer::CopyTimer(Driver& driver, Devices& devices, Slots& slots,
                     const topology::Topology* topology)
    : driver_(driver), devices_(devices), slots_(slots), topology_(topology) {}
CopyTimer::~CopyTimer() = default;

void CopyTimer::check(const std::vector<TimedCopy>& copies, Bytes bytes, int repeats) const {
  if (copies.empty() || copies.size() > TransferTuning::kProbeCopies) {
    refuse_to_time(std::to_string(copies.size()) + " copies to time: 1 to " +
                   std::to_string(TransferTuning::kProbeCopies));
  }
  if (bytes == 0 || bytes > TransferTuning::kProbeBuffer) {
    refuse_to_time(std::to_string(bytes) + " bytes a copy to time: 1 to " +
                   std::to_string(TransferTuning::kProbeBuffer));
  }
  if (repeats < 1 || repeats > TransferTuning::kProbeRepeats) {
    refuse_to_time(std::to_string(repeats) + " repeats: 1 to " +
                   std::to_string(TransferTuning::kProbeRepeats));
  }
  const int sockets = topology_ == nullptr ? 1 : topology_->sockets();
  for (const TimedCopy& copy : copies) {
    if (copy.dst.host() && copy.src.host())
      refuse_to_time("a copy to time has a GPU at one end at least");
    for (const Place& place : {copy.dst, copy.src}) {
      if (place.gpu >= devices_.count()) {
        throw Error(GLAKE_INVALID_DEVICE, "no " + device_text(place.gpu));
      }
      if (place.host() && (place.node < 0 || place.node >= sockets)) {
        refuse_to_time("no socket " + std::to_string(place.node) + ": the topology has " +
                       std::to_string(sockets));
      }
    }
  }
}

// All copies of a GPU have one buffer as source and target, because nobody reads what they write.
Address CopyTimer::buffer(Place place, std::map<int, size_t>* used) {
  if (place.host()) return host_buffer(place.node, (*used)[place.node]++);
  devices_.open(place.gpu);
  Slot& slot = gpus_[place.gpu];
  if (!slot) slot = slots_.lend(place, TransferTuning::kProbeBuffer);
  return slot.at();
}

Address CopyTimer::host_buffer(int socket, size_t nth) {
  auto& buffers = hosts_[socket];
  if (nth == buffers.size()) {
    buffers.push_back(std::make_unique<PlacedBuffer>(driver_, devices_.some(), topology_, socket,
                                                     TransferTuning::kProbeBuffer));
  }
  return buffers[nth]->at();
}

StreamHandle CopyTimer::stream(int device, size_t nth) {
  auto& streams = streams_[device];
  if (nth == streams.size()) {
    devices_.open(device);
    DeviceScope scope(driver_, device);
    StreamHandle made = 0;
    Status s = scope.status();
    if (s.ok()) s = driver_.create_stream(&made);
    expect_ok(driver_, s, "a stream");
    streams.push_back(made);
  }
  return streams[nth];
}

void CopyTimer::submit(const TimedCopy& copy, const Running& run, Bytes bytes, int round) {
  const auto number = static_cast<Bytes>(round);
  const Address dst = run.dst + bytes * (number % (run.dst_room / bytes));
  const Address src = run.src + bytes * (number % (run.src_room / bytes));
  DeviceScope scope(driver_, run.device);
  Status s = scope.status();
  if (s.ok()) {
    const bool peers = !copy.dst.host() && !copy.src.host();
    s = peers ? driver_.copy_peer(dst, copy.dst.gpu, src, copy.src.gpu, bytes, run.stream)
              : driver_.copy(dst, src, bytes, run.stream);
  }
  expect_ok(driver_, s, "a copy");
}

// Makes each stream wait until all streams have reached this point. Meanwhile the next copies are
// enqueued.
void CopyTimer::begin_together(std::vector<Running>* running) {
  Running& first = running->front();
  const auto follow = [&](Running& behind, Running& ahead) {
    Event event(*this);
    event.record(ahead.device, ahead.stream);
    expect_ok(driver_, driver_.wait_stream(behind.device, behind.stream, event.id()),
              "joining streams");
  };
  for (size_t i = 1; i < running->size(); ++i) follow(first, (*running)[i]);
  for (size_t i = 1; i < running->size(); ++i) follow((*running)[i], first);
}

void CopyTimer::enqueue(const std::vector<TimedCopy>& copies, Bytes bytes, int repeats,
                        std::vector<Running>* running) {
  for (size_t i = 0; i < copies.size(); ++i) submit(copies[i], (*running)[i], bytes, 0);
  begin_together(running);
  for (Running& run : *running) run.start.record(run.device, run.stream);
  for (int round = 0; round < repeats; ++round) {
    for (size_t i = 0; i < copies.size(); ++i) {
      Running& run = (*running)[i];
      submit(copies[i], run, bytes, round + 1);
      run.ends[static_cast<size_t>(round)].record(run.device, run.stream);
    }
  }
}

// Enqueued copies still use the buffers. So the next set, or close(), waits for them.
void CopyTimer::remember_end(Running* run) {
  try {
    Event last(*this);
    last.record(run->device, run->stream);
    ends_.push_back(std::move(last));
  } catch (const Error&) {
    driver_.synchronize_stream(run->device, run->stream);
  }
}

// Waits for earlier copies, which use the buffers.
void CopyTimer::settle(uint64_t timeout_ns) {
  for (; !ends_.empty(); ends_.pop_back()) {
    const Status s = driver_.wait_event(ends_.back().id(), timeout_ns);
    if (s.not_ready()) {
      throw Error(GLAKE_BUSY_TIMEOUT, "copies that were timed stand still: after " +
                                          std::to_string(timeout_ns / 1'000'000'000) +
                                          " s they are not done");
    }
  }
}

void CopyTimer::time(const std::vector<TimedCopy>& copies, Bytes bytes, int repeats, uint64_t* ns) {
  check(copies, bytes, repeats);
  std::lock_guard<std::mutex> guard(mutex_);
  settle(TransferTuning::kStuck);
  std::vector<Running> running;
  std::map<int, size_t> hosts, streams;
  for (const TimedCopy& copy : copies) {
    const int device = copy.src.host() ? copy.dst.gpu : copy.src.gpu;
    const StreamHandle on = stream(device, streams[device]++);
    const Address dst = buffer(copy.dst, &hosts), src = buffer(copy.src, &hosts);
    running.push_back({device,
                       on,
                       dst,
                       src,
                       TransferTuning::kProbeBuffer,
                       TransferTuning::kProbeBuffer,
                       Event(*this),
                       {}});
    for (int round = 0; round < repeats; ++round) running.back().ends.emplace_back(*this);
    if (!copy.dst.host() && !copy.src.host()) {
      devices_.reach(copy.dst.gpu, copy.src.gpu);
      devices_.reach(copy.src.gpu, copy.dst.gpu);
    }
  }
  try {
    enqueue(copies, bytes, repeats, &running);
    for (const Running& run : running) {
      const Status s = driver_.wait_event(run.ends.back().id(), TransferTuning::kStuck);
      if (s.not_ready()) throw Error(GLAKE_BUSY_TIMEOUT, "copies that are timed stand still");
      expect_ok(driver_, s, "a copy");
    }
  } catch (const Error&) {
    for (Running& run : running) remember_end(&run);
    throw;
  }
  for (size_t i = 0; i < running.size(); ++i) {
    for (int round = 0; round < repeats; ++round) {
      const auto r = static_cast<size_t>(round);
      const Status s = driver_.elapsed_ns(running[i].start.id(), running[i].ends[r].id(),
                                          &ns[i * static_cast<size_t>(repeats) + r]);
      expect_ok(driver_, s, "the time of a copy");
    }
  }
}

void CopyTimer::close() {
  std::lock_guard<std::mutex> guard(mutex_);
  settle(TransferTuning::kStuck);
  for (auto& [device, streams] : streams_) {
    for (; !streams.empty(); streams.pop_back()) {
      expect_ok(driver_, driver_.destroy_stream(streams.back()), "a stream");
    }
  }
  for (auto& [device, events] : events_) {
    for (; !events.empty(); events.pop_back()) {
      expect_ok(driver_, driver_.destroy_event(events.back()), "an event");
    }
  }
  for (auto& [socket, buffers] : hosts_) {
    for (; !buffers.empty(); buffers.pop_back()) buffers.back()->unpin();
  }
  gpus_.clear();
  slots_.trim();
}

}  // namespace glake::transfer

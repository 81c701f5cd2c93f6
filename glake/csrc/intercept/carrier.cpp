#include "intercept/carrier.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "intercept/judge.h"
#include "intercept/resolve.h"
#include "intercept/settings.h"

namespace glake::intercept {
namespace {

constexpr uint64_t kForever = UINT64_MAX;
// The driver's error for a copy that a device could not finish. Its context is unusable from then
// on (CUDA Driver API, CUresult).
constexpr CUresult kSticky = CUDA_ERROR_LAUNCH_FAILED;
// The driver's error while it shuts down (CUDA Driver API, CUresult).
constexpr CUresult kEnding = CUDA_ERROR_DEINITIALIZED;
constexpr std::chrono::seconds kLongestStart{1};

thread_local int depth = 0;

struct Inside {
  Inside() { ++depth; }
  ~Inside() { --depth; }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
};

}  // namespace

// It is never destroyed, because other libraries' destructors may call the driver after this one's.
Carrier& Carrier::instance() {
  static Carrier* one = [] {
    auto* made = new Carrier;
    pthread_atfork([] { instance().before_fork(); }, [] { instance().after_fork(false); },
                   [] { instance().after_fork(true); });
    std::atexit([] { instance().at_exit(); });
    return made;
  }();
  return *one;
}

bool Carrier::inside() { return depth != 0; }

void Carrier::say_off(const std::string& why) {
  state_ = 2;
  std::fprintf(stderr, "glake: intercept is off, and copies are the driver's: %s\n", why.c_str());
}

bool Carrier::ready() {
  if (state_.load(std::memory_order_acquire) != 0) return state_ == 1;
  std::lock_guard<std::mutex> guard(opening_);
  if (state_ != 0) return state_ == 1;
  std::string why;
  if (!engine_.open(&why)) {
    say_off(why);
    return false;
  }
  // This runs before the exit handlers of libglake, which was just loaded.
  std::atexit([] { instance().at_exit(); });
  state_ = 1;
  std::lock_guard<std::mutex> telling(mutex_);
  changed_.notify_all();
  return true;
}

void Carrier::await_open() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return state_ == 1; });
}

Reason Carrier::carry(Copy copy, CUresult* result) {
  if (!settings().on) {
    if (!settings().wrong.empty() && state_.exchange(2) != 2) say_off(settings().wrong);
    return Reason::kOff;
  }
  if (copy.bytes < settings().least) return Reason::kSmall;
  if (forked_) return Reason::kForked;
  if (ended_) return Reason::kOff;
  if (reset_) return Reason::kReset;
  Inside inside;
  const Reason reason = judge(&copy);
  if (reason != kNone) return reason;
  if (!ready()) return Reason::kOff;
  if (!enter()) return Reason::kFreeing;
  const uint64_t id = copy.legacy() ? start_legacy(copy) : start(copy, copy.stream);
  if (id == 0 || !engine_.routed(id)) {
    leave(nullptr);
    if (id == 0) return Reason::kRefused;
    // The engine made it a plain copy.
    account_.left(Reason::kNoGain, copy.bytes);
    *result = CUDA_SUCCESS;
    if (copy.waits && engine_.wait(id, kForever) != GLAKE_OK) *result = CUDA_ERROR_UNKNOWN;
    return kNone;
  }
  auto flight = std::make_shared<Flight>();
  flight->id = id;
  flight->bytes = copy.bytes;
  flight->stream = copy.legacy() ? nullptr : copy.stream;
  flight->device = copy.device;
  account_.carried(copy.bytes);
  leave(flight);
  for (const FlightPtr& each : flights([](const Flight&) { return true; })) {
    settle(each, copy.waits && each == flight);
  }
  *result = copy.waits ? sticky() : CUDA_SUCCESS;
  if (copy.waits && flight->dropped) *result = kEnding;
  return kNone;
}

uint64_t Carrier::start(const Copy& copy, CUstream stream) {
  const glake_copy_part part{copy.dst, copy.src, copy.bytes};
  glake_copy_request request{};
  request.size = sizeof request;
  request.parts = &part;
  request.count = 1;
  request.dst_device = copy.dst_device < 0 ? GLAKE_HOST : copy.dst_device;
  request.src_device = copy.src_device < 0 ? GLAKE_HOST : copy.src_device;
  request.stream = stream;
  request.stream_device = copy.device;
  request.ordered = 1;
  request.flags = GLAKE_COPY_CHECKED;
  return engine_.start(request);
}

// Carries the copy on a side stream, which two events join to the legacy stream. The legacy stream
// waits for all blocking streams, and they wait for it. This holds for its event waits too ("an
// action is taken in the legacy stream such as a kernel launch or cudaStreamWaitEvent()": CUDA
// Runtime API, Stream synchronization behavior). The engine itself could not carry a copy in the
// legacy stream, because its test for an idle stream sees that stream alone.
uint64_t Carrier::start_legacy(const Copy& copy) {
  const DriverCalls& driver = driver_calls();
  SideStream* joined = side_stream(copy.device);
  if (joined == nullptr) return 0;
  std::lock_guard<std::mutex> guard(joined->mutex);
  if (driver.event_record(joined->before, nullptr) != CUDA_SUCCESS ||
      driver.stream_wait(joined->stream, joined->before, 0) != CUDA_SUCCESS) {
    return 0;
  }
  const uint64_t id = start(copy, joined->stream);
  if (id == 0) return 0;
  if (driver.event_record(joined->after, joined->stream) != CUDA_SUCCESS ||
      driver.stream_wait(nullptr, joined->after, 0) != CUDA_SUCCESS) {
    engine_.wait(id, kForever);  // the host waits if the stream cannot
  }
  return id;
}

Carrier::SideStream* Carrier::side_stream(int device) {
  std::lock_guard<std::mutex> guard(mutex_);
  std::unique_ptr<SideStream>& known = side_streams_[device];
  if (known != nullptr) return known.get();
  const DriverCalls& driver = driver_calls();
  auto made = std::make_unique<SideStream>();
  if (driver.stream_create(&made->stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS ||
      driver.event_create(&made->before, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS ||
      driver.event_create(&made->after, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) {
    return nullptr;
  }
  known = std::move(made);
  return known.get();
}

bool Carrier::enter() {
  std::lock_guard<std::mutex> guard(mutex_);
  if (shut_ != 0) return false;
  ++starting_;
  return true;
}

void Carrier::leave(const FlightPtr& flight) {
  std::lock_guard<std::mutex> guard(mutex_);
  --starting_;
  if (flight != nullptr) {
    flight->number = ++sequence_;
    flying_.push_back(flight);
    count_ = flying_.size();
  }
  changed_.notify_all();
}

std::vector<Carrier::FlightPtr> Carrier::flights(const std::function<bool(const Flight&)>& wanted) {
  std::lock_guard<std::mutex> guard(mutex_);
  std::vector<FlightPtr> found;
  for (const FlightPtr& flight : flying_) {
    if (wanted(*flight)) found.push_back(flight);
  }
  return found;
}

// Adds the paths of a copy that is over to the report.
void Carrier::account_for(uint64_t id) {
  struct Seen {
    std::map<std::string, uint64_t> bytes;
    bool relayed = false;
  } seen;
  const bool known = engine_.visit_paths(id, &seen, [](void* self, const glake_copy_path* path) {
    if (path->bytes == 0) return;
    auto* all = static_cast<Seen*>(self);
    all->bytes[path->name] += path->bytes;
    all->relayed = all->relayed || path->relayed != 0;
  });
  // The copy is over even if glake does not know its paths any more.
  if (!known) seen.bytes["not told"] = 0;
  account_.ended(seen.bytes, seen.relayed);
}

// Handles the end of a flight that is over. With `wait` it first waits until the flight is over.
void Carrier::settle(const FlightPtr& flight, bool wait) {
  std::unique_lock<std::mutex> own(flight->mutex, std::defer_lock);
  if (wait) {
    own.lock();
  } else if (!own.try_lock()) {
    return;
  }
  if (flight->settled || (!ended_ && !wait && !engine_.over(flight->id))) return;
  const int end = ended_ ? GLAKE_OK : engine_.wait(flight->id, kForever);
  if (ended_) {  // perhaps during the wait, which is then an error
    drop(flight);
    return;
  }
  if (end != GLAKE_OK) {
    const std::string why = engine_.error();
    account_.failed();
    if (sticky_.exchange(kSticky) == CUDA_SUCCESS) {
      std::fprintf(
          stderr,
          "glake: intercept: a copy of %llu bytes failed: %s; CUDA calls that wait or copy "
          "return CUDA_ERROR_LAUNCH_FAILED (%d) from now on\n",
          static_cast<unsigned long long>(flight->bytes), why.c_str(), kSticky);
    }
  }
  account_for(flight->id);
  engine_.release(flight->id);
  flight->settled = true;
  std::lock_guard<std::mutex> guard(mutex_);
  for (size_t i = 0; i < flying_.size(); ++i) {
    if (flying_[i] == flight) flying_.erase(flying_.begin() + static_cast<ptrdiff_t>(i--));
  }
  count_ = flying_.size();
}

CUresult Carrier::waited(Wait which, CUstream stream, uint64_t latest) {
  if (!flying() || forked_ || ended_) return sticky();
  Inside inside;
  int device = -1;
  if (stream == CU_STREAM_LEGACY) stream = nullptr;
  // Each device has a legacy stream, and all of them have the same name.
  if (which == Wait::kContext || stream == nullptr) driver_calls().ctx_get_device(&device);
  const auto due = [&](const Flight& flight) {
    if (flight.number > latest) return false;
    if (which == Wait::kNone || (which == Wait::kStream && flight.stream != stream)) return false;
    return device < 0 || flight.device == device;
  };
  for (const FlightPtr& flight : flights([](const Flight&) { return true; })) {
    settle(flight, due(*flight));
  }
  return sticky();
}

void Carrier::wait_all() {
  Inside inside;
  for (const FlightPtr& flight : flights([](const Flight&) { return true; })) settle(flight, true);
}

void Carrier::shut() {
  {
    std::unique_lock<std::mutex> lock(mutex_);
    ++shut_;
    changed_.wait(lock, [this] { return starting_ == 0; });
  }
  if (flying() && !forked_) wait_all();
}

void Carrier::reopen() {
  std::lock_guard<std::mutex> guard(mutex_);
  --shut_;
}

void Carrier::retained(CUdevice device) {
  std::lock_guard<std::mutex> guard(mutex_);
  ++references_[device];
}

// With one reference too many given back, the driver would take one of the engine's. So the engine
// gives its own back first here, too.
CUresult Carrier::released(CUdevice device, ContextCall driver) {
  std::lock_guard<std::mutex> opening(opening_);
  bool last = false;
  {
    std::lock_guard<std::mutex> guard(mutex_);
    last = references_[device] <= 1;
  }
  const CUresult result = last && engine_.is_own() ? end_context(device, driver) : driver(device);
  std::lock_guard<std::mutex> guard(mutex_);
  if (result == CUDA_SUCCESS && references_[device] > 0) --references_[device];
  return result;
}

CUresult Carrier::reset(CUdevice device, ContextCall driver) {
  std::lock_guard<std::mutex> opening(opening_);
  return end_context(device, driver);
}

// The caller holds opening_, so no thread opens the engine meanwhile. An engine that the program
// has opened loses its streams with the context, so nothing is carried over it from then on.
CUresult Carrier::end_context(CUdevice device, ContextCall driver) {
  shut();
  if (state_ == 1 && !forked_ && !exited_) {
    Inside inside;
    if (engine_.leave()) {
      state_ = 0;
    } else {
      reset_ = true;
    }
  }
  const CUresult result = driver(device);
  unsigned flags = 0;
  int active = 0;
  const bool known = driver_calls().complete &&
                     driver_calls().primary_state(device, &flags, &active) == CUDA_SUCCESS;
  if (known && active == 0) {
    std::lock_guard<std::mutex> guard(mutex_);
    side_streams_.erase(device);
  }
  reopen();
  return result;
}

void Carrier::yield() {
  std::lock_guard<std::mutex> guard(opening_);
  shut();
  {
    Inside inside;
    engine_.close();
  }
  reopen();
}

// Forgets a copy that is under way while the process ends. Its stream makes the rest of it, unless
// the engine's threads do.
void Carrier::drop(const FlightPtr& flight) {
  flight->settled = flight->dropped = true;
  if (settings().held) sticky_ = kEnding;
}

// Closes the engine while other threads of the program may still copy. libglake's own exit handlers
// come next. The program's handlers may come later still, and must not reach it by a wait or a
// free.
void Carrier::close_at_exit() {
  ended_ = true;
  {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_for(lock, kLongestStart, [this] { return starting_ == 0; });
  }
  engine_.close();
  std::lock_guard<std::mutex> guard(mutex_);
  if (settings().held && !flying_.empty()) sticky_ = kEnding;
  flying_.clear();
  count_ = 0;
}

void Carrier::at_exit() {
  if (exited_.exchange(true)) return;
  if (forked_ && account_.empty()) return;
  if (!forked_ && state_ == 1) {
    Inside inside;
    for (const FlightPtr& flight : flights([](const Flight&) { return true; })) {
      settle(flight, false);
    }
    close_at_exit();
  }
  if (account_.empty()) return;
  if (settings().report) std::fputs(account_.text().c_str(), stderr);
  if (settings().json.empty()) return;
  // One write, because processes of one job add their lines to one file.
  const std::string line = account_.json() + "\n";
  const int file = open(settings().json.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
  if (file < 0 || write(file, line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
    std::fprintf(stderr, "glake: intercept: cannot write to GLAKE_INTERCEPT_JSON=%s\n",
                 settings().json.c_str());
  }
  if (file >= 0) close(file);
}

// Takes all locks, so that no thread which the child lacks holds one.
void Carrier::before_fork() {
  opening_.lock();
  mutex_.lock();
  account_.lock();
}

// In the child, the engine and the flights are the parent's.
void Carrier::after_fork(bool child) {
  if (child) {
    if (state_ != 0) forked_ = true;
    starting_ = shut_ = 0;
    account_.clear();
  }
  account_.unlock();
  mutex_.unlock();
  opening_.unlock();
}

}  // namespace glake::intercept

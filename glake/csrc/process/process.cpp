#include "process/process.h"

#include <pthread.h>

#include <cstdio>
#include <cstdlib>

#include "base/alone.h"
#include "debug/debug_device.h"
#include "heap/paused_heap.h"
#include "memory/contiguous_index.h"
#include "watch/watch.h"

namespace glake {
namespace {

pthread_key_t thread_key;
bool inside_before_fork = false;  // under mutex_, which is held across fork

// The block of the contiguous pool at `ptr`, which no reserved range holds.
Block* escaped(Address ptr) {
  bool inside = false;
  Block* b = ContiguousIndex::find(ptr, &inside);
  if (b != nullptr && b->ptr == ptr) return b;
  throw Error(
      GLAKE_INVALID_POINTER,
      hex(ptr) + (inside
                      ? " lies inside a block; glake knows it by its first byte's address only"
                      : " is not glake's memory; pass a block's first address, as glake gave it"));
}

}  // namespace

std::atomic<Process*> Process::instance_{nullptr};
__thread Process::Thread* Process::this_thread_ = nullptr;
__thread bool Alone::inside_ = false;

// The work around a fork.
struct Process::Fork {
  static void before();
  static void in_parent();
  static void in_child();
};

Process::Process() {
  pthread_key_create(&thread_key, &Process::thread_ended);
  pthread_atfork(&Fork::before, &Fork::in_parent, &Fork::in_child);
}

Process& Process::start() {
  static Process* const process = new Process;
  instance_.store(process, std::memory_order_release);
  return *process;
}

// The lock is held across a fork, so that a child that may still use glake finds complete books.
void Process::Fork::before() {
  const bool inside = Alone::now();
  Alone::set(inside || checked());
  instance().mutex_.lock();
  inside_before_fork = inside;
  instance().trace_.flush();
  IpcFd::before_fork();
  Watch::instance().lock();
}

void Process::Fork::in_parent() {
  Watch::instance().unlock();
  IpcFd::in_parent();
  const bool inside = inside_before_fork;
  instance().mutex_.unlock();
  Alone::set(inside);
}

void Process::Fork::in_child() {
  IpcFd::in_child();
  Process& process = instance();
  Watch::instance().unlock();
  process.hooks_.set(kTraced, false);  // the file is the parent's
  process.fork_child_ = true;
  if (process.driver_used_) {
    process.forked_.store(true, std::memory_order_relaxed);
    // No hook may run here. The plain path fails too, and says why nothing works in this process.
    process.hooks_.clear();
  }
  const bool inside = inside_before_fork;
  process.mutex_.unlock();
  Alone::set(inside);
}

void Process::check_usable() const {
  if (forked_.load(std::memory_order_relaxed)) {
    throw Error(GLAKE_FORKED,
                "glake was used before this process was forked, and CUDA does not survive fork; "
                "use the spawn start method, or use glake only in the child");
  }
}

void Process::thread_ended(void* state) {
  Alone alone(checked());
  auto* thread = static_cast<Thread*>(state);
  Process& process = instance();
  if (!process.forked_.load(std::memory_order_relaxed)) {
    std::lock_guard<std::mutex> guard(process.mutex_);
    for (ThreadCache* cache : thread->caches) {
      if (cache != nullptr && thread->generation == process.generation_.load()) {
        cache->device()->forget_stream(thread->stream);
        cache->device()->drop_cache(cache);
      }
    }
  }
  this_thread_ = nullptr;
  delete thread;
}

void Process::stream_ends(int device, StreamHandle stream, StreamEnd when) {
  check_usable();
  if (device < 0 || device >= kMaxDevices) {
    throw Error(GLAKE_INVALID_DEVICE, "no " + device_text(device) + ": a device is 0 to " +
                                          std::to_string(kMaxDevices - 1));
  }
  if (stream == 0 || is_thread_stream(stream)) return;  // the default streams never end
  std::lock_guard<std::mutex> guard(mutex_);
  if (when == StreamEnd::kAnyTime) Driver::streams().may_end(stream);
  for (int each = 0; each < kMaxDevices; ++each) {
    DeviceAllocator* used = devices_[each].get();
    // Devices other than `device` too, because a stream may use their memory.
    if (used == nullptr || (each != device && !used->knows(stream))) continue;
    if (when == StreamEnd::kAnyTime) {
      used->stream_may_end(stream);
    } else {
      used->forget_stream(stream);
    }
  }
  if (when == StreamEnd::kAnyTime) return;
  if (host_ != nullptr) host_->forget(stream);
  Driver::streams().ends(stream);
}

ThreadCache& Process::open_cache(int device) {
  check_usable();
  std::lock_guard<std::mutex> guard(mutex_);
  Driver& driver = open_driver();
  if (device < 0 || device >= driver.device_count() || device >= kMaxDevices) {
    throw Error(GLAKE_INVALID_DEVICE,
                "no " + device_text(device) + ": the driver has " +
                    counted(static_cast<uint64_t>(driver.device_count()), "device"));
  }
  auto* thread = this_thread_;
  if (thread == nullptr) {
    thread = new Thread;
    thread->stream = this_thread_stream();
    this_thread_ = thread;
    pthread_setspecific(thread_key, thread);
  }
  if (thread->generation != generation_.load()) {
    *thread = Thread{};
    thread->stream = this_thread_stream();
    thread->generation = generation_.load();
  }
  if (devices_[device] == nullptr) {
    auto made = std::make_unique<DeviceAllocator>(driver, device, options_);
    if (options_.debug.any()) {
      made->set_debug(std::make_unique<DebugDevice>(driver, *made, device, options_.debug));
    }
    devices_[device] = std::move(made);
  }
  devices_[device]->start();
  if (options_.cooperate && !devices_[device]->has_neighbours()) {
    if (neighbours_ == nullptr) neighbours_ = std::make_unique<NeighbourProcesses>(driver);
    neighbours_->add(*devices_[device]);
  }
  thread->caches[device] = devices_[device]->make_cache();
  return *thread->caches[device];
}

Block& Process::block(const void* ptr, bool take) {
  if (forked_.load(std::memory_order_relaxed)) check_usable();
  auto address = reinterpret_cast<Address>(ptr);
  BlockTable* table = PointerMap::find(address);
  // The reservation's last page may reach past the range's end.
  bool ours = table != nullptr && address - table->base() < table->size();
  Block* b = ours ? table->peek(address) : escaped(address);
  // With guards, a caller's pointer is not the block's first byte.
  DebugDevice* debug = ours && !take && hooks_.has(kDebug) ? debug_of(*table->heap()) : nullptr;
  if (debug != nullptr) address = debug->inner(address);
  if (ours && (b == nullptr || debug != nullptr)) b = table->heap()->find(*table, address);
  if (b == nullptr) {
    throw Error(GLAKE_INVALID_POINTER, hex(ptr) + table->heap()->explain_pointer(address));
  }
  BlockState live = BlockState::kLive;
  bool ok =
      take ? b->state.compare_exchange_strong(live, BlockState::kCached, std::memory_order_acq_rel)
           : b->state.load() == BlockState::kLive;
  if (!ok) throw Error(GLAKE_INVALID_POINTER, hex(ptr) + " has been freed already");
  return *b;
}

CallerBlock Process::caller_block(const void* ptr, const Block& b) const {
  auto address = reinterpret_cast<Address>(ptr);
  DebugDevice* debug = hooks_.has(kDebug) ? debug_of(*b.heap) : nullptr;
  return {address, b.requested, debug != nullptr ? debug->inner(address) : address};
}

Options& Process::read_options() {
  if (!options_read_) {
    options_ = Options::from_environment();
    // A command that only reads a trace must not empty it, and a fork's child has none.
    const bool traced = !options_.trace.empty() && !fork_child_;
    if (traced) start_trace(options_.trace, TraceWriter::Begin::kFirstEvent);
    options_read_ = true;
    kinds_.use_options(options_);
    use_debug();
    hooks_.set(kUnread, false);
  }
  return options_;
}

void Process::use_debug() {
  Watch::instance().set_debug(options_.debug.any(), options_.debug.trace);
  hooks_.set(kDebug, options_.debug.any());
}

void Process::prepare() {
  check_usable();
  std::lock_guard<std::mutex> guard(mutex_);
  read_options();
}

Driver& Process::open_driver() {
  if (driver_ == nullptr) {
    read_options();
    driver_used_ = true;
    driver_ = Driver::open(read_options().driver);
    driver_path_ = driver_->path();
  }
  return *driver_;
}

// A program in C may leave the end of its trace to the end of the process. By then nobody can catch
// an error, so it is printed. A fork's child has no trace.
void Process::end_trace_at_exit() noexcept {
  try {
    stop_trace();
  } catch (const Error& error) {
    if (error.code() == GLAKE_FILE_FAILED) std::fprintf(stderr, "glake: %s\n", error.what());
  } catch (...) {
  }
}

void Process::start_trace(const std::string& path, TraceWriter::Begin begin) {
  static const bool ends = std::atexit([] { instance().end_trace_at_exit(); }) == 0;
  static_cast<void>(ends);  // if not, the trace is written all the same, unchecked
  stop_trace();
  trace_.start(path, begin);
  hooks_.set(kTraced, true);
}

void Process::stop_trace() {
  check_usable();
  hooks_.set(kTraced, false);
  trace_.stop();
}

void Process::configure(const std::string& key, const std::string& value) {
  check_usable();
  std::lock_guard<std::mutex> guard(mutex_);
  Options changed = read_options();
  changed.set(key, value);
  bool trace_only = changed.trace != options_.trace;
  if (driver_ != nullptr && !trace_only && changed.describe() != options_.describe()) {
    throw Error(GLAKE_INVALID_OPTION, "option " + key + "=" + value +
                                          " comes too late: a device is in use; set it before "
                                          "the first use (in C also after glake_shutdown())");
  }
  if (trace_only) {
    if (changed.trace.empty()) {
      stop_trace();
    } else {
      start_trace(changed.trace);
    }
  }
  options_ = changed;
  kinds_.use_options(options_);
  use_debug();
}

Options Process::options() {
  std::lock_guard<std::mutex> guard(mutex_);
  return read_options();
}

int Process::device_count() {
  check_usable();
  std::lock_guard<std::mutex> guard(mutex_);
  return open_driver().device_count();
}

const char* Process::driver_path() {
  std::lock_guard<std::mutex> guard(mutex_);
  return driver_path_.c_str();
}

void Process::shutdown() {
  check_usable();
  transfer_.close();
  std::lock_guard<std::mutex> guard(mutex_);
  for (auto& device : devices_) {
    if (device != nullptr) device->require_no_blocks();
  }
  for (auto& device : devices_) {
    uint64_t pins = device != nullptr ? device->sharing().pins(PinOwner::kCaller) : 0;
    if (pins == 0) continue;
    throw Error(GLAKE_INVALID_ARGUMENT, device_text(device->number()) + " still has " +
                                            counted(pins, "pin") +
                                            "; glake_unpin() them before glake_shutdown()");
  }
  if (ipc_ != nullptr) ipc_->close();
  if (host_ != nullptr) host_->close();
  ipc_.reset();
  host_.reset();
  // From here on each thread opens its caches anew, and with them the cooperation, if a device
  // refuses to close.
  neighbours_.reset();
  // The generation rises even if a device below refuses to close, because the caches of devices
  // that were closed before it are gone.
  ++generation_;
  for (auto& device : devices_) {
    if (device != nullptr) device->close();
    device.reset();
  }
  driver_.reset();
  driver_path_.clear();
  hooks_.set(kUnread, true);  // this comes first, so that no signal handler finds the plain path
  options_read_ = false;
  options_ = Options{};
  kinds_.use_options(options_);
  use_debug();
  stop_trace();  // last, because it throws if the trace is not whole
}

void Process::unpin(void* ptr) {
  check_usable();
  std::lock_guard<std::mutex> guard(mutex_);
  for (auto& device : devices_) {
    if (device == nullptr) continue;
    if (device->sharing().unpin(reinterpret_cast<Address>(ptr), PinOwner::kCaller)) return;
  }
  throw Error(
      GLAKE_INVALID_POINTER,
      hex(ptr) + " is not pinned any more, or never was; unpin a block as often as it was pinned");
}

Driver& Process::driver() {
  check_usable();
  std::lock_guard<std::mutex> guard(mutex_);
  return open_driver();
}

HostPool& Process::host() {
  check_usable();
  std::lock_guard<std::mutex> guard(mutex_);
  Driver& driver = open_driver();
  if (host_ == nullptr) host_ = std::make_unique<HostPool>(driver);
  return *host_;
}

Ipc& Process::ipc() {
  check_usable();
  std::lock_guard<std::mutex> guard(mutex_);
  Driver& driver = open_driver();
  if (ipc_ == nullptr) ipc_ = std::make_unique<Ipc>(driver);
  return *ipc_;
}

void Process::settle_ipc() {
  Ipc* started = nullptr;
  {
    std::lock_guard<std::mutex> guard(mutex_);
    started = ipc_.get();
  }
  if (started != nullptr) started->settle();
}

Owned Process::owned(Address at) {
  BlockTable* table = PointerMap::find(at);
  const bool ours = table != nullptr && at - table->base() < table->size();
  bool paused = false;
  Block* b = ours ? table->heap()->around(*table, at, &paused) : ContiguousIndex::around(at);
  if (b == nullptr && !ours) return {};
  Owned found;
  found.device = (ours ? table->heap() : b->heap)->number;
  if (b == nullptr && VirtualRanges(*table->heap()).backed_around(at, &found.begin, &found.bytes)) {
    found.pages = true;
    return found;
  }
  if (b == nullptr || b->state.load() != BlockState::kLive) return found;
  CallerBlock held{b->ptr, b->requested, b->ptr};
  DebugDevice* debug = hooks_.has(kDebug) ? debug_of(*b->heap) : nullptr;
  if (debug != nullptr) {  // the address may be between the guards of a block
    void* inner = reinterpret_cast<void*>(b->ptr + debug->overhead() / 2);
    held = caller_block(inner, *b);
    // If inner() finds nothing there, the block was allocated before guards were on.
    if (held.begin != b->ptr) held = {b->ptr, b->requested, b->ptr};
  }
  if (at < held.ptr || at - held.ptr >= held.bytes) return found;
  found.begin = held.ptr;
  found.bytes = held.bytes;
  if (paused) {
    RegionBook& book = RegionBook::instance();
    const PoolId pool = b->heap->pool_id();
    found.paused = book.text(pool) + " on " + device_text(found.device) +
                   ", which is paused: " + book.way_back(pool) + " first";
  }
  return found;
}

Bytes Process::set_headroom(int device, Bytes bytes) {
  if (device != kAllDevices) return this->device(device).limits().set_headroom(bytes);
  prepare();
  std::vector<int> used;
  for_each_device([&](DeviceAllocator& each) { used.push_back(each.number()); });
  // All devices are checked, so that no device that is used later begins with an impossible
  // headroom.
  for (int each = 0; each < device_count(); ++each) {
    Bytes total = 0;
    const Status s = driver().total_memory(each, &total);
    if (!s.ok()) {
      throw Error(GLAKE_DRIVER_ERROR, device_text(each) + "'s memory: " + driver().describe(s));
    }
    Limits::check_headroom(bytes, each, total);
  }
  {
    std::lock_guard<std::mutex> guard(mutex_);
    options_.headroom = bytes;
  }
  Bytes free = UINT64_MAX;
  for (int each : used) free = std::min(free, this->device(each).limits().set_headroom(bytes));
  return used.empty() ? 0 : free;
}

Bytes Process::headroom(int device) {
  if (device != kAllDevices && (device < 0 || device >= device_count())) {
    return this->device(device).limits().headroom();  // throws an error that says what is wrong
  }
  prepare();
  std::lock_guard<std::mutex> guard(mutex_);
  const bool used = device != kAllDevices && devices_[device] != nullptr;
  return used ? devices_[device]->limits().headroom() : options_.headroom;
}

}  // namespace glake

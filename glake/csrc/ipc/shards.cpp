#include "ipc/shards.h"

#include <exception>
#include <utility>

#include "driver/device_scope.h"
#include "ipc/ipc_client.h"

namespace glake {
namespace {

constexpr int kNoFd = -1;  // in place of a descriptor: the memory is created

void require_exports(const Driver& driver, int device) {
  if (driver.traits(device).shareable) return;
  throw Error(GLAKE_INVALID_ARGUMENT, "the driver cannot export memory of " + device_text(device) +
                                          " as a file descriptor, so that no other process can "
                                          "open a shard there; keep the weights as they are");
}

bool describes(const IpcReply& r, const IpcHandle& handle) {
  return r.magic == kIpcMagic && r.count == 1 && r.handles == 1 && r.legacy == 0 && r.offset == 0 &&
         r.bytes == handle.bytes && r.handle_bytes == round_up(r.bytes, kGranule);
}

}  // namespace

Shards::Shard& Shards::find(Address ptr) {
  auto found = shards_.find(ptr);
  if (found != shards_.end()) return *found->second;
  throw Error(GLAKE_INVALID_POINTER,
              hex(ptr) +
                  " is no shard that this process has made or opened, or it was closed as often as "
                  "opened; pass the address of glake_shard_create() or glake_shard_open()");
}

// Makes the driver calls of a shard: the memory is created, or is that of the descriptor.
Status Shards::build(Shard& shard, int fd) {
  const Bytes whole = shard.handle_bytes;
  if (fd == kNoFd && driver_.creatable(shard.on.number()) < whole) return Status::no_memory();
  shard.reserved = whole;
  Status s = driver_.reserve(whole, &shard.base);
  if (!s.ok()) {
    shard.base = 0;
    return s;
  }
  s = fd == kNoFd ? driver_.create(shard.on.number(), &shard.handle, whole)
                  : driver_.import_fd(fd, &shard.handle);
  if (!s.ok()) {
    shard.handle = 0;
    return s;
  }
  shard.held = whole;
  if (fd == kNoFd) require_exports(driver_, shard.on.number());  // creating it may have shown this
  s = driver_.map(shard.base, shard.handle, whole);
  if (!s.ok()) return s;
  shard.mapped = whole;
  return shard.grant(driver_, shard.on.peers().grants());
}

// Builds the shard and keeps it, or gives everything back and throws Error.
Address Shards::keep(std::unique_ptr<Shard> shard, int fd, const std::string& what) {
  const int device = shard->on.number();
  DeviceScope scope(driver_, device);
  try {
    Status s = scope.status();
    if (s.ok()) s = build(*shard, fd);
    if (!s.ok()) {
      throw Error(
          s.out_of_memory() ? GLAKE_OUT_OF_MEMORY : GLAKE_DRIVER_ERROR,
          "the driver refused " + what + " on " + device_text(device) + ": " + driver_.describe(s));
    }
  } catch (const Error& e) {
    throw Error(e.code(), e.what() + owed_.give_up(std::move(shard)));
  } catch (...) {
    owed_.give_up(std::move(shard));
    throw;
  }
  const Address ptr = shard->base;
  if (!shard->text.empty()) opened_.emplace(shard->text, ptr);
  shards_.emplace(ptr, std::move(shard));
  return ptr;
}

Address Shards::create(DeviceAllocator& device, Bytes bytes) {
  require_exports(driver_, device.number());
  std::lock_guard<std::mutex> guard(mutex_);
  owed_.settle();
  auto shard = std::make_unique<Shard>(device);
  shard->bytes = bytes;
  shard->handle_bytes = round_up(bytes, kGranule);
  return keep(std::move(shard), kNoFd,
              "a shard of " + size_text(round_up(bytes, kGranule)) +
                  " (glake_empty_cache() gives it what glake keeps)");
}

void Shards::seal(Address ptr) {
  std::lock_guard<std::mutex> guard(mutex_);
  Shard& shard = find(ptr);
  if (shard.read_only) return;
  const int device = shard.on.number();
  DeviceScope scope(driver_, device);
  Status s = scope.status();
  if (s.ok()) s = shard.wait_for_work(driver_);
  shard.read_only = true;
  shard.granted.clear();
  if (s.ok()) s = shard.grant(driver_, shard.on.peers().grants());
  shard.read_only = s.ok();
  if (s.ok()) return;
  throw Error(GLAKE_DRIVER_ERROR, "the driver refused to make " + hex(ptr) + " of " +
                                      device_text(device) + " read-only: " + driver_.describe(s) +
                                      "; it stays writable, and cannot be shared");
}

std::string Shards::share(Address ptr) {
  std::lock_guard<std::mutex> guard(mutex_);
  Shard& shard = find(ptr);
  const int device = shard.on.number();
  if (!shard.read_only) {
    throw Error(GLAKE_INVALID_ARGUMENT,
                hex(ptr) + " can still be written; glake_shard_seal() it before it is shared");
  }
  IpcHandle handle;
  Status s = driver_.uuid(device, &handle.uuid);
  if (!s.ok()) {
    throw Error(GLAKE_DRIVER_ERROR,
                "the driver does not name " + device_text(device) + ": " + driver_.describe(s));
  }
  server_.start();
  server_.fill(&handle);
  if (shard.offer == 0) shard.offer = server_.offer(device, shard.handle, shard.bytes);
  handle.shard = true;
  handle.id = shard.offer;
  handle.bytes = shard.bytes;
  return format_handle(handle);
}

Address Shards::open(const std::string& text, DeviceAllocator& device, Bytes* bytes) {
  const IpcHandle handle = parse_handle(text.c_str());
  if (!handle.shard) {
    throw Error(GLAKE_INVALID_ARGUMENT,
                "this is the handle of a block, and no shard's; glake_ipc_open() opens it");
  }
  if (server_.is_mine(handle)) {
    throw Error(GLAKE_INVALID_ARGUMENT,
                "this process shared the shard itself; use its own address");
  }
  require_same_gpu(driver_, handle, device.number());
  std::unique_lock<std::mutex> lock(mutex_);
  owed_.settle();
  *bytes = handle.bytes;
  if (const Address known = again(text)) return known;
  const IpcFd fd = ask(handle, lock);
  if (const Address known = again(text)) return known;  // another thread was faster
  auto shard = std::make_unique<Shard>(device);
  shard->text = text;
  shard->bytes = handle.bytes;
  shard->handle_bytes = round_up(handle.bytes, kGranule);
  shard->read_only = true;
  return keep(std::move(shard), fd.get(),
              "to map the shard of process " + std::to_string(handle.pid));
}

// The shard that was opened by this text, once more; 0: there is none.
Address Shards::again(const std::string& text) {
  auto known = opened_.find(text);
  if (known == opened_.end()) return 0;
  ++shards_[known->second]->count;
  return known->second;
}

// Asks the process that shares the shard for its descriptor, without the lock.
IpcFd Shards::ask(const IpcHandle& handle, std::unique_lock<std::mutex>& lock) {
  IpcRequest request;
  request.op = IpcOp::kShard;
  request.token = handle.token;
  request.id = handle.id;
  std::vector<IpcFd> fds;
  IpcReply reply;
  std::exception_ptr error;
  ++asking_;
  lock.unlock();
  try {
    reply = IpcClient(handle).ask(request, &fds);
  } catch (...) {
    error = std::current_exception();
  }
  lock.lock();
  --asking_;
  asked_.notify_all();
  if (error != nullptr) std::rethrow_exception(error);
  if (!describes(reply, handle) || fds.size() != 1) {
    throw Error(GLAKE_INVALID_ARGUMENT, "the handle does not describe the shard it names");
  }
  return std::move(fds[0]);
}

void Shards::close(Address ptr) {
  std::lock_guard<std::mutex> guard(mutex_);
  Shard& shard = find(ptr);
  if (shard.count > 1) {
    --shard.count;
    return;
  }
  const int device = shard.on.number();
  DeviceScope scope(driver_, device);
  Status s = scope.status();
  if (s.ok()) s = shard.wait_for_work(driver_);
  // No connection may export the handle once it is released.
  if (s.ok() && shard.offer != 0) server_.withdraw(std::exchange(shard.offer, 0));
  if (s.ok()) s = shard.take_apart(driver_);
  if (!s.ok() && shard.reachable()) {
    throw Error(GLAKE_DRIVER_ERROR, "the driver refused to unmap " + hex(ptr) + ": " +
                                        driver_.describe(s) + "; it stays open, try again");
  }
  opened_.erase(shard.text);
  auto found = shards_.find(ptr);
  std::unique_ptr<Shard> closed = std::move(found->second);
  shards_.erase(found);
  if (s.ok()) return;
  throw Error(GLAKE_MEMORY_OWED, hex(ptr) + " is closed, but " + owed_.owe(std::move(closed), s));
}

void Shards::grant_peers(DeviceAllocator& device) {
  std::lock_guard<std::mutex> guard(mutex_);
  for (auto& [ptr, shard] : shards_) {
    if (&shard->on != &device) continue;
    require_granted(driver_, *shard, shard->grant(driver_, device.peers().grants()));
  }
}

void Shards::settle() {
  std::lock_guard<std::mutex> guard(mutex_);
  owed_.settle();
}

void Shards::end() {
  std::unique_lock<std::mutex> lock(mutex_);
  asked_.wait(lock, [this] { return asking_ == 0; });
  if (!shards_.empty()) {
    throw Error(GLAKE_INVALID_ARGUMENT, std::to_string(shards_.size()) +
                                            " shards are open; glake_shard_close() them before "
                                            "glake_shutdown()");
  }
  owed_.settle();
  if (!owed_.empty()) {
    throw Error(GLAKE_DRIVER_ERROR, "the driver refused to give up a shard; try again");
  }
}

}  // namespace glake

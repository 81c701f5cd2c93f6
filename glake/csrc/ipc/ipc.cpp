#include "ipc/ipc.h"

#include "driver/device_scope.h"
#include "heap/device_allocator.h"

namespace glake {
namespace {

// Checks what a peer says before it is used.
bool sensible(const IpcReply& r, const IpcHandle& handle) {
  if (r.magic != kIpcMagic || (r.legacy != 0) != handle.legacy || r.bytes != handle.bytes) {
    return false;
  }
  if (r.legacy != 0) return true;
  bool whole = r.handle_bytes != 0 && r.handle_bytes % kGranule == 0 &&
               r.handle_bytes <= kMaxRequest && r.handles != 0 &&
               r.handles <= kMaxRequest / r.handle_bytes + 1;
  return whole && r.offset < r.handle_bytes && r.offset + r.bytes <= r.handles * r.handle_bytes;
}

}  // namespace

std::string Ipc::share(Block& block, const CallerBlock& called) {
  Device& device = block.heap->device;
  IpcHandle handle;
  handle.legacy = block.allocation != nullptr && block.allocation->kind == GLAKE_CONTIGUOUS_LEGACY;
  if (!handle.legacy && !driver_.traits(device.number).shareable) {
    throw Error(GLAKE_INVALID_ARGUMENT,
                "the driver cannot export memory of " + device_text(device.number) +
                    " as a file descriptor; allocate the block by "
                    "glake_malloc_contiguous(..., GLAKE_CONTIGUOUS_LEGACY)");
  }
  Status s = driver_.uuid(device.number, &handle.uuid);
  if (s.ok() && handle.legacy) {
    DeviceScope scope(driver_, device.number);
    s = scope.status();
    if (s.ok()) s = driver_.legacy_handle(called.ptr, &handle.driver_handle);
  }
  if (!s.ok()) {
    throw Error(GLAKE_DRIVER_ERROR, "the driver refused to share " + hex(called.ptr) + " of " +
                                        device_text(device.number) + ": " + driver_.describe(s));
  }
  server_.start();
  server_.fill(&handle);
  handle.id = Sharing(device).share(block, called, server_.number(device));
  handle.bytes = called.bytes;
  return format_handle(handle);
}

void Ipc::connect(Import& import, const IpcHandle& handle, const IpcRequest& request,
                  IpcReply* reply) {
  import.client.emplace(handle);
  std::vector<IpcFd> none;
  *reply = import.client->ask(request, &none);
  if (!sensible(*reply, handle)) {
    throw Error(GLAKE_INVALID_ARGUMENT, "the handle does not describe the block it names");
  }
}

// Reserves a range and maps the exporter's handles into it, one batch of descriptors at a time.
Status Ipc::map_all(Import& import, IpcRequest request, const IpcReply& reply,
                    const std::vector<int>& grants) {
  import.reserved = reply.handles * reply.handle_bytes;
  import.handle_bytes = reply.handle_bytes;
  Status s = driver_.reserve(import.reserved, &import.base);
  if (!s.ok()) import.base = 0;
  request.op = IpcOp::kNext;
  while (s.ok() && request.from < reply.handles) {
    std::vector<IpcFd> fds;
    import.client->ask(request, &fds);
    if (fds.empty() || request.from + fds.size() > reply.handles) {
      throw Error(GLAKE_INTERNAL, "the exporting process sent too few or too many descriptors");
    }
    for (IpcFd& fd : fds) {
      s = driver_.import_fd(fd.get(), &import.handle);
      fd.reset();
      if (!s.ok()) {
        import.handle = 0;
        break;
      }
      import.held += import.handle_bytes;
      s = driver_.map(import.base + import.mapped, import.handle, reply.handle_bytes);
      if (!s.ok()) break;
      import.mapped += reply.handle_bytes;
      s = driver_.release(import.handle);  // the mapping keeps the memory
      if (!s.ok()) break;
      import.handle = 0;
    }
    request.from += fds.size();
  }
  if (s.ok()) s = import.grant(driver_, grants);
  return s;
}

void Ipc::enable_peer(DeviceAllocator& device, int peer) {
  device.peers().enable(peer);
  shards_.grant_peers(device);
  std::lock_guard<std::mutex> guard(mutex_);
  for (auto& [ptr, import] : imports_) {
    if (&import->on != &device) continue;
    require_granted(driver_, *import, import->grant(driver_, device.peers().grants()));
  }
}

void Ipc::settle() {
  shards_.settle();
  std::lock_guard<std::mutex> guard(mutex_);
  owed_.settle();
}

Address Ipc::open(const std::string& text, DeviceAllocator& device, Bytes* bytes) {
  IpcHandle handle = parse_handle(text.c_str());
  if (handle.shard) {
    throw Error(GLAKE_INVALID_ARGUMENT,
                "this is the handle of a shard, which is read-only; glake_shard_open() opens it");
  }
  if (server_.is_mine(handle)) {
    throw Error(GLAKE_INVALID_ARGUMENT,
                "this process shared the block itself; use its own address");
  }
  require_same_gpu(driver_, handle, device.number());
  std::unique_lock<std::mutex> lock(mutex_);
  owed_.settle();
  asked_.wait(lock, [&] { return asking_.count(text) == 0; });
  auto known = opened_.find(text);
  if (known != opened_.end()) {
    ++imports_[known->second]->count;
    *bytes = handle.bytes;
    return known->second;
  }
  asking_.insert(text);
  lock.unlock();
  std::unique_ptr<Import> made;
  try {
    made = import(text, handle, device);
  } catch (...) {
    lock.lock();
    end_asking(text);
    throw;
  }
  lock.lock();
  end_asking(text);
  // Another device may have been granted access to this one's memory meanwhile.
  const Status s = made->grant(driver_, device.peers().grants());
  if (!s.ok()) {
    DeviceScope scope(driver_, device.number());
    const Address base = made->base;
    throw Error(GLAKE_DRIVER_ERROR, "the driver refused other devices access to the block at " +
                                        hex(base) + ": " + driver_.describe(s) +
                                        owed_.give_up(std::move(made)));
  }
  Address ptr = made->base + made->offset;
  *bytes = handle.bytes;
  opened_.emplace(text, ptr);
  imports_.emplace(ptr, std::move(made));
  return ptr;
}

void Ipc::end_asking(const std::string& text) {
  asking_.erase(text);
  asked_.notify_all();
}

std::string Ipc::give_up(std::unique_ptr<Import> import) {
  std::lock_guard<std::mutex> guard(mutex_);
  return owed_.give_up(std::move(import));
}

// Maps the block. The mutex is not held, because the other process may be stopped.
std::unique_ptr<Ipc::Import> Ipc::import(const std::string& text, const IpcHandle& handle,
                                         DeviceAllocator& device) {
  auto import = std::make_unique<Import>(device);
  import->text = text;
  import->legacy = handle.legacy;
  import->bytes = handle.bytes;
  IpcRequest request;
  request.token = handle.token;
  request.id = handle.id;
  IpcReply reply;
  connect(*import, handle, request, &reply);
  import->offset = handle.legacy ? 0 : reply.offset;
  DeviceScope scope(driver_, device.number());
  Status s = scope.status();
  try {
    if (s.ok()) {
      s = handle.legacy ? driver_.open_legacy(handle.driver_handle, &import->base)
                        : map_all(*import, request, reply, device.peers().grants());
    }
    if (handle.legacy && !s.ok()) import->base = 0;
    if (handle.legacy && s.ok()) import->held = handle.bytes;
    if (!s.ok()) {
      throw Error(s.out_of_memory() ? GLAKE_OUT_OF_MEMORY : GLAKE_DRIVER_ERROR,
                  "the driver refused to map the block of process " + std::to_string(handle.pid) +
                      " on " + device_text(device.number()) + ": " + driver_.describe(s));
    }
  } catch (const Error& e) {
    throw Error(e.code(), e.what() + give_up(std::move(import)));
  } catch (...) {
    give_up(std::move(import));
    throw;
  }
  return import;
}

void Ipc::close(Address ptr) {
  std::lock_guard<std::mutex> guard(mutex_);
  auto found = imports_.find(ptr);
  if (found == imports_.end()) {
    throw Error(GLAKE_INVALID_POINTER, hex(ptr) +
                                           " is no shared block that this process has opened, "
                                           "or was closed as often as opened");
  }
  Import& import = *found->second;
  if (import.count > 1) {
    --import.count;
    return;
  }
  const int device = import.on.number();
  DeviceScope scope(driver_, device);
  Status s = scope.status();
  if (s.ok()) s = import.wait_for_work(driver_);
  if (s.ok()) s = import.take_apart(driver_);
  if (!s.ok() && import.reachable()) {
    throw Error(GLAKE_DRIVER_ERROR, "the driver refused to unmap " + hex(ptr) + ": " +
                                        driver_.describe(s) + "; it stays open, try again");
  }
  opened_.erase(import.text);
  std::unique_ptr<Import> closed = std::move(found->second);
  imports_.erase(found);
  if (s.ok()) return;
  throw Error(GLAKE_MEMORY_OWED, hex(ptr) + " is closed, but " + owed_.owe(std::move(closed), s));
}

void Ipc::close() {
  shards_.end();
  std::unique_lock<std::mutex> lock(mutex_);
  asked_.wait(lock, [this] { return asking_.empty(); });
  if (!imports_.empty()) {
    throw Error(GLAKE_INVALID_ARGUMENT, std::to_string(imports_.size()) +
                                            " blocks of other processes are open; "
                                            "glake_ipc_close() them before glake_shutdown()");
  }
  owed_.settle();
  if (!owed_.empty()) {
    throw Error(GLAKE_DRIVER_ERROR,
                "the driver refused to give up a block of another process; try again");
  }
  server_.stop();
}

}  // namespace glake

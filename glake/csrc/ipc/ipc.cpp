#include "ipc/ipc.h"

#include <algorithm>

#include "driver/device_scope.h"
#include "heap/device_allocator.h"

namespace glake {
namespace {

Error gone(uint64_t pid, const char* why) {
  return Error(GLAKE_INVALID_POINTER, "process " + std::to_string(pid) +
                                          ", which shared the block, " + why +
                                          "; ask it for a new handle");
}

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

void Ipc::check_device(const IpcHandle& handle, int device) {
  DeviceUuid mine{}, none{};
  Status s = driver_.uuid(device, &mine);
  if (!s.ok()) {
    throw Error(GLAKE_DRIVER_ERROR,
                "the driver does not name " + device_text(device) + ": " + driver_.describe(s));
  }
  if (handle.uuid == mine || handle.uuid == none || mine == none) return;
  throw Error(GLAKE_INVALID_DEVICE,
              "the block is on the GPU " + hex_of(handle.uuid.data(), handle.uuid.size()) +
                  ", and " + device_text(device) + " is " + hex_of(mine.data(), mine.size()) +
                  "; open it on the device it is on");
}

// Asks the exporter one question. Returns its answer and the descriptors that come with it.
IpcReply Ipc::ask(const Import& import, const IpcRequest& request, std::vector<IpcFd>* fds) {
  uint64_t pid = parse_handle(import.text.c_str()).pid;
  IpcIo io = ipc_send(import.socket, &request, sizeof request, {});
  IpcReply reply;
  if (io == IpcIo::kDone) {
    if (!ipc_wait(import.socket)) throw gone(pid, "does not answer");
    io = ipc_receive(import.socket, &reply, sizeof reply, fds);
  }
  if (io == IpcIo::kClosed) throw gone(pid, "has ended");
  if (io == IpcIo::kBroken || reply.count != fds->size() || reply.count > Tuning::kIpcBatch) {
    throw Error(
        GLAKE_DRIVER_ERROR,
        "descriptors of a shared block did not arrive; is the limit of open files reached?");
  }
  reply.text[sizeof reply.text - 1] = '\0';
  if (reply.status != GLAKE_OK) {
    bool known = reply.status > GLAKE_OK && reply.status <= GLAKE_REGION_REFUSED;
    throw Error(known ? static_cast<glake_status>(reply.status) : GLAKE_INTERNAL,
                std::string(reply.text) + " (process " + std::to_string(pid) + ")");
  }
  return reply;
}

void Ipc::connect(Import& import, const IpcHandle& handle, const IpcRequest& request,
                  IpcReply* reply) {
  import.socket = ipc_connect(handle.pid, handle.socket);
  if (!import.socket) throw gone(handle.pid, "has ended, or shares nothing any more");
  if (!ipc_same_user(import.socket)) {
    throw Error(GLAKE_INVALID_ARGUMENT, "the handle's socket belongs to another user");
  }
  std::vector<IpcFd> none;
  *reply = ask(import, request, &none);
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
    ask(import, request, &fds);
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
  if (s.ok()) s = driver_.set_access(import.base, import.mapped, grants);
  return s;
}

// Undoes the import step by step. If the driver refuses a step, the next call begins with that
// step.
Status Ipc::take_apart(Import& import) {
  Status s;
  if (import.legacy) {
    if (import.base != 0) s = driver_.close_legacy(import.base);
    if (s.ok()) import.base = 0;
  } else {
    if (import.mapped != 0) s = driver_.unmap(import.base, import.mapped);
    if (s.ok()) import.mapped = 0;
  }
  if (!s.ok()) return s;
  import.held = import.handle != 0 ? import.handle_bytes : 0;
  import.socket.reset();
  if (import.handle != 0) s = driver_.release(import.handle);
  if (!s.ok()) return s;
  import.handle = 0;
  import.held = 0;
  if (import.base != 0) s = driver_.free_range(import.base, import.reserved);
  if (s.ok()) import.base = 0;
  return s;
}

// Gives everything back after import() has failed. Returns a text to add to the error; "" if the
// driver took everything.
std::string Ipc::give_up(std::unique_ptr<Import> import) {
  const Status s = take_apart(*import);
  if (s.ok()) return "";
  std::lock_guard<std::mutex> guard(mutex_);
  return ". Besides, " + owe(std::move(import), s);
}

// Keeps an import that the driver refused to take back in full, and returns a text about it.
// Callers hold the mutex.
std::string Ipc::owe(std::unique_ptr<Import> import, const Status& refusal) {
  const Bytes addresses = import->kept_addresses();
  const std::string what = import->held != 0
                               ? size_text(import->held) + " of memory (glake.owed_bytes)"
                               : size_text(addresses) + " of addresses";
  import->on->sharing().owe_imported(import->held, addresses, driver_.describe(refusal));
  owed_.push_back(std::move(import));
  return "the driver refused to take back " + what + ": " + driver_.describe(refusal) +
         ". Emptying the cache (torch.cuda.empty_cache(), glake_empty_cache()), the next opening "
         "and the end of the process try again";
}

void Ipc::settle() {
  std::lock_guard<std::mutex> guard(mutex_);
  settle_owed();
}

void Ipc::settle_owed() {
  auto paid = [this](const std::unique_ptr<Import>& import) {
    DeviceScope scope(driver_, import->on->number());
    if (!scope.status().ok()) return false;
    import->on->sharing().pay_imported(import->held, import->kept_addresses());
    const Status s = take_apart(*import);
    if (s.ok()) return true;
    import->on->sharing().owe_imported(import->held, import->kept_addresses(), driver_.describe(s));
    return false;
  };
  owed_.erase(std::remove_if(owed_.begin(), owed_.end(), paid), owed_.end());
}

Address Ipc::open(const std::string& text, DeviceAllocator& device, Bytes* bytes) {
  IpcHandle handle = parse_handle(text.c_str());
  if (server_.is_mine(handle)) {
    throw Error(GLAKE_INVALID_ARGUMENT,
                "this process shared the block itself; use its own address");
  }
  check_device(handle, device.number());
  std::unique_lock<std::mutex> lock(mutex_);
  settle_owed();
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

// Maps the block. The mutex is not held, because the other process may be stopped.
std::unique_ptr<Ipc::Import> Ipc::import(const std::string& text, const IpcHandle& handle,
                                         DeviceAllocator& device) {
  auto import = std::make_unique<Import>();
  import->text = text;
  import->on = &device;
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
  const int device = import.on->number();
  DeviceScope scope(driver_, device);
  Status s = scope.status();
  if (s.ok()) s = driver_.synchronize(device);  // work may still use the block
  if (s.ok()) s = take_apart(import);
  bool mapped = import.mapped != 0 || (import.legacy && import.base != 0);
  if (!s.ok() && mapped) {
    throw Error(GLAKE_DRIVER_ERROR, "the driver refused to unmap " + hex(ptr) + ": " +
                                        driver_.describe(s) + "; it stays open, try again");
  }
  opened_.erase(import.text);
  std::unique_ptr<Import> closed = std::move(found->second);
  imports_.erase(found);
  if (s.ok()) return;
  throw Error(GLAKE_MEMORY_OWED, hex(ptr) + " is closed, but " + owe(std::move(closed), s));
}

void Ipc::close() {
  std::unique_lock<std::mutex> lock(mutex_);
  asked_.wait(lock, [this] { return asking_.empty(); });
  if (!imports_.empty()) {
    throw Error(GLAKE_INVALID_ARGUMENT, std::to_string(imports_.size()) +
                                            " blocks of other processes are open; "
                                            "glake_ipc_close() them before glake_shutdown()");
  }
  settle_owed();
  if (!owed_.empty()) {
    throw Error(GLAKE_DRIVER_ERROR,
                "the driver refused to give up a block of another process; try again");
  }
  server_.stop();
}

}  // namespace glake

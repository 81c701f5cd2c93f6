#include "ipc/ipc_server.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include "base/tuning.h"
#include "driver/device_scope.h"
#include "ipc/ipc_thread.h"

namespace glake {
namespace {

constexpr uint64_t kDevices = 64;  // a block's number modulo this is its device

bool same(const IpcToken& a, const IpcToken& b) {
  // Compares all bytes in any case. So the time it takes does not tell how many bytes were right.
  uint8_t differ = 0;
  for (size_t i = 0; i < a.size(); ++i) differ |= a[i] ^ b[i];
  return differ == 0;
}

void refuse(IpcReply* reply, int status, const std::string& text) {
  reply->status = status;
  std::snprintf(reply->text, sizeof reply->text, "%s", text.c_str());
}

}  // namespace

void IpcServer::start() {
  std::lock_guard<std::mutex> guard(mutex_);
  if (running_) return;
  IpcFd wake = IpcFd::open([] { return eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); });
  uint64_t name = 0;
  IpcToken token{};
  auto pid = static_cast<uint64_t>(getpid());
  bool ok = wake && ipc_random(&name, sizeof name) && ipc_random(&token, sizeof token);
  IpcFd listener = ok ? ipc_listen(IpcService::kShare, {pid, name}) : IpcFd();
  if (!listener) {
    throw Error(GLAKE_INTERNAL, "the system refuses a socket to share memory through: errno " +
                                    std::to_string(errno) +
                                    " (is the limit of open files reached?)");
  }
  listener_ = std::move(listener);
  wake_ = std::move(wake);
  pid_ = pid;
  name_ = name;
  token_ = token;
  try {
    thread_ = ipc_thread("glake-ipc", [this] { run(); });
  } catch (const Error&) {
    listener_.reset();
    throw;
  }
  running_ = true;
}

void IpcServer::stop() {
  std::lock_guard<std::mutex> guard(mutex_);
  if (!running_) return;
  eventfd_write(wake_.get(), 1);
  thread_.join();
  listener_.reset();
  wake_.reset();
  running_ = false;
}

uint64_t IpcServer::number(Device& device) {
  auto ordinal = static_cast<uint64_t>(device.number);
  devices_[ordinal] = &device;
  return ++last_ * kDevices + ordinal;
}

uint64_t IpcServer::offer(int device, Handle handle, Bytes bytes) {
  std::lock_guard<std::mutex> guard(offers_mutex_);
  const uint64_t number = ++last_ * kDevices + static_cast<uint64_t>(device);
  offers_[number] = {device, handle, bytes};
  return number;
}

void IpcServer::withdraw(uint64_t number) {
  std::lock_guard<std::mutex> guard(offers_mutex_);
  offers_.erase(number);
}

void IpcServer::fill(IpcHandle* handle) const {
  std::lock_guard<std::mutex> guard(mutex_);
  handle->pid = pid_;
  handle->socket = name_;
  handle->token = token_;
}

bool IpcServer::is_mine(const IpcHandle& handle) const {
  std::lock_guard<std::mutex> guard(mutex_);
  return running_ && handle.pid == pid_ && handle.socket == name_;
}

// No exception may leave the thread. If one is thrown (no host memory left), every connection ends.
void IpcServer::run() {
  try {
    serve();
  } catch (...) {
    shutdown(listener_.get(), SHUT_RDWR);
  }
  for (auto& connection : connections_) end(*connection);
  connections_.clear();
}

void IpcServer::serve() {
  std::vector<pollfd> watched;
  bool accepting = true;
  for (;;) {
    watched.assign({{wake_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}});
    if (!accepting || connections_.size() >= Tuning::kIpcConnections) watched[1].fd = -1;
    for (auto& c : connections_) watched.push_back({c->socket.get(), POLLIN, 0});
    int ready = poll(watched.data(), watched.size(), accepting ? -1 : Tuning::kIpcRetryMs);
    if (ready < 0 && errno != EINTR) return;
    if (watched[0].revents != 0) return;
    accepting = true;
    for (size_t i = connections_.size(); ready > 0 && i-- > 0;) {
      if (watched[i + 2].revents == 0 || answer(*connections_[i])) continue;
      end(*connections_[i]);
      connections_.erase(connections_.begin() + static_cast<std::ptrdiff_t>(i));
    }
    if (ready > 0 && watched[1].revents != 0) accepting = accept_one();
  }
}

// False if the system has no descriptor for the connection now.
bool IpcServer::accept_one() {
  auto connection = std::make_unique<Connection>();
  int reason = 0;
  connection->socket = IpcFd::open([&] {
    int fd = accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    reason = fd < 0 ? errno : 0;
    return fd;
  });
  if (!connection->socket) return reason == EAGAIN || reason == ECONNABORTED || reason == EINTR;
  if (ipc_same_user(connection->socket)) connections_.push_back(std::move(connection));
  return true;
}

void IpcServer::end(Connection& connection) {
  if (connection.device != nullptr) {
    Sharing(*connection.device).unpin(connection.block.ptr, PinOwner::kProcess);
  }
  connection.device = nullptr;
  connection.socket.reset();
}

// Answers one request. False when the connection has ended or should end.
bool IpcServer::answer(Connection& connection) {
  IpcRequest request;
  if (ipc_receive(connection.socket, &request, sizeof request, nullptr) != IpcIo::kDone) {
    return false;
  }
  IpcReply reply;
  std::vector<IpcFd> fds;
  if (request.magic != kIpcMagic || !same(request.token, token_)) {
    refuse(&reply, GLAKE_INVALID_ARGUMENT, "the handle's token is not the exporting process's");
  } else if (request.op == IpcOp::kOpen && connection.device == nullptr) {
    open(connection, request, &reply);
  } else if (request.op == IpcOp::kNext && connection.device != nullptr) {
    next(connection, request.from, &reply, &fds);
  } else if (request.op == IpcOp::kShard && connection.device == nullptr) {
    give_shard(request.id, &reply, &fds);
  } else {
    refuse(&reply, GLAKE_INVALID_ARGUMENT,
           "this request does not fit what the connection has asked before");
  }
  reply.count = static_cast<uint32_t>(fds.size());
  bool sent = ipc_send(connection.socket, &reply, sizeof reply, fds) == IpcIo::kDone;
  return sent && reply.status == GLAKE_OK;
}

void IpcServer::open(Connection& connection, const IpcRequest& request, IpcReply* reply) {
  Device* device = devices_[request.id % kDevices].load();
  SharedBlock& block = connection.block;
  if (device == nullptr || !Sharing(*device).open(request.id, &block)) {
    refuse(reply, GLAKE_INVALID_POINTER, "the block has been freed by the exporting process");
    return;
  }
  connection.device = device;
  reply->bytes = block.bytes;
  reply->offset = block.offset;
  reply->handle_bytes = block.handle_bytes;
  reply->handles = block.handles.size();
  reply->legacy = block.legacy ? 1 : 0;
}

void IpcServer::next(Connection& connection, uint64_t from, IpcReply* reply,
                     std::vector<IpcFd>* fds) {
  const std::vector<Handle>& handles = connection.block.handles;
  if (ipc_exiting() || from >= handles.size()) {
    refuse(reply, GLAKE_INVALID_POINTER, "the exporting process is ending");
    return;
  }
  DeviceScope scope(driver_, connection.device->number);
  Status s = scope.status();
  for (uint64_t i = from; s.ok() && i < handles.size() && fds->size() < Tuning::kIpcBatch; ++i) {
    int fd = -1;
    s = driver_.export_fd(handles[i], &fd);
    if (s.ok()) fds->push_back(IpcFd::open([fd] { return fd; }));
  }
  if (s.ok()) return;
  fds->clear();
  refuse(reply, GLAKE_DRIVER_ERROR,
         "the exporting process's driver refused to export the memory: " + driver_.describe(s));
}

void IpcServer::give_shard(uint64_t number, IpcReply* reply, std::vector<IpcFd>* fds) {
  std::lock_guard<std::mutex> guard(offers_mutex_);
  auto found = offers_.find(number);
  if (ipc_exiting() || found == offers_.end()) {
    refuse(reply, GLAKE_INVALID_POINTER, "the shard has been closed by the process that shared it");
    return;
  }
  const Offer& offer = found->second;
  DeviceScope scope(driver_, offer.device);
  Status s = scope.status();
  int fd = -1;
  if (s.ok()) s = driver_.export_fd(offer.handle, &fd);
  if (!s.ok()) {
    refuse(reply, GLAKE_DRIVER_ERROR,
           "the driver refused to export a shard: " + driver_.describe(s));
    return;
  }
  fds->push_back(IpcFd::open([fd] { return fd; }));
  reply->bytes = offer.bytes;
  reply->handle_bytes = round_up(offer.bytes, kGranule);
  reply->handles = 1;
}

}  // namespace glake

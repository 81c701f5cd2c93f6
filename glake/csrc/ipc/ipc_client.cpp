#include "ipc/ipc_client.h"

#include "base/tuning.h"

namespace glake {
namespace {

Error gone(uint64_t pid, const char* why) {
  return Error(GLAKE_INVALID_POINTER, "process " + std::to_string(pid) +
                                          ", which shared the block, " + why +
                                          "; ask it for a new handle");
}

}  // namespace

void require_same_gpu(Driver& driver, const IpcHandle& handle, int device) {
  DeviceUuid mine{}, none{};
  Status s = driver.uuid(device, &mine);
  if (!s.ok()) {
    throw Error(GLAKE_DRIVER_ERROR,
                "the driver does not name " + device_text(device) + ": " + driver.describe(s));
  }
  if (handle.uuid == mine || handle.uuid == none || mine == none) return;
  throw Error(GLAKE_INVALID_DEVICE,
              "the block is on the GPU " + hex_of(handle.uuid.data(), handle.uuid.size()) +
                  ", and " + device_text(device) + " is " + hex_of(mine.data(), mine.size()) +
                  "; open it on the device it is on");
}

IpcClient::IpcClient(const IpcHandle& handle)
    : pid_(handle.pid),
      socket_(
          ipc_connect(IpcService::kShare, {handle.pid, handle.socket}, Tuning::kIpcPatienceMs)) {
  if (!socket_) throw gone(pid_, "has ended, or shares nothing any more");
  if (!ipc_same_user(socket_)) {
    throw Error(GLAKE_INVALID_ARGUMENT, "the handle's socket belongs to another user");
  }
}

IpcReply IpcClient::ask(const IpcRequest& request, std::vector<IpcFd>* fds) const {
  IpcIo io = ipc_send(socket_, &request, sizeof request, {});
  IpcReply reply;
  if (io == IpcIo::kDone) {
    if (!ipc_wait(socket_, Tuning::kIpcPatienceMs)) throw gone(pid_, "does not answer");
    io = ipc_receive(socket_, &reply, sizeof reply, fds);
  }
  if (io == IpcIo::kClosed) throw gone(pid_, "has ended");
  if (io == IpcIo::kBroken || reply.count != fds->size() || reply.count > Tuning::kIpcBatch) {
    throw Error(
        GLAKE_DRIVER_ERROR,
        "descriptors of a shared block did not arrive; is the limit of open files reached?");
  }
  reply.text[sizeof reply.text - 1] = '\0';
  if (reply.status != GLAKE_OK) {
    bool known = reply.status > GLAKE_OK && reply.status <= GLAKE_REGION_REFUSED;
    throw Error(known ? static_cast<glake_status>(reply.status) : GLAKE_INTERNAL,
                std::string(reply.text) + " (process " + std::to_string(pid_) + ")");
  }
  return reply;
}

}  // namespace glake

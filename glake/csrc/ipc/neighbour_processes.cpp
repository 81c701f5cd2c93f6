#include "ipc/neighbour_processes.h"

#include <algorithm>

#include "base/tuning.h"

namespace glake {

NeighbourProcesses::~NeighbourProcesses() {
  server_.stop();
  for (DeviceAllocator* device : devices_) device->use_neighbours(nullptr);
}

void NeighbourProcesses::add(DeviceAllocator& device) {
  devices_.push_back(&device);
  server_.serve(device);
  device.use_neighbours(this);
}

Neighbours::Answer NeighbourProcesses::ask(int device, Bytes bytes) {
  Answer answer;
  GiveBackRequest request;
  const DeviceUuid none{};
  // A driver that does not name its GPUs cannot say which processes use the same one.
  if (!driver_.uuid(device, &request.uuid).ok() || request.uuid == none) return answer;
  const Deadline deadline =
      std::chrono::steady_clock::now() + std::chrono::milliseconds(Tuning::kNeighbourPatienceMs);
  for (const IpcPlace& place : ipc_places(IpcService::kGiveBack)) {
    if (answer.given >= bytes) break;
    if (server_.is_mine(place)) continue;
    request.bytes = bytes - answer.given;
    ask_one(place, request, deadline, &answer);
  }
  return answer;
}

void NeighbourProcesses::ask_one(const IpcPlace& place, const GiveBackRequest& request,
                                 Deadline deadline, Answer* answer) {
  using std::chrono::duration_cast;
  using std::chrono::milliseconds;
  const auto left = duration_cast<milliseconds>(deadline - std::chrono::steady_clock::now());
  const int patience = std::max(static_cast<int>(left.count()), Tuning::kNeighbourLeastMs);
  const IpcFd socket = ipc_connect(IpcService::kGiveBack, place, patience);
  if (!socket || !ipc_same_user(socket)) return;  // it has just ended, or is somebody else's
  if (ipc_send(socket, &request, sizeof request, {}) != IpcIo::kDone) return;
  if (!ipc_wait(socket, patience)) {
    ++answer->asked;
    ++answer->silent;
    return;
  }
  GiveBackReply reply;
  if (ipc_receive(socket, &reply, sizeof reply, nullptr) != IpcIo::kDone ||
      reply.magic != kIpcMagic || reply.uses_gpu == 0) {
    return;
  }
  ++answer->asked;
  answer->given += reply.given;
}

}  // namespace glake

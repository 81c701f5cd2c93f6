#include "ipc/neighbour_processes.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <tuple>

#include "base/tuning.h"

namespace glake {
namespace {

std::string errno_text(int error) {
  const bool files = error == EMFILE || error == ENFILE;
  return std::string(std::strerror(error)) + " (errno " + std::to_string(error) + ")" +
         (files ? "; raise the limit of open files (ulimit -n)" : "");
}

}  // namespace

NeighbourProcesses::~NeighbourProcesses() {
  server_.stop();
  for (DeviceAllocator* device : devices_) device->use_neighbours(nullptr);
}

void NeighbourProcesses::add(DeviceAllocator& device) {
  server_.serve(device);
  devices_.push_back(&device);
  device.use_neighbours(this);
}

Neighbours::Answer NeighbourProcesses::ask(int device, Bytes bytes) {
  Answer answer;
  GiveBackRequest request;
  const DeviceUuid none{};
  if (!driver_.uuid(device, &request.uuid).ok() || request.uuid == none) {
    answer.hindrance = "the driver does not say which GPU this is";
    return answer;
  }
  const Clock::time_point began = Clock::now();
  const std::vector<Other> all = others(request.uuid, &answer);
  for (size_t i = 0; i < all.size() && answer.given < bytes; ++i) {
    using std::chrono::duration_cast;
    using std::chrono::milliseconds;
    const auto passed = static_cast<int>(duration_cast<milliseconds>(Clock::now() - began).count());
    if (passed >= Tuning::kNeighbourMostMs) {
      answer.left = all.size() - i;
      break;
    }
    // One that does not answer leaves time for the others.
    const int left = Tuning::kNeighbourPatienceMs - passed;
    int patience = i + 1 == all.size() ? left : left / 2;
    if (all[i].known.last == Last::kSilent) patience = 0;
    request.bytes = bytes - answer.given;
    ask_one(all[i], request, std::max(patience, Tuning::kNeighbourLeastMs), &answer);
  }
  return answer;
}

// Those that can be asked, in the order in which they are. What is known of ended ones is
// forgotten.
std::vector<NeighbourProcesses::Other> NeighbourProcesses::others(const DeviceUuid& gpu,
                                                                  Answer* answer) {
  int error = 0;
  std::vector<Other> all;
  std::lock_guard<std::mutex> guard(mutex_);
  std::map<std::pair<uint64_t, uint64_t>, Known> there;
  for (const IpcPlace& place : ipc_places(IpcService::kGiveBack, &error)) {
    if (server_.is_mine(place)) continue;
    const auto known = known_.find({place.pid, place.name});
    if (known != known_.end()) there.insert(*known);
    if (!GiveBackServer::may_use(place, gpu)) continue;
    all.push_back({place, known == known_.end() ? Known{} : known->second});
  }
  if (error != 0) answer->hindrance = "/proc/net/unix cannot be read: " + errno_text(error);
  if (error == 0) known_.swap(there);
  std::stable_sort(all.begin(), all.end(), [](const Other& a, const Other& b) {
    return std::tie(a.known.last, a.known.turn) < std::tie(b.known.last, b.known.turn);
  });
  return all;
}

void NeighbourProcesses::note(const IpcPlace& place, Last last) {
  std::lock_guard<std::mutex> guard(mutex_);
  if (last == Last::kNothing) {
    known_.erase({place.pid, place.name});
  } else {
    known_[{place.pid, place.name}] = {last, ++turn_};
  }
}

void NeighbourProcesses::ask_one(const Other& other, const GiveBackRequest& request, int patience,
                                 Answer* answer) {
  const Clock::time_point end = Clock::now() + std::chrono::milliseconds(patience);
  const IpcFd socket = ipc_connect(IpcService::kGiveBack, other.place, patience);
  if (!socket) {
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      answer->hindrance = "the system refuses a socket: " + errno_text(errno);
    }
    return;  // or it has just ended
  }
  if (!ipc_same_user(socket)) return;
  if (ipc_send(socket, &request, sizeof request, {}) != IpcIo::kDone) return;
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now());
  if (!ipc_wait(socket, std::max(static_cast<int>(left.count()), 0))) {
    ++answer->asked;
    ++answer->silent;
    if (other.known.last != Last::kSilent) ++answer->late;
    note(other.place, Last::kSilent);
    return;
  }
  GiveBackReply reply;
  if (ipc_receive(socket, &reply, sizeof reply, nullptr) != IpcIo::kDone ||
      reply.magic != kIpcMagic || reply.uses_gpu == 0) {
    note(other.place, Last::kNothing);
    return;
  }
  ++answer->asked;
  answer->given += std::min(reply.given, UINT64_MAX - answer->given);
  note(other.place, reply.given != 0 ? Last::kGave : Last::kNothing);
}

}  // namespace glake

#include "joining.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <set>

#include "error.h"

namespace nccl {
namespace {

constexpr char kTag[] = "glake";  // an id is this and 32 hexadecimal digits
constexpr auto kPatience = std::chrono::minutes(10);
constexpr uint64_t kListenUs = 50'000;  // between two looks for ranks that have died
constexpr size_t kLongestName = 80;     // characters; longer names get a hash

std::mutex live_mutex;
std::set<ncclComm*>& live() {
  static auto* set = new std::set<ncclComm*>;
  return *set;
}

// Ends the threads before the libraries that they call end, and tells the peers.
void leave_all() {
  std::set<ncclComm*> left;
  {
    const std::lock_guard<std::mutex> lock(live_mutex);
    left.swap(live());
  }
  for (ncclComm* comm : left) comm->engine->stop(Presence::kAborted);
}

void keep(ncclComm* comm) {
  static const int process = getpid();
  static const int registered = atexit([] {
    if (getpid() == process) leave_all();  // a forked child has no such threads
  });
  static_cast<void>(registered);
  const std::lock_guard<std::mutex> lock(live_mutex);
  live().insert(comm);
}

ncclResult context_of(int device, CUcontext* context) {
  CUdevice current = -1;
  if (cuCtxGetDevice(&current) == CUDA_SUCCESS && current == device) {
    cuCtxGetCurrent(context);
    return ncclSuccess;
  }
  const CUresult code = cuDevicePrimaryCtxRetain(context, device);
  return code == CUDA_SUCCESS ? ncclSuccess : cuda_error(code, "the context of a rank's device");
}

}  // namespace

Joining Joining::rank(ncclComm** made, std::string name, int size, int rank, int device) {
  Joining it;
  it.made_ = made;
  it.name_ = std::move(name);
  it.size_ = size;
  it.rank_ = rank;
  it.device_ = device;
  return it;
}

Joining Joining::split(ncclComm** made, std::shared_ptr<Engine> parent, int color, int key) {
  Joining it;
  it.made_ = made;
  it.device_ = parent->device();
  it.parent_ = std::move(parent);
  it.color_ = color;
  it.key_ = key;
  return it;
}

ncclResult Joining::publish() {
  if (parent_ != nullptr) turn_ = parent_->splits().publish(color_, key_);
  return ncclSuccess;
}

ncclResult Joining::choose() {
  std::vector<std::pair<int, int>> wishes;
  const ncclResult result = parent_->splits().read(turn_, &wishes);
  if (result != ncclSuccess || color_ < 0) return result;
  std::vector<std::pair<int, int>> members;  // key, rank in the parent
  for (int rank = 0; rank < parent_->size(); ++rank) {
    const auto& [color, key] = wishes[static_cast<size_t>(rank)];
    if (color == color_) members.emplace_back(key, rank);
  }
  std::sort(members.begin(), members.end());
  size_ = static_cast<int>(members.size());
  for (int i = 0; i < size_; ++i) {
    if (members[static_cast<size_t>(i)].second == parent_->rank()) rank_ = i;
  }
  name_ = parent_->room().name() + "-" + std::to_string(turn_) + "." + std::to_string(color_);
  // This happens to a split of a split of a split and so on.
  if (name_.size() > kLongestName) {
    char text[32];
    std::snprintf(text, sizeof text, "-%016zx", std::hash<std::string>()(name_));
    name_ = name_.substr(0, kLongestName / 2) + text;
  }
  return ncclSuccess;
}

ncclResult Joining::enter() {
  *made_ = nullptr;
  if (parent_ != nullptr) {
    const ncclResult result = choose();
    if (result != ncclSuccess || color_ < 0) return result;
  }
  const ncclResult result = Room::open(name_, size_, &room_);
  return result != ncclSuccess ? result : room_->enter(rank_, device_);
}

std::string Joining::missing() const {
  std::string text;
  for (int rank = 0; rank < size_; ++rank) {
    if (room_->page()->rank[rank].presence != Presence::kAbsent) continue;
    text += (text.empty() ? "" : ", ") + std::to_string(rank);
  }
  return text;
}

ncclResult Joining::check_devices() const {
  const Page& page = *room_->page();
  for (int a = 0; a < size_; ++a) {
    for (int b = 0; b < a; ++b) {
      if (page.rank[a].machine != page.rank[b].machine ||
          page.rank[a].device != page.rank[b].device) {
        continue;
      }
      return fail(ncclInvalidUsage, "Duplicate GPU detected : rank " + std::to_string(a) +
                                        " and rank " + std::to_string(b) + " both on CUDA device " +
                                        std::to_string(page.rank[a].device));
    }
  }
  return ncclSuccess;
}

ncclResult Joining::wait() {
  if (room_ == nullptr) return ncclSuccess;  // this rank joins no part of the split
  const auto start = std::chrono::steady_clock::now();
  while (true) {
    const uint32_t bell = room_->bell(rank_);
    if (missing().empty()) break;
    for (int rank = 0; rank < size_; ++rank) {
      const bool came = room_->page()->rank[rank].presence != Presence::kAbsent;
      if (rank == rank_ || !came || room_->alive(rank)) continue;
      room_->leave(rank_, Presence::kAborted);
      return fail(ncclRemoteError, "rank " + std::to_string(rank) +
                                       " has gone before the communicator was complete");
    }
    if (std::chrono::steady_clock::now() - start > kPatience) {
      const std::string who = missing();
      room_->leave(rank_, Presence::kAborted);
      return fail(ncclSystemError, "rank " + std::to_string(rank_) + " of " +
                                       std::to_string(size_) + " has waited 10 minutes for ranks " +
                                       who);
    }
    room_->listen(rank_, bell, kListenUs);
  }
  CUcontext context = nullptr;
  ncclResult result = check_devices();
  if (result == ncclSuccess) result = context_of(device_, &context);
  if (result != ncclSuccess) {
    room_->leave(rank_, Presence::kAborted);
    return result;
  }
  auto* comm = new ncclComm{std::make_shared<Engine>(room_, rank_, device_, context)};
  comm->engine->start();
  keep(comm);
  *made_ = comm;
  return ncclSuccess;
}

ncclResult Joining::run() {
  ncclResult result = publish();
  if (result == ncclSuccess) result = enter();
  return result == ncclSuccess ? wait() : result;
}

std::string name_of(const ncclUniqueId& id) {
  const std::string text(id.internal, strnlen(id.internal, sizeof id.internal));
  constexpr size_t kLength = sizeof kTag - 1 + 32;
  if (text.size() != kLength || text.rfind(kTag, 0) != 0) return "";
  const std::string digits = text.substr(sizeof kTag - 1);
  const bool hex = std::all_of(digits.begin(), digits.end(),
                               [](unsigned char c) { return std::isxdigit(c) != 0; });
  return hex ? digits : "";
}

void make_id(ncclUniqueId* id) {
  std::random_device random;
  std::memset(id, 0, sizeof *id);
  std::snprintf(id->internal, sizeof id->internal, "%s%08x%08x%08x%08x", kTag, random(), random(),
                random(), random());
}

int current_device() {
  // Asks the runtime, if there is one, because a thread has a device before it has a context.
  using GetDevice = int (*)(int*);
  for (const char* runtime : {"libcudart.so.13", "libcudart.so.12"}) {
    void* library = dlopen(runtime, RTLD_LAZY | RTLD_NOLOAD);
    if (library == nullptr) continue;
    const auto ask = reinterpret_cast<GetDevice>(dlsym(library, "cudaGetDevice"));
    int device = -1;
    const bool known = ask != nullptr && ask(&device) == 0;
    dlclose(library);
    if (known) return device;
  }
  CUdevice device = -1;
  const CUresult code = cuCtxGetDevice(&device);
  if (code == CUDA_SUCCESS) return device;
  cuda_error(code, "the calling thread's device");
  return -1;
}

ncclResult end(ncclComm* comm, Presence how) {
  {
    const std::lock_guard<std::mutex> lock(live_mutex);
    if (live().erase(comm) == 0) {
      return fail(ncclInvalidArgument, "not a communicator, or one that has ended");
    }
  }
  ncclResult result = ncclSuccess;
  if (how == Presence::kLeft) result = comm->engine->flush();
  comm->engine->stop(how);
  delete comm;
  return result;
}

}  // namespace nccl

#include "transfer/remote/remote_gpus.h"

#include <algorithm>

namespace glake::transfer {
namespace {

std::mutex left_mutex;
// Memory that outlives its engine. The callers must free it.
std::map<Address, std::unique_ptr<SharedMemory>>& left_memory() {
  static auto* memory = new std::map<Address, std::unique_ptr<SharedMemory>>;
  return *memory;
}

}  // namespace

bool RemoteGpus::on_way(const Path& path) const {
  return std::any_of(path.hops.begin(), path.hops.end(),
                     [&](const Hop& hop) { return remote(hop.from.gpu) || remote(hop.to.gpu); });
}

bool RemoteGpus::carries(const Hop& hop) const {
  const auto own = [&](const Place& place) { return !place.host() && !remote(place.gpu); };
  return (remote(hop.from.gpu) || remote(hop.to.gpu)) && !own(hop.from) && !own(hop.to);
}

// This process cannot call on the service's GPUs, so its own GPU makes a copy between the two.
int RemoteGpus::worker_of(const Hop& hop) const {
  if (hop.from.host() || remote(hop.from.gpu)) return hop.to.gpu;
  return hop.reads && !remote(hop.to.gpu) ? hop.to.gpu : hop.from.gpu;
}

void RemoteGpus::open(const std::string& path, int device, const std::vector<Relay>& relays) {
  LinkPtr link = this->link();
  if (link == nullptr || !link->alive()) {
    const auto made = std::make_shared<RemoteLink>(driver_, device, path);
    std::lock_guard<std::mutex> guard(mutex_);
    opened_ = 0;
    if (link != nullptr) old_.push_back(std::move(link));
    old_.erase(
        std::remove_if(old_.begin(), old_.end(), [](const LinkPtr& old) { return old->idle(); }),
        old_.end());
    link_ = link = made;
  }
  for (const Relay& relay : relays) {
    link->open(relay.here, relay.there, relay.near);
    opened_ |= uint32_t{1} << relay.here;
  }
}

RemoteGpus::LinkPtr RemoteGpus::link() {
  std::lock_guard<std::mutex> guard(mutex_);
  return link_;
}

RemoteGpus::LinkPtr RemoteGpus::link_or_throw() {
  LinkPtr found = link();
  if (found == nullptr) throw Error(GLAKE_COPY_REFUSED, "no relay service is connected");
  return found;
}

Address RemoteGpus::lend(int gpu, Bytes bytes) {
  const Address at = link_or_throw()->lend(gpu, bytes);
  if (at != 0) return at;
  throw Error(GLAKE_OUT_OF_MEMORY, "the relay service's buffer on " + device_text(gpu) +
                                       " has no room for " + size_text(bytes));
}

bool RemoteGpus::room(const Path& path, Bytes bytes) {
  const LinkPtr found = link();
  return std::all_of(path.hops.begin(), path.hops.end(), [&](const Hop& hop) {
    return !remote(hop.to.gpu) || found == nullptr || found->room(hop.to.gpu, bytes);
  });
}

void RemoteGpus::give_back(Address at, Bytes bytes) noexcept {
  std::lock_guard<std::mutex> guard(mutex_);
  if (link_ != nullptr && link_->give_back(at, bytes)) return;
  for (const LinkPtr& old : old_) {
    if (old->give_back(at, bytes)) return;
  }
}

Address RemoteGpus::allocate_host(Bytes bytes, int device) {
  auto memory = std::make_unique<SharedMemory>(driver_, device, bytes);
  const Address at = memory->at();
  std::lock_guard<std::mutex> guard(mutex_);
  shared_[at] = {std::move(memory), ++last_id_, {}};
  return at;
}

void RemoteGpus::free_host(Address at) {
  Shared shared;
  {
    std::lock_guard<std::mutex> guard(mutex_);
    const auto found = shared_.find(at);
    if (found == shared_.end()) {
      throw Error(GLAKE_INVALID_POINTER, hex(at) + " is no host memory shared with the service");
    }
    shared = std::move(found->second);
    shared_.erase(found);
  }
  const LinkPtr link = shared.known_to.lock();
  if (link == nullptr || !link->alive()) return;
  try {
    link->forget(shared.id);
  } catch (const Error&) {  // the link is gone, and its mapping with it
  }
}

bool RemoteGpus::reaches(Address at, Bytes bytes) {
  std::lock_guard<std::mutex> guard(mutex_);
  auto found = shared_.upper_bound(at);
  return found != shared_.begin() && std::prev(found)->second.memory->holds(at, bytes);
}

std::pair<uint64_t, Bytes> RemoteGpus::shared_at(const LinkPtr& link, Address at, Bytes bytes) {
  std::lock_guard<std::mutex> guard(mutex_);
  auto found = shared_.upper_bound(at);
  if (found == shared_.begin() || !std::prev(found)->second.memory->holds(at, bytes)) {
    throw Error(GLAKE_COPY_REFUSED, hex(at) + " is no host memory shared with the relay service");
  }
  Shared& shared = std::prev(found)->second;
  if (shared.known_to.lock() != link) {
    link->share(shared.id, *shared.memory);
    shared.known_to = link;
  }
  return {shared.id, at - shared.memory->at()};
}

// Sizes are powers of two, so that the pieces of one transfer serve the next.
Address RemoteGpus::lend_stage(Bytes bytes, int device) {
  {
    std::lock_guard<std::mutex> guard(mutex_);
    std::vector<Address>& spare = stages_[bytes];
    if (!spare.empty()) {
      const Address at = spare.back();
      spare.pop_back();
      return at;
    }
  }
  const Address at = allocate_host(bytes, device);
  std::lock_guard<std::mutex> guard(mutex_);
  stages_[bytes].reserve(shared_.size());  // so that giving it back cannot fail
  return at;
}

void RemoteGpus::give_stage(Address at, Bytes bytes) noexcept {
  std::lock_guard<std::mutex> guard(mutex_);
  stages_[bytes].push_back(at);
}

RemoteFlight RemoteGpus::begin(const Hop& hop, Address to, Address from, Bytes bytes) {
  RemoteFlight flight{link_or_throw(), {}};
  if (hop.from.host()) {
    const auto [shared, at] = shared_at(flight.link, from, bytes);
    flight.copy = flight.link->in(hop.to.gpu, to, shared, at, bytes);
  } else if (hop.to.host()) {
    const auto [shared, at] = shared_at(flight.link, to, bytes);
    flight.copy = flight.link->out(hop.from.gpu, from, shared, at, bytes);
  } else {
    flight.copy = flight.link->across(hop.from.gpu, from, hop.to.gpu, to, bytes);
  }
  return flight;
}

void RemoteGpus::close() {
  std::lock_guard<std::mutex> guard(mutex_);
  opened_ = 0;
  link_ = nullptr;
  old_.clear();
  for (const auto& [bytes, spare] : stages_) {
    for (const Address at : spare) shared_.erase(at);
  }
  stages_.clear();
  std::lock_guard<std::mutex> left(left_mutex);
  for (auto& [at, shared] : shared_) {  // callers may still have it
    shared.memory->unpin();
    left_memory()[at] = std::move(shared.memory);
  }
  shared_.clear();
}

bool RemoteGpus::free_left(Address at) {
  std::lock_guard<std::mutex> guard(left_mutex);
  return left_memory().erase(at) != 0;
}

}  // namespace glake::transfer

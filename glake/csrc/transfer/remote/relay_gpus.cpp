#include "transfer/remote/relay_gpus.h"

#include <sys/eventfd.h>
#include <unistd.h>

namespace glake::transfer {

RelayGpus::RelayGpus(const std::string& driver)
    : driver_(Driver::open(driver)), lost_event_(eventfd(0, EFD_CLOEXEC)) {}

RelayGpus::~RelayGpus() {
  for (const auto& [gpu, bytes] : open_) driver_->detach(gpu);
}

void RelayGpus::open(int gpu) {
  if (gpu < 0 || gpu >= count()) {
    throw Error(GLAKE_INVALID_DEVICE, "the relay service sees no " + device_text(gpu));
  }
  std::lock_guard<std::mutex> guard(mutex_);
  if (open_.count(gpu) != 0) return;
  Status s = driver_->attach(gpu);
  if (s.ok()) s = driver_->choose_traits(gpu);
  if (!s.ok()) throw Error(GLAKE_DRIVER_ERROR, device_text(gpu) + ": " + driver_->describe(s));
  if (!driver_->traits(gpu).shareable) {
    driver_->detach(gpu);
    throw Error(GLAKE_COPY_REFUSED, device_text(gpu) + "'s memory cannot be shared as descriptors");
  }
  open_[gpu] = 0;
}

int RelayGpus::any() {
  {
    std::lock_guard<std::mutex> guard(mutex_);
    if (!open_.empty()) return open_.begin()->first;
  }
  open(0);
  return 0;
}

std::vector<int> RelayGpus::reach(int gpu) {
  std::lock_guard<std::mutex> guard(mutex_);
  std::vector<int> found;
  for (const auto& [other, bytes] : open_) {
    bool reaches = other == gpu;
    if (!reaches && !driver_->can_access_peer(other, gpu, &reaches).ok()) reaches = false;
    if (reaches) found.push_back(other);
  }
  return found;
}

void RelayGpus::note(int gpu, Status status) {
  if (!Driver::ends_context(status)) return;
  std::lock_guard<std::mutex> guard(mutex_);
  if (!lost_.empty()) return;
  lost_ = device_text(gpu) + ": " + driver_->describe(status);
  const uint64_t one = 1;
  (void)!write(lost_event_.get(), &one, sizeof one);
}

std::string RelayGpus::lost() {
  std::lock_guard<std::mutex> guard(mutex_);
  return lost_;
}

void RelayGpus::take(int gpu, Bytes bytes) {
  std::lock_guard<std::mutex> guard(mutex_);
  Bytes& used = open_.at(gpu);
  if (used + bytes > TransferTuning::kAllBuffers) {
    throw Error(GLAKE_OUT_OF_MEMORY, "all " + std::to_string(TransferTuning::kAllBuffers / kMiB) +
                                         " MiB of buffers on " + device_text(gpu) +
                                         " are other clients'");
  }
  used += bytes;
}

void RelayGpus::give(int gpu, Bytes bytes) {
  std::lock_guard<std::mutex> guard(mutex_);
  open_.at(gpu) -= bytes;
}

}  // namespace glake::transfer

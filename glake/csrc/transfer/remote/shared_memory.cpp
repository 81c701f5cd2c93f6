#include "transfer/remote/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "driver/device_scope.h"

namespace glake::transfer {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;

[[noreturn]] void fail(const std::string& what) {
  throw Error(errno == ENOMEM || errno == ENOSPC ? GLAKE_OUT_OF_MEMORY : GLAKE_COPY_REFUSED,
              "host memory for two processes: " + what + ": " + std::strerror(errno));
}

}  // namespace

SharedMemory::SharedMemory(Driver& driver, int device, Bytes bytes)
    : driver_(driver), device_(device) {
  const auto page = static_cast<Bytes>(sysconf(_SC_PAGESIZE));
  bytes_ = round_up(bytes, page);
  file_ = Descriptor(memfd_create("glake-shared", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file_) fail("a file");
  if (ftruncate(file_.get(), static_cast<off_t>(bytes_)) != 0) fail("its size");
  if (fcntl(file_.get(), F_ADD_SEALS, kSeals | F_SEAL_SEAL) != 0) fail("sealing it");
  map();
}

SharedMemory::SharedMemory(Driver& driver, int device, Bytes bytes, Descriptor descriptor)
    : driver_(driver), device_(device), bytes_(bytes), file_(std::move(descriptor)) {
  struct stat info{};
  const int seals = file_ ? fcntl(file_.get(), F_GET_SEALS) : -1;
  if (seals < 0 || fstat(file_.get(), &info) != 0) fail("it is no such file");
  // A file that shrinks under a copy would end this process.
  if ((seals & kSeals) != kSeals || bytes_ == 0 || static_cast<Bytes>(info.st_size) != bytes_) {
    throw Error(GLAKE_COPY_REFUSED, "host memory for two processes: not sealed, or not of " +
                                        std::to_string(bytes_) + " bytes");
  }
  map();
}

void SharedMemory::map() {
  base_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0);
  if (base_ == MAP_FAILED) fail("mapping it");
  DeviceScope scope(driver_, device_);
  Status s = scope.status();
  if (s.ok()) s = driver_.register_host(base_, bytes_);
  pinned_ = s.ok();
  if (pinned_) return;
  munmap(base_, bytes_);
  throw Error(s.out_of_memory() ? GLAKE_OUT_OF_MEMORY : GLAKE_DRIVER_ERROR,
              "host memory for two processes: pinning it: " + driver_.describe(s));
}

void SharedMemory::unpin() {
  if (!pinned_) return;
  DeviceScope scope(driver_, device_);
  if (scope.status().ok() && driver_.unregister_host(base_).ok()) pinned_ = false;
}

SharedMemory::~SharedMemory() {
  unpin();
  if (!pinned_) munmap(base_, bytes_);  // otherwise the driver still knows it
}

}  // namespace glake::transfer

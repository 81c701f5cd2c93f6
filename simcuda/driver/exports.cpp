#include "exports.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "machine.h"

namespace simcuda {
namespace {

struct flock one_byte(short type, uint32_t byte) {
  struct flock lock{};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = byte;
  lock.l_len = 1;
  return lock;
}

}  // namespace

Exports::~Exports() { close(file_); }

CUresult Exports::make(uint32_t extent, int* result) const {
  const std::string path =
      directory_.empty() ? "/proc/self/fd/" + std::to_string(file_) : directory_ + "/exports";
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return os_error("cuMemExportToShareableHandle", directory_);
  struct flock lock = one_byte(F_RDLCK, extent);
  if (fcntl(fd, F_OFD_SETLK, &lock) != 0 || lseek(fd, extent, SEEK_SET) != extent) {
    const CUresult error = os_error("cuMemExportToShareableHandle", directory_);
    close(fd);
    return error;
  }
  *result = fd;
  return CUDA_SUCCESS;
}

CUresult Exports::find(int fd, uint32_t* extent) const {
  struct stat theirs{}, ours{};
  if (fstat(fd, &theirs) != 0 || fstat(file_, &ours) != 0 || theirs.st_ino != ours.st_ino ||
      theirs.st_dev != ours.st_dev) {
    return fail(CUDA_ERROR_INVALID_VALUE,
                "the descriptor is not an allocation of this simulated machine (processes share "
                "one by option machine: GLAKE_SIM_MACHINE=name)");
  }
  const off_t index = lseek(fd, 0, SEEK_CUR);
  if (index <= 0 || index >= static_cast<off_t>(kMaxExtents)) {
    return fail(CUDA_ERROR_INVALID_VALUE, "the descriptor names no allocation");
  }
  *extent = static_cast<uint32_t>(index);
  return CUDA_SUCCESS;
}

bool Exports::open_somewhere(uint32_t extent) const {
  struct flock lock = one_byte(F_WRLCK, extent);
  return fcntl(file_, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

}  // namespace simcuda

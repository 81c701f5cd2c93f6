#include "mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace nccl {
namespace {

void* map(int fd, size_t bytes) {
  return mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
}

}  // namespace

std::shared_ptr<Mapping> Mapping::make(const std::string& path, size_t bytes) {
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return nullptr;
  // Memory is allocated now. If shared memory is full, that is an error here and not a SIGBUS
  // later.
  errno = posix_fallocate(fd, 0, static_cast<off_t>(bytes));
  void* data = errno == 0 ? map(fd, bytes) : MAP_FAILED;
  const int error = errno;
  close(fd);
  if (data != MAP_FAILED) return std::shared_ptr<Mapping>(new Mapping(data, bytes));
  unlink(path.c_str());
  errno = error;
  return nullptr;
}

std::shared_ptr<Mapping> Mapping::find(const std::string& path) {
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  struct stat info{};
  void* data = MAP_FAILED;
  if (fd >= 0 && fstat(fd, &info) == 0 && info.st_size > 0) {
    data = map(fd, static_cast<size_t>(info.st_size));
  }
  if (fd >= 0) close(fd);
  if (data == MAP_FAILED) return nullptr;
  return std::shared_ptr<Mapping>(new Mapping(data, static_cast<size_t>(info.st_size)));
}

std::shared_ptr<Mapping> Mapping::zeros(size_t bytes) {
  const size_t some = std::max<size_t>(bytes, 1);
  void* data = mmap(nullptr, some, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) return nullptr;
  return std::shared_ptr<Mapping>(new Mapping(data, some));
}

Mapping::~Mapping() { munmap(data_, bytes_); }

}  // namespace nccl

#include "machine_directory.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

namespace simcuda {
namespace {

constexpr const char* kFiles[] = {"members", "state", "exports", "memory", "links", "lock"};

int open_at(const std::string& path) {
  return ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
}

std::string prefix() { return "glake-sim-" + std::to_string(geteuid()) + "-"; }

// Lets one process at a time join or leave. Holds the directory's lock file. ok() is false if the
// lock cannot be taken, or the directory went away meanwhile.
class JoinLock {
 public:
  JoinLock(const std::string& directory, bool block)
      : fd_(open_at(directory + "/lock")), path_(directory + "/lock") {
    if (fd_ >= 0 && flock(fd_, LOCK_EX | (block ? 0 : LOCK_NB)) != 0) {
      close(fd_);
      fd_ = -1;
    }
  }
  ~JoinLock() {
    if (fd_ >= 0) close(fd_);
  }
  JoinLock(const JoinLock&) = delete;
  JoinLock& operator=(const JoinLock&) = delete;
  bool ok() const {
    struct stat mine{}, there{};
    return fd_ >= 0 && fstat(fd_, &mine) == 0 && stat(path_.c_str(), &there) == 0 &&
           mine.st_ino == there.st_ino;
  }

 private:
  int fd_;
  std::string path_;
};

bool byte_locked(int fd, off_t byte, off_t length) {
  struct flock lock{};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = byte;
  lock.l_len = length;
  return fcntl(fd, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

bool lock_byte(int fd, off_t byte, short type) {
  struct flock lock{};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = byte;
  lock.l_len = 1;
  return fcntl(fd, F_SETLK, &lock) == 0;
}

void remove_files(const std::string& directory) {
  for (const char* file : kFiles) unlink((directory + "/" + file).c_str());
  rmdir(directory.c_str());
}

// If the last process of a machine was killed, its files stay. The next process that joins a
// machine removes them.
void sweep(const std::string& parent, const std::string& mine) {
  DIR* listing = opendir(parent.c_str());
  if (listing == nullptr) return;
  while (const dirent* entry = readdir(listing)) {
    const std::string path = parent + "/" + entry->d_name;
    if (std::string(entry->d_name).rfind(prefix(), 0) != 0 || path == mine) continue;
    struct stat info{};
    if (lstat(path.c_str(), &info) != 0 || !S_ISDIR(info.st_mode) || info.st_uid != geteuid()) {
      continue;
    }
    const JoinLock lock(path, false);
    if (!lock.ok()) continue;
    const int members = open((path + "/members").c_str(), O_RDWR | O_CLOEXEC);
    const bool dead = members < 0 || !byte_locked(members, 0, kMaxProcesses);
    if (members >= 0) close(members);
    if (dead) remove_files(path);
  }
  closedir(listing);
}

// The mount point of the file system that holds `directory`.
std::string mount_of(const std::string& directory) {
  struct stat mine{}, above{};
  std::string at = std::filesystem::weakly_canonical(directory);
  if (stat(at.c_str(), &mine) != 0) return directory;
  for (;;) {
    const std::string parent = std::filesystem::path(at).parent_path();
    if (parent == at || stat(parent.c_str(), &above) != 0 || above.st_dev != mine.st_dev) return at;
    at = parent;
  }
}

// Says how to get more room for `directory`. Docker gives a container 64 MiB of /dev/shm.
std::string more_room(const std::string& directory) {
  const std::string mounted = mount_of(directory);
  struct statfs kind{};
  if (statfs(mounted.c_str(), &kind) != 0 || kind.f_type != TMPFS_MAGIC) {
    return "free space in " + mounted;
  }
  const char* docker = mounted == "/dev/shm" ? "docker run --shm-size=8g, or " : "";
  return "make it larger (" + std::string(docker) + "mount -o remount,size=8G " + mounted + ")";
}

}  // namespace

std::string full_text(const std::string& directory) {
  struct statvfs fs{};
  if (statvfs(directory.c_str(), &fs) != 0) return "";
  auto mib = [&](uint64_t blocks) { return std::to_string(blocks * fs.f_frsize >> 20) + " MiB"; };
  return ". The file system of " + directory + " has " + mib(fs.f_blocks) + ", " +
         mib(fs.f_bavail) +
         " free, and holds a shared simulated machine's memory: " + more_room(directory) +
         ", or name another directory (GLAKE_SIM_MACHINE_DIR)";
}

CUresult os_error(const std::string& what, const std::string& directory) {
  const int error = errno;
  std::string advice;
  if (error == ENOSPC) advice = full_text(directory);
  if (error == EFBIG) {
    advice = ". A shared simulated machine's memory is a sparse file of 64 TiB, which " +
             mount_of(directory) +
             " or a limit (ulimit -f) does not allow. Name a folder of a tmpfs or of XFS "
             "(GLAKE_SIM_MACHINE_DIR)";
  }
  return fail(CUDA_ERROR_OPERATING_SYSTEM, what + ": " + strerror(error) + advice);
}

MachineDirectory::~MachineDirectory() {
  if (members_fd_ >= 0) close(members_fd_);
}

CUresult MachineDirectory::join(const Options& options,
                                const std::function<CUresult(bool first)>& enter) {
  const std::string parent = options.machine_dir.empty() ? "/dev/shm" : options.machine_dir;
  const std::string directory = parent + "/" + prefix() + options.machine;
  sweep(parent, directory);
  for (int attempt = 0; attempt < 100; ++attempt) {
    if (mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) {
      return os_error(directory, parent);
    }
    struct stat info{};
    if (lstat(directory.c_str(), &info) != 0) continue;
    if (!S_ISDIR(info.st_mode) || info.st_uid != geteuid() || (info.st_mode & 077) != 0) {
      return fail(CUDA_ERROR_NOT_PERMITTED,
                  directory + " is not a private directory (0700) of this user");
    }
    const JoinLock lock(directory, true);
    if (!lock.ok()) continue;
    members_fd_ = open_at(directory + "/members");
    if (members_fd_ < 0) return os_error(directory, directory);
    path_ = directory;
    const CUresult result = enter(!byte_locked(members_fd_, 0, kMaxProcesses));
    if (!joined_) path_.clear();  // it is not a member, so it has nothing to leave
    return result;
  }
  return fail(CUDA_ERROR_OPERATING_SYSTEM,
              directory + " is removed and made again by others; 100 tries failed");
}

bool MachineDirectory::take_slot() {
  for (slot_ = 0; slot_ < kMaxProcesses; ++slot_) {
    if (!byte_locked(members_fd_, slot_, 1) && lock_byte(members_fd_, slot_, F_WRLCK)) break;
  }
  joined_ = slot_ != kMaxProcesses;
  return joined_;
}

void MachineDirectory::leave(const std::function<void()>& forget) {
  if (!joined_) return;
  joined_ = false;
  const JoinLock lock(path_, true);
  forget();
  lock_byte(members_fd_, slot_, F_UNLCK);
  if (lock.ok() && !byte_locked(members_fd_, 0, kMaxProcesses)) remove_files(path_);
}

CUresult MachineDirectory::alone(const std::function<CUresult()>& body) const {
  const JoinLock lock(path_, true);
  return body();
}

int MachineDirectory::open(const char* file) const { return open_at(path_ + "/" + file); }

void MachineDirectory::remove(const char* file) const { unlink((path_ + "/" + file).c_str()); }

bool MachineDirectory::member_alive(int slot) const {
  return slot == slot_ || byte_locked(members_fd_, slot, 1);
}

}  // namespace simcuda

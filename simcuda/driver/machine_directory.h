// The directory of a shared machine, with its files and members. A member holds a POSIX record lock
// on its byte of the members file. So the others learn of its death, however it died.
#pragma once

#include <functional>
#include <string>

#include "options.h"
#include "types.h"

namespace simcuda {

constexpr int kMaxProcesses = 64;

class MachineDirectory {
 public:
  MachineDirectory() = default;
  ~MachineDirectory();
  MachineDirectory(const MachineDirectory&) = delete;
  MachineDirectory& operator=(const MachineDirectory&) = delete;

  // Finds or makes the directory, after removing machines whose last process was killed. Calls
  // `enter` while nobody else joins or leaves. `first`: there is no other member.
  CUresult join(const Options& options, const std::function<CUresult(bool first)>& enter);
  // Called in `enter`: makes this process a member. False: there is no room for another one.
  bool take_slot();
  // Calls `forget`, then ends the membership. The last member removes the files.
  void leave(const std::function<void()>& forget);
  // Calls `body` while nobody joins or leaves.
  CUresult alone(const std::function<CUresult()>& body) const;

  bool shared() const { return !path_.empty(); }
  const std::string& path() const { return path_; }  // "": the machine is not shared
  int open(const char* file) const;                  // -1: errno has the reason
  void remove(const char* file) const;
  int slot() const { return slot_; }
  bool member_alive(int slot) const;

 private:
  std::string path_;
  int members_fd_ = -1;
  int slot_ = 0;
  bool joined_ = false;
};

// Describes the file system of a shared machine: its size, what is left, and what to do.
std::string full_text(const std::string& directory);
// Describes errno's error of `what`, and what to do if the file system of `directory` is full or
// does not hold files as large.
CUresult os_error(const std::string& what, const std::string& directory);

}  // namespace simcuda

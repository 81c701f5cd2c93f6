// The directory of a machine that processes share: its files, and who is a member. A member holds a
// POSIX record lock on its byte of the members file, so its death is known however it died.
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

  // Finds or makes it, after removing those whose last process was killed, and calls `enter` while
  // nobody else joins or leaves. `first`: there is no member.
  CUresult join(const Options& options, const std::function<CUresult(bool first)>& enter);
  // In `enter`: this process becomes a member. False: there is no room for another.
  bool take_slot();
  // Ends the membership; `forget` is called before, and the last one out removes the files.
  void leave(const std::function<void()>& forget);
  // Calls `body` while nobody joins or leaves.
  CUresult alone(const std::function<CUresult()>& body) const;

  bool shared() const { return !path_.empty(); }
  const std::string& path() const { return path_; }  // "": of no machine
  int open(const char* file) const;                  // -1: errno says why not
  void remove(const char* file) const;
  int slot() const { return slot_; }
  bool member_alive(int slot) const;

 private:
  std::string path_;
  int members_fd_ = -1;
  int slot_ = 0;
  bool joined_ = false;
};

// Of the file system that holds a shared machine: its size, what is left, and the way out.
std::string full_text(const std::string& directory);
// What errno says of `what`, with the way out where the file system of `directory` is full.
CUresult os_error(const std::string& what, const std::string& directory);

}  // namespace simcuda

// Descriptors that stand for an extent of a machine in any of its processes. Each is an open file
// description of the exports file: its offset names the extent, and an OFD lock on that byte says
// that it is still open somewhere.
#pragma once

#include <string>

#include "types.h"

namespace simcuda {

class Exports {
 public:
  // `file`: the exports file; `directory`: of a machine that processes share, else "".
  Exports(int file, std::string directory) : file_(file), directory_(std::move(directory)) {}
  ~Exports();
  Exports(const Exports&) = delete;
  Exports& operator=(const Exports&) = delete;

  CUresult make(uint32_t extent, int* fd) const;
  // The extent that a descriptor stands for, which may have ended.
  CUresult find(int fd, uint32_t* extent) const;
  bool open_somewhere(uint32_t extent) const;

 private:
  const int file_;
  const std::string directory_;
};

}  // namespace simcuda

// Descriptors that name an extent (machine.h) in any process of its machine. Each is an open file
// description of the exports file. Its offset is the extent's number, and an OFD lock on that byte
// says that the descriptor is still open somewhere.
#pragma once

#include <string>

#include "types.h"

namespace simcuda {

class Exports {
 public:
  // `file` is the exports file. `directory` is that of a shared machine, else "".
  Exports(int file, std::string directory) : file_(file), directory_(std::move(directory)) {}
  ~Exports();
  Exports(const Exports&) = delete;
  Exports& operator=(const Exports&) = delete;

  CUresult make(uint32_t extent, int* fd) const;
  // The extent that a descriptor names. It may have ended.
  CUresult find(int fd, uint32_t* extent) const;
  bool open_somewhere(uint32_t extent) const;

 private:
  const int file_;
  const std::string directory_;
};

}  // namespace simcuda

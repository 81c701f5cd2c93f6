// The driver's linker: cuLinkCreate and the calls for what it makes. It puts PTX together, as
// simcuda reads only the names in code. A single cubin or fat binary stays as it is.
#pragma once

#include <string>

#include "types.h"

namespace simcuda {

class Linkers {
 public:
  struct Linker {
    std::string image;
    bool text = true;  // whether the image is PTX
    bool complete = false;
  };
  uint64_t add() { return linkers_.add({}); }
  Linker* find(CUlinkState handle) { return linkers_.find(reinterpret_cast<uint64_t>(handle)); }
  void remove(CUlinkState handle) { linkers_.remove(reinterpret_cast<uint64_t>(handle)); }
  static CUresult append(Linker* linker, const std::string& code);

 private:
  Slots<Linker, 14> linkers_;
};

}  // namespace simcuda

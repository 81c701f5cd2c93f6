// The effects of stream work on phantom memory, which has no bytes except the known ones (known.h).
#pragma once

#include "known.h"
#include "memory.h"
#include "op.h"

namespace simcuda {

class PhantomMemory {
 public:
  PhantomMemory(Memory* memory, Known* known) : memory_(memory), known_(known) {}
  void perform(const Op& op);

 private:
  int owner(uint64_t address, int otherwise);
  void copy(int device, const Op::Side& dst, const Op::Side& src, size_t bytes);
  void stage(int device, const Op::Part& part);
  void fill(const Op& op);

  Memory* const memory_;
  Known* const known_;
};

}  // namespace simcuda

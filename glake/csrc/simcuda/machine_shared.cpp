// A machine several processes share: joining, leaving, reclaiming, and handing extents over.
#include "machine.h"

namespace simcuda {

CUresult Machine::join_shared(const Options&, int) {
  return fail(CUDA_ERROR_NOT_SUPPORTED, "shared machines are not there yet");
}
void Machine::leave() {}
void Machine::reclaim() {}
bool Machine::export_alive(uint32_t) { return false; }

}  // namespace simcuda

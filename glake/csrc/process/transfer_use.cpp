#include "process/transfer_use.h"

namespace glake {

TransferUse::TransferUse() {
  Process& process = Process::instance();
  process.check_usable();
  engine_ = process.transfer().enter();
  if (engine_ != nullptr) return;
  throw Error(
      GLAKE_TRANSFER_CLOSED,
      "the transfer engine is not open: glake.transfer.Engine or glake_transfer_open() opens it");
}

}  // namespace glake

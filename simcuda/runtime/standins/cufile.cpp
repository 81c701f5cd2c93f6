// libcufile: no file is read or written. A status is a pair of cuFile's own error and the driver's,
// and both are returned in one register. Reads and writes return the error as a negative number.
#include <sys/types.h>

#include "standin.h"

#define STANDIN_LIBRARY "libcufile"

namespace {
constexpr long kPlatformNotSupported = 5007;  // CU_FILE_PLATFORM_NOT_SUPPORTED
}
#define STANDIN_UNSUPPORTED kPlatformNotSupported

STANDIN_EXPORT ssize_t cuFileRead() {
  simcuda_missed(STANDIN_LIBRARY, "cuFileRead");
  return -kPlatformNotSupported;
}

STANDIN_EXPORT ssize_t cuFileWrite() {
  simcuda_missed(STANDIN_LIBRARY, "cuFileWrite");
  return -kPlatformNotSupported;
}

#include "kinds.h"
#include "simcuda/runtime/standins/lists/cufile.def"

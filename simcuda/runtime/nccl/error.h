// Error texts for ncclGetLastError.
#pragma once

#include <string>

#include "nccl.h"

namespace nccl {

// Records `text` as the process's last error and returns `code`.
ncclResult fail(ncclResult code, const std::string& text);
// The same for a failed driver call: its own message is added.
ncclResult cuda_error(int code, const std::string& call);
// The last error. It is valid until the calling thread asks again.
const char* last_error();

}  // namespace nccl

// Shared by the files that call the driver.
#pragma once

#include "driver/driver.h"
#include "driver/table.h"

namespace glake {

inline Status status(CUresult result) { return {static_cast<int>(result)}; }
inline CUstream stream_of(StreamHandle s) { return reinterpret_cast<CUstream>(given_name(s)); }
inline CUevent event_of(EventId e) { return reinterpret_cast<CUevent>(e); }

}  // namespace glake

// A driver library (GLAKE_DRIVER=path) over the simulator, which notes the time of the first copy.
#pragma once

#include <cstdint>

extern "C" {

// Makes the next copy the first.
void first_copy_forget();
// The time of the first copy's call, in nanoseconds of the steady clock. 0 if there was none.
int64_t first_copy_ns();
}

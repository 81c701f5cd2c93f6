// A driver library (GLAKE_DRIVER=path) over the simulator, which notes when a copy is first asked
// of it.
#pragma once

#include <cstdint>

extern "C" {

// From now on the next copy is the first.
void first_copy_forget();
// When it was asked for, in nanoseconds of the steady clock; 0: none was.
int64_t first_copy_ns();
}

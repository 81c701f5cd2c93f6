#include "heap/spin_lock.h"

#include <sched.h>

namespace glake {

void SpinLock::relax() { sched_yield(); }

}  // namespace glake

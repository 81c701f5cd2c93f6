// A thread that answers other processes.
#pragma once

#include <functional>
#include <thread>

namespace glake {

// Starts a thread with all signals blocked, because signals are for the caller's threads. Throws
// Error(GLAKE_INTERNAL) if the system refuses. `name` has at most 15 characters.
std::thread ipc_thread(const char* name, const std::function<void()>& run);

// True once the process exits. From then on such a thread makes no driver call. Processes that have
// started no such thread do not know.
bool ipc_exiting();

}  // namespace glake

// Asks another process for memory that it shares.
#pragma once

#include <string>
#include <vector>

#include "driver/driver.h"
#include "ipc/ipc_socket.h"

namespace glake {

// Throws Error(GLAKE_INVALID_DEVICE) if the memory of the handle is on another GPU than `device`.
void require_same_gpu(Driver& driver, const IpcHandle& handle, int device);

// A connection, which ends with the object. The other process then unpins the block.
class IpcClient {
 public:
  // Connects to the process that wrote the handle. Throws Error: GLAKE_INVALID_POINTER (it is
  // gone), GLAKE_INVALID_ARGUMENT (it is another user's).
  explicit IpcClient(const IpcHandle& handle);
  // Asks one question. Returns the answer, and the descriptors that come with it. Throws Error,
  // also where the answer is one.
  IpcReply ask(const IpcRequest& request, std::vector<IpcFd>* fds) const;

 private:
  uint64_t pid_;
  IpcFd socket_;
};

}  // namespace glake

// The sockets between processes that share memory, and the messages over them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "ipc/ipc_fd.h"
#include "ipc/ipc_text.h"

namespace glake {

constexpr uint32_t kIpcMagic = 0x676c6b31;  // "glk1"

// kShard asks for a whole shard. One answer brings its descriptor.
enum class IpcOp : uint32_t { kOpen = 1, kNext = 2, kShard = 3 };

struct IpcRequest {
  uint32_t magic = kIpcMagic;
  IpcOp op = IpcOp::kOpen;
  IpcToken token{};
  uint64_t id = 0;
  uint64_t from = 0;  // kNext: the first handle wanted
};

struct IpcReply {
  uint32_t magic = kIpcMagic;
  int32_t status = GLAKE_OK;
  uint32_t count = 0;  // descriptors with this message
  uint32_t legacy = 0;
  uint64_t bytes = 0, offset = 0, handle_bytes = 0, handles = 0;
  char text[192] = "";
};

enum class IpcIo { kDone, kClosed, kBroken };

// These send or receive one message, without waiting.
IpcIo ipc_send(const IpcFd& socket, const void* data, size_t size, const std::vector<IpcFd>& fds);
IpcIo ipc_receive(const IpcFd& socket, void* data, size_t size, std::vector<IpcFd>* fds);
// Waits until something can be read. False if the other process does not answer in time.
bool ipc_wait(const IpcFd& socket, int patience_ms);

// What a process listens for. It is a part of the socket's name.
enum class IpcService { kShare, kGiveBack };
// The process and the number that a socket's name has.
struct IpcPlace {
  uint64_t pid = 0, name = 0;
};
// The listening socket of this process, or a connection to another process; empty on failure, which
// errno explains.
IpcFd ipc_listen(IpcService service, IpcPlace place);
IpcFd ipc_connect(IpcService service, IpcPlace place, int patience_ms);
// All listening sockets of this user with names of that service. Other users may have made some of
// them. `error`: the errno that says why the system does not list them (no /proc, no descriptor),
// or 0.
std::vector<IpcPlace> ipc_places(IpcService service, int* error);
// Whether the other end has closed the connection.
bool ipc_hung_up(const IpcFd& socket);
// True if the process at the other end runs as this one's user.
bool ipc_same_user(const IpcFd& socket);
// Fills in bytes that nobody can guess. False if the system has none.
bool ipc_random(void* bytes, size_t count);

}  // namespace glake

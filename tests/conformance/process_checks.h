// Checks of what glake relies on between processes. The other process runs the same program. It
// reads commands of one byte from a socket, and answers with a verdict of one byte.
#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "cuda_table.h"

extern char** environ;

inline const char* conformance_library = "";
constexpr int kBatch = 32;

struct Message {
  char command = 0;  // 'd': descriptors, 'i': an IPC handle
  int count = 0;
  CUipcMemHandle ipc{};
};

// Sends a message with up to kBatch descriptors. The caller's descriptors stay its own.
inline bool send_message(int socket, const Message& message, const int* fds) {
  iovec data{const_cast<Message*>(&message), sizeof message};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kBatch)] = {};
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  if (message.count > 0) {
    header.msg_control = control;
    header.msg_controllen = CMSG_SPACE(sizeof(int) * message.count);
    cmsghdr* part = CMSG_FIRSTHDR(&header);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(sizeof(int) * message.count);
    std::memcpy(CMSG_DATA(part), fds, sizeof(int) * message.count);
  }
  return sendmsg(socket, &header, 0) == static_cast<ssize_t>(sizeof message);
}

inline bool receive_message(int socket, Message* message, int* fds) {
  iovec data{message, sizeof *message};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kBatch)] = {};
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof control;
  if (recvmsg(socket, &header, MSG_CMSG_CLOEXEC) != static_cast<ssize_t>(sizeof *message)) {
    return false;
  }
  const cmsghdr* part = CMSG_FIRSTHDR(&header);
  if (part != nullptr) std::memcpy(fds, CMSG_DATA(part), sizeof(int) * message->count);
  return true;
}

inline int open_descriptors() {
  int count = 0;
  DIR* listing = opendir("/proc/self/fd");
  while (readdir(listing) != nullptr) ++count;
  closedir(listing);
  return count;
}

// What the child does. The memory with number `index` must hold 100 + index. The child writes 200 +
// index there.
inline void child_descriptors(const Message& message, const int* fds) {
  Range range(message.count * granule);
  for (int i = 0; i < message.count; ++i) {
    CUmemGenericAllocationHandle handle = 0;
    OK(cu.cuMemImportFromShareableHandle(&handle,
                                         reinterpret_cast<void*>(static_cast<intptr_t>(fds[i])),
                                         CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(fds[i]);
    OK(cu.cuMemMap(range.base + i * granule, granule, 0, handle, 0));
    range.mapped.push_back({range.base + i * granule, granule});
    OK(cu.cuMemRelease(handle));
  }
  range.grant(0, message.count * granule);
  for (int i = 0; i < message.count; ++i) {
    TRUE(word_at(range.base + i * granule) == 100u + i);
    put_word(range.base + i * granule, 200 + i);
  }
}

inline void child_ipc(const Message& message) {
  CUdeviceptr block = 0;
  OK(cu.cuIpcOpenMemHandle(&block, message.ipc, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  TRUE(word_at(block + 8) == 100);
  put_word(block + 8, 200);
  OK(cu.cuCtxSynchronize());
  OK(cu.cuIpcCloseMemHandle(block));
}

inline int run_child(int socket) {
  Message message;
  int fds[kBatch];
  char verdict = 'y';
  if (!receive_message(socket, &message, fds)) return 3;
  try {
    if (message.command == 'd') child_descriptors(message, fds);
    if (message.command == 'i') child_ipc(message);
  } catch (const Failed& failure) {
    std::printf("child: %s\n", failure.why.c_str());
    verdict = 'n';
  }
  return write(socket, &verdict, 1) == 1 ? 0 : 3;
}

// Sends the child one message and returns its verdict.
inline bool ask_child(const Message& message, const int* fds) {
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) return false;
  fcntl(pair[0], F_SETFD, FD_CLOEXEC);
  const std::string socket = std::to_string(pair[1]);
  char self[4096];
  const ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
  self[length > 0 ? length : 0] = 0;
  char option[] = "--child";
  char* arguments[] = {self, const_cast<char*>(conformance_library), option,
                       const_cast<char*>(socket.c_str()), nullptr};
  pid_t child = 0;
  if (posix_spawn(&child, self, nullptr, nullptr, arguments, environ) != 0) return false;
  close(pair[1]);
  char verdict = 'n';
  const bool told = send_message(pair[0], message, fds) && read(pair[0], &verdict, 1) == 1;
  close(pair[0]);
  int status = 0;
  waitpid(child, &status, 0);
  return told && verdict == 'y' && status == 0;
}

inline void check_descriptors() {
  Memory memory(granule, 0, true), closed;
  Range first(granule), second(granule);
  first.map(0, memory);
  first.grant(0, granule);
  put_word(first.base, 61);
  int fd = -1;
  FAILS(cu.cuMemExportToShareableHandle(&fd, closed.handle,
                                        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  OK(cu.cuMemExportToShareableHandle(&fd, memory.handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                     0));
  CUmemGenericAllocationHandle again = 0;
  const CUresult imported =
      cu.cuMemImportFromShareableHandle(&again, reinterpret_cast<void*>(static_cast<intptr_t>(fd)),
                                        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  close(fd);
  OK(imported);
  const CUresult mapped = cu.cuMemMap(second.base, granule, 0, again, 0);
  if (mapped == CUDA_SUCCESS) second.mapped.push_back({second.base, granule});
  OK(cu.cuMemRelease(again));
  OK(mapped);
  second.grant(0, granule);
  TRUE(word_at(second.base) == 61);
}

inline void check_descriptors_cross_processes() {
  const int before = open_descriptors();
  {
    Range range(kBatch * granule);
    std::vector<int> fds(kBatch, -1);
    for (int i = 0; i < kBatch; ++i) {
      Memory memory(granule, 0, true);
      range.map(i * granule, memory);
      OK(cu.cuMemExportToShareableHandle(&fds[i], memory.handle,
                                         CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    }
    range.grant(0, kBatch * granule);
    for (int i = 0; i < kBatch; ++i) put_word(range.base + i * granule, 100 + i);
    OK(cu.cuCtxSynchronize());
    Message message;
    message.command = 'd';
    message.count = kBatch;
    const bool content = ask_child(message, fds.data());
    for (const int fd : fds) close(fd);
    TRUE(content);
    for (int i = 0; i < kBatch; ++i) TRUE(word_at(range.base + i * granule) == 200u + i);
  }
  TRUE(open_descriptors() == before);
}

inline void check_ipc_handles() {
  CUdeviceptr block = 0;
  OK(cu.cuMemAlloc(&block, granule));
  put_word(block + 8, 100);
  OK(cu.cuCtxSynchronize());
  Message message;
  message.command = 'i';
  const CUresult got = cu.cuIpcGetMemHandle(&message.ipc, block);
  const bool content = got == CUDA_SUCCESS && ask_child(message, nullptr);
  const unsigned value = word_at(block + 8);
  OK(cu.cuMemFree(block));
  OK(got);
  TRUE(content && value == 200);
}

inline void check_forked_child() {
  const pid_t child = fork();
  if (child == 0) {
    size_t free = 0, total = 0;
    _exit(cu.cuMemGetInfo(&free, &total) == CUDA_ERROR_NOT_INITIALIZED ? 0 : 1);
  }
  int status = 1;
  TRUE(child > 0 && waitpid(child, &status, 0) == child);
  TRUE(status == 0);
  size_t free = 0, total = 0;
  OK(cu.cuMemGetInfo(&free, &total));  // the parent goes on
}

// Communicators: functions that make, query and end them.
#include <cstring>

#include "error.h"
#include "group.h"
#include "nccl.h"

using namespace nccl;  // NOLINT: this file is nothing but NCCL's C face

namespace {

// The version of nvidia-nccl-cu13 that PyTorch 2.14 requires.
constexpr int kVersion = 23007;

ncclResult missing(const char* function, const char* what) {
  return fail(ncclInvalidArgument, std::string(function) + ": " + what + " is NULL");
}

ncclResult join(const char* function, ncclComm** made, int size, int rank, const ncclUniqueId& id,
                int device) {
  if (made == nullptr) return missing(function, "comm");
  *made = nullptr;
  if (size < 1 || size > kMostRanks || rank < 0 || rank >= size) {
    return fail(ncclInvalidArgument, std::string(function) + ": rank " + std::to_string(rank) +
                                         " of " + std::to_string(size) +
                                         "; the stand-in has 1 to " + std::to_string(kMostRanks) +
                                         " ranks, from 0");
  }
  const std::string name = name_of(id);
  if (name.empty()) {
    return fail(ncclInvalidArgument,
                std::string(function) + ": the id is not of this library's ncclGetUniqueId");
  }
  // current_device() has recorded the error's text.
  if (device < 0) return ncclUnhandledCudaError;
  return submit(Joining::rank(made, name, size, rank, device));
}

}  // namespace

ncclResult ncclGetVersion(int* version) {
  if (version == nullptr) return missing("ncclGetVersion", "version");
  *version = kVersion;
  return ncclSuccess;
}

ncclResult ncclGetUniqueId(ncclUniqueId* id) {
  if (id == nullptr) return missing("ncclGetUniqueId", "id");
  make_id(id);
  return ncclSuccess;
}

const char* ncclGetErrorString(int code) {
  constexpr const char* kTexts[] = {
      "no error",
      "unhandled cuda error",
      "unhandled system error",
      "internal error",
      "invalid argument",
      "invalid usage",
      "remote process exited or there was a network error",
      "NCCL operation in progress",
      "operation timed out",
  };
  return code >= 0 && code <= ncclTimeout ? kTexts[code] : "unknown result code";
}

const char* ncclGetLastError(ncclComm*) { return last_error(); }

ncclResult ncclCommInitRank(ncclComm** comm, int ranks, ncclUniqueId id, int rank) {
  return join("ncclCommInitRank", comm, ranks, rank, id, current_device());
}

ncclResult ncclCommInitRankConfig(ncclComm** comm, int ranks, ncclUniqueId id, int rank,
                                  ncclConfig*) {
  return join("ncclCommInitRankConfig", comm, ranks, rank, id, current_device());
}

ncclResult ncclCommInitRankScalable(ncclComm** comm, int ranks, int rank, int id_count,
                                    ncclUniqueId* ids, ncclConfig*) {
  if (ids == nullptr || id_count < 1) return missing("ncclCommInitRankScalable", "ids");
  return join("ncclCommInitRankScalable", comm, ranks, rank, ids[0], current_device());
}

ncclResult ncclCommInitAll(ncclComm** comms, int count, const int* devices) {
  if (comms == nullptr) return missing("ncclCommInitAll", "comms");
  ncclUniqueId id;
  make_id(&id);
  group_start();
  ncclResult result = ncclSuccess;
  for (int rank = 0; rank < count && result == ncclSuccess; ++rank) {
    const int device = devices != nullptr ? devices[rank] : rank;
    result = join("ncclCommInitAll", &comms[rank], count, rank, id, device);
  }
  const ncclResult ended = group_end();
  return result != ncclSuccess ? result : ended;
}

ncclResult ncclCommSplit(ncclComm* comm, int color, int key, ncclComm** made, ncclConfig*) {
  if (comm == nullptr || made == nullptr) return missing("ncclCommSplit", "comm");
  if (color < -1) {
    return fail(ncclInvalidArgument, "ncclCommSplit: color " + std::to_string(color) +
                                         "; from 0, or -1 for no communicator");
  }
  *made = nullptr;
  return submit(Joining::split(made, comm->engine, color, key));
}

ncclResult ncclCommFinalize(ncclComm* comm) {
  return comm == nullptr ? missing("ncclCommFinalize", "comm") : comm->engine->flush();
}

ncclResult ncclCommDestroy(ncclComm* comm) {
  return comm == nullptr ? ncclSuccess : end(comm, Presence::kLeft);
}

ncclResult ncclCommAbort(ncclComm* comm) {
  return comm == nullptr ? ncclSuccess : end(comm, Presence::kAborted);
}

ncclResult ncclCommGetAsyncError(ncclComm* comm, ncclResult* error) {
  if (comm == nullptr || error == nullptr) return missing("ncclCommGetAsyncError", "comm");
  *error = comm->engine->error();
  return ncclSuccess;
}

ncclResult ncclCommCount(ncclComm* comm, int* count) {
  if (comm == nullptr || count == nullptr) return missing("ncclCommCount", "comm");
  *count = comm->engine->size();
  return ncclSuccess;
}

ncclResult ncclCommUserRank(ncclComm* comm, int* rank) {
  if (comm == nullptr || rank == nullptr) return missing("ncclCommUserRank", "comm");
  *rank = comm->engine->rank();
  return ncclSuccess;
}

ncclResult ncclCommCuDevice(ncclComm* comm, int* device) {
  if (comm == nullptr || device == nullptr) return missing("ncclCommCuDevice", "comm");
  *device = comm->engine->device();
  return ncclSuccess;
}

// Registration makes transfers faster on a GPU and changes nothing else. The handle is the buffer.
ncclResult ncclCommRegister(ncclComm* comm, void* buffer, size_t size, void** handle) {
  if (comm == nullptr || buffer == nullptr || handle == nullptr || size == 0) {
    return fail(ncclInvalidArgument, "ncclCommRegister: a communicator, a buffer and its size");
  }
  *handle = buffer;
  return ncclSuccess;
}

ncclResult ncclCommDeregister(ncclComm* comm, void*) {
  return comm == nullptr ? missing("ncclCommDeregister", "comm") : ncclSuccess;
}

ncclResult ncclMemAlloc(void** address, size_t size) {
  if (address == nullptr) return missing("ncclMemAlloc", "address");
  CUdeviceptr made = 0;
  const CUresult code = cuMemAlloc(&made, size);
  if (code != CUDA_SUCCESS) return cuda_error(code, "ncclMemAlloc of " + std::to_string(size));
  *address = reinterpret_cast<void*>(made);
  return ncclSuccess;
}

ncclResult ncclMemFree(void* address) {
  const CUresult code = cuMemFree(reinterpret_cast<CUdeviceptr>(address));
  return code == CUDA_SUCCESS ? ncclSuccess : cuda_error(code, "ncclMemFree");
}

ncclResult ncclGroupStart() {
  group_start();
  return ncclSuccess;
}

ncclResult ncclGroupEnd() { return group_end(); }

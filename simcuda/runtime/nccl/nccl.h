/* The interface of NCCL as far as the stand-in has it, declared here because its header comes with
 * a 300 MB wheel. Values are those of NVIDIA's documentation, "NCCL API". Functions that nobody
 * wrote (unsupported.cpp) are not declared. */
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>

#define NCCL_API extern "C" __attribute__((visibility("default")))

enum ncclResult : int {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
  ncclInProgress = 7,
  ncclTimeout = 8,
};
enum ncclDataType : int {
  ncclInt8,
  ncclUint8,
  ncclInt32,
  ncclUint32,
  ncclInt64,
  ncclUint64,
  ncclFloat16,
  ncclFloat32,
  ncclFloat64,
  ncclBfloat16,
  ncclFloat8e4m3,
  ncclFloat8e5m2,
};
// Values from ncclNumOps on are those of ncclRedOpCreatePreMulSum.
enum ncclRedOp : int { ncclSum, ncclProd, ncclMax, ncclMin, ncclAvg, ncclNumOps };
enum ncclScalarResidence : int { ncclScalarDevice, ncclScalarHostImmediate };

struct ncclUniqueId {
  char internal[128];
};
struct ncclComm;
struct ncclConfig;

NCCL_API ncclResult ncclGetVersion(int* version);
NCCL_API ncclResult ncclGetUniqueId(ncclUniqueId* id);
NCCL_API const char* ncclGetErrorString(int code);
NCCL_API const char* ncclGetLastError(ncclComm* comm);

NCCL_API ncclResult ncclCommInitRank(ncclComm** comm, int ranks, ncclUniqueId id, int rank);
NCCL_API ncclResult ncclCommInitRankConfig(ncclComm** comm, int ranks, ncclUniqueId id, int rank,
                                           ncclConfig* config);
NCCL_API ncclResult ncclCommInitRankScalable(ncclComm** comm, int ranks, int rank, int id_count,
                                             ncclUniqueId* ids, ncclConfig* config);
NCCL_API ncclResult ncclCommInitAll(ncclComm** comms, int count, const int* devices);
NCCL_API ncclResult ncclCommSplit(ncclComm* comm, int color, int key, ncclComm** made,
                                  ncclConfig* config);
NCCL_API ncclResult ncclCommFinalize(ncclComm* comm);
NCCL_API ncclResult ncclCommDestroy(ncclComm* comm);
NCCL_API ncclResult ncclCommAbort(ncclComm* comm);
NCCL_API ncclResult ncclCommGetAsyncError(ncclComm* comm, ncclResult* error);
NCCL_API ncclResult ncclCommCount(ncclComm* comm, int* count);
NCCL_API ncclResult ncclCommUserRank(ncclComm* comm, int* rank);
NCCL_API ncclResult ncclCommCuDevice(ncclComm* comm, int* device);
NCCL_API ncclResult ncclCommRegister(ncclComm* comm, void* buffer, size_t size, void** handle);
NCCL_API ncclResult ncclCommDeregister(ncclComm* comm, void* handle);
NCCL_API ncclResult ncclMemAlloc(void** address, size_t size);
NCCL_API ncclResult ncclMemFree(void* address);

NCCL_API ncclResult ncclGroupStart();
NCCL_API ncclResult ncclGroupEnd();
NCCL_API ncclResult ncclRedOpCreatePreMulSum(int* op, void* scalar, int type, int residence,
                                             ncclComm* comm);
NCCL_API ncclResult ncclRedOpDestroy(int op, ncclComm* comm);

NCCL_API ncclResult ncclAllReduce(const void* in, void* out, size_t count, int type, int op,
                                  ncclComm* comm, CUstream stream);
NCCL_API ncclResult ncclReduce(const void* in, void* out, size_t count, int type, int op, int root,
                               ncclComm* comm, CUstream stream);
NCCL_API ncclResult ncclReduceScatter(const void* in, void* out, size_t count, int type, int op,
                                      ncclComm* comm, CUstream stream);
NCCL_API ncclResult ncclAllGather(const void* in, void* out, size_t count, int type, ncclComm* comm,
                                  CUstream stream);
NCCL_API ncclResult ncclBroadcast(const void* in, void* out, size_t count, int type, int root,
                                  ncclComm* comm, CUstream stream);
NCCL_API ncclResult ncclBcast(void* buffer, size_t count, int type, int root, ncclComm* comm,
                              CUstream stream);
NCCL_API ncclResult ncclAlltoAll(const void* in, void* out, size_t count, int type, ncclComm* comm,
                                 CUstream stream);
NCCL_API ncclResult ncclGather(const void* in, void* out, size_t count, int type, int root,
                               ncclComm* comm, CUstream stream);
NCCL_API ncclResult ncclScatter(const void* in, void* out, size_t count, int type, int root,
                                ncclComm* comm, CUstream stream);
NCCL_API ncclResult ncclSend(const void* in, size_t count, int type, int peer, ncclComm* comm,
                             CUstream stream);
NCCL_API ncclResult ncclRecv(void* out, size_t count, int type, int peer, ncclComm* comm,
                             CUstream stream);

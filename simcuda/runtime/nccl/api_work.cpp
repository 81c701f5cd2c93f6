// Collectives, messages and reductions.
#include "error.h"
#include "group.h"
#include "nccl.h"
#include "reduce.h"

using namespace nccl;  // NOLINT: this file is nothing but NCCL's C face

namespace {

ncclResult bad(const Part& part, const std::string& why) {
  return fail(ncclInvalidArgument, std::string(name_of(part.kind)) + ": " + why);
}

ncclResult check(const Part& part, const Engine& engine) {
  if (width_of(part.type) == 0) {
    return bad(part, "data type " + std::to_string(part.type) + "; there are 0 to 11");
  }
  if (part.root < 0 || part.root >= engine.size()) {
    return bad(part, "rank " + std::to_string(part.root) + " of " + std::to_string(engine.size()));
  }
  if (part.in == nullptr && part.in_bytes(engine.rank(), engine.size()) != 0) {
    return bad(part, "the send buffer is NULL");
  }
  if (part.out == nullptr && part.out_bytes(engine.rank(), engine.size()) != 0) {
    return bad(part, "the receive buffer is NULL");
  }
  return ncclSuccess;
}

ncclResult add(ncclComm* comm, CUstream stream, Part part) {
  if (comm == nullptr) return bad(part, "the communicator is NULL");
  if (part.op < 0) return bad(part, "reduction " + std::to_string(part.op));
  if (part.op >= ncclNumOps && !comm->engine->scales().find(part.op, &part)) {
    return bad(part, "reduction " + std::to_string(part.op) +
                         " is not one of this communicator and data type");
  }
  const ncclResult result = check(part, *comm->engine);
  if (result != ncclSuccess) return result;
  if (part.count == 0 && is_collective(part.kind)) return ncclSuccess;
  return submit(comm->engine, stream, part);
}

Part part_of(Kind kind, const void* in, void* out, size_t count, int type, int op, int root) {
  Part part;
  part.kind = kind;
  part.in = in;
  part.out = out;
  part.count = count;
  part.type = type;
  part.op = op;
  part.root = root;
  return part;
}

}  // namespace

ncclResult ncclAllReduce(const void* in, void* out, size_t count, int type, int op, ncclComm* comm,
                         CUstream stream) {
  return add(comm, stream, part_of(Kind::kAllReduce, in, out, count, type, op, 0));
}

ncclResult ncclReduce(const void* in, void* out, size_t count, int type, int op, int root,
                      ncclComm* comm, CUstream stream) {
  return add(comm, stream, part_of(Kind::kReduce, in, out, count, type, op, root));
}

ncclResult ncclReduceScatter(const void* in, void* out, size_t count, int type, int op,
                             ncclComm* comm, CUstream stream) {
  return add(comm, stream, part_of(Kind::kReduceScatter, in, out, count, type, op, 0));
}

ncclResult ncclAllGather(const void* in, void* out, size_t count, int type, ncclComm* comm,
                         CUstream stream) {
  return add(comm, stream, part_of(Kind::kAllGather, in, out, count, type, 0, 0));
}

ncclResult ncclBroadcast(const void* in, void* out, size_t count, int type, int root,
                         ncclComm* comm, CUstream stream) {
  return add(comm, stream, part_of(Kind::kBroadcast, in, out, count, type, 0, root));
}

ncclResult ncclBcast(void* buffer, size_t count, int type, int root, ncclComm* comm,
                     CUstream stream) {
  return ncclBroadcast(buffer, buffer, count, type, root, comm, stream);
}

ncclResult ncclAlltoAll(const void* in, void* out, size_t count, int type, ncclComm* comm,
                        CUstream stream) {
  return add(comm, stream, part_of(Kind::kAllToAll, in, out, count, type, 0, 0));
}

ncclResult ncclGather(const void* in, void* out, size_t count, int type, int root, ncclComm* comm,
                      CUstream stream) {
  return add(comm, stream, part_of(Kind::kGather, in, out, count, type, 0, root));
}

ncclResult ncclScatter(const void* in, void* out, size_t count, int type, int root, ncclComm* comm,
                       CUstream stream) {
  return add(comm, stream, part_of(Kind::kScatter, in, out, count, type, 0, root));
}

ncclResult ncclSend(const void* in, size_t count, int type, int peer, ncclComm* comm,
                    CUstream stream) {
  return add(comm, stream, part_of(Kind::kSend, in, nullptr, count, type, 0, peer));
}

ncclResult ncclRecv(void* out, size_t count, int type, int peer, ncclComm* comm, CUstream stream) {
  return add(comm, stream, part_of(Kind::kRecv, nullptr, out, count, type, 0, peer));
}

ncclResult ncclRedOpCreatePreMulSum(int* op, void* scalar, int type, int residence,
                                    ncclComm* comm) {
  const bool device = residence == ncclScalarDevice;
  if (op == nullptr || scalar == nullptr || comm == nullptr || width_of(type) == 0 ||
      (!device && residence != ncclScalarHostImmediate)) {
    return fail(ncclInvalidArgument,
                "ncclRedOpCreatePreMulSum: a scalar, its type (0 to 11) and residence (0 or 1), "
                "and a communicator");
  }
  *op = comm->engine->scales().add(device ? 1 : read_scalar(type, scalar),
                                   device ? scalar : nullptr, type);
  return ncclSuccess;
}

ncclResult ncclRedOpDestroy(int op, ncclComm* comm) {
  if (comm != nullptr && comm->engine->scales().drop(op)) return ncclSuccess;
  return fail(ncclInvalidArgument, "ncclRedOpDestroy: no reduction " + std::to_string(op));
}

// Faults under the stand-in for NCCL: ranks that die, abort or make other calls, memory that may
// not be touched, rooms left over, bad arguments.
#include <fstream>

#include "nccl_harness.h"

namespace {

ncclResult wait_for_error(ncclComm* comm) {
  ncclResult error = ncclSuccess;
  for (int i = 0; i < 3000 && error == ncclSuccess; ++i) {  // 3 s
    NCCL(ncclCommGetAsyncError(comm, &error));
    usleep(1000);
  }
  return error;
}

ncclResult reduce_and_fail(World& w, Device<float>& data) {
  NCCL(ncclAllReduce(data.at(), data.at(), 4, ncclFloat32, ncclSum, w.comm, w.stream));
  TRUE(cuStreamQuery(w.stream) == CUDA_ERROR_NOT_READY);
  while (cuStreamQuery(w.stream) == CUDA_ERROR_NOT_READY && wait_for_error(w.comm) == 0) {
  }
  return wait_for_error(w.comm);
}

// After an abort the stream goes on. The result is zeros, and not what was staged before.
void abort_and_go_on(World& w, Device<float>& data) {
  TRUE(cuStreamQuery(w.stream) == CUDA_ERROR_NOT_READY);
  NCCL(ncclCommAbort(w.comm));
  w.comm = nullptr;
  TRUE(data.read(w.stream) == std::vector<float>(4, 0));
}

void peer_dies(World& w) {
  w.join();
  Device<float> data(4, 1);
  if (w.rank == 1) kill(getpid(), SIGKILL);
  NCCL_GIVES(ncclRemoteError, reduce_and_fail(w, data));
  TRUE(says("rank 1 has died"));
  NCCL_GIVES(ncclRemoteError,
             ncclAllReduce(data.at(), data.at(), 4, ncclFloat32, ncclSum, w.comm, w.stream));
  abort_and_go_on(w, data);
}

void peer_aborts(World& w) {
  w.join();
  Device<float> data(4, 1);
  if (w.rank == 1) {
    NCCL(ncclCommAbort(w.comm));
    w.comm = nullptr;
    return;
  }
  NCCL_GIVES(ncclRemoteError, reduce_and_fail(w, data));
  TRUE(says("rank 1 has aborted"));
  abort_and_go_on(w, data);
}

// A rank aborts while the other rank does not come.
void abort_a_wait(World& w) {
  w.join();
  if (w.rank == 1) {
    w.await(0, 1);
    NCCL(ncclCommAbort(w.comm));
    w.comm = nullptr;
    return;
  }
  Device<float> data(4, 1);
  NCCL(ncclAllReduce(data.at(), data.at(), 4, ncclFloat32, ncclSum, w.comm, w.stream));
  for (int i = 0; i < 100; ++i) TRUE(cuStreamQuery(w.stream) == CUDA_ERROR_NOT_READY);
  abort_and_go_on(w, data);
  w.mark(1);
}

void different_calls(World& w) {
  w.join();
  Device<float> data(4, 1);
  const size_t count = w.rank == 0 ? 4 : 3;
  NCCL(ncclAllReduce(data.at(), data.at(), count, ncclFloat32, ncclSum, w.comm, w.stream));
  while (cuStreamQuery(w.stream) == CUDA_ERROR_NOT_READY && wait_for_error(w.comm) == 0) {
  }
  NCCL_GIVES(ncclInvalidUsage, wait_for_error(w.comm));
  TRUE(says("all_reduce of 4 float32 (sum)") && says("all_reduce of 3 float32 (sum)"));
  NCCL(ncclCommAbort(w.comm));
  w.comm = nullptr;
}

// A collective that touches memory that is gone fails as a kernel's access does.
void unmapped_memory(World& w) {
  w.join();
  Device<float> data(4, 1);
  OK(cuMemFree(data.address));
  NCCL(ncclAllReduce(data.at(), data.at(), 4, ncclFloat32, ncclSum, w.comm, w.stream));
  const CUresult code = cuStreamSynchronize(w.stream);
  TRUE(code == CUDA_ERROR_ILLEGAL_ADDRESS);
  TRUE(violations().find("access to unmapped memory") != std::string::npos);
  char cleared[4096];
  simcuda_violations(cleared, sizeof cleared, 1);
}

// Both ends of a collective are in use until it is over.
void unmapped_under_way(World& w) {
  w.join();
  CUdeviceptr address = 0;
  CUmemGenericAllocationHandle handle = 0;
  const CUmemAllocationProp prop = device_memory(w.rank);
  OK(cuMemAddressReserve(&address, kGranule, 0, 0, 0));
  OK(cuMemCreate(&handle, kGranule, &prop, 0));
  OK(cuMemMap(address, kGranule, 0, handle, 0));
  CUmemAccessDesc access{prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  OK(cuMemSetAccess(address, kGranule, &access, 1));
  Device<float> data(4, 1);
  NCCL(ncclAllReduce(data.at(), reinterpret_cast<void*>(address), 4, ncclFloat32, ncclSum, w.comm,
                     w.stream));
  OK(cuMemUnmap(address, kGranule));
  TRUE(violations().find("unmap under pending work") != std::string::npos);
  cuStreamSynchronize(w.stream);
  char cleared[4096];
  simcuda_violations(cleared, sizeof cleared, 1);
}

void same_device(World& w) {
  CUcontext context = nullptr;
  OK(cuDevicePrimaryCtxRetain(&context, 0));
  OK(cuCtxSetCurrent(context));
  NCCL_GIVES(ncclInvalidUsage, ncclCommInitRank(&w.comm, w.size, w.shared->id, w.rank));
  TRUE(says("Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 0"));
}

void bad_input(World& w) {
  ncclComm* comm = nullptr;
  ncclUniqueId foreign{};
  std::strcpy(foreign.internal, "../../etc/passwd");
  NCCL_GIVES(ncclInvalidArgument, ncclCommInitRank(&comm, 1, foreign, 0));
  TRUE(says("not of this library's ncclGetUniqueId"));
  NCCL_GIVES(ncclInvalidArgument, ncclCommInitRank(&comm, 2, w.shared->id, 2));
  TRUE(says("rank 2 of 2"));
  NCCL_GIVES(ncclInvalidUsage, ncclGroupEnd());
  w.join();
  Device<float> data(4, 1);
  NCCL_GIVES(ncclInvalidArgument, ncclAllReduce(data.at(), data.at(), 4, 12, 0, w.comm, w.stream));
  TRUE(says("data type 12"));
  NCCL_GIVES(ncclInvalidArgument, ncclSend(data.at(), 4, ncclFloat32, 1, w.comm, w.stream));
  TRUE(says("rank 1 of 1"));
  NCCL_GIVES(ncclInvalidArgument,
             ncclAllReduce(nullptr, data.at(), 4, ncclFloat32, 0, w.comm, w.stream));
  NCCL_GIVES(ncclInvalidArgument, ncclAllReduce(data.at(), data.at(), 4, 7, 5, w.comm, w.stream));
  TRUE(says("reduction 5"));
  NCCL(ncclAllReduce(data.at(), data.at(), 0, ncclFloat32, 0, w.comm, w.stream));
  TRUE(std::string(ncclGetErrorString(ncclRemoteError)).find("remote process") == 0);
}

void joins(World& w) { w.join(); }

void dies_in_room(World& w) {
  w.join();
  Device<float> data(4, 1);
  NCCL(ncclAllReduce(data.at(), data.at(), 4, ncclFloat32, ncclSum, w.comm, w.stream));
  OK(cuStreamSynchronize(w.stream));
  _exit(0);  // no handler runs
}

// A rank exits without destroying its communicator. No other rank waits for it, and it leaves
// nothing behind.
void exits_without_destroying(World& w) {
  w.join();
  Device<float> data(4, 1);
  NCCL(ncclAllReduce(data.at(), data.at(), 4, ncclFloat32, ncclSum, w.comm, w.stream));
  OK(cuStreamSynchronize(w.stream));
  static auto kept = w.comm;  // still reachable: a sanitizer sees no leak
  w.comm = nullptr;
  TRUE(kept != nullptr);
}

void check_rooms(const std::string& parent) {
  TRUE(rooms().empty());
  ranks(2, exits_without_destroying);
  TRUE(rooms().empty());
  ranks(2, dies_in_room);
  TRUE(rooms().size() == 1);
  struct stat info{};
  TRUE(stat((parent + "/" + rooms()[0]).c_str(), &info) == 0);
  TRUE((info.st_mode & 0777) == 0700);
  TRUE(stat((parent + "/" + rooms()[0] + "/page").c_str(), &info) == 0);
  TRUE((info.st_mode & 0777) == 0600);
  ranks(2, joins);  // the next ranks remove what is left
  TRUE(rooms().empty());
}

const char* machines = "";  // the folder of simulated machines

void a_rank_dies() {
  const std::vector<int> ends = run_ranks(2, peer_dies);
  TRUE(ends[0] == 0 && WIFSIGNALED(ends[1]));
}

}  // namespace

int main(int argc, char** argv) {
  char parent[] = "/dev/shm/glake-test-nccl-XXXXXX";
  if (mkdtemp(parent) == nullptr) return 1;
  setenv("GLAKE_SIM_MACHINE_DIR", parent, 1);
  machines = parent;
  int result = run_checks(argc, argv,
                          {
                              {"rooms", [] { check_rooms(machines); }},
                              {"a rank dies", a_rank_dies},
                              {"a rank aborts", [] { ranks(2, peer_aborts); }},
                              {"a wait is aborted", [] { ranks(2, abort_a_wait); }},
                              {"different calls", [] { ranks(2, different_calls); }},
                              {"unmapped memory", [] { ranks(2, unmapped_memory); }},
                              {"memory unmapped under way", [] { ranks(2, unmapped_under_way); }},
                              {"the same device", [] { ranks(2, same_device); }},
                              {"bad input", [] { ranks(1, bad_input); }},
                              {"no room is left", [] { TRUE(rooms().empty()); }},
                          });
  if (system((std::string("rm -rf ") + parent).c_str()) != 0) result = 1;
  return result;
}

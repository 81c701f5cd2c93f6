// Tests the simulator itself: options, ledger, faults, violations, limits, ticks.
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <thread>

#include "sim_harness.h"
#include "simcuda/driver/runtime.h"

// The newest header does not declare this function, and uses its name for another one.
extern "C" CUresult cuCtxCreate_v2(CUcontext* context, unsigned int flags, CUdevice device);

namespace {

void check_options() {
  simcuda_reset();
  GIVES(CUDA_ERROR_INVALID_VALUE, simcuda_configure("no_such_option", "1"));
  GIVES(CUDA_ERROR_INVALID_VALUE, simcuda_configure("devices", "0"));
  GIVES(CUDA_ERROR_INVALID_VALUE, simcuda_configure("memory", "12parsec"));
  GIVES(CUDA_ERROR_INVALID_VALUE, simcuda_configure("schedule", "sometimes"));
  OK(simcuda_configure("preset", "no_such_preset"));
  GIVES(CUDA_ERROR_INVALID_VALUE, cuInit(0));
  simcuda_reset();
  OK(simcuda_configure("platforms", "/no/such/file"));
  GIVES(CUDA_ERROR_FILE_NOT_FOUND, cuInit(0));
  char message[256];
  simcuda_last_message(message, sizeof message);
  TRUE(std::strstr(message, "/no/such/file") != nullptr);
  const Sim sim({{"devices", "2"}, {"memory", "64MiB"}});
  GIVES(CUDA_ERROR_INVALID_VALUE, simcuda_configure("devices", "3"));  // too late
  int count = 0;
  OK(cuDeviceGetCount(&count));
  TRUE(count == 2);
  size_t free = 0, total = 0;
  OK(cuMemGetInfo(&free, &total));
  TRUE(free == size_t{64} << 20 && total == free);
}

void check_cost_and_counts() {
  const Sim sim({{"costs", "published"}});
  simcuda_reset_calls();
  Mapped one(kGranule), four(4 * kGranule);
  TRUE(simcuda_calls("cuMemMap") == 2 && simcuda_cost_us("cuMemMap") == 4);
  TRUE(simcuda_calls("cuMemCreate") == 2);
  TRUE(simcuda_cost_us("cuMemCreate") > 61.59 && simcuda_cost_us("cuMemCreate") < 61.61);
  TRUE(simcuda_cost_us("cuMemSetAccess") == 38 + 38 + 3 * 2);
  four.free();
  TRUE(simcuda_cost_us("cuMemUnmap") == 34 + 3 && simcuda_cost_us("cuMemRelease") == 23 + 3);
  TRUE(simcuda_calls("cuNoSuchCall") == -1 && simcuda_further_pages("cuNoSuchCall") == -1);
  OK(simcuda_configure("call_us", "cuMemMap=10+1"));
  simcuda_reset_calls();
  Mapped again(4 * kGranule);
  TRUE(simcuda_cost_us("cuMemMap") == 13);
  GIVES(CUDA_ERROR_INVALID_VALUE, simcuda_configure("call_us", "cuMemMap=x"));
}

// The cost of two mappings, of four and of three pages, in one range.
void check_cost_of_mappings() {
  const Sim sim({{"costs", "published"}});
  const CUmemAllocationProp prop = device_memory(0);
  CUdeviceptr at = 0;
  OK(cuMemAddressReserve(&at, 7 * kGranule, 0, 0, 0));
  CUmemGenericAllocationHandle handles[2] = {};
  const size_t pages[] = {4, 3};
  for (int i = 0; i < 2; ++i) {
    OK(cuMemCreate(&handles[i], pages[i] * kGranule, &prop, 0));
    OK(cuMemMap(at + i * 4 * kGranule, pages[i] * kGranule, 0, handles[i], 0));
  }
  double mapping = 0;
  OK(simcuda_mapping_price(nullptr, "cuMemUnmap", &mapping));
  TRUE(mapping == 1);  // costs as much as a further page
  OK(simcuda_configure("call_us", "cuMemSetAccess=20+0.5+10,cuMemUnmap=30+2"));
  OK(simcuda_mapping_price(nullptr, "cuMemSetAccess", &mapping));
  TRUE(mapping == 10);
  OK(simcuda_mapping_price(nullptr, "cuMemUnmap", &mapping));
  TRUE(mapping == 2);
  simcuda_reset_calls();
  OK(grant(at, 7 * kGranule, 0));
  TRUE(simcuda_cost_us("cuMemSetAccess") == 20 + 10 + 5 * 0.5);
  TRUE(simcuda_further_mappings("cuMemSetAccess") == 1);
  TRUE(simcuda_further_pages("cuMemSetAccess") == 6);
  OK(grant(at, 4 * kGranule, 0));
  TRUE(simcuda_cost_us("cuMemSetAccess") == 2 * 20 + 10 + 8 * 0.5);
  TRUE(cuMemUnmap(at, kGranule) != 0);  // a part of a mapping: refused
  OK(cuMemUnmap(at, 7 * kGranule));
  TRUE(simcuda_cost_us("cuMemUnmap") == 2 * 30 + 6 * 2);
  TRUE(simcuda_further_mappings("cuMemUnmap") == 1);
  simcuda_reset_calls();
  TRUE(simcuda_further_mappings("cuMemUnmap") == 0);
  TRUE(simcuda_further_mappings("cuNoSuchCall") == -1);
  for (const char* wrong : {"cuMemUnmap=1+2+", "cuMemUnmap=1+2+3+4", "cuMemUnmap=1+2+x"}) {
    GIVES(CUDA_ERROR_INVALID_VALUE, simcuda_configure("call_us", wrong));
  }
  for (CUmemGenericAllocationHandle handle : handles) OK(cuMemRelease(handle));
  OK(cuMemAddressFree(at, 7 * kGranule));
}

void check_cost_file() {
  char path[] = "/tmp/glake-costs-XXXXXX";
  const int file = mkstemp(path);
  TRUE(file >= 0);
  const std::string text =
      "{\"default\": \"published\", \"devices\": {\"a GPU\": {\"calls\": "
      "{\"cuMemMap\": [7, 0.5], \"cuMemCreate\": [100, 0], \"cuMemUnmap\": [9, 1, 8]}}}, "
      "\"sources\": {\"a paper\": "
      "{\"calls\": {\"cuMemMap\": [1.5, 0]}}}}";
  TRUE(write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size()));
  close(file);
  double first = 0, further = 0, mapping = 0;
  {
    const Sim sim({{"cost_file", path}, {"costs", "a GPU"}, {"call_us", "cuMemCreate=1+1"}});
    OK(simcuda_price("cuMemMap", &first, &further));
    TRUE(first == 7 && further == 0.5);
    OK(simcuda_price("cuMemCreate", &first, &further));  // call_us wins
    TRUE(first == 1 && further == 1);
    OK(simcuda_price("cuMemRelease", &first, &further));  // the published price
    TRUE(first == 23 && further == 1);
    OK(simcuda_price("cuMemUnmap", &first, &further));
    OK(simcuda_mapping_price(nullptr, "cuMemUnmap", &mapping));
    TRUE(first == 9 && further == 1 && mapping == 8);
    OK(simcuda_mapping_price(nullptr, "cuMemMap", &mapping));  // by default that of a further page
    TRUE(mapping == 0.5);
    OK(simcuda_mapping_price("published", "cuMemUnmap", &mapping));
    TRUE(mapping == 1);
    TRUE(simcuda_mapping_price("nobody", "cuMemUnmap", &mapping) != 0);
    TRUE(simcuda_mapping_price(nullptr, "cuNoSuchCall", &mapping) != 0);
    simcuda_reset_calls();
    Mapped four(4 * kGranule);
    TRUE(simcuda_cost_us("cuMemMap") == 8.5 && simcuda_further_pages("cuMemMap") == 3);
    // A cost table is found by its name, whichever is in force.
    OK(simcuda_table_price("a paper", "cuMemMap", &first, &further));
    TRUE(first == 1.5 && further == 0);
    OK(simcuda_table_price("a paper", "cuMemCreate", &first, &further));  // the published price
    TRUE(first == 29 && further == 1.2);
    OK(simcuda_table_price("published", "cuMemMap", &first, &further));
    TRUE(first == 2);
    GIVES(CUDA_ERROR_INVALID_VALUE, simcuda_table_price("nobody", "cuMemMap", &first, &further));
    TRUE(simcuda_table_price("published", "cuNoSuchCall", &first, &further) != 0);
  }
  {
    const Sim sim({{"cost_file", path}});
    OK(simcuda_price("cuMemMap", &first, &further));
    TRUE(first == 2 && further == 0);
  }
  TRUE(simcuda_price("cuNoSuchCall", &first, &further) != 0);
  // Before cuInit the table can be read too. A device that is not in the file is an error that
  // names it.
  OK(simcuda_reset());
  OK(simcuda_configure("cost_file", path));
  OK(simcuda_configure("costs", "another GPU"));
  GIVES(CUDA_ERROR_INVALID_VALUE, simcuda_price("cuMemMap", &first, &further));
  GIVES(CUDA_ERROR_INVALID_VALUE, cuInit(0));
  char message[512] = "";
  simcuda_last_message(message, sizeof message);
  TRUE(std::string(message).find("another GPU") != std::string::npos);
  TRUE(std::string(message).find("a GPU") != std::string::npos);
  OK(simcuda_reset());
  unlink(path);
}

void check_injected_failures() {
  const Sim sim({});
  const CUmemAllocationProp prop = device_memory(0);
  CUmemGenericAllocationHandle handle = 0;
  OK(simcuda_fail("cuMemCreate", 2, CUDA_ERROR_OUT_OF_MEMORY, 2));
  OK(cuMemCreate(&handle, kGranule, &prop, 0));
  GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemCreate(&handle, kGranule, &prop, 0));
  GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemCreate(&handle, kGranule, &prop, 0));
  OK(cuMemCreate(&handle, kGranule, &prop, 0));
  TRUE(ledger_of("handles") == 2);
  OK(simcuda_fail("*", 2, CUDA_ERROR_UNKNOWN, -1));
  CUdeviceptr at = 0;
  OK(cuMemAddressReserve(&at, kGranule, 0, 0, 0));
  GIVES(CUDA_ERROR_UNKNOWN, cuMemAddressFree(at, kGranule));
  GIVES(CUDA_ERROR_UNKNOWN, cuMemRelease(handle));
  OK(simcuda_fail(nullptr, 0, 0, 0));
  OK(cuMemRelease(handle));
  GIVES(CUDA_ERROR_INVALID_VALUE, simcuda_fail("cuNoSuchCall", 1, 1, 1));
}

void check_ledger_returns_to_zero() {
  const Sim sim({});
  const std::string before = ledger();
  {
    Mapped a(kGranule), b(8 * kGranule);
    CUdeviceptr block = 0, small = 0;
    void* host = nullptr;
    OK(cuMemAlloc(&block, 5 << 20));
    OK(cuMemAlloc(&small, 100));
    OK(cuMemHostAlloc(&host, 1 << 20, 0));
    CUstream stream = new_stream();
    CUevent event = new_event();
    OK(cuMemsetD8Async(a.at, 1, kGranule, stream));
    OK(cuEventRecord(event, stream));
    TRUE(ledger_of("handles") == 4 && ledger_of("pending_work") == 2);
    TRUE(ledger_of("used_bytes") == (9 + 3) * static_cast<long>(kGranule) + (64 << 10));
    OK(cuEventSynchronize(event));
    OK(cuMemFree(block));
    OK(cuMemFree(small));
    OK(cuMemFreeHost(host));
    OK(cuStreamDestroy(stream));
    OK(cuEventDestroy(event));
    a.free();
    b.free();
  }
  TRUE(ledger() == before);
  TRUE(violations() == "[]");
}

void check_violations() {
  const Sim sim({});
  Mapped memory(kGranule), other(kGranule);
  CUstream stream = new_stream();
  OK(cuMemsetD8Async(memory.at, 1, kGranule, stream));
  OK(cuMemUnmap(memory.at, kGranule));
  TRUE(violations(false).find("unmap under pending work") != std::string::npos);
  GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, cuStreamSynchronize(stream));
  TRUE(violations().find("access to unmapped memory") != std::string::npos);
  OK(cuMemMap(memory.at, kGranule, 0, memory.handle, 0));
  OK(cuMemsetD8Async(memory.at, 1, kGranule, stream));
  GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, cuStreamSynchronize(stream));
  TRUE(violations().find("access without grant") != std::string::npos);
  OK(grant(memory.at, kGranule, 0));
  OK(cuMemsetD8Async(memory.at, 1, kGranule, stream));
  OK(cuStreamSynchronize(stream));
  // Also where the end of the range is beyond all addresses.
  OK(cuMemcpyDtoDAsync(memory.at, other.at, SIZE_MAX, stream));
  GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, cuStreamSynchronize(stream));
  TRUE(violations().find("access to unmapped memory") != std::string::npos);
  OK(cuMemsetD8Async(memory.at, 1, kGranule, stream));
  OK(cuMemUnmap(other.at, kGranule));  // nothing pending touches it
  OK(cuStreamSynchronize(stream));
  TRUE(violations() == "[]");
}

void check_map_limit() {
  const Sim sim({{"max_maps", "64"}});
  std::vector<Mapped> kept;
  CUresult result = CUDA_SUCCESS;
  const CUmemAllocationProp prop = device_memory(0);
  for (int i = 0; i < 64 && result == CUDA_SUCCESS; ++i) {
    CUdeviceptr at = 0;
    CUmemGenericAllocationHandle handle = 0;
    OK(cuMemCreate(&handle, kGranule, &prop, 0));
    result = cuMemAddressReserve(&at, 3 * kGranule, 0, 0, 0);
    if (result == CUDA_SUCCESS) result = cuMemMap(at + kGranule, kGranule, 0, handle, 0);
  }
  GIVES(CUDA_ERROR_MAP_FAILED, result);
  char message[512];
  simcuda_last_message(message, sizeof message);
  TRUE(std::strstr(message, "vm.max_map_count") != nullptr);
  TRUE(ledger_of("kernel_mappings") <= 64);
}

void check_neighbours_share_a_kernel_mapping() {
  const Sim sim({});
  const CUmemAllocationProp prop = device_memory(0);
  CUdeviceptr at = 0;
  OK(cuMemAddressReserve(&at, 64 * kGranule, 0, 0, 0));
  for (int i = 0; i < 64; ++i) {
    CUmemGenericAllocationHandle handle = 0;
    OK(cuMemCreate(&handle, kGranule, &prop, 0));
    OK(cuMemMap(at + i * kGranule, kGranule, 0, handle, 0));
  }
  OK(grant(at, 64 * kGranule, 0));
  TRUE(ledger_of("kernel_mappings") == 1);
}

// After random calls the ledger counts as many kernel mappings as the kernel has.
void check_kernel_mappings_are_counted() {
  const Sim sim({});
  constexpr int kPages = 32;
  const CUmemAllocationProp prop = device_memory(0);
  std::vector<CUmemGenericAllocationHandle> handles(kPages, 0);
  for (auto& handle : handles) OK(cuMemCreate(&handle, kGranule, &prop, 0));
  CUdeviceptr at = 0;
  OK(cuMemAddressReserve(&at, kPages * kGranule, 0, 0, 0));
  std::vector<bool> mapped(kPages, false);
  uint64_t random = 12345;
  for (int step = 0; step < 400; ++step) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    const size_t page = random >> 40 & (kPages - 1), handle = random >> 50 & (kPages - 1);
    const CUdeviceptr where = at + page * kGranule;
    if (mapped[page]) {
      OK(cuMemUnmap(where, kGranule));
    } else {
      // Mostly page i gets handle i, so that neighbouring pages have neighbouring handles.
      OK(cuMemMap(where, kGranule, 0, handles[step % 4 == 0 ? handle : page], 0));
      if (step % 3 != 0) OK(grant(where, kGranule, 0));
    }
    mapped[page] = !mapped[page];
  }
  long real = 0;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const CUdeviceptr start = std::strtoull(line.c_str(), nullptr, 16);
    const CUdeviceptr end = std::strtoull(line.c_str() + line.find('-') + 1, nullptr, 16);
    real += start < at + kPages * kGranule && end > at;
  }
  TRUE(ledger_of("kernel_mappings") == real);
}

void check_grants_follow_the_topology() {
  Sim sim({{"preset", "dgx1v"}});  // no link from 0 to 5, and not one socket
  Mapped memory(kGranule, 0);
  OK(grant(memory.at, kGranule, 3));
  GIVES(CUDA_ERROR_INVALID_DEVICE, grant(memory.at, kGranule, 5));
  int reach = -1;
  OK(cuDeviceCanAccessPeer(&reach, 0, 5));
  TRUE(reach == 0);
}

// GPUs 0 and 1 are under one PCIe switch, and an NVLink joins GPUs 2 and 3.
void check_pcie_peers() {
  char path[] = "/tmp/glake-platforms-XXXXXX";
  const int file = mkstemp(path);
  TRUE(file >= 0);
  std::string text = "{\"per_copy_us\": 8, \"box\": {\"gpus\": 4, \"sockets\": [[0, 1, 2, 3]], ";
  std::string before = "\"edges\": [";
  for (const auto& [a, b] : std::vector<std::pair<std::string, std::string>>{{"m0", "s0"},
                                                                             {"s0", "u0"},
                                                                             {"u0", "g0"},
                                                                             {"u0", "g1"},
                                                                             {"s0", "g2"},
                                                                             {"s0", "g3"},
                                                                             {"g2", "g3"}}) {
    text += before + "[\"" + a + "\", \"" + b + "\", 20], [\"" + b + "\", \"" + a + "\", 20]";
    before = ", ";
  }
  text += "]}}";
  TRUE(write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size()));
  close(file);
  struct Allowed {
    const char* option;
    bool under_switch, under_socket;
  };
  for (const Allowed& allowed :
       {Allowed{"socket", true, true}, {"switch", true, false}, {"none", false, false}}) {
    Sim sim({{"platforms", path}, {"preset", "box"}, {"pcie_peers", allowed.option}});
    simcuda_machine_facts facts{};
    OK(simcuda_machine(&facts));  // as NVML tells it
    for (int a = 0; a < 4; ++a) {
      for (int b = 0; b < 4; ++b) {
        if (a == b) continue;
        const bool peers = a + b == 5   ? true
                           : a + b == 1 ? allowed.under_switch
                                        : allowed.under_socket;
        int reach = -1, supported = -1;
        OK(cuDeviceCanAccessPeer(&reach, a, b));
        OK(cuDeviceGetP2PAttribute(&supported, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, a, b));
        TRUE(reach == peers && supported == peers && (facts.peers[a] >> b & 1) == peers);
        CUcontext other = nullptr;
        OK(cuDevicePrimaryCtxRetain(&other, b));
        sim.use(a);
        GIVES(peers ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_UNSUPPORTED,
              cuCtxEnablePeerAccess(other, 0));
        const CUresult granted = peers ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
        Mapped memory(kGranule, a);
        GIVES(granted, grant(memory.at, kGranule, b));
        memory.free();
        CUmemoryPool pool = nullptr;
        OK(cuDeviceGetDefaultMemPool(&pool, a));
        CUmemAccessDesc desc{};
        desc.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
        desc.location.id = b;
        desc.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        GIVES(granted, cuMemPoolSetAccess(pool, &desc, 1));
      }
    }
  }
  unlink(path);
}

void check_ticks() {
  const Sim sim({{"phantom", "1"}, {"complete_after", "3"}});
  CUstream a = new_stream(), b = new_stream();
  CUevent first = new_event(), second = new_event();
  OK(cuEventRecord(first, a));
  simcuda_tick(2);
  GIVES(CUDA_ERROR_NOT_READY, cuEventQuery(first));
  simcuda_tick(1);
  OK(cuEventQuery(first));
  OK(simcuda_configure("complete_after", "-1"));
  OK(cuEventRecord(first, a));
  OK(cuStreamWaitEvent(b, first, 0));
  OK(cuEventRecord(second, b));
  simcuda_tick(1000000);
  GIVES(CUDA_ERROR_NOT_READY, cuEventQuery(first));
  GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(b));
  OK(cuEventSynchronize(second));  // b waited for a: both are known to be done
  OK(cuEventQuery(first));
  OK(cuEventQuery(second));
  OK(cuEventRecord(first, a));
  GIVES(CUDA_ERROR_NOT_READY, cuEventQuery(first));
  OK(cuCtxSynchronize());
  OK(cuEventQuery(first));
}

void check_phantom_memory() {
  const Sim sim({{"phantom", "1"}, {"memory", "1024GiB"}});
  Mapped memory(size_t{512} << 30);
  CUstream stream = new_stream();
  OK(cuMemsetD8Async(memory.at, 1, memory.bytes, stream));
  OK(cuStreamSynchronize(stream));
  OK(cuMemUnmap(memory.at, memory.bytes));
  TRUE(violations() == "[]");
  OK(cuMemMap(memory.at, memory.bytes, 0, memory.handle, 0));
  memory.free();
  TRUE(ledger_of("used_bytes") == 0);
}

size_t free_bytes() {
  size_t free = 0, total = 0;
  OK(cuMemGetInfo(&free, &total));
  return free;
}

void check_context_memory() {
  simcuda_reset();
  GIVES(CUDA_ERROR_INVALID_VALUE, simcuda_configure("context_memory", "a lot"));
  const Sim sim({{"memory", "64MiB"}, {"context_memory", "20MiB"}, {"devices", "2"}});
  TRUE(free_bytes() == size_t{44} << 20);  // the harness's primary context
  CUcontext second = nullptr, third = nullptr, fourth = nullptr;
  OK(cuCtxCreate_v2(&second, 0, 0));
  OK(cuCtxCreate_v2(&third, 0, 0));
  TRUE(free_bytes() == size_t{4} << 20);
  GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuCtxCreate_v2(&fourth, 0, 0));
  OK(cuCtxDestroy(third));
  OK(cuCtxDestroy(second));
  TRUE(free_bytes() == size_t{44} << 20);
  CUcontext other = nullptr;  // of an unused device: takes memory once
  OK(cuDevicePrimaryCtxRetain(&other, 1));
  OK(cuDevicePrimaryCtxRetain(&other, 1));
  OK(cuCtxPushCurrent(other));
  TRUE(free_bytes() == size_t{44} << 20);
  OK(cuCtxPopCurrent(nullptr));
  OK(cuDevicePrimaryCtxRelease(1));
  OK(cuDevicePrimaryCtxRelease(1));
}

// The streams and events of a primary context end with its last reference, like those of a context
// that the program created.
void check_contexts_end_what_they_own() {
  const Sim sim({{"devices", "2"}});
  CUcontext other = nullptr;
  CUstream stream = nullptr;
  CUevent event = nullptr;
  OK(cuDevicePrimaryCtxRetain(&other, 1));
  OK(cuDevicePrimaryCtxRetain(&other, 1));
  OK(cuCtxPushCurrent(other));
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  OK(cuCtxPopCurrent(nullptr));
  OK(cuDevicePrimaryCtxRelease(1));
  OK(cuStreamQuery(stream));
  OK(cuDevicePrimaryCtxRelease(1));
  TRUE(violations() == "[]");
  GIVES(CUDA_ERROR_INVALID_HANDLE, cuStreamQuery(stream));
  GIVES(CUDA_ERROR_INVALID_HANDLE, cuEventQuery(event));
  TRUE(violations().find("handle of nothing") != std::string::npos);
  OK(cuDevicePrimaryCtxRetain(&other, 1));  // a new context: what the old one owned stays destroyed
  GIVES(CUDA_ERROR_INVALID_HANDLE, cuStreamQuery(stream));
  OK(cuDevicePrimaryCtxRelease(1));
  TRUE(!violations().empty());
}

// What cuda.h says about cuCtxDestroy: it frees memory of cuMemAlloc, cuMemAllocManaged and
// cuMemAllocHost, but not that of cuMemCreate and cuMemAllocAsync.
void check_contexts_free_their_memory() {
  const Sim sim({{"memory", "64MiB"}, {"devices", "2"}});
  CUcontext outer = nullptr, made = nullptr;
  OK(cuCtxGetCurrent(&outer));
  CUdeviceptr kept = 0, block = 0, managed = 0, pooled = 0;
  OK(cuMemAlloc(&kept, 2 * kGranule));
  OK(cuCtxCreate_v2(&made, 0, 0));
  OK(cuMemAlloc(&block, 3 * kGranule));
  OK(cuMemAllocManaged(&managed, kGranule, CU_MEM_ATTACH_GLOBAL));
  const CUstream stream = new_stream();
  OK(cuMemAllocAsync(&pooled, kGranule, stream));
  OK(cuStreamSynchronize(stream));
  const int64_t pool = ledger_of("used_bytes") - int64_t{6 * kGranule};
  const Mapped mapped(kGranule);
  void* pinned = nullptr;
  OK(cuMemAllocHost(&pinned, 4096));
  OK(cuMemcpyHtoDAsync(block, pinned, 4096, stream));  // still under way
  OK(cuCtxDestroy(made));
  OK(cuCtxSetCurrent(outer));
  TRUE(ledger_of("used_bytes") == pool + int64_t{3 * kGranule});
  TRUE(ledger_of("host_blocks") == 0);
  GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree(block));
  GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFreeHost(pinned));
  OK(cuMemFree(pooled));
  OK(cuMemFree(kept));
  OK(cuDevicePrimaryCtxRetain(&made, 1));
  OK(cuCtxSetCurrent(made));
  OK(cuMemAlloc(&block, kGranule));
  OK(cuDevicePrimaryCtxRetain(&made, 1));
  OK(cuDevicePrimaryCtxRelease(1));
  TRUE(ledger_of("used_bytes", 1) == int64_t{kGranule});
  OK(cuDevicePrimaryCtxRelease(1));  // the last reference
  TRUE(ledger_of("used_bytes", 1) == 0);
  TRUE(violations() == "[]");
}

// TensorPipe (torch.distributed.rpc) asks for the device of a tensor with no current context.
void check_an_address_is_asked_without_a_context() {
  const Sim sim({{"devices", "2"}});
  CUcontext outer = nullptr, second = nullptr, found = nullptr;
  OK(cuCtxGetCurrent(&outer));
  OK(cuDevicePrimaryCtxRetain(&second, 1));
  OK(cuCtxSetCurrent(second));
  CUdeviceptr block = 0;
  void* host = nullptr;
  OK(cuMemAlloc(&block, kGranule));
  OK(cuMemAllocHost(&host, 4096));
  OK(cuCtxSetCurrent(nullptr));
  int device = -1;
  CUdeviceptr pointer = 0;
  OK(cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, block + 5));
  TRUE(device == 1);
  OK(cuPointerGetAttribute(&found, CU_POINTER_ATTRIBUTE_CONTEXT, block));
  TRUE(found == second);
  GIVES(CUDA_ERROR_INVALID_CONTEXT,
        cuPointerGetAttribute(&pointer, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, block));
  GIVES(CUDA_ERROR_INVALID_CONTEXT,
        cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                              reinterpret_cast<CUdeviceptr>(host)));
  OK(cuCtxSetCurrent(second));
  OK(cuMemFree(block));
  OK(cuMemFreeHost(host));
  OK(cuCtxSetCurrent(outer));
  OK(cuDevicePrimaryCtxRelease(1));
}

// A reset ends what a primary context owns, and leaves its references (cuda.h). Its handle is
// usable once it is retained again.
void check_primary_contexts_are_reset() {
  const Sim sim({{"devices", "2"}, {"context_memory", "4MiB"}});
  CUcontext outer = nullptr, context = nullptr;
  OK(cuCtxGetCurrent(&outer));
  OK(cuDevicePrimaryCtxReset(1));  // inactive: nothing to end
  OK(cuDevicePrimaryCtxRetain(&context, 1));
  OK(cuCtxSetCurrent(context));
  CUdeviceptr block = 0;
  OK(cuMemAlloc(&block, kGranule));
  const CUstream stream = new_stream();
  OK(cuMemsetD8Async(block, 1, kGranule, stream));
  OK(cuDevicePrimaryCtxReset(1));
  TRUE(ledger_of("used_bytes", 1) == 0);
  GIVES(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuMemAlloc(&block, kGranule));
  GIVES(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuCtxSynchronize());
  OK(cuCtxSetCurrent(outer));
  GIVES(CUDA_ERROR_INVALID_CONTEXT, cuCtxSetCurrent(context));
  TRUE(violations() == "[]");
  GIVES(CUDA_ERROR_INVALID_HANDLE, cuStreamQuery(stream));
  TRUE(!violations().empty());
  unsigned flags = 0;
  int active = 1;
  OK(cuDevicePrimaryCtxGetState(1, &flags, &active));
  TRUE(active == 0);
  CUcontext again = nullptr;
  OK(cuDevicePrimaryCtxRetain(&again, 1));
  OK(cuCtxSetCurrent(again));
  OK(cuMemAlloc(&block, kGranule));
  OK(cuMemFree(block));
  OK(cuDevicePrimaryCtxRelease(1));
  OK(cuDevicePrimaryCtxGetState(1, &flags, &active));
  TRUE(active == 1);  // the reference from before the reset
  OK(cuDevicePrimaryCtxRelease(1));
  TRUE(ledger_of("used_bytes", 1) == 0);
  OK(cuCtxSetCurrent(outer));
  GIVES(CUDA_ERROR_INVALID_DEVICE, cuDevicePrimaryCtxReset(2));
}

// simcuda has no memory on host nodes, and says so wherever it could be asked for.
void check_host_locations_are_refused() {
  const Sim sim({});
  CUmemGenericAllocationHandle handle = 0;
  CUmemAllocationProp prop = device_memory(0);
  size_t granularity = 0;
  for (const int type : {2, 3}) {  // HOST, HOST_NUMA
    prop.location.type = static_cast<CUmemLocationType>(type);
    GIVES(CUDA_ERROR_NOT_SUPPORTED, cuMemCreate(&handle, kGranule, &prop, 0));
    GIVES(CUDA_ERROR_NOT_SUPPORTED,
          cuMemGetAllocationGranularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  }
  prop.location.type = static_cast<CUmemLocationType>(4);  // HOST_NUMA_CURRENT
  GIVES(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&handle, kGranule, &prop, 0));
}

void check_unknown_values_are_refused() {
  const Sim sim({{"devices", "2"}});
  CUcontext here = nullptr, peer = nullptr;
  OK(cuCtxGetCurrent(&here));
  CUdeviceptr block = 0;
  OK(cuMemAlloc(&block, 4096));
  const auto nothing = reinterpret_cast<CUcontext>(0x1234);
  OK(cuDevicePrimaryCtxRetain(&peer, 1));
  OK(cuMemcpyPeer(block, here, block + 64, peer, 64));
  OK(cuMemcpyPeerAsync(block, peer, block + 64, here, 64, nullptr));
  CUDA_MEMCPY3D_PEER rows{};
  rows.srcMemoryType = rows.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  rows.dstDevice = block;
  rows.srcDevice = block + 64;
  rows.WidthInBytes = 64;
  rows.Height = rows.Depth = 1;
  rows.dstContext = here;
  rows.srcContext = peer;
  OK(cuMemcpy3DPeerAsync(&rows, nullptr));
  OK(cuDevicePrimaryCtxRelease(1));
  for (const CUcontext wrong : {nothing, peer, CUcontext{nullptr}}) {
    GIVES(CUDA_ERROR_INVALID_CONTEXT, cuMemcpyPeer(block, wrong, block + 64, here, 64));
    GIVES(CUDA_ERROR_INVALID_CONTEXT, cuMemcpyPeerAsync(block, here, block + 64, wrong, 64, 0));
    rows.srcContext = wrong;
    GIVES(CUDA_ERROR_INVALID_CONTEXT, cuMemcpy3DPeerAsync(&rows, nullptr));
    std::swap(rows.srcContext, rows.dstContext);
    GIVES(CUDA_ERROR_INVALID_CONTEXT, cuMemcpy3DPeerAsync(&rows, nullptr));
    std::swap(rows.srcContext, rows.dstContext);
  }
  static unsigned char page[4096] __attribute__((aligned(4096)));
  GIVES(CUDA_ERROR_INVALID_VALUE, cuMemHostRegister(page, sizeof page, 0x100));
  OK(cuMemHostRegister(page, sizeof page, CU_MEMHOSTREGISTER_PORTABLE));
  OK(cuMemHostUnregister(page));
  const CUstream stream = new_stream();
  GIVES(CUDA_ERROR_INVALID_VALUE,
        cuStreamBeginCapture(stream, static_cast<CUstreamCaptureMode>(9)));
  OK(cuStreamQuery(stream));
}

// What cuda.h says about cuGetProcAddress, and about its form in CUDA 11, which has no status.
void check_proc_address() {
  const Sim sim({});
  int newest = 0;
  OK(cuDriverGetVersion(&newest));
  void* function = nullptr;
  CUdriverProcAddressQueryResult status{};
  OK(cuGetProcAddress("cuNoSuchCall", &function, newest, 0, &status));
  TRUE(function == nullptr && status == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
  OK(cuGetProcAddress("cuMemMap", &function, 9000, 0, nullptr));
  TRUE(function == nullptr);
  GIVES(CUDA_ERROR_INVALID_VALUE, cuGetProcAddress("cuMemMap", &function, newest + 1, 0, &status));
  GIVES(CUDA_ERROR_INVALID_VALUE, cuGetProcAddress("cuMemMap", &function, newest, 64, &status));
  OK(cuGetProcAddress("cuMemMap", &function, newest, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &status));
  TRUE(function != nullptr && status == CU_GET_PROC_ADDRESS_SUCCESS);
  OK(cuGetProcAddress("cuGetProcAddress", &function, 11030, 0, &status));
  const auto get11 = reinterpret_cast<CUresult (*)(const char*, void**, int, cuuint64_t)>(function);
  GIVES(CUDA_ERROR_NOT_FOUND, get11("cuNoSuchCall", &function, 11030, 0));
  OK(get11("cuMemMap", &function, 11030, 0));
  TRUE(function != nullptr);
}

void check_delays_hold_no_lock() {
  const Sim sim({{"call_delay_us", "cuMemAddressReserve=300000"}});
  std::atomic<bool> done{false};
  CUcontext context = nullptr;
  OK(cuCtxGetCurrent(&context));
  std::thread slow([&] {
    CUdeviceptr at = 0;
    cuCtxSetCurrent(context);
    cuMemAddressReserve(&at, kGranule, 0, 0, 0);
    done = true;
  });
  int calls = 0;
  size_t free = 0, total = 0;
  while (!done && calls < 1000) calls += cuMemGetInfo(&free, &total) == CUDA_SUCCESS;
  const bool early = !done;
  slow.join();
  TRUE(early && calls == 1000);
}

}  // namespace

int main(int argc, char** argv) {
  return run_checks(
      argc, argv,
      {
          {"options", check_options},
          {"cost and counts", check_cost_and_counts},
          {"cost of mappings", check_cost_of_mappings},
          {"cost file", check_cost_file},
          {"injected failures", check_injected_failures},
          {"the ledger returns to zero", check_ledger_returns_to_zero},
          {"violations", check_violations},
          {"mappings are limited", check_map_limit},
          {"neighbours share a kernel mapping", check_neighbours_share_a_kernel_mapping},
          {"kernel mappings are counted", check_kernel_mappings_are_counted},
          {"grants follow the topology", check_grants_follow_the_topology},
          {"peers over PCIe", check_pcie_peers},
          {"ticks", check_ticks},
          {"phantom memory", check_phantom_memory},
          {"contexts take memory", check_context_memory},
          {"contexts end what they own", check_contexts_end_what_they_own},
          {"contexts free their memory", check_contexts_free_their_memory},
          {"an address is asked without a context", check_an_address_is_asked_without_a_context},
          {"primary contexts are reset", check_primary_contexts_are_reset},
          {"host locations are refused", check_host_locations_are_refused},
          {"unknown values are refused", check_unknown_values_are_refused},
          {"addresses of functions", check_proc_address},
          {"delays hold no lock", check_delays_hold_no_lock},
      });
}

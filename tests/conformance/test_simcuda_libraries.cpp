// Libraries on the simulator: kernels that belong to no context, and their functions in each.
#include <elf.h>
#include <unistd.h>

#include <cstring>
#include <fstream>

#include "sim_harness.h"
#include "transfer/run/kernels/copy_blocks.h"
#include "transfer/run/kernels/copy_blocks_ptx.h"

// cuda.h names one version of it; simcuda exports this one with every header.
extern "C" CUresult cuCtxCreate_v2(CUcontext* context, unsigned int flags, CUdevice device);

namespace {

using glake::transfer::CopyBlock;
using glake::transfer::kCopyBlocks;
using glake::transfer::kCopyBlocksPtx;

// A machine with the kernel's library loaded, a table, and pinned memory.
struct Machine : Sim {
  explicit Machine(const char* driver_lock = "0")
      : Sim({{"preset", "dgx1v"}, {"memory", "64MiB"}, {"driver_lock", driver_lock}}) {
    OK(cuMemHostAlloc(&host, 4096, CU_MEMHOSTALLOC_PORTABLE));
    OK(cuMemHostAlloc(reinterpret_cast<void**>(&table), 4096, CU_MEMHOSTALLOC_PORTABLE));
    std::memset(host, 5, 4096);
    OK(cuLibraryLoadData(&library, kCopyBlocksPtx, nullptr, nullptr, 0, nullptr, nullptr, 0));
    OK(cuLibraryGetKernel(&kernel, library, kCopyBlocks));
  }
  CUfunction cast() const { return reinterpret_cast<CUfunction>(kernel); }
  // Copies 64 bytes to `to`.
  CUresult launch(CUfunction function, CUstream stream, CUdeviceptr to) {
    table[0] = {to, reinterpret_cast<CUdeviceptr>(host), 64};
    auto where = reinterpret_cast<CUdeviceptr>(table);
    unsigned count = 1;
    void* arguments[] = {&where, &count};
    return cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, arguments, nullptr);
  }
  void* host = nullptr;
  CopyBlock* table = nullptr;
  CUlibrary library = nullptr;
  CUkernel kernel = nullptr;
};

bool copied(const Mapped& memory) {
  const auto* bytes = reinterpret_cast<const char*>(memory.at);
  return bytes[0] == 5 && bytes[63] == 5 && bytes[64] != 5;
}

// The context is the stream's, and the current one for the NULL stream. The code is loaded once in
// each, at the first use.
void check_contexts() {
  Machine m;
  TRUE(ledger_of("libraries") == 1 && ledger_of("modules") == 0);
  const Mapped zero(kGranule, 0);
  OK(m.launch(m.cast(), nullptr, zero.at));
  OK(cuStreamSynchronize(nullptr));
  TRUE(copied(zero) && ledger_of("modules") == 1);
  m.use(1);
  const Mapped one(kGranule, 1);
  const CUstream own = new_stream();
  for (int i = 0; i < 2; ++i) OK(m.launch(m.cast(), own, one.at));
  OK(cuStreamSynchronize(own));
  TRUE(copied(one) && ledger_of("modules") == 2);
  TRUE(violations() == "[]");
}

void check_functions() {
  Machine m;
  CUfunction first = nullptr, again = nullptr, second = nullptr;
  OK(cuKernelGetFunction(&first, m.kernel));
  OK(cuKernelGetFunction(&again, m.kernel));
  CUmodule module = nullptr;
  OK(cuLibraryGetModule(&module, m.library));
  GIVES(CUDA_ERROR_NOT_PERMITTED, cuModuleUnload(module));
  m.use(1);
  OK(cuKernelGetFunction(&second, m.kernel));
  TRUE(first == again && first != second && first != m.cast());
  const Mapped one(kGranule, 1);
  OK(m.launch(second, nullptr, one.at));
  OK(cuStreamSynchronize(nullptr));
  TRUE(copied(one));
  GIVES(CUDA_ERROR_INVALID_HANDLE, m.launch(first, nullptr, one.at));  // of another context
  OK(cuCtxSetCurrent(nullptr));
  GIVES(CUDA_ERROR_INVALID_CONTEXT, cuKernelGetFunction(&first, m.kernel));
  GIVES(CUDA_ERROR_INVALID_CONTEXT, cuLibraryGetModule(&module, m.library));
}

// What was enqueued is done. Handles of the library are dead afterwards.
void check_unload() {
  Machine m;
  CUfunction function = nullptr;
  OK(cuKernelGetFunction(&function, m.kernel));
  const Mapped zero(kGranule, 0);
  OK(m.launch(m.cast(), nullptr, zero.at));
  OK(cuLibraryUnload(m.library));
  OK(cuStreamSynchronize(nullptr));
  TRUE(copied(zero));
  GIVES(CUDA_ERROR_INVALID_HANDLE, m.launch(m.cast(), nullptr, zero.at));
  GIVES(CUDA_ERROR_INVALID_HANDLE, m.launch(function, nullptr, zero.at));
  GIVES(CUDA_ERROR_INVALID_HANDLE, cuLibraryUnload(m.library));
  CUlibrary library = nullptr;
  GIVES(CUDA_ERROR_INVALID_HANDLE, cuKernelGetLibrary(&library, m.kernel));
  TRUE(ledger_of("libraries") == 0 && ledger_of("modules") == 0);
}

// A library outlives contexts.
void check_ended_context() {
  Machine m;
  const Mapped zero(kGranule, 0);
  CUfunction function = nullptr;
  for (int i = 0; i < 2; ++i) {
    CUcontext context = nullptr;
    OK(cuCtxCreate_v2(&context, 0, 0));
    OK(m.launch(m.cast(), nullptr, zero.at));
    OK(cuKernelGetFunction(&function, m.kernel));
    TRUE(ledger_of("modules") == 1);
    OK(cuCtxDestroy(context));
    TRUE(ledger_of("modules") == 0);
    m.use(0);
    GIVES(CUDA_ERROR_INVALID_HANDLE, m.launch(function, nullptr, zero.at));
  }
}

void check_questions() {
  Machine m;
  const char* name = nullptr;
  OK(cuKernelGetName(&name, m.kernel));
  CUlibrary library = nullptr;
  OK(cuKernelGetLibrary(&library, m.kernel));
  TRUE(std::string(name) == kCopyBlocks && library == m.library);
  int value = 0;
  OK(cuKernelGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, m.kernel, 1));
  TRUE(value == 1024);
  OK(cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 4096, m.kernel, 0));
  OK(cuKernelSetCacheConfig(m.kernel, CU_FUNC_CACHE_PREFER_L1, 0));
  OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&value, m.cast(), 256, 0));
  TRUE(value == 8);
  GIVES(CUDA_ERROR_INVALID_DEVICE, cuKernelSetCacheConfig(m.kernel, CU_FUNC_CACHE_PREFER_L1, 99));
  GIVES(CUDA_ERROR_INVALID_VALUE,
        cuKernelGetAttribute(&value, static_cast<CUfunction_attribute>(999), m.kernel, 0));
  CUkernel kernel = nullptr;
  GIVES(CUDA_ERROR_NOT_FOUND, cuLibraryGetKernel(&kernel, m.library, "other"));
  OK(cuLibraryGetKernel(&kernel, m.library, kCopyBlocks));
  TRUE(kernel == m.kernel);
  const auto wrong = reinterpret_cast<CUkernel>(m.library);
  GIVES(CUDA_ERROR_INVALID_HANDLE, cuKernelGetName(&name, wrong));
}

// A file of code, with its first bytes. It is removed at the end.
struct CodeFile {
  explicit CodeFile(const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }
  ~CodeFile() { unlink(path.c_str()); }
  const std::string path = "/tmp/simcuda-code-" + std::to_string(getpid());
};

CUresult load_file(const std::string& bytes, CUlibrary* library) {
  const CodeFile file(bytes);
  return cuLibraryLoadFromFile(library, file.path.c_str(), nullptr, nullptr, 0, nullptr, nullptr,
                               0);
}

void check_files() {
  Machine m;
  CUlibrary library = nullptr;
  CUkernel kernel = nullptr;
  OK(load_file(kCopyBlocksPtx, &library));
  OK(cuLibraryGetKernel(&kernel, library, kCopyBlocks));
  OK(cuLibraryUnload(library));
  GIVES(CUDA_ERROR_FILE_NOT_FOUND, cuLibraryLoadFromFile(&library, "/nonexistent/code", nullptr,
                                                         nullptr, 0, nullptr, nullptr, 0));
  GIVES(CUDA_ERROR_INVALID_IMAGE, load_file("", &library));
  GIVES(CUDA_ERROR_INVALID_IMAGE, load_file("nonsense", &library));
  // A cubin and a fat binary that are cut short.
  std::string cubin = std::string("\x7f") + "ELF" + std::string(60, '\xff');
  GIVES(CUDA_ERROR_INVALID_IMAGE, load_file(cubin, &library));
  cubin.replace(40, 8, std::string(8, '\0'));  // its sections' table is at 0
  GIVES(CUDA_ERROR_INVALID_IMAGE, load_file(cubin, &library));
  const std::string fat =
      std::string("\x50\xed\x55\xba\1\0\x10\0\xff\xff\xff\xff\xff\xff\xff\xff", 16);
  GIVES(CUDA_ERROR_INVALID_IMAGE, load_file(fat, &library));
  const CodeFile file(kCopyBlocksPtx);
  CUmodule module = nullptr;
  OK(cuModuleLoad(&module, file.path.c_str()));
  OK(cuModuleUnload(module));
  OK(cuModuleLoadFatBinary(&module, kCopyBlocksPtx));
  OK(cuModuleUnload(module));
  TRUE(ledger_of("libraries") == 1);
}

// The first use in a context loads code there. A driver may then wait for all running work.
void check_first_use() {
  Machine m("1");
  const Mapped zero(kGranule, 0);
  const CUstream busy = new_stream(), own = new_stream();
  const auto stalled_copy = [&] {
    OK(simcuda_stall_copy("host", "g0", 1, 5000000));
    OK(cuMemcpyHtoDAsync(zero.at + 4096, m.host, 64, busy));
    const uint64_t start = simcuda_now_ns();
    OK(m.launch(m.cast(), own, zero.at));
    return simcuda_now_ns() - start;
  };
  TRUE(stalled_copy() >= 5000000);
  TRUE(stalled_copy() < 1000000);
  OK(cuStreamSynchronize(own));
  OK(cuStreamSynchronize(busy));
}

void check_capture() {
  Machine m;
  const Mapped zero(kGranule, 0);
  const CUstream stream = new_stream();
  OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  OK(m.launch(m.cast(), stream, zero.at));
  CUgraph graph = nullptr;
  OK(cuStreamEndCapture(stream, &graph));
  OK(cuGraphDestroy(graph));
  OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  CUlibrary library = nullptr;
  GIVES(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
        cuLibraryLoadData(&library, kCopyBlocksPtx, nullptr, nullptr, 0, nullptr, nullptr, 0));
  GIVES(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(stream, &graph));
}

// Parts of PTX become one image. It belongs to the link state.
void check_linking() {
  Machine m;
  CUlinkState state = nullptr;
  std::string other = ".version 7.0\n.target sm_70\n.visible .func other() { ret; }\n";
  std::string ours = kCopyBlocksPtx;
  const auto add = [&](std::string* code) {
    return cuLinkAddData(state, CU_JIT_INPUT_PTX, code->data(), code->size() + 1, "part", 0,
                         nullptr, nullptr);
  };
  void* image = nullptr;
  size_t bytes = 0;
  OK(cuLinkCreate(0, nullptr, nullptr, &state));
  GIVES(CUDA_ERROR_INVALID_VALUE, cuLinkComplete(state, &image, &bytes));
  std::string wrong = "nonsense";
  GIVES(CUDA_ERROR_INVALID_IMAGE, add(&wrong));
  OK(add(&other));
  OK(add(&ours));
  std::string cubin(sizeof(Elf64_Ehdr), '\0');
  Elf64_Ehdr header{};
  std::memcpy(&header, ELFMAG, SELFMAG);
  header.e_shoff = sizeof header;  // its end, as it has no sections
  std::memcpy(cubin.data(), &header, sizeof header);
  GIVES(CUDA_ERROR_NOT_SUPPORTED, add(&cubin));
  OK(cuLinkComplete(state, &image, &bytes));
  TRUE(bytes == other.size() + ours.size() + 3 && std::strlen(static_cast<char*>(image)) < bytes);
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  OK(cuModuleLoadData(&module, image));
  OK(cuModuleGetFunction(&function, module, kCopyBlocks));
  GIVES(CUDA_ERROR_INVALID_HANDLE, add(&ours));
  OK(cuLinkDestroy(state));
  GIVES(CUDA_ERROR_INVALID_HANDLE, cuLinkDestroy(state));
  GIVES(CUDA_ERROR_FILE_NOT_FOUND, [&] {
    OK(cuLinkCreate(0, nullptr, nullptr, &state));
    return cuLinkAddFile(state, CU_JIT_INPUT_PTX, "/nonexistent/code", 0, nullptr, nullptr);
  }());
  OK(cuLinkDestroy(state));
}

}  // namespace

int main(int argc, char** argv) {
  return run_checks(argc, argv,
                    {
                        {"contexts", check_contexts},
                        {"functions", check_functions},
                        {"unload", check_unload},
                        {"ended_context", check_ended_context},
                        {"questions", check_questions},
                        {"files", check_files},
                        {"first_use", check_first_use},
                        {"capture", check_capture},
                        {"linking", check_linking},
                    });
}

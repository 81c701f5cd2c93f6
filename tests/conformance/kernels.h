// Kernels as PTX text, which the driver compiles: no nvcc. The simulator runs none of them: there
// open() returns false, and callers fill memory by memsets instead.
#pragma once

#include <cuda.h>
#include <dlfcn.h>

#include <utility>

namespace kernels {

// stamp_bytes(p, first, step, count, value): p[first + i * step] = value for i < count, by bytes.
// add_one(p, n): adds 1 to each of the 4 n 32-bit words at p, 16 bytes at a time.
// gather(p, mask, n, out): reads n words at scattered places of p's (mask + 1) words.
constexpr const char kPtx[] = R"ptx(
.version 7.0
.target sm_70
.address_size 64

.visible .entry stamp_bytes(.param .u64 base, .param .u64 first, .param .u64 step,
                            .param .u64 count, .param .u32 value)
{
  .reg .pred %q;
  .reg .b32 %r<5>;
  .reg .b64 %d<10>;
  ld.param.u64 %d0, [base];
  ld.param.u64 %d1, [first];
  ld.param.u64 %d2, [step];
  ld.param.u64 %d3, [count];
  ld.param.u32 %r4, [value];
  cvta.to.global.u64 %d0, %d0;
  mov.u32 %r0, %ctaid.x;
  mov.u32 %r1, %ntid.x;
  mov.u32 %r2, %tid.x;
  mov.u32 %r3, %nctaid.x;
  mul.wide.u32 %d4, %r0, %r1;
  cvt.u64.u32 %d5, %r2;
  add.u64 %d4, %d4, %d5;
  mul.wide.u32 %d6, %r3, %r1;
stamp_loop:
  setp.ge.u64 %q, %d4, %d3;
  @%q bra stamp_done;
  mad.lo.u64 %d7, %d4, %d2, %d1;
  add.u64 %d8, %d0, %d7;
  st.global.u8 [%d8], %r4;
  add.u64 %d4, %d4, %d6;
  bra stamp_loop;
stamp_done:
  ret;
}

.visible .entry add_one(.param .u64 base, .param .u64 count)
{
  .reg .pred %q;
  .reg .b32 %r<4>;
  .reg .b32 %v<4>;
  .reg .b64 %d<8>;
  ld.param.u64 %d0, [base];
  ld.param.u64 %d1, [count];
  cvta.to.global.u64 %d0, %d0;
  mov.u32 %r0, %ctaid.x;
  mov.u32 %r1, %ntid.x;
  mov.u32 %r2, %tid.x;
  mov.u32 %r3, %nctaid.x;
  mul.wide.u32 %d2, %r0, %r1;
  cvt.u64.u32 %d3, %r2;
  add.u64 %d2, %d2, %d3;
  mul.wide.u32 %d4, %r3, %r1;
add_loop:
  setp.ge.u64 %q, %d2, %d1;
  @%q bra add_done;
  shl.b64 %d5, %d2, 4;
  add.u64 %d6, %d0, %d5;
  ld.global.v4.u32 {%v0, %v1, %v2, %v3}, [%d6];
  add.u32 %v0, %v0, 1;
  add.u32 %v1, %v1, 1;
  add.u32 %v2, %v2, 1;
  add.u32 %v3, %v3, 1;
  st.global.v4.u32 [%d6], {%v0, %v1, %v2, %v3};
  add.u64 %d2, %d2, %d4;
  bra add_loop;
add_done:
  ret;
}

.visible .entry gather(.param .u64 base, .param .u64 mask, .param .u64 count, .param .u64 out)
{
  .reg .pred %q;
  .reg .b32 %r<7>;
  .reg .b64 %d<12>;
  ld.param.u64 %d0, [base];
  ld.param.u64 %d1, [mask];
  ld.param.u64 %d2, [count];
  ld.param.u64 %d3, [out];
  cvta.to.global.u64 %d0, %d0;
  cvta.to.global.u64 %d3, %d3;
  mov.u32 %r0, %ctaid.x;
  mov.u32 %r1, %ntid.x;
  mov.u32 %r2, %tid.x;
  mov.u32 %r3, %nctaid.x;
  mov.u32 %r5, 0;
  mul.wide.u32 %d4, %r0, %r1;
  cvt.u64.u32 %d5, %r2;
  add.u64 %d4, %d4, %d5;
  mul.wide.u32 %d6, %r3, %r1;
gather_loop:
  setp.ge.u64 %q, %d4, %d2;
  @%q bra gather_done;
  mul.lo.u64 %d7, %d4, 0x9E3779B97F4A7C15;
  shr.u64 %d7, %d7, 20;
  and.b64 %d7, %d7, %d1;
  shl.b64 %d8, %d7, 2;
  add.u64 %d9, %d0, %d8;
  ld.global.u32 %r4, [%d9];
  add.u32 %r5, %r5, %r4;
  add.u64 %d4, %d4, %d6;
  bra gather_loop;
gather_done:
  setp.ne.u32 %q, %r5, 0xFFFFFFFF;
  @%q bra gather_end;
  st.global.u32 [%d3], %r5;
gather_end:
  ret;
}
)ptx";

constexpr unsigned kThreads = 256;

class Kernels {
 public:
  // False if the library launches no kernels, or, as the simulator, not these. Needs a current
  // context.
  bool open(const char* library) {
    void* handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) return false;
    const auto load =
        reinterpret_cast<decltype(&::cuModuleLoadData)>(dlsym(handle, "cuModuleLoadData"));
    const auto function =
        reinterpret_cast<decltype(&::cuModuleGetFunction)>(dlsym(handle, "cuModuleGetFunction"));
    launch_ = reinterpret_cast<decltype(&::cuLaunchKernel)>(dlsym(handle, "cuLaunchKernel"));
    if (load == nullptr || function == nullptr || launch_ == nullptr) return false;
    CUmodule module = nullptr;  // stays loaded: the process ends soon
    status_ = load(&module, kPtx);
    if (status_ == CUDA_ERROR_NOT_SUPPORTED) return false;
    for (const auto& [name, to] : {std::pair<const char*, CUfunction*>{"stamp_bytes", &stamp_},
                                   {"add_one", &add_},
                                   {"gather", &gather_}}) {
      if (status_ == CUDA_SUCCESS) status_ = function(to, module, name);
    }
    return true;
  }
  CUresult status() const { return status_; }  // of loading them

  CUresult stamp_bytes(CUstream stream, unsigned blocks, CUdeviceptr base, unsigned long long first,
                       unsigned long long step, unsigned long long count, unsigned value) {
    void* arguments[] = {&base, &first, &step, &count, &value};
    return start(stamp_, stream, blocks, arguments);
  }
  CUresult add_one(CUstream stream, unsigned blocks, CUdeviceptr base, unsigned long long words16) {
    void* arguments[] = {&base, &words16};
    return start(add_, stream, blocks, arguments);
  }
  CUresult gather(CUstream stream, unsigned blocks, CUdeviceptr base, unsigned long long mask,
                  unsigned long long count, CUdeviceptr out) {
    void* arguments[] = {&base, &mask, &count, &out};
    return start(gather_, stream, blocks, arguments);
  }

 private:
  CUresult start(CUfunction which, CUstream stream, unsigned blocks, void** arguments) {
    return launch_(which, blocks, 1, 1, kThreads, 1, 1, 0, stream, arguments, nullptr);
  }

  decltype(&::cuLaunchKernel) launch_ = nullptr;
  CUresult status_ = CUDA_SUCCESS;
  CUfunction stamp_ = nullptr, add_ = nullptr, gather_ = nullptr;
};

}  // namespace kernels

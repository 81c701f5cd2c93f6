// Checks the kernel that copies blocks: the driver compiles its PTX, and every byte must be right.
#pragma once

#include "block_kernel.h"
#include "cuda_table.h"

inline std::string kernel_library;  // conformance's first argument

// Copies blocks at many pairs of alignments, of sizes at which the kernel's loops begin and end.
// Each block has a margin at both ends, which must stay as it is.
inline void check_kernel_copies_blocks() {
  kernels::BlockKernel kernel;
  OK(kernel.open(kernel_library.c_str()));
  constexpr size_t kRoom = 40960, kBlocks = 16 * 4 * 2;
  constexpr size_t kBytes = kRoom * kBlocks;
  Pinned host(kBytes), back(kBytes), table(kBlocks * sizeof(kernels::CopyBlock));
  CUdeviceptr device = 0, second = 0;
  OK(cu.cuMemAlloc(&device, kBytes));
  OK(cu.cuMemAlloc(&second, kBytes));
  for (size_t i = 0; i < kBytes; ++i) {
    host.bytes()[i] = static_cast<unsigned char>((i * 2654435761u) >> 13);
  }
  Stream stream;
  auto* blocks = reinterpret_cast<kernels::CopyBlock*>(table.at);
  // Three hops: host to device, within the device, device to host.
  const auto hop = [&](CUdeviceptr to, CUdeviceptr from, bool odd_dst, bool odd_src) {
    unsigned count = 0;
    for (size_t offset = 0; offset < 16; ++offset) {
      for (const size_t apart : {0, 1, 4, 8}) {
        for (const size_t bytes : {1 + offset * 150 + apart, 16384 + offset}) {
          const size_t at = count * kRoom + 64;
          blocks[count++] = {to + at + (odd_dst ? (offset + apart) % 16 : 0),
                             from + at + (odd_src ? offset : 0), bytes};
        }
      }
    }
    TRUE(count == kBlocks);
    OK(kernel.launch(stream, blocks, count));
    OK(cu.cuStreamSynchronize(stream));
  };
  OK(cu.cuMemsetD8Async(device, 0xee, kBytes, stream));
  OK(cu.cuMemsetD8Async(second, 0xdd, kBytes, stream));
  std::memset(back.at, 0xcc, kBytes);
  const auto at_host = reinterpret_cast<CUdeviceptr>(host.at);
  const auto at_back = reinterpret_cast<CUdeviceptr>(back.at);
  hop(device, at_host, true, true);
  hop(second, device, false, true);
  hop(at_back, second, true, false);
  // Computes byte by byte what the three hops leave.
  std::vector<unsigned char> on_device(kBytes, 0xee), on_second(kBytes, 0xdd), wanted(kBytes, 0xcc);
  unsigned count = 0;
  for (size_t offset = 0; offset < 16; ++offset) {
    for (const size_t apart : {0, 1, 4, 8}) {
      for (const size_t bytes : {1 + offset * 150 + apart, 16384 + offset}) {
        const size_t at = count++ * kRoom + 64;
        std::memcpy(&on_device[at + (offset + apart) % 16], host.bytes() + at + offset, bytes);
        std::memcpy(&on_second[at], &on_device[at + offset], bytes);
        std::memcpy(&wanted[at + (offset + apart) % 16], &on_second[at], bytes);
      }
    }
  }
  TRUE(std::memcmp(back.at, wanted.data(), kBytes) == 0);
  OK(cu.cuMemFree(device));
  OK(cu.cuMemFree(second));
}

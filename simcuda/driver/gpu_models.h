// What software asks about the GPUs of the presets. The figures are of their datasheets and of
// "Technical Specifications per Compute Capability" in the CUDA C++ programming guide. Clocks,
// buses and the caches of Blackwell are assumed from the same maker's product pages. Nothing in
// simcuda depends on any of them.
#pragma once

#include <string>

namespace simcuda {

struct GpuModel {
  const char* preset;
  int major, minor;                      // compute capability
  int multiprocessors, threads, blocks;  // threads and blocks: of one multiprocessor
  int shared_kib, block_shared_kib;      // of one multiprocessor; the most for one block
  int l2_mib, bus_bits, clock_mhz, memory_clock_mhz;
  int pcie;            // generation
  int nvlink;          // in NVML's numbering: 2 is 2.0, 4 is 3.0, 6 is 4.0, 7 is 5.0
  double nvlink_rate;  // GB/s that copies reach over one link; an edge of the preset has several
  double nvlink_reported;  // GB/s by NVML
};

// By the preset's name. A platform that is no preset has the default preset's GPU.
inline const GpuModel& gpu_model(const std::string& preset) {
  static constexpr GpuModel kModels[] = {
      {"hgx_h100_h200", 9, 0, 132, 2048, 32, 228, 227, 50, 5120, 1980, 2619, 5, 6, 22.06, 26.562},
      {"dgx1v", 7, 0, 80, 2048, 32, 96, 96, 6, 4096, 1530, 877, 3, 2, 24, 25.781},
      {"dgx_a100", 8, 0, 108, 2048, 32, 164, 163, 40, 5120, 1410, 1593, 4, 4, 23, 25},
      {"a100pcie_x4_bridged", 8, 0, 108, 2048, 32, 164, 163, 40, 5120, 1410, 1512, 4, 4, 21.5, 25},
      {"hgx_h800", 9, 0, 132, 2048, 32, 228, 227, 50, 5120, 1980, 2619, 5, 6, 22, 26.562},
      {"hgx_h20", 9, 0, 78, 2048, 32, 228, 227, 60, 6144, 1980, 2619, 5, 6, 20.33, 26.562},
      {"hgx_b300", 10, 3, 148, 2048, 32, 228, 227, 126, 8192, 1965, 3996, 6, 7, 43, 50},
      {"gb200_tray", 10, 0, 152, 2048, 32, 228, 227, 126, 8192, 1965, 3996, 5, 7, 43.06, 50},
      {"a40x8_bridged", 8, 6, 84, 1536, 16, 100, 99, 6, 384, 1740, 7251, 4, 5, 12.7, 14.063},
      {"a10_l40s_x8", 8, 9, 142, 1536, 24, 100, 99, 96, 384, 2520, 9001, 4, 0, 0, 0},  // the L40S
      {"rtxpro6000_gen5", 12, 0, 188, 1536, 24, 100, 99, 128, 512, 2430, 14001, 5, 0, 0, 0},
  };
  for (const GpuModel& model : kModels) {
    if (preset == model.preset) return model;
  }
  return kModels[0];
}

}  // namespace simcuda

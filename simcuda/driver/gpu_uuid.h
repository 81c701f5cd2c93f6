// The permanent name of a simulated GPU. It is the same for the driver, NVML and
// CUDA_VISIBLE_DEVICES, and in all processes of a machine. Machines of two names (option machine)
// have different GPUs. Machines without a name have the same UUIDs, so that a process can name the
// GPUs of another one that it starts.
#pragma once

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>

namespace simcuda {

inline std::array<unsigned char, 16> gpu_uuid(const std::string& machine, int gpu) {
  std::array<unsigned char, 16> bytes{};
  std::memcpy(bytes.data(), "glake-simcuda", 13);
  if (!machine.empty()) {
    uint64_t hash = 0xcbf29ce484222325;  // FNV-1a; glake/transfer/topology/node.py has it, too
    for (const char c : machine) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
    for (int i = 10; i < 15; ++i, hash >>= 8) bytes[static_cast<size_t>(i)] = hash & 0xff;
  }
  bytes[15] = static_cast<unsigned char>(gpu);
  return bytes;
}

// The text that nvidia-smi prints.
inline std::string gpu_uuid_text(const std::string& machine, int gpu) {
  std::string text = "GPU-";
  const std::array<unsigned char, 16> bytes = gpu_uuid(machine, gpu);
  for (size_t i = 0; i < bytes.size(); ++i) {
    char two[3];
    std::snprintf(two, sizeof two, "%02x", bytes[i]);
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += two;
  }
  return text;
}

}  // namespace simcuda

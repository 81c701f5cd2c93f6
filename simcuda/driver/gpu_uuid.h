// The permanent name of a simulated GPU. It is the same for the driver, NVML and
// CUDA_VISIBLE_DEVICES.
#pragma once

#include <array>
#include <cstdio>
#include <cstring>
#include <string>

namespace simcuda {

inline std::array<unsigned char, 16> gpu_uuid(int gpu) {
  std::array<unsigned char, 16> bytes{};
  std::memcpy(bytes.data(), "glake-simcuda", 13);
  bytes[15] = static_cast<unsigned char>(gpu);
  return bytes;
}

// The text that nvidia-smi prints.
inline std::string gpu_uuid_text(int gpu) {
  std::string text = "GPU-";
  const std::array<unsigned char, 16> bytes = gpu_uuid(gpu);
  for (size_t i = 0; i < bytes.size(); ++i) {
    char two[3];
    std::snprintf(two, sizeof two, "%02x", bytes[i]);
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += two;
  }
  return text;
}

}  // namespace simcuda

// The address space of this process.
#pragma once

#include <cstdio>

#include "harness.h"

namespace test {

// In bytes.
inline glake::Bytes address_space() {
  long pages = 0;
  FILE* file = std::fopen("/proc/self/statm", "r");
  CHECK(file != nullptr && std::fscanf(file, "%ld", &pages) == 1);
  std::fclose(file);
  return static_cast<glake::Bytes>(pages) * 4096;
}

}  // namespace test

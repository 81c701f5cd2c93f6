// What another process needs to open a block, as one line of text.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "base/types.h"
#include "driver/driver.h"

namespace glake {

using IpcToken = std::array<uint8_t, 16>;

struct IpcHandle {
  uint64_t pid = 0;     // of the exporting process; part of its socket's name
  uint64_t socket = 0;  // the random part of its socket's name
  IpcToken token{};     // the exporting process answers only requests that have it
  uint64_t id = 0;      // of the block, or of the shard
  Bytes bytes = 0;
  DeviceUuid uuid{};   // of the device the memory is on
  bool shard = false;  // of a shard (ipc/shards.h)
  bool legacy = false;
  LegacyHandle driver_handle{};
};

std::string format_handle(const IpcHandle& handle);
// Throws Error(GLAKE_INVALID_ARGUMENT) for a text that format_handle() cannot have written.
IpcHandle parse_handle(const char* text);

std::string hex_of(const uint8_t* bytes, size_t count);

}  // namespace glake

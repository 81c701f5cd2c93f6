#include "ipc/ipc_text.h"

#include <cstring>
#include <vector>

namespace glake {
namespace {

constexpr const char *kPrefix = "glake-ipc-1", *kShardPrefix = "glake-shard-1";
constexpr size_t kMostText = 512;  // more than any handle has

[[noreturn]] void refuse(const std::string& why) {
  throw Error(GLAKE_INVALID_ARGUMENT, std::string("not a shared block's handle: ") + why +
                                          "; pass its text whole and unchanged");
}

std::string hex_number(uint64_t value) {
  uint8_t bytes[8];
  for (int i = 0; i < 8; ++i) bytes[i] = static_cast<uint8_t>(value >> (56 - 8 * i));
  return hex_of(bytes, sizeof bytes);
}

void read_hex(const std::string& text, uint8_t* bytes, size_t count) {
  auto digit = [](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    refuse("a field is not hexadecimal");
  };
  if (text.size() != 2 * count) refuse("a field has the wrong length");
  for (size_t i = 0; i < count; ++i) {
    bytes[i] = static_cast<uint8_t>(digit(text[2 * i]) << 4 | digit(text[2 * i + 1]));
  }
}

uint64_t read_number(const std::string& text) {
  uint8_t bytes[8];
  read_hex(text, bytes, sizeof bytes);
  uint64_t value = 0;
  for (uint8_t b : bytes) value = value << 8 | b;
  return value;
}

}  // namespace

std::string hex_of(const uint8_t* bytes, size_t count) {
  static const char digits[] = "0123456789abcdef";
  std::string text;
  for (size_t i = 0; i < count; ++i) {
    text += digits[bytes[i] >> 4];
    text += digits[bytes[i] & 15];
  }
  return text;
}

std::string format_handle(const IpcHandle& h) {
  std::string text = h.shard ? kShardPrefix : kPrefix;
  for (uint64_t n : {h.pid, h.socket, h.id, h.bytes}) text += ":" + hex_number(n);
  text += ":" + hex_of(h.token.data(), h.token.size());
  text += ":" + hex_of(h.uuid.data(), h.uuid.size());
  if (h.legacy) text += ":" + hex_of(h.driver_handle.data(), h.driver_handle.size());
  return text;
}

IpcHandle parse_handle(const char* text) {
  size_t length = strnlen(text, kMostText + 1);
  if (length > kMostText) refuse("it is too long");
  std::vector<std::string> fields(1);
  for (size_t i = 0; i < length; ++i) {
    if (text[i] == ':') {
      fields.emplace_back();
    } else {
      fields.back() += text[i];
    }
  }
  const bool shard = fields[0] == kShardPrefix;
  if (!shard && fields[0] != kPrefix) {
    refuse("it begins with neither glake-ipc-1 nor glake-shard-1");
  }
  if (fields.size() != 7 && (shard || fields.size() != 8))
    refuse("it has the wrong number of fields");
  IpcHandle h;
  h.shard = shard;
  h.pid = read_number(fields[1]);
  h.socket = read_number(fields[2]);
  h.id = read_number(fields[3]);
  h.bytes = read_number(fields[4]);
  read_hex(fields[5], h.token.data(), h.token.size());
  read_hex(fields[6], h.uuid.data(), h.uuid.size());
  h.legacy = fields.size() == 8;
  if (h.legacy) read_hex(fields[7], h.driver_handle.data(), h.driver_handle.size());
  if (h.bytes == 0 || h.bytes > kMaxRequest)
    refuse("no block has " + std::to_string(h.bytes) + " bytes");
  if (h.pid == 0 || h.pid > 0x7fffffff)
    refuse("no process has the number " + std::to_string(h.pid));
  return h;
}

}  // namespace glake

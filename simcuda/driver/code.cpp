#include "code.h"

#include <elf.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>

namespace simcuda {
namespace {

constexpr uint32_t kFatbin = 0xBA55ED50, kFatbinWrapper = 0x466243B1;  // as nvcc writes them

template <class T>
T read(const char* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

bool is_elf(const char* image) { return std::memcmp(image, ELFMAG, SELFMAG) == 0; }

// The file ends behind the last one of its sections and its two tables. 0: they do not fit into
// `most` bytes.
uint64_t elf_size(const char* image, size_t most) {
  const auto header = read<Elf64_Ehdr>(image);
  const bool whole = header.e_shnum == 0 || header.e_shentsize >= sizeof(Elf64_Shdr);
  if (!whole || header.e_phoff > most || header.e_shoff > most) return 0;
  uint64_t end = std::max<uint64_t>(header.e_phoff + uint64_t{header.e_phentsize} * header.e_phnum,
                                    header.e_shoff + uint64_t{header.e_shentsize} * header.e_shnum);
  for (unsigned i = 0; i < header.e_shnum && end <= most; ++i) {
    const auto section =
        read<Elf64_Shdr>(image + header.e_shoff + uint64_t{header.e_shentsize} * i);
    if (section.sh_type != SHT_NOBITS) end = std::max(end, section.sh_offset + section.sh_size);
  }
  return end <= most ? end : 0;
}

bool is_name(char c) {
  return c == '_' || c == '$' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
         (c >= 'A' && c <= 'Z');
}

}  // namespace

std::string copy_of_code(const void* image, size_t most) {
  const auto* at = static_cast<const char*>(image);
  if (read<uint32_t>(at) == kFatbinWrapper) {  // {magic, version, pointer to the fat binary, ...}
    at = read<const char*>(at + 8);
    if (most != SIZE_MAX || at == nullptr || read<uint32_t>(at) != kFatbin) return {};
  }
  if (read<uint32_t>(at) == kFatbin) {  // {magic, version, bytes of this header, bytes that follow}
    const uint64_t follow = read<uint64_t>(at + 8), size = read<uint16_t>(at + 6) + follow;
    return size >= follow && size <= most ? std::string(at, size) : std::string();
  }
  if (is_elf(at)) return {at, elf_size(at, most)};
  std::string text = at;
  const bool ptx =
      text.find(".version") != std::string::npos && text.find(".target") != std::string::npos;
  return ptx ? text : std::string();
}

std::string bounded_code(std::string bytes) {
  bytes.resize(std::max(bytes.size(), sizeof(Elf64_Ehdr)));  // no header goes beyond it
  return copy_of_code(bytes.c_str(), bytes.size());
}

bool read_code(const char* path, std::string* code) {
  std::ifstream file(path, std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(file), {}};
  if (!file.is_open() || file.bad()) return false;
  *code = bounded_code(std::move(bytes));
  return true;
}

bool is_text(const std::string& code) {
  return !is_elf(code.data()) && read<uint32_t>(code.data()) != kFatbin;
}

bool has_kernel(const std::string& code, const std::string& name) {
  if (name.empty()) return false;
  if (is_elf(code.data())) {  // the name is a string of its table
    return code.find('\0' + name + '\0') != std::string::npos;
  }
  if (!is_text(code)) return true;
  constexpr char kEntry[] = ".entry";
  for (size_t at = code.find(kEntry); at != std::string::npos; at = code.find(kEntry, at)) {
    at = code.find_first_not_of(" \t\n", at + sizeof kEntry - 1);
    if (at == std::string::npos) return false;
    if (code.compare(at, name.size(), name) == 0 &&
        (at + name.size() == code.size() || !is_name(code[at + name.size()]))) {
      return true;
    }
  }
  return false;
}

}  // namespace simcuda

// Text that goes into files and onto terminals.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace glake {

// The bytes of the character at the start of `text`, which is not empty. 0 if the text does not
// start with valid UTF-8, or starts with a control character.
inline size_t printable_length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return first >= 0x20 && first != 0x7f ? 1 : 0;
  const size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < length) return 0;
  uint32_t code = first & (0x7fu >> length);
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
    code = code << 6 | (byte(i) & 0x3fu);
  }
  // A smaller code is an encoding that is longer than needed, or a control character of two bytes.
  constexpr uint32_t kLeast[] = {0, 0, 0xa0, 0x800, 0x10000};
  const bool surrogate = code >= 0xd800 && code <= 0xdfff;
  return code >= kLeast[length] && code <= 0x10ffff && !surrogate ? length : 0;
}

// The text with `_` in place of each control character, each byte that is no UTF-8, and each
// `also`.
inline std::string printable(std::string text, char also = '_') {
  for (size_t at = 0; at < text.size();) {
    const size_t length = printable_length(std::string_view(text).substr(at));
    if (length == 0 || text[at] == also) text[at] = '_';
    at += length == 0 ? 1 : length;
  }
  return text;
}

}  // namespace glake

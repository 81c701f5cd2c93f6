// Glake reads and prints numbers with a point, whatever the locale of the program that loads it.
// strtod, printf's %f, std::to_string(double) and streams follow that locale, so nothing in csrc
// uses them (tests/unit/test_numbers.py checks this). glake/config.py reads the same spellings.
#pragma once

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

#if defined(__GLIBCXX__) && !defined(__cpp_lib_to_chars)
#error "glake needs std::from_chars for doubles: g++ 11 or newer, or its library"
#endif

namespace glake {

constexpr uint64_t kMostSize = uint64_t{1} << 46;  // bytes; the largest size that a text may name

// <cctype> follows the locale too: in Turkish, tolower('I') is not 'i'.
inline bool is_digit(char c) { return c >= '0' && c <= '9'; }
inline bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
inline std::string lower(std::string text) {
  for (char& c : text) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return text;
}
inline std::string upper(std::string text) {
  for (char& c : text) {
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  }
  return text;
}

// Reads the number at the start of *text and removes it from *text. The number has digits, and may
// have a point before some of them (8, 0.9, .5). It may not have a sign, an exponent, a space or
// hexadecimal digits, and may not be "inf".
inline std::optional<double> take_decimal(std::string_view* text) {
  size_t end = 0;
  while (end < text->size() && is_digit((*text)[end])) ++end;
  if (end + 1 < text->size() && (*text)[end] == '.' && is_digit((*text)[end + 1])) {
    for (++end; end < text->size() && is_digit((*text)[end]);) ++end;
  }
  double value = 0;
  const auto read = std::from_chars(text->data(), text->data() + end, value);
  const size_t first = text->find_first_not_of('0');
  const bool tiny = first < end && (*text)[first] == '.';  // out of range, but 0 and not infinity
  if (end == 0 || (read.ec != std::errc() && !tiny)) return std::nullopt;
  text->remove_prefix(end);
  return value;
}

inline std::optional<double> parse_decimal(std::string_view text) {
  const std::optional<double> value = take_decimal(&text);
  return text.empty() ? value : std::nullopt;
}

// Reads a whole number: digits, with an optional minus sign before them.
inline std::optional<int64_t> parse_whole(std::string_view text, int64_t low, int64_t high) {
  int64_t value = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), value);
  if (read.ec != std::errc() || read.ptr != text.data() + text.size()) return std::nullopt;
  return value < low || value > high ? std::nullopt : std::optional<int64_t>(value);
}

// Reads a size such as "4096", "512MiB" or "1.5GiB", and rounds it down. It must be from 1 to
// kMostSize.
inline std::optional<uint64_t> parse_size(std::string_view text) {
  const std::optional<double> number = take_decimal(&text);
  if (!number) return std::nullopt;
  double unit = text.empty() || text == "B" ? 1 : 0;
  double scale = 1024;
  for (const char* name : {"KiB", "MiB", "GiB", "TiB"}) {
    if (text == name) unit = scale;
    scale *= 1024;
  }
  const double bytes = *number * unit;
  if (!(bytes >= 1) || bytes > static_cast<double>(kMostSize)) return std::nullopt;
  return static_cast<uint64_t>(bytes);
}

// A number of things, as messages show it. `one` is the singular of the thing.
inline std::string counted(uint64_t n, const char* one) {
  return std::to_string(n) + " " + one + (n == 1 ? "" : "s");
}

// A device as messages show it, which is PyTorch's way.
inline std::string device_text(int device) { return "cuda:" + std::to_string(device); }

// A number with `places` digits after the point, as by printf's %.2f.
inline std::string fixed_text(double value, int places) {
  char text[400];  // the largest double has 309 digits
  const auto end = std::to_chars(text, text + sizeof text, value, std::chars_format::fixed, places);
  return std::string(text, end.ptr);
}

// A size as messages show it: "1 byte", "898.44 MiB".
inline std::string size_text(uint64_t bytes) {
  constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024) return counted(bytes, "byte");
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < std::size(kUnits); ++unit) value /= 1024;
  return fixed_text(value, 2) + " " + kUnits[unit];
}

// A number with `digits` significant digits, as by printf's %.6g.
inline std::string significant_text(double value, int digits) {
  char text[64];
  const auto end =
      std::to_chars(text, text + sizeof text, value, std::chars_format::general, digits);
  return std::string(text, end.ptr);
}

// A number with enough digits to tell it from every other double, and no exponent: "0.9", "8".
inline std::string exact_text(double value) {
  char text[400];
  const auto end = std::to_chars(text, text + sizeof text, value, std::chars_format::fixed);
  return std::string(text, end.ptr);
}

}  // namespace glake

// The kinds of options that the core has, and how the text of each is read and shown. The parsers
// in glake/config.py have the same grammar. The table of options is generated from that file.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/types.h"

namespace glake {

struct OptionRow {
  const char* name;
  const char* fallback;  // the default, as text
  const char* takes;
  const char* meaning;
};

struct Limit {
  double fraction = 1.0;  // of the device's memory; used if `bytes` is 0
  Bytes bytes = 0;
};

struct Contiguous {
  // Each block of at least this size is one driver allocation; 0: no block is.
  Bytes from = 0;
  int kind = GLAKE_CONTIGUOUS_VMM;
};

// One of these words. The option's value is the word's index, which is also the value of the
// enumerator.
struct Choice {
  std::vector<std::string> words;
};

// "none", or some of these words with commas between them.
template <typename Switches>
struct Modes {
  struct Mode {
    const char* word;
    bool Switches::* on;
  };
  std::vector<Mode> modes;
};

struct Number {
  double low, high;
};

// "none", a fraction of at least `least_fraction`, a percentage, or at least `least` bytes.
struct LimitText {
  double least_fraction;
  Bytes least;
};

// "none", or at least `least` bytes. The kind of allocation and a colon may stand before the bytes.
struct ContiguousText {
  Bytes least;
};

// At least `least` bytes, or the word `nothing` for 0, if there is one.
struct Size {
  Bytes least;
  const char* nothing;
};

struct Flag {};  // 0, 1, or a word for one of them

struct Whole {
  int64_t low, high;
};

struct WholeOrWord {
  int64_t low, high;
  std::vector<std::string> words;
};

// A name of at most `most` letters, digits, _, - and ., which does not begin with a point. It may
// be empty.
struct FileName {
  size_t most;
};

// "call=time+time,...". Each call has up to `most` times, each below `below` microseconds.
struct CallTimes {
  size_t most;
  double below;
};

struct CallTime {
  std::string call;
  std::vector<double> us;
};

struct DriverName {};  // a path must have a "/", so that a misspelt name is refused at once
struct AnyText {};

// Throws an Error that says that the option does not take `text`, and `why`.
[[noreturn]] void refuse_option(const OptionRow& row, const std::string& text,
                                const std::string& why = "");

size_t read_option(const OptionRow& row, const Choice& kind, const std::string& text);
double read_option(const OptionRow& row, const Number& kind, const std::string& text);
Limit read_option(const OptionRow& row, const LimitText& kind, const std::string& text);
Contiguous read_option(const OptionRow& row, const ContiguousText& kind, const std::string& text);
Bytes read_option(const OptionRow& row, const Size& kind, const std::string& text);
bool read_option(const OptionRow& row, const Flag& kind, const std::string& text);
int64_t read_option(const OptionRow& row, const Whole& kind, const std::string& text);
std::string read_option(const OptionRow& row, const WholeOrWord& kind, const std::string& text);
std::string read_option(const OptionRow& row, const FileName& kind, const std::string& text);
std::vector<CallTime> read_option(const OptionRow& row, const CallTimes& kind,
                                  const std::string& text);
std::string read_option(const OptionRow& row, const DriverName& kind, const std::string& text);
std::string read_option(const OptionRow& row, const AnyText& kind, const std::string& text);

template <typename Switches>
Switches read_option(const OptionRow& row, const Modes<Switches>& kind, const std::string& text) {
  Switches switches{};
  for (const auto& mode : kind.modes) switches.*mode.on = false;
  for (size_t begin = 0; text != "none" && begin <= text.size();) {
    const size_t comma = std::min(text.find(',', begin), text.size());
    const std::string word = text.substr(begin, comma - begin);
    const auto named = [&word](const auto& mode) { return word == mode.word; };
    const auto mode = std::find_if(kind.modes.begin(), kind.modes.end(), named);
    if (mode == kind.modes.end()) refuse_option(row, text);
    switches.*mode->on = true;
    begin = comma + 1;
  }
  return switches;
}

// Reads `text` into an option's field. Throws Error.
template <typename Value, typename Kind>
void read_option_into(const OptionRow& row, const Kind& kind, const std::string& text,
                      Value* value) {
  *value = static_cast<Value>(read_option(row, kind, text));
}

// These show a value as text that reads as the same value.
inline std::string show_option(const Choice& kind, size_t which) { return kind.words[which]; }
std::string show_option(const Number& kind, double value);
std::string show_option(const LimitText& kind, const Limit& limit);
std::string show_option(const ContiguousText& kind, const Contiguous& value);
std::string show_option(const Size& kind, Bytes bytes);
inline std::string show_option(const Flag&, bool on) { return on ? "1" : "0"; }
inline std::string show_option(const Whole&, int64_t number) { return std::to_string(number); }
inline std::string show_option(const WholeOrWord&, const std::string& text) { return text; }
inline std::string show_option(const FileName&, const std::string& name) { return name; }
std::string show_option(const CallTimes& kind, const std::vector<CallTime>& times);
inline std::string show_option(const DriverName&, const std::string& name) { return name; }
inline std::string show_option(const AnyText&, const std::string& text) { return text; }

template <typename Switches>
std::string show_option(const Modes<Switches>& kind, const Switches& switches) {
  std::string text;
  for (const auto& mode : kind.modes) {
    if (switches.*mode.on) text += (text.empty() ? "" : ",") + std::string(mode.word);
  }
  return text.empty() ? "none" : text;
}

}  // namespace glake

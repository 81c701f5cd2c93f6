#include "base/option_kinds.h"

#include <string_view>
#include <utility>

#include "base/numbers.h"

namespace glake {
namespace {

Bytes bytes_of(const OptionRow& row, const std::string& whole, std::string_view size, Bytes least) {
  const std::optional<uint64_t> bytes = parse_size(size);
  if (!bytes || *bytes < least) refuse_option(row, whole);
  return *bytes;
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

}  // namespace

void refuse_option(const OptionRow& row, const std::string& text, const std::string& why) {
  throw Error(GLAKE_INVALID_OPTION, std::string("option ") + row.name + " does not take \"" + text +
                                        "\"" + (why.empty() ? "" : ": " + why) + "; it takes " +
                                        row.takes);
}

size_t read_option(const OptionRow& row, const Choice& kind, const std::string& text) {
  for (size_t i = 0; i < kind.words.size(); ++i) {
    if (text == kind.words[i]) return i;
  }
  refuse_option(row, text);
}

double read_option(const OptionRow& row, const Number& kind, const std::string& text) {
  const std::optional<double> number = parse_decimal(text);
  if (!number || *number < kind.low || *number > kind.high) refuse_option(row, text);
  return *number;
}

std::string show_option(const Number& /*kind*/, double value) { return exact_text(value); }

Limit read_option(const OptionRow& row, const LimitText& kind, const std::string& text) {
  if (text == "none") return {};
  std::string_view unit = text;
  const double number = take_decimal(&unit).value_or(0);
  if (unit != "%" && (!unit.empty() || number > 1)) {
    return {1.0, bytes_of(row, text, text, kind.least)};
  }
  const double fraction = unit == "%" ? number / 100 : number;
  if (fraction > 0 && fraction < kind.least_fraction) {
    refuse_option(row, text, "less than one granule of 2MiB of any device (none has 16TiB)");
  }
  if (!(fraction > 0 && fraction <= 1)) refuse_option(row, text);
  return {fraction, 0};
}

std::string show_option(const LimitText& /*kind*/, const Limit& limit) {
  if (limit.bytes != 0) return std::to_string(limit.bytes);
  return limit.fraction == 1.0 ? "none" : exact_text(limit.fraction);
}

Contiguous read_option(const OptionRow& row, const ContiguousText& kind, const std::string& text) {
  if (text == "none") return {};
  const size_t colon = text.find(':');
  const bool named = colon != std::string::npos;
  const std::string word = named ? text.substr(0, colon) : "vmm";
  if (word != "vmm" && word != "legacy") refuse_option(row, text);
  const std::string_view size = std::string_view(text).substr(named ? colon + 1 : 0);
  return {bytes_of(row, text, size, kind.least),
          word == "vmm" ? GLAKE_CONTIGUOUS_VMM : GLAKE_CONTIGUOUS_LEGACY};
}

std::string show_option(const ContiguousText& /*kind*/, const Contiguous& value) {
  if (value.from == 0) return "none";
  return (value.kind == GLAKE_CONTIGUOUS_VMM ? "vmm:" : "legacy:") + std::to_string(value.from);
}

Bytes read_option(const OptionRow& row, const Size& kind, const std::string& text) {
  const bool nothing = !text.empty() && text == kind.nothing;
  return nothing ? 0 : bytes_of(row, text, text, kind.least);
}

std::string show_option(const Size& kind, Bytes bytes) {
  return bytes == 0 ? kind.nothing : std::to_string(bytes);
}

bool read_option(const OptionRow& row, const Flag& /*kind*/, const std::string& text) {
  const std::string word = lower(text);
  const bool on = word == "1" || word == "on" || word == "yes" || word == "true";
  const bool off = word == "0" || word == "off" || word == "no" || word == "false";
  if (!on && !off) refuse_option(row, text);
  return on;
}

int64_t read_option(const OptionRow& row, const Whole& kind, const std::string& text) {
  const std::optional<int64_t> number = parse_whole(text, kind.low, kind.high);
  if (!number) refuse_option(row, text);
  return *number;
}

std::string read_option(const OptionRow& row, const WholeOrWord& kind, const std::string& text) {
  const bool word = std::find(kind.words.begin(), kind.words.end(), text) != kind.words.end();
  if (!word && !parse_whole(text, kind.low, kind.high)) refuse_option(row, text);
  return text;
}

std::string read_option(const OptionRow& row, const FileName& kind, const std::string& text) {
  const auto plain = [](char c) {
    return is_letter(c) || is_digit(c) || c == '_' || c == '-' || c == '.';
  };
  const bool hidden = !text.empty() && text[0] == '.';
  if (hidden || text.size() > kind.most || !std::all_of(text.begin(), text.end(), plain)) {
    refuse_option(row, text);
  }
  return text;
}

std::vector<CallTime> read_option(const OptionRow& row, const CallTimes& kind,
                                  const std::string& text) {
  std::vector<CallTime> found;
  for (const std::string& pair : split(text, ',')) {
    if (pair.empty()) continue;
    const size_t equals = pair.find('=');
    if (equals == std::string::npos) refuse_option(row, text);
    CallTime made{pair.substr(0, equals), {}};
    for (const std::string& time : split(pair.substr(equals + 1), '+')) {
      const std::optional<double> us = parse_decimal(time);
      if (!us || *us >= kind.below || made.us.size() == kind.most) refuse_option(row, text);
      made.us.push_back(*us);
    }
    found.push_back(std::move(made));
  }
  return found;
}

std::string show_option(const CallTimes& /*kind*/, const std::vector<CallTime>& times) {
  std::string text;
  for (const CallTime& each : times) {
    text += (text.empty() ? "" : ",") + each.call;
    const char* before = "=";
    for (const double us : each.us) {
      text += before + exact_text(us);
      before = "+";
    }
  }
  return text;
}

std::string read_option(const OptionRow& row, const DriverName& /*kind*/, const std::string& text) {
  const bool preset = text.rfind("sim:", 0) == 0 && text.size() > 4;
  if (text != "cuda" && text != "sim" && !preset && text.find('/') == std::string::npos) {
    refuse_option(row, text);
  }
  return text;
}

std::string read_option(const OptionRow& /*row*/, const AnyText& /*kind*/,
                        const std::string& text) {
  return text;
}

}  // namespace glake

#include "base/options.h"

#include <unistd.h>

#include <type_traits>

#include "base/json_text.h"
#include "base/numbers.h"

namespace glake {
namespace {

template <typename Value, typename Kind>
std::string shown(const Kind& kind, const Value& value) {
  if constexpr (std::is_enum_v<Value>) {
    return show_option(kind, static_cast<size_t>(value));
  } else {
    return show_option(kind, value);
  }
}

// Calls `use` as each_option() does, but only for the option of that name. Throws Error.
template <typename Use>
void with_option(const std::string& key, Use&& use) {
  const std::string name = lower(key);
  std::string known;
  bool found = false;
  each_option([&](const OptionRow& row, auto field, const auto& kind) {
    known += (known.empty() ? "" : ", ") + std::string(row.name);
    if (name != row.name) return;
    found = true;
    use(row, field, kind);
  });
  if (found) return;
  throw Error(GLAKE_UNKNOWN_OPTION, "glake knows no option \"" + key + "\"; it knows " + known);
}

}  // namespace

void Options::set(const std::string& key, const std::string& value) {
  with_option(key, [&](const OptionRow& row, auto field, const auto& kind) {
    read_option_into(row, kind, value.empty() ? row.fallback : value, &(this->*field));
  });
}

std::string Options::get(const std::string& key) const {
  std::string value;
  with_option(key, [&](const OptionRow&, auto field, const auto& kind) {
    value = shown(kind, this->*field);
  });
  return value;
}

Options Options::from_environment() {
  Options options;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (text.rfind("GLAKE_", 0) != 0) continue;
    const size_t equals = text.find('=');
    const std::string key = lower(text.substr(6, equals - 6));
    if (other_option(key) != nullptr) continue;
    options.set(key, text.substr(equals + 1));
  }
  return options;
}

std::string Options::describe() const {
  std::string json = "[";
  each_option([&](const OptionRow& row, auto field, const auto& kind) {
    json += (json.size() > 1 ? ", " : "") + JsonText()
                                                .text("name", row.name)
                                                .text("variable", "GLAKE_" + upper(row.name))
                                                .text("default", row.fallback)
                                                .text("value", shown(kind, this->*field))
                                                .text("help", row.meaning)
                                                .done();
  });
  return json + "]";
}

}  // namespace glake

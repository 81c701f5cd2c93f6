// Adds up, by tag, the blocks that are live after one event.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "facts.h"
#include "trace_parser.h"

namespace glake::replay {

class HolderCounter : public TraceSink {
 public:
  explicit HolderCounter(uint64_t last_event) : last_(last_event) {}
  void event(const ParsedEvent& event) override;
  void fact(std::string_view, std::string_view) override {}
  bool done() const { return events_ > last_; }
  const std::unordered_map<std::string, Tally>& by_tag() const { return by_tag_; }

 private:
  using Held = std::unordered_map<std::string, Tally>::value_type;

  const uint64_t last_;
  uint64_t events_ = 0;
  std::unordered_map<std::string, Tally> by_tag_;
  std::vector<Held*> of_index_;
};

}  // namespace glake::replay

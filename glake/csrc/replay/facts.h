// Facts of a trace that is read once and not stored. They take memory for live blocks only.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "trace_parser.h"

namespace glake::replay {

struct Tally {
  uint64_t count = 0;
  uint64_t bytes = 0;
};

struct StreamTally {
  Tally allocated;
  uint64_t recorded = 0;  // record_stream lines that name it
};

// Sizes are bytes; events count from 0.
struct TraceFigures {
  uint64_t allocations = 0;
  uint64_t frees = 0;
  uint64_t record_streams = 0;
  uint64_t steps = 0;
  std::optional<uint64_t> first_step;
  std::optional<uint64_t> last_step;
  uint64_t peak_live_bytes = 0;
  uint64_t peak_event = 0;            // the first event after which the peak is live
  std::optional<uint64_t> peak_step;  // null: during set-up
  uint64_t peak_live_blocks = 0;
  uint64_t end_live_bytes = 0;
  uint64_t end_live_blocks = 0;
  uint64_t tagged_allocations = 0;
  std::map<uint32_t, Tally> size_classes;  // by exponent k: sizes from 2^k to below 2^(k+1)
  std::map<uint32_t, StreamTally> streams;
};

// Counts what a TraceParser reads.
class FigureCounter : public TraceSink {
 public:
  void event(const ParsedEvent& event) override;
  void fact(std::string_view key, std::string_view value) override;
  const TraceFigures& figures() const { return figures_; }
  const std::vector<std::pair<std::string, std::string>>& header() const { return header_; }

 private:
  void on_alloc(const ParsedEvent& event);

  TraceFigures figures_;
  std::vector<std::pair<std::string, std::string>> header_;
  uint64_t events_ = 0;
};

}  // namespace glake::replay

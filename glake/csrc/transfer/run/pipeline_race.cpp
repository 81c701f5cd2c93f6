#include "transfer/run/pipeline_race.h"

#include <algorithm>
#include <limits>

#include "base/transfer_tuning.h"

namespace glake::transfer {
namespace {

constexpr double kInRows = 1.5;  // copies of a chunk of many pieces, on average; a guess
constexpr double kNever = std::numeric_limits<double>::infinity();

class Race {
 public:
  Race(const PipelineTerms& terms, const std::vector<double>& chunks)
      : terms_(terms),
        flows_(terms.flows),
        chunks_(chunks),
        hops_(terms.paces.size(), Hop(terms.flows)) {
    for (Hop& hop : hops_) {
      for (size_t stream = 0; stream < flows_; ++stream) hop[stream].chunk = stream;
    }
  }

  double run() {
    while (begin_copies()) advance();
    return now_;
  }

 private:
  enum class State { kWaits, kStarts, kFlows };
  // A stream of a hop, and its copy. `left`: ns until the copy flows, and then its bytes.
  struct Stream {
    size_t chunk = 0;
    State state = State::kWaits;
    double left = 0;
  };
  using Hop = std::vector<Stream>;

  bool over(size_t hop, size_t chunk) const { return hops_[hop][chunk % flows_].chunk > chunk; }

  // Whether what the copy of this chunk waits for is over: the chunk's copy before it; of the hops
  // that share streams, the chunk that the stream had before; and the copy that empties its buffer.
  bool may_begin(size_t hop, size_t chunk) const {
    if (hop != 0 ? !over(hop - 1, chunk) : called_at(chunk) > now_) return false;
    if (hop + 1 == hops_.size()) return true;
    if (terms_.joined && hop == 0) return chunk < flows_ || over(1, chunk - flows_);
    return chunk < terms_.buffers || over(hop + 1, chunk - terms_.buffers);
  }

  // Begins all copies that may begin. False: none is left.
  bool begin_copies() {
    bool any = false;
    for (size_t h = 0; h < hops_.size(); ++h) {
      for (Stream& stream : hops_[h]) {
        if (stream.chunk >= chunks_.size()) continue;
        any = true;
        if (stream.state != State::kWaits || !may_begin(h, stream.chunk)) continue;
        stream.state = State::kStarts;
        stream.left = terms_.start_ns * copies_of(h, stream.chunk);
      }
    }
    return any;
  }

  double called_at(size_t chunk) const { return static_cast<double>(chunk) * terms_.calls_ns; }

  double copies_of(size_t hop, size_t chunk) const {
    return terms_.singly[hop] != 0
               ? transfer::copies_of(chunks_[chunk], terms_.piece, terms_.in_rows)
               : 1;
  }

  Rate rate_of(size_t hop) const {
    const auto flows = [](const Stream& stream) { return stream.state == State::kFlows; };
    const auto count = std::count_if(hops_[hop].begin(), hops_[hop].end(), flows);
    return terms_.paces[hop] / static_cast<double>(std::max<std::ptrdiff_t>(count, 1));
  }

  // Lets time pass until the next copy flows or ends, or its call is made.
  void advance() {
    double ns = kNever;
    for (const Stream& first : hops_.front()) {
      const double call = called_at(first.chunk);
      if (first.state == State::kWaits && call > now_) ns = std::min(ns, call - now_);
    }
    for (size_t h = 0; h < hops_.size(); ++h) {
      const Rate rate = rate_of(h);
      for (const Stream& stream : hops_[h]) {
        if (stream.state == State::kStarts) ns = std::min(ns, stream.left);
        if (stream.state == State::kFlows) ns = std::min(ns, stream.left / rate);
      }
    }
    now_ += ns;
    for (size_t h = 0; h < hops_.size(); ++h) {
      const Rate rate = rate_of(h);
      for (Stream& stream : hops_[h]) {
        if (stream.state == State::kWaits) continue;
        const bool flows = stream.state == State::kFlows;
        stream.left -= flows ? rate * ns : ns;
        if (stream.left <= kRest) ended_.push_back(&stream);
      }
    }
    for (Stream* stream : ended_) step(stream);
    ended_.clear();
  }

  void step(Stream* stream) {
    if (stream->state == State::kStarts) {
      stream->state = State::kFlows;
      stream->left = chunks_[stream->chunk];
      return;
    }
    stream->state = State::kWaits;
    stream->chunk += flows_;
  }

  static constexpr double kRest = 1e-3;  // bytes or ns that only rounding has left

  const PipelineTerms& terms_;
  const size_t flows_;
  const std::vector<double>& chunks_;
  std::vector<Hop> hops_;
  std::vector<Stream*> ended_;
  double now_ = 0;
};

}  // namespace

// The ends of a chunk need not be those of pieces. Where a copy may have many pieces, most chunks
// consist of whole ones, and are one copy.
double copies_of(double chunk, double piece, bool in_rows) {
  if (piece <= 0) return 1;
  const double pieces = std::max(chunk / piece + 0.75, 1.0);
  return in_rows ? std::min(pieces, kInRows) : pieces;
}

double pipeline_ns(const PipelineTerms& terms, const std::vector<double>& chunks) {
  return Race(terms, chunks).run();
}

}  // namespace glake::transfer

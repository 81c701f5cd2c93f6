#include "transfer/run/pipeline_race.h"

#include <algorithm>
#include <numeric>

#include "base/transfer_tuning.h"

namespace glake::transfer {
namespace {

constexpr double kInRows = 1.5;  // copies of a chunk of many pieces, on average; a guess
constexpr double kNever = std::numeric_limits<double>::infinity();

class Race {
 public:
  Race(const PipelineTerms& terms, const std::vector<double>& chunks, double most)
      : terms_(terms),
        most_(most),
        flows_(terms.flows),
        chunks_(chunks),
        hops_(terms.paces.size()),
        behind_((flows_ - terms.buffers % flows_) % flows_),
        streams_(hops_ * flows_),
        flowing_(hops_),
        each_(hops_),
        slowest_(static_cast<size_t>(std::min_element(terms.paces.begin(), terms.paces.end()) -
                                     terms.paces.begin())),
        rest_(std::accumulate(chunks.begin(), chunks.end(), 0.0)) {
    for (size_t i = 0; i < streams_.size(); ++i) streams_[i].chunk = i % flows_;
  }

  double run() {
    while (begin_copies()) {
      advance();
      const double least = now_ + rest_ / terms_.paces[slowest_];
      if (least > most_) return least;
    }
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

  Stream& at(size_t hop, size_t stream) { return streams_[hop * flows_ + stream]; }

  // Whether what the stream's next copy waits for is over: the chunk's copy before it; of the hops
  // that share streams, the chunk that the stream had before; and the copy that empties its buffer.
  // A chunk has the same stream of each hop.
  bool may_begin(size_t hop, size_t stream) {
    const size_t chunk = at(hop, stream).chunk;
    if (hop != 0 ? at(hop - 1, stream).chunk <= chunk : called_at(chunk) > now_) return false;
    if (hop + 1 == hops_) return true;
    if (terms_.joined && hop == 0) return chunk < flows_ || at(1, stream).chunk + flows_ > chunk;
    if (chunk < terms_.buffers) return true;
    const size_t emptied = stream + behind_ < flows_ ? stream + behind_ : stream + behind_ - flows_;
    return at(hop + 1, emptied).chunk + terms_.buffers > chunk;
  }

  // Begins all copies that may begin. False: none is left.
  bool begin_copies() {
    bool any = false;
    for (size_t hop = 0; hop < hops_; ++hop) {
      for (size_t i = 0; i < flows_; ++i) {
        Stream& stream = at(hop, i);
        if (stream.chunk >= chunks_.size()) continue;
        any = true;
        if (stream.state != State::kWaits || !may_begin(hop, i)) continue;
        stream.state = State::kStarts;
        stream.left = terms_.start_ns * copies_of(hop, stream.chunk);
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

  // Lets time pass until the next copy flows or ends, or its call is made.
  void advance() {
    double ns = kNever;
    for (size_t i = 0; terms_.calls_ns > 0 && i < flows_; ++i) {
      const double call = called_at(streams_[i].chunk);
      if (streams_[i].state == State::kWaits && call > now_) ns = std::min(ns, call - now_);
    }
    for (size_t hop = 0; hop < hops_; ++hop) {
      each_[hop] = terms_.paces[hop] / static_cast<double>(std::max<size_t>(flowing_[hop], 1));
      for (size_t i = 0; i < flows_; ++i) {
        const Stream& stream = at(hop, i);
        if (stream.state == State::kStarts) ns = std::min(ns, stream.left);
        if (stream.state == State::kFlows && stream.left < ns * each_[hop]) {
          ns = stream.left / each_[hop];
        }
      }
    }
    now_ += ns;
    for (size_t hop = 0; hop < hops_; ++hop) {
      for (size_t i = 0; i < flows_; ++i) {
        Stream& stream = at(hop, i);
        if (stream.state == State::kWaits) continue;
        const double passed = stream.state == State::kFlows ? each_[hop] * ns : ns;
        stream.left -= passed;
        if (hop == slowest_ && stream.state == State::kFlows) rest_ -= passed;
        if (stream.left <= kRest) step(&stream, hop);
      }
    }
  }

  void step(Stream* stream, size_t hop) {
    if (stream->state == State::kStarts) {
      stream->state = State::kFlows;
      stream->left = chunks_[stream->chunk];
      ++flowing_[hop];
      return;
    }
    stream->state = State::kWaits;
    stream->chunk += flows_;
    --flowing_[hop];
  }

  static constexpr double kRest = 1e-3;  // bytes or ns that only rounding has left

  const PipelineTerms& terms_;
  const double most_;
  const size_t flows_;
  const std::vector<double>& chunks_;
  const size_t hops_;
  const size_t behind_;          // how many streams on a chunk is whose buffer another one takes
  std::vector<Stream> streams_;  // of the first hop, then of the second, and so on
  std::vector<size_t> flowing_;  // by hop: how many of its copies flow
  std::vector<Rate> each_;       // by hop: how fast each of them is
  const size_t slowest_;         // a hop
  double rest_;                  // bytes that have not flowed over it
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

double pipeline_ns(const PipelineTerms& terms, const std::vector<double>& chunks, double most) {
  return Race(terms, chunks, most).run();
}

}  // namespace glake::transfer

// What a rank enqueues: the parts of one group on one stream of a communicator.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "stage.h"

namespace nccl {

class Engine;

enum class Kind : uint32_t {
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kReduce,
  kBroadcast,
  kAllToAll,
  kGather,
  kScatter,
  kSend,
  kRecv,
};
inline bool is_collective(Kind kind) { return kind < Kind::kSend; }
inline bool reduces(Kind kind) {
  return kind == Kind::kAllReduce || kind == Kind::kReduceScatter || kind == Kind::kReduce;
}
inline bool gathers(Kind kind) {
  return kind == Kind::kAllGather || kind == Kind::kGather || kind == Kind::kAllToAll;
}
const char* name_of(Kind kind);

// The request of one call.
struct Part {
  Kind kind = Kind::kAllReduce;
  const void* in = nullptr;
  void* out = nullptr;
  size_t count = 0;  // elements, as the call counts them
  int type = 0, op = 0;
  int root = 0;  // or the other rank of a message
  double scale = 1;
  const void* scale_address = nullptr;  // of device memory, which is read when the work runs

  // Bytes that this rank provides and gets, in a communicator of `size` ranks.
  uint64_t in_bytes(int rank, int size) const;
  uint64_t out_bytes(int rank, int size) const;
  std::string text() const;  // "all_reduce of 5 float32 (sum)"
};

struct Operation {
  struct Piece {  // of one part, while it is under way
    Part part;
    uint64_t in_offset = 0, scale_offset = 0;  // in the block
    // The staged bytes on the host. nullptr: there are none, because the piece is large and the
    // memory phantom.
    char *in = nullptr, *scale = nullptr, *out = nullptr;
    // For phantom memory: how many of the staged bytes are known. `out` has such a count for each
    // of its equal parts. There is one part for each rank in a gather, and one in all otherwise.
    size_t in_known = 0, scale_known = 0;
    std::vector<size_t> out_known;
    enum { kWaiting, kBrought, kDone, kOver } state = kWaiting;
    uint64_t number = 0;  // among the communicator's collectives, or the pair's messages
  };
  std::shared_ptr<Engine> engine;
  std::vector<Piece> pieces;
  Stage::Block block;
  std::shared_ptr<Mapping> in, out;  // `in` is for phantom memory only
  uint64_t in_bytes = 0;
  uint64_t go = 0;  // 1: the stream goes on
  bool captured = false;
};

}  // namespace nccl

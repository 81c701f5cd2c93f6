#include "operation.h"

#include "reduce.h"

namespace nccl {

const char* name_of(Kind kind) {
  constexpr const char* kNames[] = {"all_reduce", "all_gather", "reduce_scatter", "reduce",
                                    "broadcast",  "all_to_all", "gather",         "scatter",
                                    "send",       "recv"};
  return kNames[static_cast<uint32_t>(kind)];
}

uint64_t Part::in_bytes(int rank, int size) const {
  const uint64_t bytes = count * width_of(type);
  const uint64_t all = bytes * static_cast<uint64_t>(size);
  switch (kind) {
    case Kind::kReduceScatter:
    case Kind::kAllToAll:
      return all;
    case Kind::kBroadcast:
      return rank == root ? bytes : 0;
    case Kind::kScatter:
      return rank == root ? all : 0;
    case Kind::kRecv:
      return 0;
    default:
      return bytes;
  }
}

uint64_t Part::out_bytes(int rank, int size) const {
  const uint64_t bytes = count * width_of(type);
  const uint64_t all = bytes * static_cast<uint64_t>(size);
  switch (kind) {
    case Kind::kAllGather:
    case Kind::kAllToAll:
      return all;
    case Kind::kReduce:
      return rank == root ? bytes : 0;
    case Kind::kBroadcast:
      return rank == root && in == out ? 0 : bytes;
    case Kind::kGather:
      return rank == root ? all : 0;
    case Kind::kSend:
      return 0;
    default:
      return bytes;
  }
}

std::string Part::text() const {
  std::string text =
      std::string(name_of(kind)) + " of " + std::to_string(count) + " " + name_of_type(type);
  const bool reduces =
      kind == Kind::kAllReduce || kind == Kind::kReduceScatter || kind == Kind::kReduce;
  if (reduces) text += std::string(" (") + name_of_op(op) + ")";
  const bool rooted = kind == Kind::kReduce || kind == Kind::kBroadcast || kind == Kind::kGather ||
                      kind == Kind::kScatter;
  if (rooted) text += ", root " + std::to_string(root);
  return text;
}

}  // namespace nccl

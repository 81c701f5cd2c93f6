// The page of shared memory in which the ranks of one communicator meet. It is zero-filled at
// first. Every word has one writer, unless its comment says otherwise.
#pragma once

#include <atomic>
#include <cstdint>

namespace nccl {

constexpr int kMostRanks = 64;
constexpr uint32_t kMagic = 0x67e0cc02;

// A rank's parameters of a collective. If they differ among ranks, the ranks get an error.
struct Post {
  uint32_t kind, type, op;
  int32_t root;
  uint64_t count;  // elements
  double scale;    // of a reduction that multiplies first, else unused
  uint32_t block;  // in the rank's staging; its input is at `offset`
  uint64_t offset;
  uint64_t known;  // the known bytes of its input, which are few in phantom memory
};

enum class Presence : uint32_t { kAbsent, kJoined, kLeft, kAborted };

struct Split {
  std::atomic<uint64_t> turn;
  int32_t color, key;
};

struct Rank {
  std::atomic<uint32_t> bell;  // grows when something has changed for this rank; all write it
  std::atomic<Presence> presence;
  uint64_t process;  // no other process has this number
  uint64_t machine;  // equal for ranks on one machine
  int32_t device;
  std::atomic<uint64_t> posted, passed;  // the collectives that it has begun, and has finished
  Post post[2];                          // of collective n: n % 2
  Split split[2];                        // of split n: n % 2
};

// Messages from one rank to another.
struct Mail {
  std::atomic<uint64_t> sent;           // by the sender
  std::atomic<uint64_t> wanted, taken;  // by the receiver
  uint32_t type, block;
  uint64_t offset, count;
  uint64_t known;  // as in Post
};

struct Page {
  std::atomic<uint32_t> magic;
  std::atomic<int32_t> size;  // ranks, as set by the first one
  Rank rank[kMostRanks];
  Mail mail[kMostRanks][kMostRanks];  // from, to
};

}  // namespace nccl

// The page of shared memory in which the ranks of one communicator meet. Zero-filled at first;
// every word has one writer, but those that say otherwise.
#pragma once

#include <atomic>
#include <cstdint>

namespace nccl {

constexpr int kMostRanks = 64;
constexpr uint32_t kMagic = 0x67e0cc02;

// What a rank brings to a collective. Ranks that bring different ones are told so.
struct Post {
  uint32_t kind, type, op;
  int32_t root;
  uint64_t count;  // elements
  double scale;    // of a reduction that multiplies first
  uint32_t block;  // of the rank's staging, and where its input lies in it
  uint64_t offset;
  uint64_t known;  // bytes of its input that are; of phantom memory few are
};

enum class Presence : uint32_t { kAbsent, kJoined, kLeft, kAborted };

struct Split {
  std::atomic<uint64_t> turn;
  int32_t color, key;
};

struct Rank {
  std::atomic<uint32_t> bell;  // grows when something has changed for this rank; all write it
  std::atomic<Presence> presence;
  uint64_t process;  // a number of the process, no other's
  uint64_t machine;  // equal for ranks on one machine
  int32_t device;
  std::atomic<uint64_t> posted, passed;  // collectives brought, and done with
  Post post[2];                          // of collective n: n % 2
  Split split[2];                        // of split n: n % 2
};

// Messages from one rank to another.
struct Mail {
  std::atomic<uint64_t> sent;           // by the sender
  std::atomic<uint64_t> wanted, taken;  // by the receiver
  uint32_t type, block;
  uint64_t offset, count;
  uint64_t known;  // as in a post
};

struct Page {
  std::atomic<uint32_t> magic;
  std::atomic<int32_t> size;  // ranks, as the first said
  Rank rank[kMostRanks];
  Mail mail[kMostRanks][kMostRanks];  // from, to
};

}  // namespace nccl

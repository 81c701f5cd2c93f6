// Finds the NUMA node of host memory, and places memory on a node.
#include <dirent.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <thread>

#include "base/transfer_tuning.h"
#include "driver/calls.h"

namespace glake {
namespace {

constexpr int kInterleave = 3;   // MPOL_INTERLEAVE of mbind(2)
constexpr int kMaskBits = 1024;  // a bit for each node; the most that Linux can have

Address page_size() { return static_cast<Address>(sysconf(_SC_PAGESIZE)); }

// The node of most pages, if nearly all are on the same one. `nodes` has the node of each page, or
// -1 for a page that counts for none.
int single_node(const std::vector<int>& nodes) {
  if (nodes.empty()) return kUnknownNode;
  std::vector<size_t> found;
  for (int node : nodes) {
    const auto at = static_cast<size_t>(node + 1);
    found.resize(std::max(found.size(), at + 1));
    ++found[at];
  }
  const auto most = std::max_element(found.begin(), found.end());
  if ((nodes.size() - *most) * 100 > nodes.size() * TransferTuning::kForeignPercent)
    return kSpreadNode;
  return most == found.begin() ? kUnknownNode : static_cast<int>(most - found.begin()) - 1;
}

int group_of(int node, const std::vector<int>& groups) {
  if (groups.empty()) return node;
  return static_cast<size_t>(node) < groups.size() ? groups[static_cast<size_t>(node)] : -1;
}

// The cores of a node, from its entries cpuN in /sys.
bool cores_of(int node, cpu_set_t* cores) {
  CPU_ZERO(cores);
  const std::string path = "/sys/devices/system/node/node" + std::to_string(node);
  DIR* directory = opendir(path.c_str());
  if (directory == nullptr) return false;
  while (const dirent* entry = readdir(directory)) {
    unsigned core = 0;
    char rest = 0;
    if (std::sscanf(entry->d_name, "cpu%u%c", &core, &rest) == 1 && core < CPU_SETSIZE) {
      CPU_SET(core, cores);
    }
  }
  closedir(directory);
  return CPU_COUNT(cores) > 0;
}

void touch(Address begin, Address end, Address page) {
  for (Address at = begin; at < end; at += page) *reinterpret_cast<volatile char*>(at) = 0;
}

}  // namespace

Status Driver::host_node(const void* base, Bytes bytes, int* node,
                         const std::vector<int>& groups) const {
  *node = kUnknownNode;
  if (table_->extras.host_node != nullptr) {
    const Status s{table_->extras.host_node(base, bytes, node)};
    if (*node >= 0) *node = single_node({group_of(*node, groups)});
    return s;
  }
  const Address page = page_size(), first = round_down(reinterpret_cast<Address>(base), page);
  const Bytes pages = (round_up(reinterpret_cast<Address>(base) + bytes, page) - first) / page;
  if (bytes == 0) return {};
  const auto samples = static_cast<size_t>(std::min<Bytes>(pages, TransferTuning::kNodeSamples));
  void* addresses[TransferTuning::kNodeSamples];
  int nodes[TransferTuning::kNodeSamples];
  for (size_t i = 0; i < samples; ++i) {
    addresses[i] = reinterpret_cast<void*>(first + pages * i / samples * page);
    nodes[i] = -1;
  }
  // This moves nothing. Without a list of nodes the call tells where each page is.
  if (syscall(SYS_move_pages, 0, samples, addresses, nullptr, nodes, 0) != 0) return {};
  std::vector<int> resident;
  for (size_t i = 0; i < samples; ++i) {
    if (nodes[i] >= 0) resident.push_back(group_of(nodes[i], groups));
  }
  *node = single_node(resident);
  return {};
}

// mbind(2) is refused in many containers. Then a thread on the node's cores touches the pages
// first, which puts them on that node by default.
Status Driver::place_host(void* base, Bytes bytes, const std::vector<int>& nodes) const {
  if (nodes.empty()) return status(CUDA_ERROR_INVALID_VALUE);
  if (table_->extras.place_host != nullptr) {
    return {table_->extras.place_host(base, bytes, nodes[0])};
  }
  const Address page = page_size(), begin = reinterpret_cast<Address>(base), end = begin + bytes;
  unsigned long mask[kMaskBits / (8 * sizeof(unsigned long))] = {};
  constexpr int kWord = 8 * sizeof(unsigned long);
  for (int node : nodes) {
    if (node < kMaskBits) mask[node / kWord] |= 1UL << (node % kWord);
  }
  if (syscall(SYS_mbind, begin, bytes, kInterleave, mask, kMaskBits, 0) == 0) {
    touch(begin, end, page);
    return {};
  }
  const Bytes share = round_up(bytes / nodes.size() + 1, page);
  Address from = begin;
  bool there = true;
  for (int node : nodes) {
    const Address to = std::min(end, from + share);
    cpu_set_t cores;
    const bool known = cores_of(node, &cores);
    std::thread([&] {
      there = there && known && sched_setaffinity(0, sizeof cores, &cores) == 0;
      touch(from, to, page);
    }).join();
    from = to;
  }
  return there ? Status{} : status(CUDA_ERROR_NOT_PERMITTED);
}

}  // namespace glake

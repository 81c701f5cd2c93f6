#include "transfer/call/overlap.h"

#include <algorithm>
#include <array>

namespace glake::transfer {
namespace {

bool before(const Access& a, const Access& b) { return a.begin < b.begin; }

// Sorts by the digits of the distance from the lowest address, the least digit first. That takes
// half the time of std::sort for 50,000 blocks, for which a call waits.
void sort_by_begin(std::vector<Access>* accesses) {
  constexpr unsigned kBits = 11;
  constexpr Address kDigits = Address{1} << kBits;
  const Address lowest = std::min_element(accesses->begin(), accesses->end(), before)->begin;
  const Address most = std::max_element(accesses->begin(), accesses->end(), before)->begin - lowest;
  std::vector<Access> sorted(accesses->size());
  for (unsigned shift = 0; shift < 64 && most >> shift != 0; shift += kBits) {
    std::array<size_t, kDigits + 1> place{};
    auto digit = [&](const Access& access) {
      return (access.begin - lowest) >> shift & (kDigits - 1);
    };
    for (const Access& access : *accesses) ++place[digit(access) + 1];
    for (size_t i = 1; i < place.size(); ++i) place[i] += place[i - 1];
    for (const Access& access : *accesses) sorted[place[digit(access)]++] = access;
    accesses->swap(sorted);
  }
}

}  // namespace

Overlap find_overlap(std::vector<Access> accesses) {
  if (!std::is_sorted(accesses.begin(), accesses.end(), before)) sort_by_begin(&accesses);
  Address written = 0, read = 0;  // the ends of the accesses so far
  for (const Access& access : accesses) {
    if (access.begin < written) return {access.begin, access.written};
    if (access.written && access.begin < read) return {access.begin, false};
    (access.written ? written : read) = std::max(access.written ? written : read, access.end);
  }
  return {};
}

}  // namespace glake::transfer

#include "transfer/call/overlap.h"

#include <algorithm>
#include <array>

namespace glake::transfer {
namespace {

bool before(const Span& a, const Span& b) { return a.begin < b.begin; }

// Sorts by the digits of the distance from the lowest address, the least digit first. That takes
// half the time of std::sort for 50,000 blocks, for which a call waits.
void sort_by_begin(std::vector<Span>* spans) {
  constexpr unsigned kBits = 11;
  constexpr Address kDigits = Address{1} << kBits;
  const Address lowest = std::min_element(spans->begin(), spans->end(), before)->begin;
  const Address most = std::max_element(spans->begin(), spans->end(), before)->begin - lowest;
  std::vector<Span> sorted(spans->size());
  for (unsigned shift = 0; shift < 64 && most >> shift != 0; shift += kBits) {
    std::array<size_t, kDigits + 1> place{};
    auto digit = [&](const Span& span) { return (span.begin - lowest) >> shift & (kDigits - 1); };
    for (const Span& span : *spans) ++place[digit(span) + 1];
    for (size_t i = 1; i < place.size(); ++i) place[i] += place[i - 1];
    for (const Span& span : *spans) sorted[place[digit(span)]++] = span;
    spans->swap(sorted);
  }
}

}  // namespace

Overlap find_overlap(std::vector<Span> spans) {
  if (!std::is_sorted(spans.begin(), spans.end(), before)) sort_by_begin(&spans);
  Address written = 0, read = 0;  // the ends of the spans so far
  for (const Span& span : spans) {
    if (span.begin < written) return {span.begin, span.written};
    if (span.written && span.begin < read) return {span.begin, false};
    (span.written ? written : read) = std::max(span.written ? written : read, span.end);
  }
  return {};
}

}  // namespace glake::transfer

// World's virtual ranges, of device 0. All work on a range is on one stream. A page's granule has a
// stamp, which every page that shares the granule shows.
#pragma once

#include "world.h"

namespace fuzz {

constexpr size_t kRanges = 3;

inline void World::virtual_reserve(int stream) {
  if (ranges_.size() == kRanges) return;
  note("virtual_reserve", {stream});
  void* base = nullptr;
  int code = call([&] {
    base = glake_virtual_reserve(kRangePages * kGranule, 0);
    return glake_last_error(nullptr, 0);
  });
  CHECK(base != nullptr || (armed_ && (code == GLAKE_OUT_OF_MEMORY || code == GLAKE_DRIVER_ERROR)));
  if (base == nullptr) return;
  books_[0].used = true;
  ranges_.push_back({static_cast<char*>(base), static_cast<int>(stream_of(stream)), {}});
  identities();
}

// The stream of the range's work. After the end of its stream that is the default stream.
inline int World::stream_of_range(Range& range) {
  if (ended_[static_cast<size_t>(range.stream)]) {
    if (setup_.bytes != 0) stamps_.verify();
    range.stream = 0;
  }
  return range.stream;
}

// The pages of a range that two numbers mean.
inline World::Pages World::pages_of(int first, int count) {
  const size_t begin = static_cast<size_t>(first) % kRangePages;
  return {begin, begin + 1 + static_cast<size_t>(count) % (kRangePages - begin)};
}

inline void World::read_pages(const Range& range, Pages pages) {
  for (size_t i = pages.begin; i < pages.end; ++i) {
    if (range.pages[i] == nullptr || setup_.bytes == 0) continue;
    stamps_.read(range.at(i), kGranule, *range.pages[i], handle(range.stream));
  }
}

// Enters a page's new granule.
inline void World::page_taken(Range& range, size_t i) {
  Books& b = books_[0];
  range.pages[i] = std::make_shared<uint8_t>(++stamp_);
  ++b.count;
  b.requested += static_cast<int64_t>(kGranule);
  b.allocated += static_cast<int64_t>(kGranule);
  b.peak = std::max(b.peak, b.allocated);
  if (setup_.bytes != 0) Stamps::write(range.at(i), kGranule, stamp_, handle(range.stream));
}

inline void World::page_given(std::shared_ptr<uint8_t>& page) {
  if (page.use_count() == 1) {
    --books_[0].count;
    books_[0].requested -= static_cast<int64_t>(kGranule);
    books_[0].allocated -= static_cast<int64_t>(kGranule);
  }
  page.reset();
}

// Compares glake's figures of every page with the books. A refused call may have cost pages only if
// the driver refused something.
inline void World::check_ranges() {
  for (Range& range : ranges_) {
    for (size_t i = 0; i < kRangePages; ++i) {
      glake_virtual info{};
      OK(glake_virtual_info(range.base, i * kGranule, kGranule, &info, sizeof info));
      std::shared_ptr<uint8_t>& page = range.pages[i];
      if (page != nullptr && info.backed == 0 && armed_) page_given(page);
      CHECK(info.backed == (page != nullptr ? kGranule : 0) && info.mapped >= info.backed);
      CHECK(armed_ || info.shared == (page.use_count() > 1 ? kGranule : 0));
    }
  }
  // Granules that were taken and given again within a call are allocations, too.
  books_[0].allocations = test::number_in(test::stats(0), "allocation.all.allocated");
  identities();
}

inline void World::virtual_back(int n, int first, int count) {
  if (ranges_.empty()) return;
  note("virtual_back", {n, first, count});
  Range& range = ranges_[static_cast<size_t>(n) % ranges_.size()];
  const int on = stream_of_range(range);
  if (capturing(on)) return;
  const Pages pages = pages_of(first, count);
  size_t missing = 0;
  for (size_t i = pages.begin; i < pages.end; ++i) missing += range.pages[i] == nullptr ? 1 : 0;
  int code = call([&] {
    return glake_virtual_back(range.base, pages.begin * kGranule, pages.bytes(), handle(on));
  });
  for (size_t i = pages.begin; i < pages.end && code == GLAKE_OK; ++i) {
    if (range.pages[i] == nullptr) page_taken(range, i);
  }
  if (code != GLAKE_OK) {
    exact_peak_ = false;
    CHECK(code == GLAKE_OUT_OF_MEMORY || (armed_ && code == GLAKE_DRIVER_ERROR) ||
          (under_capture() && code == GLAKE_INVALID_ARGUMENT));
    if (code == GLAKE_OUT_OF_MEMORY && !armed_) refused(missing * kGranule, 0);
  }
  check_ranges();
}

inline void World::virtual_unback(int n, int first, int count) {
  if (ranges_.empty()) return;
  note("virtual_unback", {n, first, count});
  Range& range = ranges_[static_cast<size_t>(n) % ranges_.size()];
  const int on = stream_of_range(range);
  if (capturing(on)) return;
  const Pages pages = pages_of(first, count);
  read_pages(range, pages);
  OK(call([&] {
    return glake_virtual_unback(range.base, pages.begin * kGranule, pages.bytes(), handle(on));
  }));
  for (size_t i = pages.begin; i < pages.end; ++i) page_given(range.pages[i]);
  check_ranges();
}

inline void World::virtual_alias(int n, int first, int from, int from_first, int count) {
  if (ranges_.empty()) return;
  note("virtual_alias", {n, first, from, from_first, count});
  Range& range = ranges_[static_cast<size_t>(n) % ranges_.size()];
  Range& source = ranges_[static_cast<size_t>(from) % ranges_.size()];
  const int on = stream_of_range(range);
  if (stream_of_range(source) != on || capturing(on)) return;
  Pages pages = pages_of(first, count);
  const Pages shared = pages_of(from_first, static_cast<int>(pages.end - pages.begin) - 1);
  pages.end = std::min(pages.end, pages.begin + (shared.end - shared.begin));
  std::vector<std::shared_ptr<uint8_t>> granules;
  bool whole = true;
  for (size_t i = 0; i < pages.end - pages.begin; ++i) {
    granules.push_back(source.pages[shared.begin + i]);
    whole = whole && granules.back() != nullptr;
  }
  read_pages(range, pages);
  int code = call([&] {
    return glake_virtual_alias(range.base, pages.begin * kGranule, source.base,
                               shared.begin * kGranule, pages.bytes(), handle(on));
  });
  if (code == GLAKE_OK) {
    CHECK(whole);
    for (size_t i = pages.begin; i < pages.end; ++i) {
      page_given(range.pages[i]);
      range.pages[i] = std::move(granules[i - pages.begin]);
    }
  } else {
    CHECK(!whole || armed_ || under_capture());
    CHECK(code == GLAKE_INVALID_ARGUMENT ||
          (armed_ && (code == GLAKE_OUT_OF_MEMORY || code == GLAKE_DRIVER_ERROR)));
  }
  granules.clear();
  check_ranges();
}

inline void World::virtual_free(int n) {
  if (ranges_.empty()) return;
  note("virtual_free", {n});
  const size_t which = static_cast<size_t>(n) % ranges_.size();
  Range& range = ranges_[which];
  if (capturing(stream_of_range(range))) return;
  read_pages(range, {0, kRangePages});
  int code = call([&] { return glake_virtual_free(range.base); });
  if (code == GLAKE_OK) {
    for (std::shared_ptr<uint8_t>& page : range.pages) page_given(page);
    ranges_.erase(ranges_.begin() + static_cast<std::ptrdiff_t>(which));
  } else {
    CHECK((under_capture() && code == GLAKE_INVALID_ARGUMENT) ||
          (armed_ && code == GLAKE_DRIVER_ERROR));
  }
  check_ranges();
}

}  // namespace fuzz

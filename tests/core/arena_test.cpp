// Compares an Arena with a byte map, over random takes, gives, claims and disclaims of up to
// several granules. Every query must say what the map says, and Arena::check() runs after every
// step.
#include "memory/arena.h"

#include <algorithm>
#include <cstdlib>
#include <new>

#include "harness.h"

using namespace glake;

namespace {

bool no_memory = false;  // slabs of spans get none

}  // namespace

void* operator new(std::size_t bytes, std::align_val_t alignment) {
  const auto unit = static_cast<std::size_t>(alignment);
  void* memory = no_memory ? nullptr : std::aligned_alloc(unit, round_up(bytes, unit));
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

namespace {

constexpr Bytes kUnit = kAlignment;
constexpr uint64_t kUnitsPerGranule = kGranule / kUnit;
constexpr uint64_t kGranules = 70;  // more than one word of the free bitmap

enum class Unit : uint8_t { kAbsent, kFree, kBusy };

class Model {
 public:
  Model() : units_(kGranules * kUnitsPerGranule, Unit::kAbsent) {}
  void set(Address a, Bytes size, Unit state) {
    std::fill_n(units_.begin() + static_cast<std::ptrdiff_t>(a / kUnit), size / kUnit, state);
  }
  bool all(uint64_t from, uint64_t count, Unit state) const {
    for (uint64_t u = from; u < from + count; ++u) {
      if (units_[u] != state) return false;
    }
    return true;
  }
  // Maximal free runs: (address, bytes).
  std::vector<std::pair<Address, Bytes>> extents() const {
    std::vector<std::pair<Address, Bytes>> found;
    for (uint64_t u = 0; u < units_.size();) {
      uint64_t end = u;
      while (end < units_.size() && units_[end] == Unit::kFree) ++end;
      if (end > u) found.emplace_back(u * kUnit, (end - u) * kUnit);
      u = end > u ? end : u + 1;
    }
    return found;
  }
  bool whole_free(uint64_t g) const {
    return all(g * kUnitsPerGranule, kUnitsPerGranule, Unit::kFree);
  }
  Bytes prefix(uint64_t g) const {
    uint64_t n = 0;
    while (n < kUnitsPerGranule && units_[g * kUnitsPerGranule + n] == Unit::kFree) ++n;
    return n * kUnit;
  }
  Bytes suffix(uint64_t g) const {
    uint64_t n = 0;
    while (n < kUnitsPerGranule && units_[(g + 1) * kUnitsPerGranule - 1 - n] == Unit::kFree) ++n;
    return n * kUnit;
  }
  uint64_t run(uint64_t g, uint64_t most, bool free) const {
    uint64_t n = 0;
    while (n < most && g + n < kGranules && whole_free(g + n) == free) ++n;
    return n;
  }

 private:
  std::vector<Unit> units_;
};

class Trial {
 public:
  explicit Trial(uint64_t seed) : dice_(seed), arena_(3, 0, kGranules * kGranule, pool_) {}

  void run(int steps) {
    for (int i = 0; i < steps; ++i) {
      switch (dice_(0, 9)) {
        case 0:
          claim();
          break;
        case 1:
          drop_granules();
          break;
        case 2:
        case 3:
        case 4:
        case 5:
          take();
          break;
        default:
          give();
      }
      CHECK_TEXT(arena_.check().empty(), arena_.check());
      if (i % 16 == 0) compare();
    }
    CHECK(takes_ > steps / 10 && claims_ > 10 && drops_ > 0);
  }

 private:
  Bytes size() {
    Bytes most = dice_.chance(50) ? kMiB : 9 * kMiB;
    return round_up(dice_(1, dice_.chance(20) ? 4 * kUnit : most), kUnit);
  }

  Tickets ticket() {
    Tickets t;
    for (uint64_t n = dice_(0, 3); n > 0; --n) {
      t.add({static_cast<StreamId>(dice_(0, 2)), dice_(1, 9)});
    }
    return t;
  }

  // Puts granules behind a part of an absent span. One time in four the test acts as if the driver
  // refused.
  void claim() {
    std::vector<Span*> absent;
    for (Span* s = arena_.first_absent(); s != nullptr; s = arena_.next_absent(s)) {
      absent.push_back(s);
    }
    if (absent.empty()) return;
    Span* s = absent[dice_(0, absent.size() - 1)];
    uint64_t room = s->size / kGranule;
    uint64_t at = dice_(0, room - 1), n = dice_(1, std::min<uint64_t>(room - at, 6));
    Span* mine = arena_.claim(s, s->begin + at * kGranule, n * kGranule);
    CHECK(mine->size == n * kGranule && mine->state == SpanState::kBusy);
    model_.set(mine->begin, mine->size, Unit::kBusy);
    CHECK_TEXT(arena_.check().empty(), arena_.check());
    if (dice_.chance(25)) {
      model_.set(mine->begin, mine->size, Unit::kAbsent);
      arena_.disclaim(mine);
    } else {
      model_.set(mine->begin, mine->size, Unit::kFree);
      arena_.give(mine, Tickets{});
    }
    ++claims_;
  }

  // What trim does: a run of wholly free granules becomes absent.
  void drop_granules() {
    for (uint64_t tries = 0; tries < 8; ++tries) {
      uint64_t g = dice_(0, kGranules - 1);
      uint64_t n = arena_.whole().free_run(g, dice_(1, 4));
      if (n == 0) continue;
      Span* s = arena_.take(arena_.extent_at_prefix(g), arena_.granule_at(g), n * kGranule);
      model_.set(s->begin, s->size, Unit::kAbsent);
      arena_.disclaim(s);
      ++drops_;
      return;
    }
  }

  // Takes bytes at either end of a best fit, or anywhere in an extent, as a stitched block does.
  void take() {
    Bytes n = size();
    Span* head = best_fit(n);
    if (head == nullptr) return;
    Bytes slack = head->extent - n;
    Bytes skip = dice_.chance(30) ? slack : dice_.chance(40) ? dice_(0, slack / kUnit) * kUnit : 0;
    Address begin = head->begin + skip;
    Span* s = arena_.take(head, begin, n);
    CHECK(s->begin == begin && s->size == n && s->state == SpanState::kBusy);
    CHECK(s->tickets.empty());
    model_.set(begin, n, Unit::kBusy);
    busy_.push_back(s);
    ++takes_;
  }

  void give() {
    if (busy_.empty()) return;
    size_t i = dice_(0, busy_.size() - 1);
    Span* s = busy_[i];
    busy_[i] = busy_.back();
    busy_.pop_back();
    model_.set(s->begin, s->size, Unit::kFree);
    arena_.give(s, ticket());
  }

  // The smallest extent that fits. If several are equally small, the lowest of them.
  Span* best_fit(Bytes n) {
    std::pair<Bytes, Address> best{~Bytes{0}, 0};
    const auto extents = model_.extents();
    for (auto [a, bytes] : extents) {
      if (bytes >= n) best = std::min(best, {bytes, a});
    }
    Span* head = arena_.best_fit(n);
    CHECK((head == nullptr) == (best.first == ~Bytes{0}));
    if (head != nullptr) {
      CHECK(head->extent == best.first && head->begin == best.second);
    }
    return head;
  }

  void compare_fits(const std::vector<std::pair<Address, Bytes>>& extents) {
    Bytes n = size(), largest = 0;
    std::vector<std::pair<Address, Bytes>> fits, walked;
    for (auto [a, bytes] : extents) {
      largest = std::max(largest, bytes);
      if (bytes >= n) fits.emplace_back(a, bytes);
    }
    for (Span* s = arena_.best_fit(n); s != nullptr; s = arena_.next_fit(s)) {
      if (!walked.empty()) CHECK(walked.back().second <= s->extent);
      walked.emplace_back(s->begin, s->extent);
    }
    std::sort(walked.begin(), walked.end());
    CHECK(walked == fits);
    CHECK((arena_.largest() != nullptr ? arena_.largest()->extent : 0) == largest);
    size_t down = 0;
    for (Span *s = arena_.largest(), *last = nullptr; s != nullptr; ++down) {
      CHECK(last == nullptr ||
            std::make_pair(s->extent, s->begin) < std::make_pair(last->extent, last->begin));
      last = s;
      s = arena_.next_smaller(s);
    }
    CHECK(down == extents.size());
  }

  void compare() {
    const auto extents = model_.extents();
    compare_fits(extents);
    Bytes free = 0;
    for (auto [a, bytes] : extents) free += bytes;
    CHECK(arena_.free_bytes() == free);
    uint64_t whole = 0;
    for (uint64_t g = 0; g < kGranules; ++g) {
      whole += model_.whole_free(g);
      CHECK(arena_.whole().has(g) == model_.whole_free(g));
      CHECK(arena_.free_prefix(g) == model_.prefix(g));
      CHECK(arena_.free_suffix(g) == model_.suffix(g));
    }
    CHECK(arena_.whole().count() == whole);
    uint64_t from = dice_(0, kGranules - 1), most = dice_(1, kGranules);
    CHECK(arena_.whole().free_run(from, most) == model_.run(from, most, true));
    CHECK(arena_.whole().busy_run(from, most) == model_.run(from, most, false));
    for (auto [a, bytes] : extents) compare_extent(a, bytes);
  }

  // The extent is found again from each of its granule starts, prefixes and suffixes.
  void compare_extent(Address a, Bytes bytes) {
    for (uint64_t g = a / kGranule; g <= (a + bytes - 1) / kGranule; ++g) {
      Address begin = g * kGranule, end = begin + kGranule;
      if (a <= begin && model_.prefix(g) != 0) {
        CHECK(arena_.extent_at_prefix(g)->begin == a);
        covers(arena_.free_span_at(begin), begin);
      }
      if (a + bytes >= end) CHECK(arena_.extent_at_suffix(g)->begin == a);
      if (a > begin && a + bytes >= end) covers(arena_.free_span_at(a), a);
    }
  }

  static void covers(const Span* s, Address a) {
    CHECK(s->state == SpanState::kFree && s->begin <= a && a < s->end());
  }

  test::Dice dice_;
  SpanPool pool_;
  Arena arena_;
  Model model_;
  std::vector<Span*> busy_;
  int takes_ = 0, claims_ = 0, drops_ = 0;
};

// Tickets merge with neighbours of the same streams only, and never weaken.
TEST(tickets_of_neighbours) {
  SpanPool pool;
  Arena arena(0, 0, 4 * kGranule, pool);
  arena.give(arena.claim(arena.first_absent(), 0, 4 * kGranule), Tickets{});
  Span* parts[4];
  for (Span*& p : parts)
    p = arena.take(arena.best_fit(kGranule), (&p - parts) * kGranule, kGranule);
  arena.give(parts[0], Tickets({1, 5}));
  arena.give(parts[1], Tickets({1, 7}));
  arena.give(parts[3], Tickets({2, 3}));
  arena.give(parts[2], Tickets({2, 1}));
  const Span* first = arena.first_span();
  CHECK(first->size == 2 * kGranule && first->tickets.begin()->epoch == 7);
  CHECK(first->next->size == 2 * kGranule && first->next->tickets.begin()->epoch == 3);
  CHECK(first->extent == 4 * kGranule && arena.check().empty());
}

// The work of stream 9 alone is complete.
struct OnlyNine : Completion {
  bool complete(const Tickets& tickets) const override {
    return std::all_of(tickets.begin(), tickets.end(), [](Ticket t) { return t.stream == 9; });
  }
};

// If the arena is told what is complete, neighbours become one span if both are complete or have
// the same tickets. No pending work is forgotten.
TEST(pending_neighbours_stay_apart) {
  SpanPool pool;
  const OnlyNine known;
  for (int pending : {0, 1}) {  // the first, or the second
    Arena arena(0, 0, 2 * kGranule, pool);
    arena.give(arena.claim(arena.first_absent(), 0, 2 * kGranule), Tickets{});
    Span* parts[2];
    for (Span*& p : parts)
      p = arena.take(arena.best_fit(kGranule), (&p - parts) * kGranule, kGranule);
    arena.give(parts[pending], Tickets({2, 3}), &known);
    arena.give(parts[1 - pending], Tickets({9, 1}), &known);
    const Span* span = arena.first_span();
    CHECK(span->size == kGranule && span->extent == 2 * kGranule);
    if (pending == 1) span = span->next;
    CHECK(span->tickets == Tickets({2, 3}) && arena.check().empty());
    Span* taken = arena.take(arena.best_fit(2 * kGranule), 0, 2 * kGranule);
    arena.give(taken, Tickets({9, 2}), &known);
    CHECK(arena.first_span()->size == 2 * kGranule && arena.check().empty());
  }
}

// Takes and claims that find no host memory for spans change nothing. Frees need none.
TEST(no_host_memory) {
  SpanPool pool;
  Arena arena(0, 0, 4 * kGranule, pool);
  int refused = 0;
  const auto attempt = [&](auto&& change) -> Span* {
    no_memory = true;
    try {
      Span* made = change();
      no_memory = false;
      return made;
    } catch (const std::bad_alloc&) {
      no_memory = false;
    }
    ++refused;
    CHECK_TEXT(arena.check().empty(), arena.check());
    return change();
  };
  // Each span in the middle makes two more.
  Span* middle = attempt([&] { return arena.claim(arena.first_absent(), kGranule, kGranule); });
  arena.give(middle, Tickets{});
  std::vector<Span*> taken;
  for (int i = 0; i < 1000; ++i) {
    const Bytes most = arena.largest()->extent;
    taken.push_back(attempt([&] {
      CHECK(arena.largest() != nullptr && arena.largest()->extent == most);
      return arena.take(arena.largest(), arena.largest()->begin + kAlignment, kAlignment);
    }));
  }
  CHECK(refused >= 1000 / static_cast<int>(Tuning::kSlabRecords));
  no_memory = true;
  for (Span* s : taken) arena.give(s, Tickets{});
  no_memory = false;
  CHECK_TEXT(arena.check().empty(), arena.check());
  CHECK(arena.largest()->extent == kGranule && arena.free_bytes() == kGranule);
}

TEST(random_programs) {
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    test::running() = "seed " + std::to_string(seed);
    Trial(seed).run(1500 / test::kSlowdown);
  }
}

}  // namespace

int main(int argc, char** argv) { return test::run_cases(argc, argv); }

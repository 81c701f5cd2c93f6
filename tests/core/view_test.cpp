// Views and their index: finding by address, length and use; the runs under a stretch.
#include "memory/view.h"

#include "harness.h"

using namespace glake;

namespace {

std::unique_ptr<View> make(Address base, std::vector<GranuleRun> runs) {
  auto view = std::make_unique<View>();
  view->base = base;
  for (GranuleRun& run : runs) {
    run.at = view->length.count;
    view->length = view->length + Granules{run.count};
  }
  view->runs = std::move(runs);
  return view;
}

TEST(index_finds_views) {
  SpanPool pool;
  Arena arena(0, kGiB, 64 * kGranule, pool);
  ViewIndex index;
  View* a = index.add(make(100 * kGiB, {{&arena, 3, 2, 0}, {&arena, 9, 1, 0}}));
  View* b = index.add(make(100 * kGiB + 3 * kGranule, {{&arena, 20, 3, 0}}));
  View* c = index.add(make(200 * kGiB, {{&arena, 30, 5, 0}}));
  CHECK(index.count() == 3 && index.mapped() == Granules{11});
  CHECK(index.find(a->base) == a && index.find(b->base - 1) == a && index.find(b->base) == b);
  CHECK(index.find(c->base + 5 * kGranule) == nullptr && index.find(5) == nullptr);
  CHECK(index.of_length({3}).size() == 2 && index.of_length({5}).size() == 1);
  CHECK(index.of_length({4}).empty());
  CHECK(index.recent_first().front() == c);
  index.touch(a, 77);
  CHECK(index.recent_first().front() == a && a->last_used == 77);
  std::unique_ptr<View> removed = index.remove(a);
  CHECK(removed.get() == a && index.find(a->base) == nullptr);
  CHECK(index.of_length({3}).size() == 1 && index.mapped() == Granules{8});
  index.add(std::move(removed));
  CHECK(index.find(a->base) == a && index.recent_first().front() == a);
}

// A view loses its end, also in the middle of a run, and gets it back.
TEST(an_end_is_taken_off) {
  SpanPool pool;
  Arena arena(0, kGiB, 64 * kGranule, pool);
  ViewIndex index;
  View* view =
      index.add(make(100 * kGiB, {{&arena, 3, 4, 0}, {&arena, 9, 2, 0}, {&arena, 20, 1, 0}}));
  std::vector<GranuleRun> off = index.truncate(view, {3});
  CHECK(off.size() == 3 && off[0].granule == 6 && off[0].count == 1 && off[0].at == 3);
  CHECK(off[1].at == 4 && off[2].at == 6);
  CHECK(view->runs.size() == 1 && view->runs[0].count == 3 && view->length == Granules{3});
  CHECK(index.of_length({3}).size() == 1 && index.of_length({7}).empty());
  CHECK(index.mapped() == Granules{3} && index.find(view->base + 3 * kGranule) == nullptr);
  index.extend(view, off);
  CHECK(view->length == Granules{7} && index.mapped() == Granules{7});
  std::vector<Address> homes;
  for_each_run(*view, 0, 7 * kGranule, [&](Arena& a, Address at, Bytes bytes) {
    for (Bytes i = 0; i < bytes; i += kGranule) homes.push_back(a.granule_of(at + i));
    return true;
  });
  CHECK((homes == std::vector<Address>{3, 4, 5, 6, 9, 10, 20}));
}

// Compares the runs of for_each_run, unit by unit, with a table of the home addresses of granules.
TEST(runs_under_a_stretch) {
  SpanPool pool;
  Arena low(0, kGiB, 512 * kGranule, pool), high(1, 9 * kGiB, 512 * kGranule, pool);
  test::Dice dice(5);
  for (int round = 0; round < 200; ++round) {
    std::vector<GranuleRun> runs;
    std::vector<Address> home;  // of each granule of the view
    for (uint64_t n = dice(1, 24); n > 0; --n) {
      Arena* arena = dice.chance(50) ? &low : &high;
      GranuleRun run{arena, dice(0, 500), dice(1, 6), 0};
      runs.push_back(run);
      for (uint64_t i = 0; i < run.count; ++i) home.push_back(arena->granule_at(run.granule + i));
    }
    const auto view = make(64 * kGiB, runs);
    Bytes whole = view->length.bytes();
    for (int pick = 0; pick < 40; ++pick) {
      Bytes offset = round_down(dice(0, whole - 1), kAlignment);
      Bytes size = round_up(dice(1, whole - offset), kAlignment);
      Bytes seen = 0;
      bool all = for_each_run(*view, offset, size, [&](Arena& arena, Address a, Bytes bytes) {
        CHECK(arena.contains(a) && bytes > 0);
        for (Bytes at = 0; at < bytes; at += kAlignment) {
          Bytes here = offset + seen + at;
          CHECK(a + at == home[here / kGranule] + here % kGranule);
        }
        seen += bytes;
        return true;
      });
      CHECK(all && seen == size);
    }
    CHECK(!for_each_run(*view, 0, whole + kAlignment, [](Arena&, Address, Bytes) { return true; }));
    CHECK(!for_each_run(*view, 0, whole, [](Arena&, Address, Bytes) { return false; }));
  }
}

}  // namespace

int main(int argc, char** argv) { return test::run_cases(argc, argv); }

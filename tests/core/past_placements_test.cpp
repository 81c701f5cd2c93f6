// The placement history follows a sequence that repeats, and stops when the sequence changes. It
// also works when its ring wraps around. Each answer is a place of an earlier block of the same
// size and stream.
#include "heap/past_placements.h"

#include "harness.h"

using namespace glake;

namespace {

Bytes size_at(int i) { return kAlignment * static_cast<Bytes>(i * i % 97 + 1 + i); }

TEST(a_repeated_step_is_followed) {
  PastPlacements history;
  uint64_t entry = 0;
  int known = 0;
  for (int step = 0; step < 3; ++step) {
    known = 0;
    for (int i = 0; i < 200; ++i) {
      Address expected = history.expect(size_at(i), static_cast<StreamId>(i % 3), &entry);
      CHECK(expected == 0 || expected == 1000u + static_cast<Address>(i));
      known += expected != 0;
      history.placed(entry, 1000 + static_cast<Address>(i));
    }
  }
  CHECK(known == 200);  // the third step is known from its first request
}

TEST(a_changed_step_is_let_go) {
  PastPlacements history;
  uint64_t entry = 0;
  for (int i = 0; i < 100; ++i) {
    history.expect(size_at(i), 0, &entry);
    history.placed(entry, 7);
  }
  for (int i = 0; i < 40; ++i) {
    history.expect(size_at(i), 0, &entry);
    history.placed(entry, 7);
  }
  CHECK(history.expect(size_at(40), 1, &entry) == 0);               // another stream
  CHECK(history.expect(size_at(41) + kAlignment, 0, &entry) == 0);  // another size
  CHECK(history.expect(size_at(42), 0, &entry) == 0);               // no longer following
}

// Makes far more requests than the ring holds, of few sizes and streams. Each answer must be of the
// same size and stream.
TEST(long_runs) {
  PastPlacements history;
  test::Dice dice(9);
  uint64_t entry = 0;
  int known = 0;
  for (int i = 0; i < 300000; ++i) {
    Bytes size = kAlignment * (i % 1000 < 900 ? static_cast<Bytes>(i % 13 + 1) : dice(1, 50));
    auto stream = static_cast<StreamId>(dice(0, 100) == 0);
    Address kind = size * 4 + stream + 1;
    Address expected = history.expect(size, stream, &entry);
    CHECK(expected == 0 || expected == kind);
    known += expected != 0;
    history.placed(entry, kind);
  }
  CHECK(known > 30000);
}

}  // namespace

int main(int argc, char** argv) { return test::run_cases(argc, argv); }

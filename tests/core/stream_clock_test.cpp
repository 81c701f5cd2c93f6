// Tests StreamClock on the simulated driver: which work is ordered before which, which work is
// complete, and that it makes no driver call while only one stream is in use.
#include "memory/stream_clock.h"

#include <malloc.h>

#include <vector>

#include "harness.h"

using namespace glake;

namespace {

// One more than a ticket set holds.
constexpr int kStreams = Tickets::kMax + 1;

class Fixture {
 public:
  explicit Fixture(const char* complete_after) {
    test::fresh_simulator({{"phantom", "1"}, {"complete_after", complete_after}});
    driver = Driver::open("sim");
    CHECK(driver->attach(0).ok());
    context = std::make_unique<test::CurrentContext>();
    clock = std::make_unique<StreamClock>(*driver, 0);
    for (CUstream& s : streams) CU(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < kStreams; ++i) {
      ids[i] = clock->id_of(i == 0 ? 0 : reinterpret_cast<StreamHandle>(streams[i - 1]));
    }
  }
  ~Fixture() {
    clock->close();
    CHECK(test::number_in(test::ledger(), "events") == 0);
    context.reset();
    CHECK(driver->detach(0).ok());
  }

  std::unique_ptr<Driver> driver;
  std::unique_ptr<test::CurrentContext> context;
  std::unique_ptr<StreamClock> clock;
  CUstream streams[kStreams - 1] = {};
  StreamId ids[kStreams] = {};
};

TEST(ids_are_dense) {
  Fixture f("-1");
  for (StreamId i = 0; i < kStreams; ++i) CHECK(f.ids[i] == i);
  CHECK(f.clock->id_of(0) == 0 && f.clock->count() == kStreams);
  CHECK(f.clock->knows(reinterpret_cast<StreamHandle>(f.streams[1])));
}

// Programs make a stream for each piece of work. A table of all streams by all streams would cost
// the second thousand three times as much as the first.
TEST(each_stream_costs_the_same_memory) {
  Fixture f("-1");
  constexpr int kMany = 1000;
  std::vector<CUstream> made(kMany);
  const auto cost = [&] {
    const size_t before = mallinfo2().uordblks;
    for (CUstream& s : made) {
      CU(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
      f.clock->id_of(reinterpret_cast<StreamHandle>(s));
    }
    return mallinfo2().uordblks - before;
  };
  const size_t first = cost();
  CHECK(cost() <= 2 * first);
  CHECK(f.clock->count() == kStreams + 2 * kMany);
}

TEST(waits_order_work) {
  Fixture f("-1");
  StreamClock& clock = *f.clock;
  Ticket t = clock.stamp(1);
  CHECK(clock.ordered(1, t) && !clock.ordered(2, t) && !clock.complete(Tickets(t)));
  CHECK(clock.wait(2, Tickets(t)) && clock.waits() == 1 && clock.marks() == 1);
  CHECK(clock.ordered(2, t) && !clock.ordered(3, t));
  CHECK(clock.wait(2, Tickets(t)) && clock.waits() == 1);  // known: no second wait
  Ticket later = clock.stamp(1);
  CHECK(later.epoch > t.epoch && !clock.ordered(2, later));
  CHECK(clock.wait(3, Tickets(t)) && clock.marks() == 1);  // the recorded mark serves
  CHECK(!clock.ordered(3, later));
  clock.poll();
  CHECK(!clock.complete(Tickets(t)));  // the device never completes by itself here
  CHECK(clock.wait_host(Tickets(later)) && clock.complete(Tickets(t)) && clock.ordered(3, later));
}

TEST(several_streams_in_one_set) {
  Fixture f("-1");
  StreamClock& clock = *f.clock;
  Tickets all;
  for (StreamId i = 0; i < Tickets::kMax; ++i) CHECK(all.add(clock.stamp(i)));
  CHECK(!all.add(clock.stamp(Tickets::kMax)) && all.add(clock.stamp(2)));
  CHECK(clock.wait(0, all) && clock.waits() == Tickets::kMax - 1 && clock.ordered(0, all));
  CHECK(clock.wait_host(all) && clock.complete(all));
}

TEST(completion_is_noticed) {
  Fixture f("0");
  Ticket t = f.clock->stamp(1);
  f.clock->stamp(2);
  f.clock->turn(3);
  CHECK(!f.clock->ordered(2, t));
  f.clock->ask(t);
  CHECK(f.clock->marks() == 0);  // an idle stream needs none
  CHECK(f.clock->ordered(2, t) && f.clock->complete(Tickets(t)) && f.clock->waits() == 0);
}

TEST(nothing_is_recorded_until_asked) {
  Fixture f("-1");
  StreamClock& clock = *f.clock;
  Ticket t = clock.stamp(1);
  CUevent work;  // this work does not complete
  CU(cuEventCreate(&work, CU_EVENT_DISABLE_TIMING));
  CU(cuEventRecord(work, f.streams[0]));
  simcuda_reset_calls();
  for (int i = 0; i < 500; ++i) {
    clock.stamp(1);
    clock.stamp(2);
    clock.turn(1 + i % 3);
  }
  CHECK(simcuda_calls("*") == 0);
  for (int i = 0; i < 3; ++i) clock.ask(t);  // only the first question of a turn makes calls
  CHECK(simcuda_calls("cuEventRecord") == 1 && simcuda_calls("cuStreamQuery") == 1);
  clock.turn(3);
  clock.ask(t);  // the mark serves
  CHECK(simcuda_calls("cuEventRecord") == 1 && simcuda_calls("cuStreamQuery") == 1);
  CHECK(simcuda_calls("cuEventQuery") == 1);
  CHECK(!clock.complete(Tickets(t)));
  CU(cuCtxSynchronize());  // the clock is not told of it
  clock.turn(3);
  clock.ask(t);
  CHECK(clock.complete(Tickets(t)));
  CU(cuEventDestroy(work));
}

TEST(synchronisation_completes_what_was_before) {
  Fixture f("-1");
  Ticket before = f.clock->stamp(1);
  f.clock->begin_sync();
  Ticket during = f.clock->stamp(1);
  CHECK(f.driver->synchronize(0).ok());
  f.clock->end_sync();
  CHECK(f.clock->complete(Tickets(before)) && !f.clock->complete(Tickets(during)));
}

// Thousands of marks never complete. The clock keeps a bounded number of them, and can still order
// the oldest work.
TEST(marks_stay_bounded) {
  Fixture f("-1");
  Ticket first = f.clock->stamp(1);
  for (int i = 0; i < 2000; ++i) {
    f.clock->turn(i % 2 == 0 ? 3 : 4);
    f.clock->ask(f.clock->stamp(1));
    f.clock->ask(f.clock->stamp(2));
  }
  CHECK(test::number_in(test::ledger(), "events") <= 2 * 64 + 2);
  CHECK(f.clock->wait(2, Tickets(first)) && f.clock->ordered(2, first));
  CHECK(f.clock->wait_host(Tickets(first)) && f.clock->complete(Tickets(first)));
}

TEST(one_stream_makes_no_call) {
  test::fresh_simulator({{"phantom", "1"}});
  auto driver = Driver::open("sim");
  StreamClock clock(*driver, 0);
  simcuda_reset_calls();
  for (int i = 0; i < 500; ++i) {
    clock.stamp(clock.id_of(0));
    clock.turn(0);
  }
  CHECK(simcuda_calls("*") == 0);
}

TEST(refusals_are_answered) {
  Fixture f("-1");
  Ticket t = f.clock->stamp(1);
  for (const char* symbol :
       {"cuEventCreate", "cuEventRecord", "cuStreamWaitEvent", "cuStreamIsCapturing"}) {
    CHECK(simcuda_fail(symbol, 1, CUDA_ERROR_UNKNOWN, -1) == 0);
    CHECK(!f.clock->wait(2, Tickets(t)) && !f.clock->ordered(2, t));
    CHECK(simcuda_fail(nullptr, 1, 0, 1) == 0);
  }
  CHECK(simcuda_fail("cuEventSynchronize", 1, CUDA_ERROR_UNKNOWN, 1) == 0);
  CHECK(!f.clock->wait_host(Tickets(t)) && !f.clock->complete(Tickets(t)));
  CHECK(f.clock->wait(2, Tickets(t)) && f.clock->ordered(2, t));
}

}  // namespace

int main(int argc, char** argv) { return test::run_cases(argc, argv); }

// A thread that submits the copies of every path one GPU works for, and waits for them: asleep
// while there are none. The second copy of a relayed chunk is submitted when the first is seen
// done, so a chunk stuck before its last copy has written nothing where it must not.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "transfer/buffers/devices.h"
#include "transfer/buffers/slots.h"
#include "transfer/buffers/staging.h"
#include "transfer/remote/remote_gpus.h"
#include "transfer/run/chunk_copier.h"
#include "transfer/run/chunk_listener.h"
#include "transfer/run/transfer.h"
#include "transfer/run/work_streams.h"

namespace glake::transfer {

// What submitters work with; all of it outlives them.
struct SubmitterTools {
  Driver& driver;
  Devices& devices;
  Slots& slots;
  Staging& staging;
  CopyKernel& kernel;
  RemoteGpus& remote;
  std::mutex& mutex;  // of transfers, runs and path states: the engine's lock
  uint64_t copy_ns;   // what starting a copy costs
};

// A chunk under way over a run.
struct Flight {
  std::shared_ptr<Transfer> transfer;
  PathRun* run = nullptr;
  Range range;
  size_t hop = 0;
  std::vector<Slot> slots;  // between hop i and i + 1
  Slot stage;               // pinned, in place of a pageable end
  KernelBuffers kernel;
  LentEvent event;         // recorded behind this hop's copies
  RemoteFlight remote;     // instead, where the relay service makes them
  std::string remote_why;  // that failed
  StreamHandle stream = 0;
  int device = -1;  // the stream's
  uint64_t expected = 0, deadline = 0;
  uint64_t parked_until = 0;     // not submitted before
  uint64_t lost = 0;             // its number among the copies that were given up
  Rate link = 0;                 // of this hop, were it alone
  unsigned flows = kLeastFlows;  // of this hop
  bool alone = false;            // behind the run's copy before, not beside it
  bool seen_done = false;        // without the event
  bool overdue = false;          // it writes the destination: all one can do is wait
  bool marked = false;           // the event is recorded behind this hop's copies
  bool unsure = false;           // the driver refuses to say whether it is done

  const Hop& step() const { return run->planned.path.hops[hop]; }
  bool last() const { return hop + 1 == run->hops.size(); }
};

class Submitter {
 public:
  using Lock = std::unique_lock<std::mutex>;

  Submitter(const SubmitterTools& tools, ChunkListener& listener, int gpu);
  Submitter(const Submitter&) = delete;
  Submitter& operator=(const Submitter&) = delete;
  ~Submitter();

  int gpu() const { return gpu_; }
  // Under the lock. A simulated driver's time waits for a thread that is woken.
  void add(const std::shared_ptr<Transfer>& transfer, PathRun* run);
  void remove(const Transfer* transfer);
  void wake();
  // Whether it would find something to do that it has not.
  bool wanted(uint64_t now) const;
  // Which of the copies that were given up are done after all. True: of some its thread must ask.
  bool look_for_lost(Lock* lock);
  // With no transfer under way. What is not given back, in words; "": all is.
  std::string stop();
  void abandon() { thread_.detach(); }  // in a forked child there is no such thread

 private:
  struct Entry {
    std::shared_ptr<Transfer> transfer;
    PathRun* run;
    uint64_t turn;  // its last chunk's number
  };

  void run();
  void rest(Lock* lock);
  void doze(Lock* lock);
  bool claim(Flight* flight, uint64_t now);
  void begin(Flight flight);
  void outfit(Flight* flight);
  Status enqueue(Flight* flight, Bytes* enqueued);
  Status order(Flight* flight, Bytes* enqueued);
  Status ask(Flight* flight);
  bool has_room(const PathRun& run, Bytes bytes);
  bool staged(const Flight& flight) const;
  void launch(Flight flight);
  bool park(Flight* flight);
  uint64_t next_moment(uint64_t now);
  void wait();
  void complete(Flight flight, Status status);
  bool quiesce(const Flight& flight);
  void give_up(Lock* lock, Flight flight, const std::string& why);
  void land(const Flight& flight);
  // verify.cpp: how a chunk that is there is not what was sent; "" if it is.
  enum class Side { kSrc, kDst };
  std::string difference(const Flight& flight);
  uint64_t sum_at(const Flight& flight, Side side);
  void handle_overdue(size_t index, uint64_t now);
  void return_chunk(Flight* flight, const std::string& why);
  void drop_chunk(Flight* flight, const std::string& why);
  void found(Flight* flight);
  void reap(uint64_t timeout_ns);
  std::string end();
  std::string failure(const Flight& flight, Status status) const;

  const SubmitterTools tools_;
  ChunkListener& listener_;
  Driver& driver_;
  const int gpu_;
  // Under the lock.
  std::vector<Entry> entries_;
  uint64_t turns_ = 0;
  bool awake_ = false, stopping_ = false;
  std::string left_;  // when it has ended
  uint64_t losses_ = 0;
  std::vector<Flight> lost_;  // given up, their copies not seen done
  std::condition_variable woken_;
  // Its thread's alone.
  WorkStreams streams_;
  std::vector<Flight> flights_;
  bool crowded_ = false;  // a chunk waits for room in a buffer of the relay service's
  ChunkCopier copier_;
  std::vector<EventId> events_;  // scratch, as what follows
  std::vector<Piece> pieces_;
  std::thread thread_;
};

}  // namespace glake::transfer

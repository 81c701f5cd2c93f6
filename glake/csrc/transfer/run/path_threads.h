// Threads that enqueue one transfer's paths side by side, one for each GPU: a driver takes some
// microseconds for each call. Asleep while there is nothing to enqueue.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "driver/driver.h"

namespace glake::transfer {

class PathThreads {
 public:
  struct Task {
    int gpu;
    std::function<void()> run;  // throws nothing
  };

  explicit PathThreads(Driver& driver) : driver_(driver) {}
  PathThreads(const PathThreads&) = delete;
  PathThreads& operator=(const PathThreads&) = delete;
  ~PathThreads() { close(); }

  // Runs all: the first on the calling thread, each other on its GPU's, or all here where the
  // system gives no thread. Returns when they are done.
  void run(const std::vector<Task>& tasks);
  // Ends the threads; nothing runs.
  void close();

 private:
  struct Batch {
    size_t left = 0;
    std::condition_variable done;
  };
  struct Job {
    Task task;
    Batch* batch;
  };
  struct Worker {
    std::thread thread;
    std::deque<Job> jobs;
    std::condition_variable woken;
    bool awake = false;
    std::vector<Worker*> wakes;  // next, when it wakes itself
  };
  Worker* give_out(const std::vector<Task>& tasks, Batch* batch);
  void work(int gpu, Worker* self);
  Worker& worker(int gpu);

  Driver& driver_;
  std::mutex mutex_;  // of all that follows
  std::map<int, std::unique_ptr<Worker>> workers_;
  bool stopping_ = false;
};

}  // namespace glake::transfer

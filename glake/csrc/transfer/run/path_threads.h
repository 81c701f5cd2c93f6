// Threads that enqueue the paths of one transfer side by side, one thread for each GPU. One thread
// alone would be slow, as a driver takes some microseconds for each call. A thread sleeps while it
// has nothing to enqueue.
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

  // Runs all tasks, and returns when they are done. The first runs on the calling thread, each
  // other one on its GPU's thread. Where the system gives no thread, all run on the calling thread.
  void run(const std::vector<Task>& tasks);
  // Ends the threads. No task may be running.
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
    std::vector<Worker*> wakes;  // the workers that this one wakes as soon as it is awake
  };
  Worker* give_out(const std::vector<Task>& tasks, Batch* batch);
  void work(int gpu, Worker* self);
  Worker& worker(int gpu);

  Driver& driver_;
  std::mutex mutex_;  // guards all members that follow
  std::map<int, std::unique_ptr<Worker>> workers_;
  bool stopping_ = false;
};

}  // namespace glake::transfer

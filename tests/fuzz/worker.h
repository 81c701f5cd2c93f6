// A thread that runs the tasks it is given, one at a time. So several threads have caches, and no
// two run at once.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace fuzz {

class Worker {
 public:
  Worker() : thread_([this] { serve(); }) {}
  ~Worker() {
    hand({});
    thread_.join();
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Returns when `task` has run.
  void run(const std::function<void()>& task) {
    hand(task);
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return !busy_; });
  }

 private:
  void hand(const std::function<void()>& task) {
    std::lock_guard<std::mutex> guard(mutex_);
    task_ = task;
    busy_ = true;
    changed_.notify_all();
  }
  void serve() {
    for (;;) {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [this] { return busy_; });
      if (!task_) return;
      task_();
      busy_ = false;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> task_;
  bool busy_ = false;
  std::thread thread_;
};

}  // namespace fuzz

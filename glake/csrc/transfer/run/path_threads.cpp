#include "transfer/run/path_threads.h"

#include <pthread.h>

#include <string>
#include <system_error>
#include <utility>

#include "base/transfer_tuning.h"
#include "driver/outside_scope.h"

namespace glake::transfer {
PathThreads::Worker& PathThreads::worker(int gpu) {
  std::unique_ptr<Worker>& one = workers_[gpu];
  if (one != nullptr) return *one;
  auto made = std::make_unique<Worker>();
  made->thread = std::thread([this, gpu, self = made.get()] { work(gpu, self); });
  one = std::move(made);
  return *one;
}

void PathThreads::run(const std::vector<Task>& tasks) {
  Batch batch;
  try {
    std::lock_guard<std::mutex> guard(mutex_);
    for (size_t i = 1; i < tasks.size(); ++i) worker(tasks[i].gpu);
  } catch (const std::system_error&) {
    for (const Task& task : tasks) task.run();
    return;
  }
  Worker* const first = give_out(tasks, &batch);
  if (first != nullptr) first->woken.notify_one();
  tasks.front().run();
  const OutsideScope outside(driver_);
  std::unique_lock<std::mutex> lock(mutex_);
  batch.done.wait(lock, [&] { return batch.left == 0; });
}

// Gives out all tasks but the first. Returns the thread to wake, which wakes others; null: all are
// awake.
PathThreads::Worker* PathThreads::give_out(const std::vector<Task>& tasks, Batch* batch) {
  std::lock_guard<std::mutex> guard(mutex_);
  batch->left = tasks.size() - 1;
  std::vector<Worker*> asleep;
  for (size_t i = 1; i < tasks.size(); ++i) {
    Worker& one = worker(tasks[i].gpu);
    one.jobs.push_back({tasks[i], batch});
    if (!std::exchange(one.awake, true)) asleep.push_back(&one);
  }
  if (asleep.empty()) return nullptr;
  for (size_t i = 0; i < asleep.size(); ++i) {
    for (size_t next = TransferTuning::kWakes * i + 1;
         next <= TransferTuning::kWakes * (i + 1) && next < asleep.size(); ++next) {
      asleep[i]->wakes.push_back(asleep[next]);
    }
  }
  // A simulated driver's time stands still until the woken threads have begun.
  driver_.expect_threads(static_cast<int>(asleep.size()));
  return asleep.front();
}

void PathThreads::work(int gpu, Worker* self) {
  const std::string name = "glake-enq-" + std::to_string(gpu);
  pthread_setname_np(pthread_self(), name.c_str());
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    self->woken.wait(lock, [&] { return stopping_ || self->awake; });
    if (!self->awake) return;
    const std::vector<Worker*> others = std::exchange(self->wakes, {});
    lock.unlock();
    for (Worker* other : others) other->woken.notify_one();
    driver_.thread_at_work(true, gpu);
    lock.lock();
    while (!self->jobs.empty()) {
      Job job = std::move(self->jobs.front());
      self->jobs.pop_front();
      lock.unlock();
      job.task.run();
      lock.lock();
      if (--job.batch->left == 0) job.batch->done.notify_one();
    }
    self->awake = false;
    lock.unlock();
    driver_.thread_at_work(false);
    lock.lock();
  }
}

void PathThreads::close() {
  {
    std::lock_guard<std::mutex> guard(mutex_);
    stopping_ = true;
    for (auto& [gpu, worker] : workers_) worker->woken.notify_one();
  }
  for (auto& [gpu, worker] : workers_) worker->thread.join();
  std::lock_guard<std::mutex> guard(mutex_);
  workers_.clear();
  stopping_ = false;
}

}  // namespace glake::transfer

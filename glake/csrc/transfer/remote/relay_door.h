// Where clients of the relay service that see one GPU come in: a socket, and a worker for each.
#pragma once

#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "transfer/remote/relay_worker.h"

namespace glake::transfer {

class RelayDoor {
 public:
  // Opens `driver` and listens at `path`. Throws Error.
  RelayDoor(const std::string& driver, const std::string& path);
  RelayDoor(const RelayDoor&) = delete;
  RelayDoor& operator=(const RelayDoor&) = delete;
  ~RelayDoor() { stop(); }

  void stop();  // workers end when their copies are done
  // Until then, or until a GPU is lost, and all workers have ended with it: what it was.
  std::string wait();

 private:
  void run();
  bool serve(Descriptor client);  // false: there is no thread for it; it is hung up on

  RelayGpus gpus_;
  Descriptor socket_, stop_;
  std::list<std::unique_ptr<RelayWorker>> workers_;  // the thread's
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  std::thread thread_;
};

}  // namespace glake::transfer

// Accepts clients of the relay service that see one GPU. It listens at a socket and gives each
// client a worker.
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
  // Waits until stop() is called or a GPU is lost, and until all workers have ended. Returns how
  // the GPU was lost; empty: none was.
  std::string wait();

 private:
  void run();
  bool serve(Descriptor client);  // false: no thread could be made, and the connection is closed

  RelayGpus gpus_;
  Descriptor socket_, stop_;
  std::list<std::unique_ptr<RelayWorker>> workers_;  // used by thread_ alone
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  std::thread thread_;
};

}  // namespace glake::transfer

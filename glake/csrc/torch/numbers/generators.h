// Which numbers random ops draw. After torch.manual_seed() they are those of the CPU's default
// generator, so that a job draws what it draws on the CPU. A CUDA generator that was seeded alone,
// or restored by set_state, has a twin: a CPU generator with the same seed, or with the state that
// was restored.
#pragma once

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

#include <map>
#include <mutex>
#include <unordered_map>

namespace glake::numbers {

using Position = std::pair<uint64_t, uint64_t>;  // of a CUDA generator: seed and offset

// The generator from which one CUDA generator draws. nullptr means the CPU's default generator.
class Twin {
 public:
  std::shared_ptr<at::Generator> at(const Position& now, uint64_t default_seed, bool is_default) {
    if (!known_ || now != next_) move(now, default_seed, is_default);
    remember(now);
    return own_;
  }
  std::shared_ptr<at::Generator> present() const { return own_; }
  void drawn(const Position& next) {
    next_ = next;
    known_ = true;
    if (own_ == nullptr) head_ = next;
  }
  void forget() { *this = Twin(); }

 private:
  static constexpr size_t kMost = 4096;  // of 5 KB each, at most

  void move(const Position& now, uint64_t default_seed, bool is_default) {
    const auto seen = history_.find(now);
    if (known_ && now == head_) {
      own_ = nullptr;
    } else if (seen != history_.end()) {
      own_ = fresh(now.first);
      own_->set_state(seen->second);
    } else if (is_default && now.first == default_seed && now.second == 0) {
      own_ = nullptr;
    } else {
      own_ = fresh(now.first + 0x9e3779b97f4a7c15u * now.second);
    }
  }

  static std::shared_ptr<at::Generator> fresh(uint64_t seed) {
    return std::make_shared<at::Generator>(at::detail::createCPUGenerator(seed));
  }

  void remember(const Position& now) {
    at::Generator generator = own_ == nullptr ? at::detail::getDefaultCPUGenerator() : *own_;
    std::lock_guard<std::mutex> lock(generator.mutex());
    history_[now] = generator.get_state();
    order_.push_back(now);
    if (order_.size() <= kMost) return;
    history_.erase(order_.front());
    order_.erase(order_.begin());
  }

  bool known_ = false;
  Position next_, head_;  // head_: where the CPU's generator was left
  std::shared_ptr<at::Generator> own_;
  std::map<Position, at::Tensor> history_;  // states before each draw
  std::vector<Position> order_;
};

class Twins {
 public:
  // The generator from which an op that is issued now draws. Call drawn() after the CUDA kernel has
  // moved on.
  std::shared_ptr<at::Generator> before(const at::Generator& generator) {
    std::lock_guard<std::mutex> lock(mutex_);
    return before(generator, &of(generator));
  }
  void drawn(const at::Generator& generator) {
    std::lock_guard<std::mutex> lock(mutex_);
    of(generator).drawn(position(generator));
  }
  // A capture has an op that draws from this generator. Its offset must not be asked for then.
  void captured(const at::Generator& generator) {
    std::lock_guard<std::mutex> lock(mutex_);
    of(generator);
    captured_ = true;
  }
  // The generator from which such an op draws. It runs in a replay, between the next two calls.
  std::shared_ptr<at::Generator> present(const at::Generator& generator) {
    std::lock_guard<std::mutex> lock(mutex_);
    return of(generator).present();
  }
  // A replay draws from where each CUDA generator is when it is asked for, as one op would. False:
  // no capture draws.
  bool before_replay() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!captured_) return false;
    for (auto& [impl, pair] : twins_) before(pair.first, &pair.second);
    return true;
  }
  void replayed() {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto& [impl, pair] : twins_) pair.second.drawn(position(pair.first));
  }
  // Called after torch.manual_seed. The CPU's generator begins again, and all generators follow it.
  void reseeded() {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto& [impl, pair] : twins_) pair.second.forget();
  }

  static Twins& all() {
    static auto* kept = new Twins;  // work may draw while the process ends
    return *kept;
  }

 private:
  static Position position(const at::Generator& generator) {
    at::Generator asked = generator;
    std::lock_guard<std::mutex> lock(asked.mutex());
    return {asked.current_seed(), asked.get_offset()};
  }
  static bool is_default(const at::Generator& generator) {
    return at::globalContext().defaultGenerator(generator.device()) == generator;
  }
  static std::shared_ptr<at::Generator> before(const at::Generator& generator, Twin* twin) {
    const uint64_t seed = at::detail::getDefaultCPUGenerator().current_seed();
    return twin->at(position(generator), seed, is_default(generator));
  }
  Twin& of(const at::Generator& generator) {
    auto& found = twins_[generator.unsafeGetGeneratorImpl()];
    found.first = generator;
    return found.second;
  }

  std::mutex mutex_;
  bool captured_ = false;
  std::unordered_map<at::GeneratorImpl*, std::pair<at::Generator, Twin>> twins_;
};

// While one lives, the CPU's default generator draws what `own` would draw (nullptr: its own
// numbers).
class Drawing {
 public:
  explicit Drawing(std::shared_ptr<at::Generator> own) : own_(std::move(own)) {
    if (own_ == nullptr) return;
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    std::lock_guard<std::mutex> lock(generator.mutex());
    kept_ = generator.get_state();
    generator.set_state(own_->get_state());
  }
  ~Drawing() {
    if (own_ == nullptr) return;
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    std::lock_guard<std::mutex> lock(generator.mutex());
    own_->set_state(generator.get_state());
    generator.set_state(kept_);
  }
  Drawing(const Drawing&) = delete;
  Drawing& operator=(const Drawing&) = delete;

 private:
  std::shared_ptr<at::Generator> own_;
  at::Tensor kept_;
};

}  // namespace glake::numbers

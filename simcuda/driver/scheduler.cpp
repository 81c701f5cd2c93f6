#include "scheduler.h"

#include <algorithm>
#include <utility>

namespace simcuda {

Scheduler::Scheduler(const Options& options, std::mutex* mutex, Topology* topology, Memory* memory,
                     const HostMemory* host, Streams* streams, std::unique_ptr<SharedLinks> shared)
    : mutex_(mutex),
      streams_(streams),
      phantom_(options.phantom),
      shared_(std::move(shared)),
      clock_(options, shared_.get()),
      pending_(&clock_),
      links_(topology),
      lost_(options.sticky_errors),
      phantom_memory_(memory, &known_),
      effects_(&clock_, memory, host, options.phantom ? &phantom_memory_ : nullptr, &landings_,
               &lost_),
      turns_(&clock_, &pending_),
      applier_(options.seed, &turns_, &pending_, &effects_),
      flows_(topology, &links_, &clock_, shared_.get()),
      timeline_(&clock_, &links_, &pending_, &turns_, &effects_, &applier_, &flows_),
      workers_(mutex, &clock_, &links_, &pending_, &effects_),
      timekeeper_(shared_ == nullptr ? nullptr
                                     : std::make_unique<Timekeeper>(mutex, shared_.get(), &pending_,
                                                                    &turns_, &flows_, &timeline_)),
      waits_(options, &clock_, &pending_, &turns_, &applier_, &timeline_, timekeeper_.get(),
             &workers_) {}

Scheduler::~Scheduler() {
  {
    const Lock lock(*mutex_);
    turns_.stop();
    applier_.stop();
  }
  if (timekeeper_ != nullptr) timekeeper_->stop();
  workers_.stop();
  pending_.unlink();
}

// Adds a copy to those whose faults a later call tells. Finished copies without a fault do not
// matter. Before a list of kMany copies or more would grow, they are removed.
static void remember(std::vector<OpPtr>* copies, const OpPtr& op) {
  constexpr size_t kMany = 64;
  if (copies->size() >= kMany && copies->size() == copies->capacity()) {
    copies->erase(std::remove_if(copies->begin(), copies->end(),
                                 [](const OpPtr& each) {
                                   return each->applied && each->fault == CUDA_SUCCESS;
                                 }),
                  copies->end());
  }
  copies->push_back(op);
}

void Scheduler::enqueue(Stream* stream, const OpPtr& op, const OpPtr& also) {
  op->device = stream->device;
  append(stream, op);
  depend(op, also);
  admit(stream, op);
}

void Scheduler::enqueue_across(Stream* stream, const std::vector<Stream*>& others,
                               const OpPtr& op) {
  op->device = stream->device;
  append(stream, op);
  for (Stream* other : others) append(other, op);
  admit(stream, op);
}

// Makes `op` the stream's last work.
void Scheduler::append(Stream* stream, const OpPtr& op) {
  depend(op, stream->tail);
  // The legacy stream waits for all blocking streams of its context, and they wait for it.
  if (stream->legacy) {
    streams_->for_each([&](uint64_t, Stream& other) {
      if (other.context == stream->context && !other.non_blocking()) depend(op, other.tail);
    });
  } else if (!stream->non_blocking()) {
    Stream* legacy = streams_->legacy_of(stream->context);
    if (legacy != nullptr) depend(op, legacy->tail);
  }
  stream->tail = op;
}

OpPtr Scheduler::enqueue_graph(Stream* stream, const std::vector<Ordered>& work,
                               const OpPtr& also) {
  const auto first = std::make_shared<Op>(), last = std::make_shared<Op>();
  enqueue(stream, first, also);
  std::vector<char> followed(work.size(), 0);
  for (const Ordered& each : work) {
    if (each.after->empty()) depend(each.op, first);
    for (const uint32_t before : *each.after) {
      depend(each.op, work[before].op);
      followed[before] = 1;
    }
    depend(each.op, each.also);
    admit(stream, each.op);
  }
  for (size_t i = 0; i < work.size(); ++i) {
    if (followed[i] == 0) depend(last, work[i].op);
  }
  enqueue(stream, last);
  return last;
}

// Starts work whose dependencies are known.
void Scheduler::admit(Stream* stream, const OpPtr& op) {
  if (phantom_) {
    foreseen_.enqueue(*op);
    op->followed = {};
  }
  if (op->kind == Op::Kind::kCopy) {
    links_.meet(op.get());
    remember(&stream->unmarked, op);
    remember(&stream->unasked, op);
  }
  pending_.add(op);
  if (clock_.threaded()) {
    workers_.enqueue(stream->id, op);
  } else {
    timeline_.admit(op);
  }
  if (timekeeper_ != nullptr) timekeeper_->wake();
  turns_.hand_over();
}

void Scheduler::end(const OpPtr& op) {
  op->applied = true;
  timeline_.finish(op);
  workers_.notify();
  turns_.hand_over();
}

void Scheduler::links_changed() {
  links_.change(clock_.now_ns());
  workers_.notify();
  turns_.hand_over();
}

}  // namespace simcuda

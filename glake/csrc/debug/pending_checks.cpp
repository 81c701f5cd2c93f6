#include "debug/pending_checks.h"

#include <algorithm>
#include <utility>

#include "base/tuning.h"

namespace glake {

bool PendingChecks::copy_guards(Batch& batch, const HoldingPtr& h, StreamHandle stream) {
  Bytes front = h->ptr - h->begin;
  Address after = h->ptr + h->requested;
  return copy(batch, stream,
              {nullptr, nullptr, front, h->begin, guard_byte_, Damage::kBefore,
               -static_cast<int64_t>(front), h}) &&
         copy(batch, stream,
              {nullptr, nullptr, h->begin + h->size - after, after, guard_byte_, Damage::kAfter,
               static_cast<int64_t>(h->requested), h});
}

bool PendingChecks::copy(Batch& batch, StreamHandle stream, Copy what) {
  Bytes left = what.size;
  while (left != 0) {
    char* place = nullptr;
    what.size = std::min(left, Tuning::kReadbackSlab);
    what.slab = readback_.take(what.size, &place);
    while (what.slab == nullptr) {
      bool repairs = batch.repairs;
      finish(std::move(batch), stream);
      batch = Batch{0, {}, repairs};
      what.slab = readback_.take(what.size, &place);  // with `sync` the former batch has been read
      if (what.slab != nullptr) break;
      if (!wait_for_oldest()) return false;
      what.slab = readback_.take(what.size, &place);
    }
    if (!driver_.copy_to_host(place, what.from, what.size, stream).ok()) {
      readback_.done(what.slab);
      return false;
    }
    what.bytes = place;
    batch.copies.push_back(what);
    left -= what.size;
    what.from += what.size;
    what.offset += static_cast<int64_t>(what.size);
  }
  return true;
}

void PendingChecks::finish(Batch batch, StreamHandle stream) {
  if (batch.copies.empty() && !sync_) return;
  EventId event = 0;
  if (!spare_events_.empty()) {
    event = spare_events_.back();
    spare_events_.pop_back();
  } else if (!driver_.create_event(number_, &event).ok()) {
    event = 0;
  }
  const bool named = driver_.streams().askable(stream);
  if (event != 0 && !(named && driver_.record(number_, event, stream).ok())) {
    spare_events_.push_back(event);
    event = 0;
  }
  batch.event = event;
  checks_ += batch.copies.size();
  if (sync_) {
    bool done = event != 0 ? driver_.wait_host(event).ok() : driver_.synchronize(number_).ok();
    if (done) return read(batch);
  }
  if (batch.copies.empty()) {
    if (event != 0) spare_events_.push_back(event);
  } else {
    pending_[stream].push_back(std::move(batch));
  }
}

// Reads every batch that is known to have run. The event of a batch also stands for the batches
// before it.
void PendingChecks::collect() {
  for (auto& [stream, batches] : pending_) {
    size_t done = 0;
    for (size_t i = 0; i < batches.size(); ++i) {
      if (batches[i].event == 0) continue;
      if (!driver_.query(batches[i].event).ok()) break;
      done = i + 1;
    }
    read_first(batches, done);
  }
}

// Waits for the oldest event of a stream, and then reads the batches up to it. It does not ask the
// driver again whether the work is done. If the driver refused to answer, the caller would wait for
// ever.
bool PendingChecks::wait_for_oldest() {
  for (auto& [stream, batches] : pending_) {
    for (size_t i = 0; i < batches.size(); ++i) {
      if (batches[i].event == 0) continue;
      if (!driver_.wait_host(batches[i].event).ok()) return false;
      read_first(batches, i + 1);
      return true;
    }
  }
  return false;
}

void PendingChecks::read_first(std::deque<Batch>& batches, size_t n) {
  for (; n != 0; --n) {
    read(batches.front());
    batches.pop_front();
  }
}

void PendingChecks::read(Batch& batch) {
  std::vector<Finding> findings;
  for (const Copy& c : batch.copies) {
    Finding finding;
    if (c.block != nullptr && find_damage(c.bytes, c.size, c.expected, c.offset, &finding)) {
      finding.kind = c.kind;
      finding.block = c.block;
      if (batch.repairs && !driver_.fill(c.from, c.expected, c.size, 0).ok()) count_skipped();
      bool goes_on = !findings.empty() && findings.back().block == finding.block &&
                     findings.back().kind == finding.kind;
      if (goes_on) {
        findings.back().count += finding.count;
        findings.back().last = finding.last;
      } else {
        findings.push_back(std::move(finding));
      }
    }
    readback_.done(c.slab);
  }
  for (Finding& finding : findings) FindingBook::instance().add(std::move(finding));
  if (batch.event != 0) spare_events_.push_back(batch.event);
  batch.copies.clear();
}

void PendingChecks::read_all() {
  for (auto& [stream, batches] : pending_) {
    read_first(batches, batches.size());
  }
}

void PendingChecks::disregard_repairs() {
  for (auto& [stream, batches] : pending_) {
    for (Batch& batch : batches) {
      for (Copy& c : batch.copies) {
        if (batch.repairs) c.block = nullptr;
      }
    }
  }
}

Status PendingChecks::close() {
  Status s = readback_.close();
  while (s.ok() && !spare_events_.empty()) {
    s = driver_.destroy_event(spare_events_.back());
    if (s.ok()) spare_events_.pop_back();
  }
  return s;
}

}  // namespace glake

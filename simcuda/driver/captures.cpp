#include "captures.h"

#include <algorithm>
#include <functional>
#include <thread>

namespace simcuda {
namespace {

uint64_t this_thread() { return std::hash<std::thread::id>()(std::this_thread::get_id()); }

CUresult spoil(Capture* capture, CUresult code, const char* why) {
  capture->status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
  return fail(code, why);
}

}  // namespace

thread_local CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

CUresult Captures::begin(Stream* stream, CUstreamCaptureMode mode) {
  if (mode != CU_STREAM_CAPTURE_MODE_GLOBAL && mode != CU_STREAM_CAPTURE_MODE_THREAD_LOCAL &&
      mode != CU_STREAM_CAPTURE_MODE_RELAXED) {
    return fail(CUDA_ERROR_INVALID_VALUE,
                "cuStreamBeginCapture: no mode " + std::to_string(static_cast<int>(mode)));
  }
  if (stream->legacy) {
    return fail(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "the legacy stream cannot be captured");
  }
  if (stream->capture != nullptr) {
    return fail(CUDA_ERROR_ILLEGAL_STATE, "the stream is capturing already");
  }
  auto capture = std::make_shared<Capture>();
  capture->mode = mode;
  capture->id = ++ids_;
  capture->origin = stream->id;
  capture->thread = this_thread();
  capture->graph = std::make_shared<Graph>();
  capture->graph->open = true;
  capture->graph_id = graphs_->add(capture->graph);
  captures_.push_back(capture);
  stream->capture = std::move(capture);
  return CUDA_SUCCESS;
}

CUresult Captures::end(Stream* stream, CUgraph* graph) {
  const CapturePtr capture = stream->capture;
  if (capture == nullptr) return fail(CUDA_ERROR_ILLEGAL_STATE, "the stream is not capturing");
  if (capture->origin != stream->id) {
    return spoil(capture.get(), CUDA_ERROR_STREAM_CAPTURE_UNMATCHED,
                 "the capture began in another stream");
  }
  if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != this_thread()) {
    return fail(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, "the capture began in another thread");
  }
  bool joined = true;
  const After last = stream->after;
  streams_->for_each([&](uint64_t, Stream& other) {
    if (other.capture != capture) return;
    joined = joined && capture->graph->leads(other.after, last);
    other.capture = nullptr;
    other.after.clear();
  });
  captures_.erase(std::find(captures_.begin(), captures_.end(), capture));
  *graph = nullptr;
  const bool invalidated = capture->status == CU_STREAM_CAPTURE_STATUS_INVALIDATED;
  capture->status = CU_STREAM_CAPTURE_STATUS_NONE;
  capture->graph->open = false;
  if (invalidated || !joined) graphs_->remove(capture->graph_id);
  if (invalidated) {
    return fail(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "the capture was invalidated before");
  }
  // A capture fails as a whole if a stream has not rejoined the origin stream (Programming Guide,
  // Cross-stream Dependencies and Events). Assumed: a stream that took no work after its fork
  // counts as joined.
  if (!joined) {
    return fail(CUDA_ERROR_STREAM_CAPTURE_UNJOINED,
                "a stream's captured work was not joined to the stream the capture began in: "
                "record an event behind it, and let that stream wait for the event");
  }
  *graph = reinterpret_cast<CUgraph>(capture->graph_id);
  return CUDA_SUCCESS;
}

void Captures::abandon(const Stream& stream) {
  if (stream.capture == nullptr) return;
  stream.capture->status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
  if (stream.capture->origin != stream.id) return;
  stream.capture->graph->open = false;
  graphs_->remove(stream.capture->graph_id);
  captures_.erase(std::find(captures_.begin(), captures_.end(), stream.capture));
}

void Captures::abandon(uint64_t context) {
  streams_->for_each([&](uint64_t, const Stream& stream) {
    if (stream.context == context) abandon(stream);
  });
}

CUresult Captures::check_unsafe() {
  if (capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
  for (const CapturePtr& capture : captures_) {
    const bool mine = capture->thread == this_thread();
    const bool global = capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
                        (mine || capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
    const bool local = capture->mode == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL && mine;
    if (!global && !local) continue;
    return spoil(capture.get(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                 "the call is not allowed while a stream is capturing");
  }
  return CUDA_SUCCESS;
}

// It is invalid to synchronize a context while any of its streams is captured, in every mode
// (Programming Guide, Prohibited and Unhandled Operations).
CUresult Captures::check_context(uint64_t context) {
  CUresult result = check_unsafe();
  if (result != CUDA_SUCCESS || captures_.empty()) return result;
  streams_->for_each([&](uint64_t, Stream& stream) {
    if (stream.capture == nullptr || stream.context != context) return;
    result = spoil(stream.capture.get(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                   "a context with a capturing stream cannot be waited for");
  });
  return result;
}

CUresult Captures::check_blocking(Stream* stream) {
  if (stream->capture != nullptr) {
    return spoil(stream->capture.get(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                 "a capturing stream cannot be waited for");
  }
  bool taken = false;
  return stream->legacy ? take(stream, &taken) : CUDA_SUCCESS;
}

bool Captures::implicated(const Stream& stream) const {
  bool found = false;
  if (!stream.legacy || captures_.empty()) return false;
  streams_->for_each([&](uint64_t, const Stream& other) {
    found |= other.capture != nullptr && other.context == stream.context && !other.non_blocking();
  });
  return found;
}

CUresult Captures::take(Stream* stream, bool* taken) {
  *taken = false;
  if (stream->legacy && !captures_.empty()) {
    CUresult result = CUDA_SUCCESS;
    streams_->for_each([&](uint64_t, Stream& other) {
      if (other.capture == nullptr || other.context != stream->context) return;
      if (other.non_blocking()) return;
      result = spoil(other.capture.get(), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
                     "the legacy stream would wait for a capturing stream");
    });
    if (result != CUDA_SUCCESS) return result;
  }
  if (stream->capture == nullptr) return CUDA_SUCCESS;
  if (stream->capture->status != CU_STREAM_CAPTURE_STATUS_ACTIVE) {
    return fail(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "the capture was invalidated before");
  }
  *taken = true;
  return CUDA_SUCCESS;
}

void Captures::add_node(Stream* stream, GraphNode node) {
  const auto place = static_cast<uint32_t>(stream->capture->graph->nodes.size());
  node.after = std::move(stream->after);
  stream->after = {place};
  graphs_->add_node(stream->capture->graph, std::move(node));
}

CUresult Captures::refuse(Stream* stream, const char* why) {
  return spoil(stream->capture.get(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, why);
}

CUresult Captures::join(Stream* stream, const Event& event, bool* taken) {
  *taken = false;
  if (event.capture == nullptr) {
    if (stream->capture == nullptr) return CUDA_SUCCESS;
    if (!event.recorded) {
      *taken = true;
      return CUDA_SUCCESS;
    }
    return spoil(stream->capture.get(), CUDA_ERROR_STREAM_CAPTURE_ISOLATION,
                 "a capturing stream would wait for work outside the capture");
  }
  if (event.capture->status != CU_STREAM_CAPTURE_STATUS_ACTIVE) {
    return fail(CUDA_ERROR_CAPTURED_EVENT, "the event was recorded in a capture that is over");
  }
  if (stream->legacy) {
    return spoil(event.capture.get(), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
                 "the legacy stream cannot join a capture");
  }
  if (stream->capture != nullptr && stream->capture != event.capture) {
    return spoil(stream->capture.get(), CUDA_ERROR_STREAM_CAPTURE_MERGE,
                 "two captures would become one");
  }
  stream->capture = event.capture;
  merge(&stream->after, event.after);
  *taken = true;
  return CUDA_SUCCESS;
}

}  // namespace simcuda

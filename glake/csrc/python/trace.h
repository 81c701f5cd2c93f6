// Python binding of traces: the parsed Trace, and a stream of events that keeps nothing.
#pragma once

#include <pybind11/pybind11.h>

#include "replay/trace.h"

namespace glake::replay {

// TraceError, Trace, parse_trace and TraceStream.
void bind_trace(pybind11::module_& module);

// [(tag, bytes, blocks), ...] after the first `events` events, the largest first.
pybind11::list holders_of(const Trace& trace, uint64_t events);

}  // namespace glake::replay

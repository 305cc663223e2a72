// The trace of a run, as Perfetto opens it.
#pragma once

#include <tvm/ffi/string.h>

#include <string>

#include "graph.h"

namespace tvm_stretch::app {

// `trace` is the executor's trace (TraceToJSON in executor_runs.cc). A track for each processor;
// regions contain their spans.
std::string TraceEvents(const GraphSpec& spec, const ffi::String& trace);

}  // namespace tvm_stretch::app

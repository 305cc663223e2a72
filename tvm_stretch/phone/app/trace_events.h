// A traced run as events that https://ui.perfetto.dev shows.
#ifndef TVM_STRETCH_APP_TRACE_EVENTS_H_
#define TVM_STRETCH_APP_TRACE_EVENTS_H_

#include <string>

#include "graph.h"

namespace tvm_stretch::app {

// `trace` is the executor's trace (TraceToJSON in trace.h). A track for each processor; regions
// contain their spans.
std::string TraceEvents(const GraphSpec& spec, const ffi::String& trace);

}  // namespace tvm_stretch::app

#endif  // TVM_STRETCH_APP_TRACE_EVENTS_H_

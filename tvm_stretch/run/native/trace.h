// The spans of a traced run as JSON.
#ifndef TVM_STRETCH_TRACE_H_
#define TVM_STRETCH_TRACE_H_

#include <vector>

#include "processor.h"

namespace tvm_stretch {

// {"plan": 0, "start": ns, "end": ns, "regions": [[{"kind": "kernel", "id": 3, "name": "conv",
// "start": ns, "end": ns, "queued": ns, "submitted": ns, "packets": 812}, ...], ...]}: a list of
// spans for each region of the plan that ran; queued, submitted and packets only where they are
// known. run/timeline.py reads it.
ffi::String TraceToJSON(int64_t plan, int64_t start, int64_t end,
                        const std::vector<std::vector<Span>>& regions);

}  // namespace tvm_stretch

#endif  // TVM_STRETCH_TRACE_H_

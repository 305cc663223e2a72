#include "trace.h"

#include <tvm/ffi/extra/json.h>

namespace tvm_stretch {
namespace {

namespace json = ffi::json;

const char* NameOf(Span::Kind kind) {
  switch (kind) {
    case Span::Kind::kKernel:
      return "kernel";
    case Span::Kind::kReceive:
      return "receive";
    case Span::Kind::kSend:
      return "send";
    case Span::Kind::kWait:
      return "wait";
  }
  return "";
}

json::Object ToJSON(const Span& span) {
  json::Object object;
  object.Set(ffi::String("kind"), ffi::String(NameOf(span.kind)));
  object.Set(ffi::String("id"), span.id);
  object.Set(ffi::String("name"), ffi::String(span.name));
  object.Set(ffi::String("start"), span.start);
  object.Set(ffi::String("end"), span.end);
  if (span.queued != 0) object.Set(ffi::String("queued"), span.queued);
  if (span.submitted != 0) object.Set(ffi::String("submitted"), span.submitted);
  if (span.packets != 0) object.Set(ffi::String("packets"), span.packets);
  return object;
}

}  // namespace

ffi::String TraceToJSON(int64_t plan, int64_t start, int64_t end,
                        const std::vector<std::vector<Span>>& regions) {
  json::Array lists;
  for (const std::vector<Span>& spans : regions) {
    json::Array list;
    for (const Span& span : spans) list.push_back(ToJSON(span));
    lists.push_back(list);
  }
  json::Object trace;
  trace.Set(ffi::String("plan"), plan);
  trace.Set(ffi::String("start"), start);
  trace.Set(ffi::String("end"), end);
  trace.Set(ffi::String("regions"), lists);
  return json::Stringify(trace);
}

}  // namespace tvm_stretch

#include "trace_events.h"

#include <tvm/ffi/cast.h>
#include <tvm/ffi/extra/json.h>

#include <algorithm>

#include "memory.h"

namespace tvm_stretch::app {
namespace {

namespace json = ffi::json;

json::Object Event(const std::string& name, const char* phase, int64_t track) {
  json::Object event;
  event.Set(ffi::String("name"), ffi::String(name));
  event.Set(ffi::String("ph"), ffi::String(phase));
  event.Set(ffi::String("pid"), int64_t{0});
  event.Set(ffi::String("tid"), track);
  return event;
}

// Perfetto counts in microseconds.
json::Object Slice(const std::string& name, const char* category, int64_t track, int64_t start,
                   int64_t end) {
  json::Object event = Event(name, "X", track);
  event.Set(ffi::String("cat"), ffi::String(category));
  event.Set(ffi::String("ts"), static_cast<double>(start) / 1e3);
  event.Set(ffi::String("dur"), static_cast<double>(end - start) / 1e3);
  return event;
}

struct Reader {
  const json::Object& span;
  int64_t number(const char* key) const { return span.at(ffi::String(key)).cast<int64_t>(); }
  std::string text(const char* key) const { return span.at(ffi::String(key)).cast<ffi::String>(); }
};

std::string NameOf(const Reader& span, const GraphSpec& spec) {
  const std::string kind = span.text("kind");
  const int64_t id = span.number("id");
  if (kind == "kernel") return span.text("name");
  if (kind == "wait") return "wait for " + (id < 0 ? "others" : spec.regions[id].name);
  return kind + " " + (id < 0 ? span.text("name") : "tensor " + std::to_string(id));
}

}  // namespace

std::string TraceEvents(const GraphSpec& spec, const ffi::String& trace) {
  const auto root = json::Parse(trace).cast<json::Object>();
  const int64_t begin = Reader{root}.number("start");
  const size_t first_region = spec.plans[Reader{root}.number("plan")].first;
  json::Array events;
  for (size_t i = 0; i < spec.processors.size(); ++i) {
    json::Object title = Event("thread_name", "M", static_cast<int64_t>(i));
    json::Object name;
    name.Set(ffi::String("name"), ffi::String(spec.processors[i].name));
    title.Set(ffi::String("args"), name);
    events.push_back(title);
  }
  const auto regions = root.at(ffi::String("regions")).cast<json::Array>();
  for (size_t i = 0; i < regions.size(); ++i) {
    const RegionSpec& region = spec.regions[first_region + i];
    int64_t first = INT64_MAX, last = 0;
    json::Array inside;
    for (const ffi::Any& item : regions[i].cast<json::Array>()) {
      const auto object = item.cast<json::Object>();
      const Reader span{object};
      const int64_t start = span.number("start") - begin, end = span.number("end") - begin;
      const std::string kind = span.text("kind");
      if (kind != "wait") first = std::min(first, start), last = std::max(last, end);
      inside.push_back(Slice(NameOf(span, spec), kind.c_str(), region.processor, start, end));
    }
    // Slices of a track nest in the order of the file, so a region stands before its spans.
    if (first < last) {
      events.push_back(Slice(region.name, "region", region.processor, first, last));
    }
    for (const ffi::Any& slice : inside) events.push_back(slice);
  }
  json::Object document;
  document.Set(ffi::String("displayTimeUnit"), ffi::String("ms"));
  document.Set(ffi::String("traceEvents"), events);
  return WholeJSON(document);
}

}  // namespace tvm_stretch::app

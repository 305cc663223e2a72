// Values of a graph's JSON with their paths, for graph*.cc. Messages name the path.
#pragma once

#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/json.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "graph.h"

namespace tvm_stretch {

constexpr int64_t kMaxBytes = int64_t{1} << 40;

[[noreturn]] inline void RefuseGraph(const std::string& expected, const std::string& where) {
  TVM_FFI_THROW(ValueError) << "expected " << expected << " for " << where
                            << " of the graph, got something else; export the model again";
  TVM_FFI_UNREACHABLE();
}

// A JSON value with its path, for messages.
class Reader {
 public:
  Reader(ffi::Any value, std::string where) : value_(std::move(value)), where_(std::move(where)) {}

  Reader operator[](const char* key) const {
    auto object = value_.try_cast<ffi::json::Object>();
    if (!object) RefuseGraph("an object", where_);
    auto found = object->find(ffi::String(key));
    std::string where = where_.empty() ? key : where_ + "." + key;
    if (found == object->end()) RefuseGraph("a value", where);
    return Reader((*found).second, where);
  }

  bool Has(const char* key) const {
    auto object = value_.try_cast<ffi::json::Object>();
    return object && object->find(ffi::String(key)) != object->end();
  }

  int64_t Int(int64_t low, int64_t high) const {
    auto value = value_.try_cast<int64_t>();
    if (!value || *value < low || *value > high) {
      RefuseGraph("an integer in [" + std::to_string(low) + ", " + std::to_string(high) + "]",
                  where_);
    }
    return *value;
  }

  // A finite number; JSON has whole ones as integers.
  double Number(double low, double high) const {
    auto value = value_.try_cast<double>();
    if (!value || !(*value >= low && *value <= high)) RefuseGraph("a number in range", where_);
    return *value;
  }

  // A number above 0 and up to 1.
  double Share() const {
    auto value = value_.try_cast<double>();
    if (!value || !(*value > 0 && *value <= 1)) RefuseGraph("a share", where_);
    return *value;
  }

  // The members of an object, in the order of their names.
  std::vector<std::pair<std::string, Reader>> Members() const {
    auto object = value_.try_cast<ffi::json::Object>();
    if (!object) RefuseGraph("an object", where_);
    std::map<std::string, ffi::Any> sorted;
    for (const auto& [key, value] : *object) {
      auto name = key.try_cast<ffi::String>();
      if (!name) RefuseGraph("names", where_);
      sorted.emplace(*name, value);
    }
    std::vector<std::pair<std::string, Reader>> members;
    for (auto& [name, value] : sorted)
      members.emplace_back(name, Reader(value, where_ + "." + name));
    return members;
  }

  std::string Str() const {
    auto value = value_.try_cast<ffi::String>();
    if (!value) RefuseGraph("a string", where_);
    return *value;
  }

  bool Bool() const {
    auto value = value_.try_cast<bool>();
    if (!value) RefuseGraph("true or false", where_);
    return *value;
  }

  std::vector<Reader> List() const {
    auto array = value_.try_cast<ffi::json::Array>();
    if (!array) RefuseGraph("a list", where_);
    std::vector<Reader> items;
    items.reserve(array->size());
    for (const ffi::Any& item : *array) {
      items.emplace_back(item, where_ + "[" + std::to_string(items.size()) + "]");
    }
    return items;
  }

  std::vector<int64_t> Ints(int64_t low, int64_t high) const {
    std::vector<int64_t> values;
    for (const Reader& item : List()) values.push_back(item.Int(low, high));
    return values;
  }

  const std::string& where() const { return where_; }

 private:
  ffi::Any value_;
  std::string where_;
};

// Strides of a tensor whose elements follow each other.
std::vector<int64_t> DenseStrides(const std::vector<int64_t>& shape, const std::string& where);

// graph_ports.cc. Appends ports, which begin their own memory.
void ReadPorts(const Reader& list, Memory memory, const std::vector<TensorSpec>& tensors,
               std::vector<PortSpec>* ports);
// Reads the states, one for each input after the caller's.
void ReadStates(const Reader& list, GraphSpec* graph);
// Refuses states that slide and that a processor other than the CPU accesses.
void CheckSlides(const GraphSpec& graph);
// Reads the lengths, the first of which has the graph's own ports. States are the same in all.
void ReadLengths(const Reader& root, GraphSpec* graph);
// Reads the dimensions whose other sizes are padded; after the lengths.
void ReadSpans(const Reader& root, GraphSpec* graph);

}  // namespace tvm_stretch

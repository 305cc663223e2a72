// What graph.cc and graph_ports.cc share.
#pragma once

#include <string>
#include <vector>

#include "graph.h"
#include "json_reader.h"

namespace tvm_stretch {

constexpr int64_t kMaxBytes = int64_t{1} << 40;

constexpr Document kGraph{"the graph", "export the model again"};

[[noreturn]] inline void RefuseGraph(const std::string& expected, const std::string& where) {
  kGraph.Refuse(expected, where);
}

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

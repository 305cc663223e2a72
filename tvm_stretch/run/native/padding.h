// Inputs of a size between the lengths of a graph: padded to one of them, and outputs cut.
//
//   tokens [1, 50]  ->  [1, 64]  ->  a run of length n=64  ->  [1, 64, 384]  ->  [1, 50, 384]
//
// The compiler has shown that padding changes nothing that is left (network/properties/padding.py),
// if masks are padded with the value that hides it. Other inputs repeat their last position, so
// padding has no numbers that the network never sees.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "graph.h"

namespace tvm_stretch {

// How many positions a run lacks to its length, for each span of the graph; empty for none.
using Missing = std::vector<int64_t>;

// A length and the positions that are missing.
struct SizedLength {
  size_t length;
  Missing missing;

  bool is_padded() const { return !missing.empty(); }
};

// The size of each named dimension of a graph's lengths.
using Sizes = std::vector<std::pair<std::string, int64_t>>;

// The smallest length with room for these sizes of all named dimensions. Throws ValueError if there
// is none, or a dimension that is no span has another size than any length.
SizedLength LengthOfSizes(const GraphSpec& graph, const Sizes& sizes);

// What these inputs lack to a length; nothing if they do not fit.
std::optional<Missing> MissingIn(const GraphSpec& graph, size_t length,
                                 const std::vector<const DLTensor*>& inputs);

// The shape of an input or output of a run that lacks positions.
std::vector<int64_t> ShapeOfInput(const GraphSpec& graph, size_t i, const SizedLength& sized);
std::vector<int64_t> ShapeOfOutput(const GraphSpec& graph, size_t i, const SizedLength& sized);

// Copies input `i` to `data`, which has room for the length, and pads it. Throws InputError for a
// mask that hides a whole row: padding would count as much as what it hides.
void CopyPadded(const GraphSpec& graph, size_t i, const SizedLength& sized, const DLTensor& from,
                char* data);

// Copies the part of output `i` at `data` that is no padding.
void CopyShortened(const GraphSpec& graph, size_t i, const SizedLength& sized, const char* data,
                   const DLTensor& to);

}  // namespace tvm_stretch

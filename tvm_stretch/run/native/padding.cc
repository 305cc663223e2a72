#include "padding.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "errors.h"
#include "memory.h"

namespace tvm_stretch {
namespace {

std::vector<int64_t> Strides(const DLTensor& tensor) {
  std::vector<int64_t> strides(tensor.ndim, 1);
  for (int32_t i = tensor.ndim - 1; i > 0; --i) strides[i - 1] = strides[i] * tensor.shape[i];
  if (tensor.strides != nullptr) strides.assign(tensor.strides, tensor.strides + tensor.ndim);
  return strides;
}

std::vector<int64_t> Shortened(std::vector<int64_t> shape,
                               const std::vector<const std::vector<int64_t>*>& growth,
                               const Missing& missing) {
  for (size_t span = 0; span < missing.size(); ++span) {
    for (size_t axis = 0; axis < shape.size(); ++axis) {
      shape[axis] -= (*growth[span])[axis] * missing[span];
    }
  }
  return shape;
}

// 0 or 1 as an element of this type.
std::array<char, 8> ItemOf(DLDataType dtype, int64_t value) {
  std::array<char, 8> item{};
  const auto write = [&item](auto number) { std::memcpy(item.data(), &number, sizeof(number)); };
  if (value == 0) return item;
  if (dtype.code == kDLFloat && dtype.bits == 64) {
    write(1.0);
  } else if (dtype.code == kDLFloat && dtype.bits == 32) {
    write(1.0f);
  } else if (dtype.code == kDLFloat && dtype.bits == 16) {
    write(uint16_t{0x3C00});
  } else if (dtype.code == kDLBfloat) {
    write(uint16_t{0x3F80});
  } else {
    item[0] = 1;  // an integer, whose bytes begin with the lowest
  }
  return item;
}

// Copies a tensor into a larger contiguous one.
class Padder {
 public:
  // `fills`: for each axis the value of its padding; nothing repeats the last position.
  Padder(const DLTensor& from, const std::vector<int64_t>& to,
         const std::vector<std::optional<int64_t>>& fills)
      : from_(from), to_(to), fills_(fills), strides_(Strides(from)), steps_(to.size() + 1) {
    steps_.back() = ItemBytes(from);  // bytes of one position of each axis of the larger one
    for (size_t i = to.size(); i-- > 0;) steps_[i] = steps_[i + 1] * to[i];
  }

  void Copy(size_t axis, const char* source, char* data) const {
    const int64_t item = ItemBytes(from_);
    if (axis == to_.size()) {
      std::memcpy(data, source, item);
      return;
    }
    const int64_t count = from_.shape[axis], step = steps_[axis + 1];
    if (axis + 1 == to_.size() && strides_[axis] == 1) {
      std::memcpy(data, source, count * item);
    } else {
      for (int64_t i = 0; i < count; ++i) {
        Copy(axis + 1, source + i * strides_[axis] * item, data + i * step);
      }
    }
    for (int64_t i = count; i < to_[axis]; ++i) {
      if (fills_[axis]) {
        Fill(data + i * step, step, ItemOf(from_.dtype, *fills_[axis]));
      } else {
        std::memcpy(data + i * step, data + (count - 1) * step, step);
      }
    }
  }

 private:
  void Fill(char* data, int64_t bytes, const std::array<char, 8>& value) const {
    const int64_t item = ItemBytes(from_);
    for (int64_t i = 0; i < bytes; i += item) std::memcpy(data + i, value.data(), item);
  }

  const DLTensor& from_;
  const std::vector<int64_t>& to_;
  const std::vector<std::optional<int64_t>>& fills_;
  const std::vector<int64_t> strides_;
  std::vector<int64_t> steps_;
};

// Whether every row along an axis has an element other than `value`.
bool ShowsInEachRow(const DLTensor& mask, int32_t along, int64_t value) {
  const std::vector<int64_t> strides = Strides(mask);
  const int64_t item = ItemBytes(mask);
  const std::array<char, 8> hidden = ItemOf(mask.dtype, value);
  std::vector<int64_t> place(mask.ndim, 0);
  for (;;) {
    int64_t offset = 0;
    for (int32_t i = 0; i < mask.ndim; ++i) offset += place[i] * strides[i];
    bool shows = false;
    for (int64_t i = 0; i < mask.shape[along] && !shows; ++i) {
      const char* element = DataOf(mask) + (offset + i * strides[along]) * item;
      shows = std::memcmp(element, hidden.data(), item) != 0;
    }
    if (!shows) return false;
    int32_t axis = mask.ndim - 1;
    for (; axis >= 0; --axis) {
      if (axis == along) continue;
      if (++place[axis] < mask.shape[axis]) break;
      place[axis] = 0;
    }
    if (axis < 0) return true;
  }
}

void RequireShown(const GraphSpec& graph, size_t i, const DLTensor& mask, int32_t axis,
                  int64_t value) {
  if (ShowsInEachRow(mask, axis, value)) return;
  throw ffi::Error(kInputError,
                   "expected a position that counts in each row of the mask '" +
                       graph.inputs[i].name + "', got a row of " + std::to_string(value) +
                       "; show at least one, or give inputs of one of the model's lengths",
                   "");
}

std::vector<const std::vector<int64_t>*> GrowthOf(const GraphSpec& graph, size_t i, bool input) {
  std::vector<const std::vector<int64_t>*> growth;
  for (const SpanSpec& span : graph.spans) {
    growth.push_back(input ? &span.inputs[i].growth : &span.outputs[i]);
  }
  return growth;
}

}  // namespace

SizedLength LengthOfSizes(const GraphSpec& graph, const Sizes& sizes) {
  std::optional<SizedLength> best;
  for (size_t number = 0; number < graph.lengths.size(); ++number) {
    const LengthSpec& length = graph.lengths[number];
    if (best && length.product() >= graph.lengths[best->length].product()) continue;
    Missing missing(graph.spans.size(), 0);
    bool fits = true;
    for (size_t i = 0; i < sizes.size(); ++i) {
      const std::string& name = sizes[i].first;
      const int64_t size = sizes[i].second;
      const int64_t lacking = size < 1 ? -1 : length.sizes_by_name[i].second - size;
      const auto span = std::find_if(graph.spans.begin(), graph.spans.end(),
                                     [&](const SpanSpec& one) { return one.name == name; });
      if (span == graph.spans.end()) {
        fits &= lacking == 0;
      } else {
        fits &= lacking >= 0 && size >= span->low;
        missing[span - graph.spans.begin()] = lacking;
      }
    }
    if (!fits) continue;
    const bool exact =
        std::all_of(missing.begin(), missing.end(), [](int64_t n) { return n == 0; });
    best = {number, exact ? Missing() : std::move(missing)};
  }
  if (best) return std::move(*best);
  std::string got;
  for (const auto& [name, size] : sizes) {
    got += (got.empty() ? "" : ", ") + name + "=" + std::to_string(size);
  }
  TVM_FFI_THROW(ValueError) << "expected sizes of one of the lengths " << graph.length_names()
                            << ", or between them if it was compiled so, got " << got
                            << "; compile the model with that length";
  TVM_FFI_UNREACHABLE();
}

std::optional<Missing> MissingIn(const GraphSpec& graph, size_t length,
                                 const std::vector<const DLTensor*>& inputs) {
  if (graph.spans.empty()) return std::nullopt;
  Missing missing(graph.spans.size(), -1);
  for (size_t i = 0; i < inputs.size(); ++i) {
    const std::vector<int64_t>& shape = graph.input(i, length).shape;
    if (inputs[i]->ndim != static_cast<int32_t>(shape.size())) return std::nullopt;
    for (size_t axis = 0; axis < shape.size(); ++axis) {
      int64_t left = shape[axis] - inputs[i]->shape[axis];
      for (size_t span = 0; span < missing.size(); ++span) {
        const int64_t step = graph.spans[span].inputs[i].growth[axis];
        if (step == 0) continue;
        if (missing[span] < 0) missing[span] = left / step;
        left -= step * missing[span];
      }
      if (left != 0) return std::nullopt;
    }
  }
  for (size_t span = 0; span < missing.size(); ++span) {
    const int64_t size = graph.lengths[length].sizes[span];
    const int64_t most = size - std::min(graph.spans[span].low, size);
    if (missing[span] < 0 || missing[span] > most) return std::nullopt;
  }
  return missing;
}

std::vector<int64_t> ShapeOfInput(const GraphSpec& graph, size_t i, const SizedLength& sized) {
  return Shortened(graph.input(i, sized.length).shape, GrowthOf(graph, i, true), sized.missing);
}

std::vector<int64_t> ShapeOfOutput(const GraphSpec& graph, size_t i, const SizedLength& sized) {
  return Shortened(graph.output(i, sized.length).shape, GrowthOf(graph, i, false), sized.missing);
}

void CopyPadded(const GraphSpec& graph, size_t i, const SizedLength& sized, const DLTensor& from,
                char* data) {
  const std::vector<int64_t>& shape = graph.input(i, sized.length).shape;
  std::vector<std::optional<int64_t>> fills(shape.size());
  for (const SpanSpec& span : graph.spans) {
    const SpanInput& input = span.inputs[i];
    for (size_t axis = 0; axis < shape.size(); ++axis) {
      if (input.growth[axis] == 0) continue;
      fills[axis] = input.fill;
      if (input.hides) RequireShown(graph, i, from, static_cast<int32_t>(axis), *input.fill);
    }
  }
  Padder(from, shape, fills).Copy(0, DataOf(from), data);
}

void CopyShortened(const GraphSpec& graph, size_t i, const SizedLength& sized, const char* data,
                   const DLTensor& to) {
  const std::vector<int64_t>& shape = graph.output(i, sized.length).shape;
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t axis = shape.size(); axis-- > 1;) strides[axis - 1] = strides[axis] * shape[axis];
  DLTensor part = to;
  part.data = const_cast<char*>(data);
  part.byte_offset = 0;
  part.strides = strides.data();
  std::vector<char> packed(ffi::GetDataSize(to));
  CopyToContiguous(part, packed.data());
  CopyFromContiguous(packed.data(), to);
}

}  // namespace tvm_stretch

#include "image.h"

#include <tvm/ffi/error.h>

#include <cstring>

#include "errors.h"
#include "targets/hexagon/dsp/protocol.h"
#include "transport.h"

namespace tvm_stretch::dsp {
namespace {

constexpr int64_t kVectorBytes = 128;
constexpr int64_t kMostBytes = int64_t{1} << 30;  // of 32-bit addresses, beside program and stack

bool IsWeight(const TensorSpec& tensor) {
  return tensor.memory == Memory::kConstant || tensor.memory == Memory::kPrepared;
}

void RefuseSize(const char* what, int64_t bytes) {
  if (bytes <= kMostBytes) return;
  throw ffi::Error(kDeviceError,
                   std::string("expected at most 1024 MiB for the ") + what +
                       " of a DSP, which has addresses of 32 bits, got " +
                       std::to_string(bytes >> 20) +
                       " MiB; give it fewer operators, or compile for smaller inputs",
                   "");
}

class Writer {
 public:
  Writer(const GraphSpec& graph, const CodeSpec& code, const Weights& weights,
         const MemoryMap& memory)
      : graph_(graph), code_(code), weights_(weights), memory_(memory) {}

  void AddNode(const NodeSpec& node) {
    DspNode record{};
    record.kernel = KernelOf(node);
    record.first_argument = static_cast<uint32_t>(arguments_.size());
    record.inputs = static_cast<uint32_t>(node.inputs.size());
    record.outputs = static_cast<uint32_t>(node.outputs.size());
    if (node.inputs.size() + node.outputs.size() > DSP_MAX_ARGS) Refuse("fewer operands", node);
    for (const std::vector<int64_t>* operands : {&node.inputs, &node.outputs}) {
      for (int64_t id : *operands) arguments_.push_back(PositionOf(id, node));
    }
    nodes_.push_back(record);
  }

  void EndRegion(uint32_t first_node) {
    regions_.push_back(DspRegion{first_node, static_cast<uint32_t>(nodes_.size()) - first_node});
  }

  std::string Bytes() const {
    std::string tables;
    Append(tensors_, &tables);
    Append(arguments_, &tables);
    tables.resize(DspRoundUp(tables.size()));
    Append(nodes_, &tables);
    Append(regions_, &tables);
    DspProgramHeader header{};
    header.magic = DSP_MAGIC;
    header.bytes = tables.size();
    header.check = DspHash(tables.data(), tables.size());
    header.tensors = static_cast<uint32_t>(tensors_.size());
    header.arguments = static_cast<uint32_t>(arguments_.size());
    header.nodes = static_cast<uint32_t>(nodes_.size());
    header.regions = static_cast<uint32_t>(regions_.size());
    return std::string(reinterpret_cast<const char*>(&header), sizeof(header)) + tables;
  }

 private:
  template <typename T>
  static void Append(const std::vector<T>& records, std::string* bytes) {
    bytes->append(reinterpret_cast<const char*>(records.data()), records.size() * sizeof(T));
  }

  [[noreturn]] static void Refuse(const std::string& expected, const NodeSpec& node) {
    TVM_FFI_THROW(ValueError) << "expected " << expected << " for '" << node.name
                              << "' on a DSP, got another; compile the model again";
    TVM_FFI_UNREACHABLE();
  }

  uint32_t KernelOf(const NodeSpec& node) const {
    if (node.kernel == kCopyKernel) return DSP_COPY_KERNEL;
    auto found = code_.kernels.find(node.kernel);
    if (found == code_.kernels.end()) Refuse("kernel '" + node.kernel + "'", node);
    return found->second;
  }

  uint32_t PositionOf(int64_t id, const NodeSpec& node) {
    auto [found, is_new] = positions_.emplace(id, static_cast<uint32_t>(tensors_.size()));
    if (is_new) tensors_.push_back(Record(id, node));
    return found->second;
  }

  DspTensor Record(int64_t id, const NodeSpec& node) const {
    const TensorSpec& tensor = graph_.tensors[id];
    if (tensor.shape.size() > DSP_MAX_DIMS) Refuse("at most 12 dimensions", node);
    DspTensor record{};
    const bool is_weight = IsWeight(tensor);
    record.segment = is_weight ? kDspWeights : kDspBlock;
    record.offset = is_weight ? weights_.OffsetOf(id) : OffsetInBlock(tensor);
    record.ndim = static_cast<uint32_t>(tensor.shape.size());
    record.type_code = tensor.dtype.code;
    record.bits = tensor.dtype.bits;
    record.lanes = tensor.dtype.lanes;
    for (size_t i = 0; i < tensor.shape.size(); ++i) {
      record.shape[i] = tensor.shape[i];
      record.strides[i] = tensor.strides[i];
    }
    return record;
  }

  int64_t OffsetInBlock(const TensorSpec& tensor) const {
    return tensor.bytes == 0 ? 0 : AddressOf(memory_, tensor) - memory_.block.data;
  }

  const GraphSpec& graph_;
  const CodeSpec& code_;
  const Weights& weights_;
  const MemoryMap& memory_;
  std::map<int64_t, uint32_t> positions_;
  std::vector<DspTensor> tensors_;
  std::vector<uint32_t> arguments_;
  std::vector<DspNode> nodes_;
  std::vector<DspRegion> regions_;
};

}  // namespace

Weights::Weights(const GraphSpec& graph, size_t processor, const CodeSpec& code,
                 const MemoryMap& memory) {
  for (const RegionSpec& region : graph.regions) {
    if (region.processor != static_cast<int64_t>(processor)) continue;
    for (int64_t node : region.nodes) {
      for (int64_t id : graph.nodes[node].inputs) {
        const TensorSpec& tensor = graph.tensors[id];
        if (!IsWeight(tensor) || offsets_.count(id) != 0) continue;
        offsets_[id] = bytes_;
        bytes_ = (bytes_ + tensor.bytes + kVectorBytes - 1) / kVectorBytes * kVectorBytes;
      }
    }
  }
  RefuseSize("weights", bytes_);
  block_ = AllocateShared(code, static_cast<size_t>(bytes_));
  for (const auto& [id, offset] : offsets_) {
    const TensorSpec& tensor = graph.tensors[id];
    if (tensor.bytes > 0)
      std::memcpy(block_.data + offset, AddressOf(memory, tensor), tensor.bytes);
  }
}

Image Image::Make(const GraphSpec& graph, size_t processor, const CodeSpec& code,
                  const Weights& weights, const MemoryMap& memory) {
  if (memory.block.fd < 0) {
    TVM_FFI_THROW(ValueError) << "expected memory that other processes can map for a DSP, got "
                                 "another processor's; compile the model again";
  }
  RefuseSize("tensors", static_cast<int64_t>(memory.block.bytes) + weights.bytes());
  Image image;
  Writer writer(graph, code, weights, memory);
  for (size_t i = 0; i < graph.regions.size(); ++i) {
    const RegionSpec& region = graph.regions[i];
    if (region.processor != static_cast<int64_t>(processor)) continue;
    const auto first = static_cast<uint32_t>(image.nodes.size());
    for (int64_t node : region.nodes) {
      writer.AddNode(graph.nodes[node]);
      image.nodes.push_back(node);
    }
    writer.EndRegion(first);
    image.regions[static_cast<int64_t>(i)] = static_cast<uint32_t>(image.bounds.size());
    image.bounds.emplace_back(first, static_cast<uint32_t>(region.nodes.size()));
  }
  image.bytes = writer.Bytes();
  return image;
}

}  // namespace tvm_stretch::dsp

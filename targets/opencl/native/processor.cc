// Runs regions on an OpenCL device; native/processor.h has the executor's interface.
#include "processor.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "command.h"
#include "device_memory.h"
#include "device_program.h"
#include "handover.h"
#include "imports.h"
#include "ownership.h"
#include "submitter.h"
#include "task.h"

namespace tvm_stretch::opencl {
namespace {

class OpenCLProcessor final : public Processor {
 public:
  OpenCLProcessor(const OpenCLProgram& program, const MemoryMap& memory);
  OpenCLProcessor(const OpenCLProgram& program, const MemoryMap& memory, const Ownership& plan);
  void BeginPlan() final;
  std::unique_ptr<Task> Bind(const RegionSpec& region, const std::vector<Task*>& after) final;
  bool BindInput(size_t input, const ExternalMemory* memory) final;
  bool SharesMemory() const final { return device_.memory == MemoryKind::kShared; }
  void AfterFailure() final;
  void SetAffinity(const Cores& cores) final {
    for (Submitter& submitter : submitters_) submitter.SetAffinity(cores);
  }

 private:
  void AddTransfers(const std::vector<int64_t>& tensors, Span::Kind kind, Lane lane,
                    std::vector<Command>* commands) const;
  bool HasLater(const RegionSpec& region) const;
  const DeviceMemory& MemoryAt(const char* address) const;
  const DeviceMemory& MemoryOf(int64_t tensor) const;
  char* AddressOf(int64_t tensor) const;
  void NoteInput(int64_t tensor, cl_kernel kernel, cl_uint index, ArgSpec::Kind kind) const;
  void AppendNode(int64_t id, cl_mem bell, std::vector<Command>* commands) const;
  void AddDoorbells(cl_mem bell, std::vector<Command>* commands) const;
  void AppendCopy(const NodeSpec& node, const Span& span, std::vector<Command>* commands) const;
  Command KernelCommand(const NodeSpec& node, const LaunchSpec& launch, const Span& span,
                        cl_mem bell) const;
  Kernel BindKernel(const NodeSpec& node, const LaunchSpec& launch, cl_mem bell) const;
  int32_t OffsetInItems(int64_t tensor, const DeviceMemory& memory, const char* address) const;
  cl_mem ImageAt(int64_t tensor) const;

  const OpenCLProgram& program_;
  const Device device_;
  const GraphSpec& graph_;
  const MemoryMap& memory_;
  std::unique_ptr<Handover> handover_;  // only of mapped memory
  const DeviceMemory block_;            // arena, inputs and outputs
  Buffer scratch_;
  const bool has_bells_;
  const Buffer open_bell_;  // for regions without a bell
  // An argument of a kernel that names memory of an input.
  struct InputArgument {
    cl_kernel kernel;
    cl_uint index;
    ArgSpec::Kind kind;
    int64_t tensor;
  };
  mutable std::map<size_t, std::vector<InputArgument>> input_arguments_;
  mutable std::set<size_t> own_inputs_;  // that are images or copied: always the instance's own
  Imports imports_;
  std::vector<std::unique_ptr<Bell>> bells_;  // one for each region
  std::deque<Submitter> submitters_;          // one for each plan; they must be destroyed first
  // Images of memory, by its buffer and the bits of an element.
  mutable std::map<std::pair<cl_mem, int>, Buffer> images_;
  size_t num_bound_ = 0;
  OpenCLTask* last_ = nullptr;
};

constexpr size_t kImportsKept = 8;  // beside those that are bound

int64_t TensorOf(const NodeSpec& node, int64_t i) {
  const auto num_inputs = static_cast<int64_t>(node.inputs.size());
  return i < num_inputs ? node.inputs[i] : node.outputs[i - num_inputs];
}

// Fine-grained and mapped memory must come from the driver, and mapped memory must not have cache
// lines of both owners. Otherwise the device gets a copy.
Device ForBlock(Device device, const SharedBlock& block, const Ownership& plan) {
  const bool must_be_drivers =
      device.memory == MemoryKind::kFine || device.memory == MemoryKind::kMapped;
  const bool is_unsound = device.memory == MemoryKind::kMapped && !plan.is_sound;
  const bool is_drivers = block.from_device != nullptr && block.fd < 0;  // else another device's
  if ((must_be_drivers && !is_drivers) || is_unsound) {
    device.memory = MemoryKind::kMirror;
  }
  return device;
}

DeviceMemory BlockMemory(const Device& device, const SharedBlock& block) {
  if (device.memory == MemoryKind::kMapped) {
    return {block.data, block.bytes, DriversMemory::Of(block.from_device)->buffer()};
  }
  return {device, block.data, block.bytes, Contents::kUndefined};
}

Ownership PlanFor(const OpenCLProgram& program, const MemoryMap& memory) {
  if (program.device().memory != MemoryKind::kMapped) return {};
  return PlanOwnership(program.graph(), program.index(), memory);
}

OpenCLProcessor::OpenCLProcessor(const OpenCLProgram& program, const MemoryMap& memory)
    : OpenCLProcessor(program, memory, PlanFor(program, memory)) {}

OpenCLProcessor::OpenCLProcessor(const OpenCLProgram& program, const MemoryMap& memory,
                                 const Ownership& plan)
    : program_(program),
      device_(ForBlock(program.device(), memory.block, plan)),
      graph_(program.graph()),
      memory_(memory),
      block_(BlockMemory(device_, memory.block)),
      has_bells_(program.CanRingBells()),
      open_bell_(CreateOpenBell(device_)),
      imports_(device_, kImportsKept + graph_.inputs.size()) {
  if (device_.memory == MemoryKind::kMapped) {
    DriversMemory* const drivers = DriversMemory::Of(memory.block.from_device);
    handover_ = std::make_unique<Handover>(drivers, memory.block.data, plan);
  }
  if (program.scratch_bytes() > 0) {
    cl_int code = CL_SUCCESS;
    scratch_ =
        Buffer(CL().CreateBuffer(device_.context, CL_MEM_READ_WRITE,
                                 static_cast<size_t>(program.scratch_bytes()), nullptr, &code));
    Check(code, "clCreateBuffer");
  }
}

void OpenCLProcessor::BeginPlan() {
  const bool overlaps =
      device_.memory == MemoryKind::kMirror &&
      std::any_of(graph_.regions.begin(), graph_.regions.end(), [this](const RegionSpec& region) {
        return region.processor == program_.index() && HasLater(region);
      });
  submitters_.emplace_back(device_, overlaps);
  last_ = nullptr;
}

// Whether another region of the same plan follows on this device.
bool OpenCLProcessor::HasLater(const RegionSpec& region) const {
  const auto index = static_cast<size_t>(&region - graph_.regions.data());
  for (const PlanSpec& plan : graph_.plans) {
    if (index < plan.first || index >= plan.first + plan.count) continue;
    for (size_t i = index + 1; i < plan.first + plan.count; ++i) {
      if (graph_.regions[i].processor == program_.index()) return true;
    }
  }
  return false;
}

std::unique_ptr<Task> OpenCLProcessor::Bind(const RegionSpec& region,
                                            const std::vector<Task*>& after) {
  if (has_bells_) bells_.push_back(std::make_unique<Bell>(device_));
  Bell* const bell = has_bells_ ? bells_.back().get() : nullptr;
  const cl_mem bell_buffer = has_bells_ ? bell->buffer() : open_bell_.get();
  std::vector<Command> commands;
  if (handover_ != nullptr) handover_->AppendTakes(num_bound_, &commands);
  const Lane receives = last_ == nullptr ? Lane::kKernels : Lane::kReceives;
  AddTransfers(region.receives, Span::Kind::kReceive, receives, &commands);
  for (int64_t id : region.nodes) AppendNode(id, bell_buffer, &commands);
  const Lane sends = HasLater(region) ? Lane::kSends : Lane::kKernels;
  AddTransfers(region.sends, Span::Kind::kSend, sends, &commands);
  if (handover_ != nullptr) handover_->AppendGives(num_bound_, &commands);
  if (has_bells_) AddDoorbells(bell_buffer, &commands);
  ++num_bound_;
  auto task = std::make_unique<OpenCLTask>(&submitters_.back(), last_, region, std::move(commands),
                                           after, bell, device_.info.last_event_tells);
  submitters_.back().Add(task.get(), !has_bells_ && !after.empty());
  last_ = task.get();
  return task;
}

// Appends copies if the device has separate memory.
void OpenCLProcessor::AddTransfers(const std::vector<int64_t>& tensors, Span::Kind kind, Lane lane,
                                   std::vector<Command>* commands) const {
  if (device_.memory != MemoryKind::kMirror) return;
  for (int64_t id : tensors) {
    const auto bytes = static_cast<size_t>(graph_.tensors[id].bytes);
    if (bytes == 0) continue;
    const Span span{kind, id, "tensor " + std::to_string(id), 0, 0};
    auto append = kind == Span::Kind::kReceive ? AppendReceive : AppendSend;
    append(block_, AddressOf(id), bytes, span, lane, commands);
  }
}

// Remembers an argument that names memory of an input. An image, or a copy, stays as it is.
void OpenCLProcessor::NoteInput(int64_t tensor, cl_kernel kernel, cl_uint index,
                                ArgSpec::Kind kind) const {
  const TensorSpec& spec = graph_.tensors[tensor];
  if (spec.memory != Memory::kInput || spec.bytes == 0) return;
  const auto input = static_cast<size_t>(spec.buffer);
  if (kind == ArgSpec::Kind::kImage) {
    own_inputs_.insert(input);
  } else {
    input_arguments_[input].push_back({kernel, index, kind, tensor});
  }
}

// Sets the arguments of all kernels that read the input.
bool OpenCLProcessor::BindInput(size_t input, const ExternalMemory* memory) {
  const bool must_copy = device_.memory == MemoryKind::kMirror || own_inputs_.count(input) != 0;
  if (memory != nullptr && must_copy) return false;
  const DeviceMemory* const source = memory == nullptr ? &block_ : imports_.Find(*memory);
  if (source == nullptr) return false;
  const char* const start = memory == nullptr ? memory_.inputs[input] : memory->data;
  for (const InputArgument& argument : input_arguments_[input]) {
    const bool is_buffer = argument.kind == ArgSpec::Kind::kBuffer;
    const cl_mem buffer = source->buffer();
    const char* const address = start + graph_.tensors[argument.tensor].offset;
    const int32_t offset = is_buffer ? 0 : OffsetInItems(argument.tensor, *source, address);
    const void* const value = is_buffer ? static_cast<const void*>(&buffer) : &offset;
    const size_t bytes = is_buffer ? sizeof(buffer) : sizeof(offset);
    Check(CL().SetKernelArg(argument.kernel, argument.index, bytes, value), "clSetKernelArg");
  }
  return true;
}

void OpenCLProcessor::AfterFailure() {
  if (handover_ != nullptr) handover_->RestoreAfterFailure();
}

char* OpenCLProcessor::AddressOf(int64_t tensor) const {
  return tvm_stretch::AddressOf(memory_, graph_.tensors[tensor]);
}

const DeviceMemory& OpenCLProcessor::MemoryAt(const char* address) const {
  return block_.Holds(address) ? block_ : program_.WeightsAt(address);
}

const DeviceMemory& OpenCLProcessor::MemoryOf(int64_t tensor) const {
  return graph_.tensors[tensor].bytes == 0 ? block_ : MemoryAt(AddressOf(tensor));
}

void OpenCLProcessor::AppendNode(int64_t id, cl_mem bell, std::vector<Command>* commands) const {
  const NodeSpec& node = graph_.nodes[id];
  Span span{Span::Kind::kKernel, id, node.name, 0, 0};
  if (node.kernel == kCopyKernel) return AppendCopy(node, span, commands);
  for (const LaunchSpec& launch : program_.LaunchesOf(node)) {
    commands->push_back(KernelCommand(node, launch, span, bell));
  }
}

Command OpenCLProcessor::KernelCommand(const NodeSpec& node, const LaunchSpec& launch,
                                       const Span& span, cl_mem bell) const {
  Command command{};
  command.kind = Command::Kind::kKernel;
  command.span = span;
  command.kernel = BindKernel(node, launch, bell);
  command.global_size = launch.global_size;
  command.group_size = launch.group_size;
  return command;
}

// Only kernels read bells, so a region must begin and end with a kernel.
void OpenCLProcessor::AddDoorbells(cl_mem bell, std::vector<Command>* commands) const {
  auto is_kernel = [](const Command& c) { return c.kind == Command::Kind::kKernel; };
  auto doorbell = [&] {
    const LaunchSpec& launch = program_.code().kernels.at(kDoorbell)[0];
    Command command = KernelCommand({}, launch, Span{Span::Kind::kWait, -1, kDoorbell, 0, 0}, bell);
    command.is_traced = false;
    return command;
  };
  if (commands->empty() || !is_kernel(commands->front())) {
    commands->insert(commands->begin(), doorbell());
  }
  if (!is_kernel(commands->back())) commands->push_back(doorbell());
}

void OpenCLProcessor::AppendCopy(const NodeSpec& node, const Span& span,
                                 std::vector<Command>* commands) const {
  const char* from = AddressOf(node.inputs[0]);
  const char* to = AddressOf(node.outputs[0]);
  Command command{};
  command.kind = Command::Kind::kCopy;
  command.span = span;
  command.bytes = static_cast<size_t>(graph_.tensors[node.outputs[0]].bytes);
  if (command.bytes == 0) return;
  NoteInput(node.inputs[0], nullptr, 0, ArgSpec::Kind::kImage);
  const DeviceMemory& source = MemoryAt(from);
  command.from = source.buffer();
  command.from_offset = source.OffsetOf(from);
  command.buffer = block_.buffer();
  command.offset = block_.OffsetOf(to);
  commands->push_back(std::move(command));
}

int32_t OpenCLProcessor::OffsetInItems(int64_t tensor, const DeviceMemory& memory,
                                       const char* address) const {
  const TensorSpec& spec = graph_.tensors[tensor];
  const size_t item = (spec.dtype.bits + 7) / 8 * spec.dtype.lanes;
  const size_t offset = memory.OffsetOf(address);
  if (offset % item != 0 || offset / item > std::numeric_limits<int32_t>::max()) {
    TVM_FFI_THROW(ValueError) << "expected an offset below 2^31 elements for tensor " << tensor
                              << ", got " << offset << " bytes of items of " << item
                              << "; place fewer operators on this device";
  }
  return static_cast<int32_t>(offset / item);
}

cl_mem OpenCLProcessor::ImageAt(int64_t tensor) const {
  const TensorSpec& spec = graph_.tensors[tensor];
  const char* address = AddressOf(tensor);
  const DeviceMemory& memory = spec.bytes == 0 ? block_ : MemoryAt(address);
  const size_t pixel = 4 * spec.dtype.bits / 8;
  if (spec.bytes != 0 && memory.OffsetOf(address) % pixel != 0) {
    TVM_FFI_THROW(ValueError) << "expected tensor " << tensor << " at the start of a pixel, got "
                              << "byte " << memory.OffsetOf(address) << " of pixels of " << pixel
                              << "; compile the model again";
  }
  Buffer& image = images_[{memory.buffer(), spec.dtype.bits}];
  if (!image) image = memory.ImageOf(device_, spec.dtype);
  return image.get();
}

Kernel OpenCLProcessor::BindKernel(const NodeSpec& node, const LaunchSpec& launch,
                                   cl_mem bell) const {
  Kernel kernel = program_.NewKernel(launch);
  for (cl_uint i = 0; i < launch.args.size(); ++i) {
    const ArgSpec& arg = launch.args[i];
    cl_mem buffer = nullptr;
    int32_t number = static_cast<int32_t>(arg.value);
    size_t bytes = sizeof(buffer);
    const void* value = &buffer;
    const bool is_tensor = arg.kind == ArgSpec::Kind::kBuffer ||
                           arg.kind == ArgSpec::Kind::kOffset || arg.kind == ArgSpec::Kind::kImage;
    const int64_t tensor = is_tensor ? TensorOf(node, arg.value) : 0;
    if (is_tensor) NoteInput(tensor, kernel.get(), i, arg.kind);
    switch (arg.kind) {
      case ArgSpec::Kind::kBuffer:
        buffer = MemoryOf(tensor).buffer();
        break;
      case ArgSpec::Kind::kImage:
        buffer = ImageAt(tensor);
        break;
      case ArgSpec::Kind::kScratch:
        buffer = scratch_.get();
        break;
      case ArgSpec::Kind::kBell:
        buffer = bell;
        break;
      case ArgSpec::Kind::kOffset:
        number = graph_.tensors[tensor].bytes == 0
                     ? 0
                     : OffsetInItems(tensor, MemoryOf(tensor), AddressOf(tensor));
        [[fallthrough]];
      case ArgSpec::Kind::kInt32:
        bytes = sizeof(number);
        value = &number;
        break;
      case ArgSpec::Kind::kLocal:
        bytes = static_cast<size_t>(arg.value);
        value = nullptr;
        break;
    }
    cl_int code = CL().SetKernelArg(kernel.get(), i, bytes, value);
    if (code != CL_SUCCESS) {
      Fail(code, "clSetKernelArg, argument " + std::to_string(i) + " of " + launch.entry);
    }
  }
  return kernel;
}

}  // namespace

std::unique_ptr<Processor> OpenCLProgram::CreateInstance(const MemoryMap& memory) const {
  return std::make_unique<OpenCLProcessor>(*this, memory);
}

TVM_FFI_STATIC_INIT_BLOCK() {
  RegisterProcessor("opencl", [](const ProcessorContext& context) {
    return std::make_unique<OpenCLProgram>(context);
  });
}

}  // namespace tvm_stretch::opencl

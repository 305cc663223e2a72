// TVM's module of kind `opencl`: the kernels that stock TVM compiles for its OpenCL target.
//
// The bytes of a module are TVM's own: numbers are little-endian, every string and list begins with
// its 64-bit length:
//   format, {name, name, [argument type], [launch parameter], [int32 extra tag]} per kernel, source
#include <tvm/ffi/cast.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/dtype.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/reflection/accessor.h>
#include <tvm/ffi/reflection/registry.h>

#include <cstring>
#include <map>
#include <mutex>

#include "build.h"
#include "packed.h"
#include "tvm_device.h"

namespace tvm_stretch::opencl {
namespace {

struct TvmKernel {
  std::string name;
  std::vector<DLDataType> arg_types;
  std::vector<std::string> launch_tags;
  std::vector<int32_t> extra_tags;
};

using TvmKernels = std::map<std::string, TvmKernel>;

[[noreturn]] void RefuseBytes() {
  TVM_FFI_THROW(ValueError) << "expected an undamaged OpenCL module of TVM, got other bytes; "
                               "export the module again";
  TVM_FFI_UNREACHABLE();
}

class ByteWriter {
 public:
  template <typename T>
  void Plain(const T& value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  void Text(const std::string& text) {
    Plain<uint64_t>(text.size());
    bytes_ += text;
  }
  template <typename T>
  void List(const std::vector<T>& items) {
    Plain<uint64_t>(items.size());
    for (const T& item : items) {
      if constexpr (std::is_same_v<T, std::string>) {
        Text(item);
      } else {
        Plain(item);
      }
    }
  }
  std::string bytes_;
};

class ByteReader {
 public:
  explicit ByteReader(const ffi::Bytes& bytes) : at_(bytes.data()), left_(bytes.size()) {}

  template <typename T>
  T Plain() {
    T value;
    std::memcpy(&value, Take(sizeof(value)), sizeof(value));
    return value;
  }
  std::string Text() {
    auto size = Plain<uint64_t>();
    const char* text = Take(size);
    return std::string(text, size);
  }
  template <typename T>
  std::vector<T> List() {
    std::vector<T> items;
    for (auto count = Plain<uint64_t>(); count > 0; --count) {
      if constexpr (std::is_same_v<T, std::string>) {
        items.push_back(Text());
      } else {
        items.push_back(Plain<T>());
      }
    }
    return items;
  }

 private:
  const char* Take(uint64_t bytes) {
    if (bytes > left_) RefuseBytes();
    left_ -= bytes;
    return std::exchange(at_, at_ + bytes);
  }

  const char* at_;
  uint64_t left_;
};

// The meaning of the packed call's numbers after the arguments.
enum class LaunchPart { kGroups, kGroupSize };

std::pair<LaunchPart, size_t> ParseTag(const std::string& tag, const std::string& kernel) {
  const size_t axis = tag.empty() ? 0 : std::string("xyz").find(tag.back());
  if (axis < 3 && tag.rfind("blockIdx.", 0) == 0) return {LaunchPart::kGroups, axis};
  if (axis < 3 && tag.rfind("threadIdx.", 0) == 0) return {LaunchPart::kGroupSize, axis};
  TVM_FFI_THROW(ValueError) << "expected blockIdx or threadIdx to launch '" << kernel << "', got "
                            << tag << "; schedule the kernel without it";
  TVM_FFI_UNREACHABLE();
}

// One kernel on one device; calls of several threads take turns.
class BoundKernel {
 public:
  BoundKernel(const TvmKernel& spec, const Program& program)
      : spec_(spec), kernel_(CreateKernel(program, spec.name)) {
    for (const std::string& tag : spec.launch_tags) tags_.push_back(ParseTag(tag, spec.name));
  }

  void Launch(const ffi::PackedArgs& args) {
    const size_t num_args = spec_.arg_types.size();
    if (static_cast<size_t>(args.size()) != num_args + tags_.size()) {
      TVM_FFI_THROW(TypeError) << "expected " << num_args + tags_.size() << " arguments for '"
                               << spec_.name << "', got " << args.size()
                               << "; call it through its host function";
    }
    size_t groups[3] = {1, 1, 1}, group_size[3] = {1, 1, 1};
    for (size_t i = 0; i < tags_.size(); ++i) {
      auto [part, axis] = tags_[i];
      auto size = static_cast<size_t>(args[static_cast<int>(num_args + i)].cast<int64_t>());
      (part == LaunchPart::kGroups ? groups : group_size)[axis] = size;
    }
    for (size_t i = 0; i < 3; ++i) groups[i] *= group_size[i];
    cl_command_queue queue = TvmDevice::Get()->CurrentQueue();
    std::lock_guard<std::mutex> lock(mutex_);
    for (size_t i = 0; i < num_args; ++i)
      SetArg(static_cast<cl_uint>(i), args[static_cast<int>(i)]);
    cl_int code = CL().EnqueueNDRangeKernel(queue, kernel_.get(), 3, nullptr, groups, group_size, 0,
                                            nullptr, nullptr);
    if (code != CL_SUCCESS) Fail(code, "launch of '" + spec_.name + "'");
    Check(CL().Flush(queue), "clFlush");
  }

 private:
  template <typename T>
  void Set(cl_uint index, const T& value) {
    cl_int code = CL().SetKernelArg(kernel_.get(), index, sizeof(value), &value);
    if (code != CL_SUCCESS) Fail(code, "clSetKernelArg of '" + spec_.name + "'");
  }

  void SetArg(cl_uint index, const ffi::AnyView& arg) {
    const DLDataType type = spec_.arg_types[index];
    if (type.code == kDLOpaqueHandle) {
      return Set(index, static_cast<TensorMemory*>(arg.cast<void*>())->buffer.get());
    }
    if (type.code == kDLFloat) {
      auto value = arg.cast<double>();
      if (type.bits == 64) return Set(index, value);
      if (type.bits == 32) return Set(index, static_cast<float>(value));
    } else if (type.code == kDLInt || type.code == kDLUInt || type.code == kDLBool) {
      // The low bytes are the same, signed or not.
      auto value = arg.cast<int64_t>();
      if (type.bits == 64) return Set(index, value);
      if (type.bits == 32) return Set(index, static_cast<int32_t>(value));
      if (type.bits == 16) return Set(index, static_cast<int16_t>(value));
      if (type.bits <= 8) return Set(index, static_cast<int8_t>(value));
    }
    TVM_FFI_THROW(ValueError) << "expected a buffer, an integer or a float as argument " << index
                              << " of '" << spec_.name << "', got type code " << int{type.code}
                              << " of " << int{type.bits} << " bits; pass it in a buffer";
  }

  const TvmKernel& spec_;
  std::vector<std::pair<LaunchPart, size_t>> tags_;
  std::mutex mutex_;
  Kernel kernel_;
};

class TvmModule final : public ffi::ModuleObj {
 public:
  TvmModule(std::string format, TvmKernels kernels, std::string source)
      : format_(std::move(format)), kernels_(std::move(kernels)), source_(std::move(source)) {}

  const char* kind() const final { return "opencl"; }
  int GetPropertyMask() const final {
    return ffi::Module::kBinarySerializable | ffi::Module::kRunnable;
  }
  ffi::String InspectSource(const ffi::String&) const final { return source_; }

  ffi::Optional<ffi::Function> GetFunction(const ffi::String& name) final {
    auto found = kernels_.find(name);
    if (found == kernels_.end()) return std::nullopt;
    auto self = ffi::GetObjectPtr<ffi::Object>(this);  // the function keeps the module alive
    return ffi::Function::FromPacked(
        [self, this, spec = &found->second](ffi::PackedArgs args, ffi::Any*) {
          KernelOf(*spec).Launch(args);
        });
  }

  ffi::Bytes SaveToBytes() const final {
    ByteWriter out;
    out.Text(format_);
    out.Plain<uint64_t>(kernels_.size());
    for (const auto& [key, kernel] : kernels_) {
      out.Text(key);
      out.Text(kernel.name);
      out.List(kernel.arg_types);
      out.List(kernel.launch_tags);
      out.List(kernel.extra_tags);
    }
    out.Text(source_);
    return ffi::Bytes(std::move(out.bytes_));
  }

 private:
  // The kernel on the calling thread's device; the device's compiler runs at the first call.
  BoundKernel& KernelOf(const TvmKernel& spec) {
    const Device& device = TvmDevice::Get()->CurrentDevice();
    std::lock_guard<std::mutex> lock(mutex_);
    auto& kernel = bound_[{device.index, &spec}];
    if (kernel == nullptr) {
      auto program = programs_.find(device.index);
      if (program == programs_.end()) {
        std::vector<Program> built = BuildPrograms(device, {source_}, "");
        program = programs_.emplace(device.index, std::move(built.front())).first;
      }
      kernel = std::make_unique<BoundKernel>(spec, program->second);
    }
    return *kernel;
  }

  const std::string format_;
  const TvmKernels kernels_;
  const std::string source_;
  std::mutex mutex_;  // guards the two below
  std::map<int, Program> programs_;
  std::map<std::pair<int, const TvmKernel*>, std::unique_ptr<BoundKernel>> bound_;
};

ffi::Module NewModule(std::string format, TvmKernels kernels, std::string source) {
  if (format != "cl") {
    TVM_FFI_THROW(ValueError) << "expected OpenCL C ('cl') in TVM's module, got '" << format
                              << "'; build for target opencl";
  }
  return ffi::Module(
      ffi::make_object<TvmModule>(std::move(format), std::move(kernels), std::move(source)));
}

// TVM's description of a kernel. TVM's headers do not have its class, so its fields are read by
// name.
TvmKernel Describe(const ffi::ObjectRef& info) {
  auto field = [&info](const char* name) {
    return ffi::reflection::FieldGetter(info->GetTypeKey(), name)(info);
  };
  TvmKernel kernel;
  kernel.name = field("name").cast<ffi::String>();
  for (DLDataType type : field("arg_types").cast<ffi::Array<DLDataType>>()) {
    kernel.arg_types.push_back(type);
  }
  for (const ffi::String& tag : field("launch_param_tags").cast<ffi::Array<ffi::String>>()) {
    kernel.launch_tags.push_back(tag);
  }
  for (const ffi::Any& tag : field("arg_extra_tags").cast<ffi::Array<ffi::Any>>()) {
    kernel.extra_tags.push_back(static_cast<int32_t>(tag.cast<int64_t>()));
  }
  return kernel;
}

ffi::Module Create(const ffi::Bytes& code, const ffi::String& format,
                   const ffi::Map<ffi::String, ffi::ObjectRef>& infos,
                   const ffi::Map<ffi::String, ffi::Any>&) {
  TvmKernels kernels;
  for (const auto& entry : infos) kernels.emplace(entry.first, Describe(entry.second));
  return NewModule(format, std::move(kernels), std::string(code.data(), code.size()));
}

ffi::Module LoadTvmKernels(const ffi::Bytes& bytes) {
  ByteReader in(bytes);
  std::string format = in.Text();
  TvmKernels kernels;
  for (auto count = in.Plain<uint64_t>(); count > 0; --count) {
    TvmKernel& kernel = kernels[in.Text()];
    kernel.name = in.Text();
    kernel.arg_types = in.List<DLDataType>();
    kernel.launch_tags = in.List<std::string>();
    kernel.extra_tags = in.List<int32_t>();
  }
  return NewModule(std::move(format), std::move(kernels), in.Text());
}

}  // namespace

TVM_FFI_STATIC_INIT_BLOCK() {
  // A TVM that was built with OpenCL has these functions.
  if (ffi::Function::GetGlobal("device_api.opencl")) return;
  tvm::ffi::reflection::GlobalDef()
      .def_packed("device_api.opencl", Packed(+[]() -> void* {
                    return static_cast<tvm::runtime::DeviceAPI*>(TvmDevice::Get());
                  }))
      .def_packed("ffi.Module.create.opencl", Packed(Create))
      .def_packed("ffi.Module.load_from_bytes.opencl", Packed(LoadTvmKernels));
}

}  // namespace tvm_stretch::opencl

#include "code.h"

#include <tvm/ffi/extra/json.h>
#include <tvm/ffi/reflection/registry.h>

#include <algorithm>
#include <cstring>
#include <unordered_map>

#include "memory.h"
#include "packed.h"

namespace tvm_stretch::opencl {
namespace {

namespace json = ffi::json;

constexpr const char* kKind = "tvm_stretch.opencl";
constexpr int64_t kMaxValue = int64_t{1} << 31;

[[noreturn]] void Refuse(const std::string& expected, const std::string& where) {
  TVM_FFI_THROW(ValueError) << "expected " << expected << " for " << where
                            << " of the OpenCL code, got something else; compile the model again";
  TVM_FFI_UNREACHABLE();
}

template <typename T>
T As(const ffi::Any& value, const char* expected, const std::string& where) {
  auto cast = value.try_cast<T>();
  if (!cast) Refuse(expected, where);
  return *cast;
}

ffi::Any Field(const json::Object& object, const char* key, const std::string& where) {
  auto found = object.find(ffi::String(key));
  if (found == object.end()) Refuse("a value", where + "." + key);
  return (*found).second;
}

std::string TextField(const json::Object& object, const char* key, const std::string& where) {
  return As<ffi::String>(Field(object, key, where), "a string", where + "." + key);
}

std::array<size_t, 3> Sizes(const json::Object& launch, const char* key, const std::string& where) {
  auto list = As<json::Array>(Field(launch, key, where), "a list", where + "." + key);
  if (list.size() != 3) Refuse("three sizes", where + "." + key);
  std::array<size_t, 3> sizes;
  for (size_t i = 0; i < 3; ++i) {
    auto size = list[i].try_cast<int64_t>();
    if (!size || *size < 1 || *size > kMaxValue) Refuse("positive sizes", where + "." + key);
    sizes[i] = static_cast<size_t>(*size);
  }
  return sizes;
}

ArgSpec ReadArg(const ffi::Any& value, const std::string& where) {
  static const std::unordered_map<std::string, ArgSpec::Kind> kinds = {
      {"buffer", ArgSpec::Kind::kBuffer}, {"offset", ArgSpec::Kind::kOffset},
      {"image", ArgSpec::Kind::kImage},   {"int32", ArgSpec::Kind::kInt32},
      {"local", ArgSpec::Kind::kLocal},   {"scratch", ArgSpec::Kind::kScratch},
      {"bell", ArgSpec::Kind::kBell},
  };
  auto pair = As<json::Array>(value, "a pair", where);
  if (pair.size() != 2) Refuse("a pair", where);
  auto kind = kinds.find(As<ffi::String>(pair[0], "a string", where));
  auto number = pair[1].try_cast<int64_t>();
  if (kind == kinds.end()) Refuse("buffer, offset, image, int32, local, scratch or bell", where);
  if (!number || *number >= kMaxValue || *number < -kMaxValue) Refuse("an int32", where);
  if (kind->second != ArgSpec::Kind::kInt32 && *number < 0) Refuse("no negative number", where);
  bool is_bytes = kind->second == ArgSpec::Kind::kLocal || kind->second == ArgSpec::Kind::kScratch;
  if (is_bytes && *number == 0) Refuse("a positive number", where);
  return ArgSpec{kind->second, *number};
}

class Reader {
 public:
  CodeSpec Read(const ffi::String& text) {
    ffi::String error;
    auto root = As<json::Object>(json::Parse(text, &error), "a JSON object", "the text");
    spec_.options = TextField(root, "options", "code");
    for (const ffi::Any& text :
         As<json::Array>(Field(root, "sources", "code"), "a list", "sources")) {
      spec_.sources.push_back(As<ffi::String>(text, "a string", "sources"));
    }
    auto kernels = As<json::Object>(Field(root, "kernels", "code"), "an object", "kernels");
    for (const auto& entry : kernels) {
      std::string name = As<ffi::String>(entry.first, "a string", "a name in kernels");
      auto launches = As<json::Array>(entry.second, "a list", name);
      std::vector<LaunchSpec>& specs = spec_.kernels[name];
      for (const ffi::Any& launch : launches) {
        std::string where = name + "[" + std::to_string(specs.size()) + "]";
        specs.push_back(ReadLaunch(As<json::Object>(launch, "an object", where), where));
      }
    }
    FindBells();
    return std::move(spec_);
  }

 private:
  LaunchSpec ReadLaunch(const json::Object& object, const std::string& where) {
    LaunchSpec launch;
    launch.entry = TextField(object, "entry", where);
    auto source = As<int64_t>(Field(object, "source", where), "a position", where + ".source");
    if (source < 0 || source >= static_cast<int64_t>(spec_.sources.size())) {
      Refuse("a position in sources", where + ".source");
    }
    launch.source = static_cast<size_t>(source);
    launch.group_size = Sizes(object, "group_size", where);
    launch.global_size = Sizes(object, "groups", where);
    for (size_t i = 0; i < 3; ++i) launch.global_size[i] *= launch.group_size[i];
    for (const ffi::Any& arg : As<json::Array>(Field(object, "args", where), "a list", where)) {
      launch.args.push_back(ReadArg(arg, where + ".args"));
    }
    return launch;
  }

  void FindBells() {
    auto doorbell = spec_.kernels.find(kDoorbell);
    spec_.has_bells = doorbell != spec_.kernels.end();
    if (!spec_.has_bells) return;
    const std::vector<LaunchSpec>& launches = doorbell->second;
    if (launches.size() != 1 || launches[0].args.size() != 1 || !launches[0].has_bell()) {
      Refuse("one launch with a bell", kDoorbell);
    }
    for (const auto& entry : spec_.kernels) {
      for (const LaunchSpec& launch : entry.second) spec_.has_bells &= launch.has_bell();
    }
  }

  CodeSpec spec_;
};

// Precedes the text in an artifact.
struct CodeHeader {
  char magic[8];
  uint64_t fingerprint;
};

constexpr char kMagic[8] = {'T', 'V', 'M', 'S', 'T', 'R', 'O', '1'};

class OpenCLCode final : public ffi::ModuleObj {
 public:
  explicit OpenCLCode(ffi::String text)
      : text_(std::move(text)), spec_(CodeSpec::FromJSON(text_)) {}

  const char* kind() const final { return kKind; }
  int GetPropertyMask() const final { return ffi::Module::kBinarySerializable; }
  ffi::Optional<ffi::Function> GetFunction(const ffi::String&) final { return std::nullopt; }
  const CodeSpec& spec() const { return spec_; }

  ffi::Bytes SaveToBytes() const final {
    CodeHeader header{};
    std::memcpy(header.magic, kMagic, sizeof(kMagic));
    header.fingerprint = Fingerprint(text_.data(), text_.size());
    std::string bytes(reinterpret_cast<const char*>(&header), sizeof(header));
    return ffi::Bytes(bytes.append(text_.data(), text_.size()));
  }

  ffi::String InspectSource(const ffi::String& format) const final {
    if (format == "json") return text_;
    std::string all;
    for (const std::string& source : spec_.sources) all += source + "\n";
    return all;
  }

 private:
  ffi::String text_;
  CodeSpec spec_;
};

ffi::Module Load(const ffi::Bytes& bytes) {
  CodeHeader header{};
  const char* text = bytes.data() + sizeof(header);
  if (bytes.size() >= sizeof(header)) std::memcpy(&header, bytes.data(), sizeof(header));
  if (std::memcmp(header.magic, kMagic, sizeof(kMagic)) != 0 ||
      header.fingerprint != Fingerprint(text, bytes.size() - sizeof(header))) {
    TVM_FFI_THROW(ValueError) << "expected undamaged OpenCL code in the artifact, got another "
                                 "format or fingerprint; export the model again";
  }
  return ffi::Module(
      ffi::make_object<OpenCLCode>(ffi::String(text, bytes.size() - sizeof(header))));
}

}  // namespace

bool LaunchSpec::has_bell() const {
  auto is_bell = [](const ArgSpec& arg) { return arg.kind == ArgSpec::Kind::kBell; };
  return std::any_of(args.begin(), args.end(), is_bell);
}

CodeSpec CodeSpec::FromJSON(const ffi::String& text) { return Reader().Read(text); }

const CodeSpec& CodeOf(const ffi::Module& module) {
  if (std::strcmp(module->kind(), kKind) != 0) {
    TVM_FFI_THROW(ValueError) << "expected code of kind " << kKind << " for processor opencl, got "
                              << module->kind() << "; compile the model again";
  }
  return static_cast<const OpenCLCode*>(module.get())->spec();
}

TVM_FFI_STATIC_INIT_BLOCK() {
  tvm::ffi::reflection::GlobalDef()
      .def_packed("tvm_stretch.create_opencl_code", Packed(+[](const ffi::String& text) {
                    return ffi::Module(ffi::make_object<OpenCLCode>(text));
                  }))
      .def_packed("ffi.Module.load_from_bytes.tvm_stretch.opencl", Packed(Load));
}

}  // namespace tvm_stretch::opencl

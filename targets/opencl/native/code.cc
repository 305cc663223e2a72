#include "code.h"

#include <tvm/ffi/reflection/registry.h>

#include <algorithm>
#include <cstring>
#include <unordered_map>

#include "json_reader.h"
#include "memory.h"
#include "packed.h"

namespace tvm_stretch::opencl {
namespace {

constexpr const char* kKind = "tvm_stretch.opencl";
constexpr int64_t kMaxValue = (int64_t{1} << 31) - 1;
constexpr Document kDocument{"the OpenCL code", "compile the model again"};

std::array<size_t, 3> ReadSizes(const Reader& list) {
  const std::vector<int64_t> given = list.Ints(1, kMaxValue + 1);
  if (given.size() != 3) list.Refuse("three sizes");
  std::array<size_t, 3> sizes;
  std::copy(given.begin(), given.end(), sizes.begin());
  return sizes;
}

ArgSpec ReadArg(const Reader& reader) {
  static const std::unordered_map<std::string, ArgSpec::Kind> kinds = {
      {"buffer", ArgSpec::Kind::kBuffer}, {"offset", ArgSpec::Kind::kOffset},
      {"image", ArgSpec::Kind::kImage},   {"int32", ArgSpec::Kind::kInt32},
      {"local", ArgSpec::Kind::kLocal},   {"scratch", ArgSpec::Kind::kScratch},
      {"bell", ArgSpec::Kind::kBell},
  };
  const std::vector<Reader> pair = reader.List();
  if (pair.size() != 2) reader.Refuse("a pair");
  const auto kind = kinds.find(pair[0].Str());
  if (kind == kinds.end()) reader.Refuse("buffer, offset, image, int32, local, scratch or bell");
  const bool is_bytes =
      kind->second == ArgSpec::Kind::kLocal || kind->second == ArgSpec::Kind::kScratch;
  const int64_t least = kind->second == ArgSpec::Kind::kInt32 ? -kMaxValue - 1 : is_bytes ? 1 : 0;
  return ArgSpec{kind->second, pair[1].Int(least, kMaxValue)};
}

LaunchSpec ReadLaunch(const Reader& reader, size_t sources) {
  LaunchSpec launch;
  launch.entry = reader["entry"].Str();
  launch.source = reader["source"].Int(0, static_cast<int64_t>(sources) - 1);
  launch.group_size = ReadSizes(reader["group_size"]);
  launch.global_size = ReadSizes(reader["groups"]);
  for (size_t i = 0; i < 3; ++i) launch.global_size[i] *= launch.group_size[i];
  for (const Reader& arg : reader["args"].List()) launch.args.push_back(ReadArg(arg));
  return launch;
}

// Whether all kernels have bells, as the doorbell needs.
bool HasBells(const CodeSpec& spec) {
  const auto doorbell = spec.kernels.find(kDoorbell);
  if (doorbell == spec.kernels.end()) return false;
  const std::vector<LaunchSpec>& launches = doorbell->second;
  if (launches.size() != 1 || launches[0].args.size() != 1 || !launches[0].has_bell()) {
    kDocument.Refuse("one launch with a bell", kDoorbell);
  }
  const auto have = [](const auto& kernel) {
    const std::vector<LaunchSpec>& all = kernel.second;
    return std::all_of(all.begin(), all.end(), [](const auto& one) { return one.has_bell(); });
  };
  return std::all_of(spec.kernels.begin(), spec.kernels.end(), have);
}

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

CodeSpec CodeSpec::FromJSON(const ffi::String& text) {
  const Reader root = Reader::Parse(kDocument, text);
  CodeSpec spec;
  spec.options = root["options"].Str();
  spec.sources = root["sources"].Strings();
  for (const auto& [name, launches] : root["kernels"].Members()) {
    std::vector<LaunchSpec>& specs = spec.kernels[name];
    for (const Reader& launch : launches.List()) {
      specs.push_back(ReadLaunch(launch, spec.sources.size()));
    }
  }
  spec.has_bells = HasBells(spec);
  return spec;
}

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

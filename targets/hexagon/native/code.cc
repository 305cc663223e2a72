#include "code.h"

#include <tvm/ffi/reflection/registry.h>

#include <cstring>

#include "json_reader.h"
#include "memory.h"
#include "packed.h"

namespace tvm_stretch::dsp {
namespace {

constexpr const char* kKind = "tvm_stretch.dsp";
constexpr char kMagic[8] = {'T', 'V', 'M', 'S', 'T', 'R', 'D', '1'};
constexpr int64_t kLongest = 86'400'000;  // a day, as milliseconds

constexpr Document kDocument{"the DSP's code", "compile the model again"};

// Precedes JSON and program in an artifact.
struct CodeHeader {
  char magic[8];
  uint64_t fingerprint;  // of all bytes after this header
  uint64_t text_bytes;
};

class DspCode final : public ffi::ModuleObj {
 public:
  DspCode(ffi::String text, const ffi::Bytes& program)
      : text_(std::move(text)), spec_(CodeSpec::FromJSON(text_, program)) {}

  const char* kind() const final { return kKind; }
  int GetPropertyMask() const final { return ffi::Module::kBinarySerializable; }
  ffi::Optional<ffi::Function> GetFunction(const ffi::String&) final { return std::nullopt; }
  const CodeSpec& spec() const { return spec_; }

  ffi::Bytes SaveToBytes() const final {
    std::string rest(text_.data(), text_.size());
    rest += spec_.program;
    CodeHeader header{};
    std::memcpy(header.magic, kMagic, sizeof(kMagic));
    header.text_bytes = text_.size();
    header.fingerprint = Fingerprint(rest.data(), rest.size());
    return ffi::Bytes(std::string(reinterpret_cast<const char*>(&header), sizeof(header)) + rest);
  }

  ffi::String InspectSource(const ffi::String&) const final { return text_; }

 private:
  ffi::String text_;
  CodeSpec spec_;
};

ffi::Module Load(const ffi::Bytes& bytes) {
  CodeHeader header{};
  const char* rest = bytes.data() + sizeof(header);
  if (bytes.size() >= sizeof(header)) std::memcpy(&header, bytes.data(), sizeof(header));
  const size_t size = bytes.size() - sizeof(header);
  if (std::memcmp(header.magic, kMagic, sizeof(kMagic)) != 0 || header.text_bytes > size ||
      header.fingerprint != Fingerprint(rest, size)) {
    TVM_FFI_THROW(ValueError) << "expected an undamaged program of the DSP in the artifact, got "
                                 "another format or fingerprint; export the model again";
  }
  return ffi::Module(
      ffi::make_object<DspCode>(ffi::String(rest, header.text_bytes),
                                ffi::Bytes(rest + header.text_bytes, size - header.text_bytes)));
}

}  // namespace

CodeSpec CodeSpec::FromJSON(const ffi::String& text, const ffi::Bytes& program) {
  const Reader root = Reader::Parse(kDocument, text);
  CodeSpec spec;
  for (const std::string& name : root["kernels"].Strings()) {
    const auto position = static_cast<uint32_t>(spec.kernels.size());
    if (!spec.kernels.emplace(name, position).second) root["kernels"].Refuse("each name once");
  }
  spec.emulator = root["emulator"].Strings();
  if (root.Has("server")) spec.server = root["server"].Str();
  spec.runs_here = root["runs_here"].Bool();
  spec.by_fastrpc = root.Has("fastrpc") && root["fastrpc"].Bool();
  spec.device = root["device"].Str();
  spec.spin = std::chrono::microseconds(root["spin_us"].Int(0, kLongest));
  spec.deadline = std::chrono::milliseconds(root["deadline_ms"].Int(0, kLongest));
  spec.program.assign(program.data(), program.size());
  if (spec.server.empty() && spec.program.compare(0, 4, "\177ELF") != 0) {
    kDocument.Refuse("an ELF file", "the program");
  }
  return spec;
}

const CodeSpec& CodeOf(const ffi::Module& module) {
  if (std::strcmp(module->kind(), kKind) != 0) {
    TVM_FFI_THROW(ValueError) << "expected code of kind " << kKind << " for a DSP, got "
                              << module->kind() << "; compile the model again";
  }
  return static_cast<const DspCode*>(module.get())->spec();
}

TVM_FFI_STATIC_INIT_BLOCK() {
  tvm::ffi::reflection::GlobalDef()
      .def_packed("tvm_stretch.create_dsp_code",
                  Packed(+[](const ffi::String& text, const ffi::Bytes& program) {
                    return ffi::Module(ffi::make_object<DspCode>(text, program));
                  }))
      .def_packed("ffi.Module.load_from_bytes.tvm_stretch.dsp", Packed(Load));
}

}  // namespace tvm_stretch::dsp

#include "program.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <tvm/ffi/endian.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <numeric>

#include "cores.h"

static_assert(TVM_FFI_IO_NO_ENDIAN_SWAP, "artifacts are little-endian");

namespace tvm_stretch {
namespace {

constexpr char kMagic[8] = {'T', 'V', 'M', 'S', 'T', 'R', 'G', '1'};

// Stands in front of the JSON in an artifact.
struct GraphHeader {
  char magic[8];
  uint64_t graph_fingerprint;
  uint64_t weights_fingerprint;
};

// Stands in front of the weights in an artifact; runtime/artifact.py writes it.
struct WeightsHeader {
  char magic[8];
  uint64_t bytes;
  char padding[48];
};
static_assert(sizeof(WeightsHeader) == kAlignment);

constexpr char kWeightsMagic[8] = {'T', 'V', 'M', 'S', 'T', 'R', 'W', '1'};
constexpr const char* kWeightsSymbol = "tvm_stretch_weights";

// The weights behind a header that is theirs; throws ValueError if they are others.
const char* CheckedWeights(const char* section, const GraphSpec& spec, uint64_t fingerprint) {
  WeightsHeader header;
  std::memcpy(&header, section, sizeof(header));
  const char* weights = section + sizeof(header);
  if (std::memcmp(header.magic, kWeightsMagic, sizeof(kWeightsMagic)) != 0 ||
      header.bytes != static_cast<uint64_t>(spec.weights_bytes) ||
      fingerprint != Fingerprint(weights, header.bytes)) {
    TVM_FFI_THROW(ValueError) << "expected the weights that belong to the artifact's graph, got "
                                 "damaged or other ones; export the model again";
  }
  return weights;
}

// A file in memory, as long as this lives.
class MappedFile : public ffi::Object {
 public:
  explicit MappedFile(const std::string& path) {
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    struct stat about{};
    if (fd >= 0 && fstat(fd, &about) == 0) {
      bytes_ = static_cast<size_t>(about.st_size);
      data_ = mmap(nullptr, bytes_, PROT_READ, MAP_PRIVATE, fd, 0);
    }
    const std::string fault = std::strerror(errno);
    if (fd >= 0) close(fd);
    if (data_ == MAP_FAILED) {
      TVM_FFI_THROW(ValueError) << "expected a readable file for the weights, got '" << path
                                << "': " << fault << "; upload them again";
    }
  }
  ~MappedFile() {
    if (data_ != MAP_FAILED) munmap(data_, bytes_);
  }

  const char* data() const { return static_cast<const char*>(data_); }
  size_t bytes() const { return bytes_; }

  static constexpr bool _type_mutable = true;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("tvm_stretch.MappedFile", MappedFile, ffi::Object);

 private:
  void* data_ = MAP_FAILED;
  size_t bytes_ = 0;
};

}  // namespace

ffi::Bytes GraphBytes::Encode() const {
  GraphHeader header{};
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  header.graph_fingerprint = Fingerprint(json.data(), json.size());
  header.weights_fingerprint = weights_fingerprint;
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof(header));
  bytes.append(json.data(), json.size());
  return ffi::Bytes(std::move(bytes));
}

GraphBytes GraphBytes::Decode(const ffi::Bytes& bytes) {
  GraphHeader header;
  if (bytes.size() < sizeof(header)) {
    TVM_FFI_THROW(ValueError) << "expected at least " << sizeof(header)
                              << " bytes for the artifact's graph, got " << bytes.size()
                              << "; the file is truncated: export the model again";
  }
  std::memcpy(&header, bytes.data(), sizeof(header));
  const char* json = bytes.data() + sizeof(header);
  const size_t json_bytes = bytes.size() - sizeof(header);
  if (std::memcmp(header.magic, kMagic, sizeof(kMagic)) != 0 ||
      header.graph_fingerprint != Fingerprint(json, json_bytes)) {
    TVM_FFI_THROW(ValueError) << "expected an undamaged graph in the artifact, got another "
                                 "format or fingerprint; export the model again";
  }
  return GraphBytes{ffi::String(json, json_bytes), header.weights_fingerprint};
}

Program::Program(GraphSpec spec, const std::vector<ffi::Module>& code, const char* weights,
                 ffi::Any weights_owner)
    : spec_(std::move(spec)),
      kernels_(code[kCpu], spec_, kCpu),
      weights_owner_(std::move(weights_owner)),
      prepared_(spec_.prepared_bytes) {
  memory_.constant = const_cast<char*>(weights);
  memory_.prepared = prepared_.data();
  UseThreads(spec_.threads);
  Prepare();
  lost_ = Attempt([&] { CreateDevices(code); });
  if (!lost_) return;
  if (!spec_.spare) throw *lost_;
  devices_.clear();
}

void Program::CreateDevices(const std::vector<ffi::Module>& code) {
  for (size_t i = kCpu + 1; i < spec_.processors.size(); ++i) {
    devices_.push_back(
        CreateProcessorProgram(ProcessorContext{spec_, i, memory_, code[i], code[kCpu]}));
  }
}

void Program::Prepare() const {
  BoundTensors tensors(spec_, memory_);
  std::vector<int64_t> all(spec_.prepare.size());
  std::iota(all.begin(), all.end(), 0);
  const std::atomic<bool> never{false};
  BoundNodes(spec_.prepare, all, kernels_, &tensors).Run(never, nullptr);
}

std::shared_ptr<const Program> Program::FromLibrary(GraphSpec spec,
                                                    const std::vector<ffi::Module>& code,
                                                    uint64_t fingerprint) {
  const ffi::Module& library = code[kCpu];
  auto find = library->GetFunction(kWeightsSymbol, true);
  if (!find.has_value()) {
    TVM_FFI_THROW(ValueError) << "expected weights ('" << kWeightsSymbol
                              << "') in the artifact, got none; write artifacts with "
                                 "Model.export, not with export_library";
  }
  const char* section = static_cast<const char*>((*find)().cast<void*>());
  const char* weights = CheckedWeights(section, spec, fingerprint);
  ffi::Any owner = library;  // the weights are part of the library's mapping
  return std::make_shared<Program>(std::move(spec), code, weights, std::move(owner));
}

std::shared_ptr<const Program> Program::FromFile(GraphSpec spec,
                                                 const std::vector<ffi::Module>& code,
                                                 uint64_t fingerprint, const std::string& path) {
  auto file = ffi::make_object<MappedFile>(path);
  if (file->bytes() != sizeof(WeightsHeader) + static_cast<size_t>(spec.weights_bytes)) {
    TVM_FFI_THROW(ValueError) << "expected " << sizeof(WeightsHeader) + spec.weights_bytes
                              << " bytes for the weights in '" << path << "', got " << file->bytes()
                              << "; upload them again";
  }
  const char* weights = CheckedWeights(file->data(), spec, fingerprint);
  return std::make_shared<Program>(std::move(spec), code, weights, ffi::ObjectRef(std::move(file)));
}

}  // namespace tvm_stretch

// A network as data: `tvm_stretch.with_data(executor, path)`.
//
//   net.data  =  magic, sizes of graph and weights | graph as JSON | weights | seal
//                64 bytes                            to 64 bytes     to 8 bytes
//
// The executor that it returns runs the graph and the weights of the file by the kernels of another
// one. Stores forbid programs that are downloaded; such a file is none: it can only call kernels
// that the library has, on tensors of the shapes for which they were compiled.
// run/artifact.py writes it.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/reflection/registry.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <set>
#include <sstream>

#include "graph.h"
#include "memory.h"
#include "packed.h"
#include "program.h"
#include "seal.h"

namespace tvm_stretch {
namespace {

namespace ffi = tvm::ffi;

struct DataHeader {
  char magic[8];
  uint64_t graph_bytes;
  uint64_t weights_bytes;
  char padding[40];
};
static_assert(sizeof(DataHeader) == kAlignment);
constexpr char kDataMagic[8] = {'T', 'V', 'M', 'S', 'T', 'R', 'D', '1'};

[[noreturn]] void RefuseData(const std::string& path, const std::string& got,
                             const std::string& advice) {
  TVM_FFI_THROW(ValueError) << "expected the data of a network in '" << path << "', got " << got
                            << "; " << advice;
  TVM_FFI_UNREACHABLE();
}

constexpr const char* kWriteAgain = "write it again with Model.export_data";

uint64_t Aligned(uint64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// A file that is mapped while this lives, and was undamaged when it was opened.
class DataFile {
 public:
  explicit DataFile(const std::string& path) {
    const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat about{};
    const bool is_file = file >= 0 && fstat(file, &about) == 0 && S_ISREG(about.st_mode);
    const std::string fault = file < 0 ? std::strerror(errno) : "something that is no file";
    bytes_ = is_file ? static_cast<uint64_t>(about.st_size) : 0;
    constexpr uint64_t kLeast = sizeof(DataHeader) + sizeof(Seal);
    if (bytes_ >= kLeast) {
      // Writable, as other weights are: nothing writes, and copies of pages would be private.
      data_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
    }
    if (file >= 0) close(file);
    if (!is_file) RefuseData(path, fault, "check the path");
    if (bytes_ < kLeast) RefuseData(path, "a file that is too short", kWriteAgain);
    if (data_ == MAP_FAILED) RefuseMemory(bytes_);
    if (const std::string damage = Check(path); !damage.empty()) {
      munmap(data_, bytes_);  // there will be no destructor
      RefuseData(path, damage, kWriteAgain);
    }
  }
  ~DataFile() { munmap(data_, bytes_); }
  DataFile(const DataFile&) = delete;
  DataFile& operator=(const DataFile&) = delete;

  ffi::String graph() const { return ffi::String(at(sizeof(DataHeader)), header().graph_bytes); }
  char* weights() const { return at(Aligned(sizeof(DataHeader) + header().graph_bytes)); }
  uint64_t weights_bytes() const { return header().weights_bytes; }

 private:
  char* at(uint64_t place) const { return static_cast<char*>(data_) + place; }
  const DataHeader& header() const { return *static_cast<const DataHeader*>(data_); }

  // The fault; empty if there is none.
  std::string Check(const std::string& path) const {
    const uint64_t sealed = bytes_ - sizeof(Seal);
    Seal seal;
    std::memcpy(&seal, at(sealed), sizeof(seal));
    const bool is_ours = std::memcmp(header().magic, kDataMagic, sizeof(kDataMagic)) == 0;
    if (!is_ours || !seal.IsThere()) return "another or a truncated file";
    const uint64_t graph = header().graph_bytes, weights = header().weights_bytes;
    const bool has_parts = graph <= sealed && weights <= sealed &&
                           Aligned(sizeof(DataHeader) + graph) + (weights + 7) / 8 * 8 == sealed;
    if (!has_parts || !seal.Fits(path, static_cast<int64_t>(sealed))) return "a damaged file";
    return "";
  }

  uint64_t bytes_ = 0;
  void* data_ = MAP_FAILED;
};

// Gives a tensor the memory of a file, and closes the file with the tensor.
struct FileAllocator {
  void AllocData(DLTensor* tensor) { tensor->data = file->weights(); }
  void FreeData(DLTensor*) { delete file; }
  DataFile* file;
};

// Everything that a kernel relies on: its tensors' types, shapes, strides and alignment.
std::string Signature(const GraphSpec& spec, const NodeSpec& node, size_t processor) {
  std::ostringstream text;
  text << processor << ' ' << node.kernel;
  for (const auto* tensors : {&node.inputs, &node.outputs}) {
    text << '|';
    for (const int64_t id : *tensors) {
      const TensorSpec& tensor = spec.tensors[id];
      text << ffi::DLDataTypeToString(tensor.dtype).c_str() << '@'
           << tensor.offset % static_cast<int64_t>(kAlignment);
      for (const int64_t size : tensor.shape) text << ',' << size;
      text << '/';
      for (const int64_t stride : tensor.strides) text << ',' << stride;
      text << ';';
    }
  }
  return text.str();
}

// All calls of kernels, with their processors.
template <typename Visit>
void ForEachCall(const GraphSpec& spec, const Visit& visit) {
  for (const NodeSpec& node : spec.prepare) visit(node, kCpu);
  for (const RegionSpec& region : spec.regions) {
    for (const int64_t id : region.nodes) {
      visit(spec.nodes[id], static_cast<size_t>(region.processor));
    }
  }
}

// Everything that guards check.
std::set<std::string> GuardsOf(const GraphSpec& spec) {
  std::set<std::string> guards;
  for (const LengthSpec& length : spec.lengths) {
    for (const GuardSpec& guard : length.guards) {
      const TensorSpec& tensor = spec.tensors[guard.tensor];
      std::ostringstream text;
      text << static_cast<int>(tensor.memory) << ' ' << tensor.buffer;
      for (size_t i = 0; i < guard.low.size(); ++i) {
        text << ' ' << guard.low[i] << ' ' << guard.high[i];
      }
      guards.insert(text.str());
    }
  }
  return guards;
}

// The data calls no kernel otherwise than the library's own graph does.
void RequireSameCalls(const std::string& path, const GraphSpec& code, const GraphSpec& data) {
  constexpr const char* kCompile = "compile both networks for the same targets and plan";
  bool same = code.processors.size() == data.processors.size() && code.threads == data.threads &&
              code.cpu_features == data.cpu_features && code.spare == data.spare;
  for (size_t i = 0; same && i < code.processors.size(); ++i) {
    same = code.processors[i].name == data.processors[i].name &&
           code.processors[i].kind == data.processors[i].kind;
  }
  if (!same) RefuseData(path, "one for other processors than those of the library", kCompile);
  if (code.streams || data.streams) {  // these kernels rely on what the executor writes for them
    RefuseData(path, "one for streams", "export them with their weights, without data=");
  }
  if (GuardsOf(code) != GuardsOf(data)) {
    RefuseData(path, "one that checks other values than the library's", kCompile);
  }
  std::set<std::string> known;
  ForEachCall(code, [&](const NodeSpec& node, size_t processor) {
    known.insert(Signature(code, node, processor));
  });
  ForEachCall(data, [&](const NodeSpec& node, size_t processor) {
    if (known.count(Signature(data, node, processor)) == 0) {
      RefuseData(path,
                 "a network with '" + node.name + "', for which the library has no kernel '" +
                     node.kernel + "' of these shapes",
                 kCompile);
    }
  });
}

ffi::Module WithData(const ffi::Module& executor, const ffi::String& path) {
  auto file = std::make_unique<DataFile>(path);
  const GraphSpec code =
      GraphSpec::FromJSON((*executor->GetFunction("graph"))().cast<ffi::String>());
  const ffi::String json = file->graph();
  const GraphSpec data = GraphSpec::FromJSON(json);
  RequireSameCalls(path, code, data);
  if (data.weights_bytes != static_cast<int64_t>(file->weights_bytes())) {
    RefuseData(path, "weights of another size than its graph's", kWriteAgain);
  }
  const auto bytes = static_cast<int64_t>(file->weights_bytes());
  const ffi::Tensor weights =
      ffi::Tensor::FromNDAlloc(FileAllocator{file.release()}, ffi::Shape({bytes}),
                               DLDataType{kDLUInt, 8, 1}, DLDevice{kDLCPU, 0});
  std::vector<ffi::Any> args{json, weights};
  for (const ffi::Module& module : CodeOf(executor->imports(), code)) args.emplace_back(module);
  static const ffi::Function create =
      ffi::Function::GetGlobalRequired("tvm_stretch.create_executor");
  ffi::Any created;
  std::vector<ffi::AnyView> views(args.begin(), args.end());
  create.CallPacked(views.data(), static_cast<int32_t>(views.size()), &created);
  return created.cast<ffi::Module>();
}

TVM_FFI_STATIC_INIT_BLOCK() {
  tvm::ffi::reflection::GlobalDef().def_packed("tvm_stretch.with_data", Packed(WithData));
}

}  // namespace
}  // namespace tvm_stretch

#include "program.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <tvm/ffi/endian.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <exception>
#include <string_view>
#include <thread>
#include <utility>

#include "cores.h"

static_assert(TVM_FFI_IO_NO_ENDIAN_SWAP, "artifacts are little-endian");

namespace tvm_stretch {
namespace {

// Transforms of weights are limited by memory, which few cores use up.
constexpr size_t kMostHelpers = 3;

bool Overlap(const TensorSpec& one, const TensorSpec& other) {
  return one.memory == Memory::kPrepared && other.memory == Memory::kPrepared &&
         one.offset < other.offset + other.bytes && other.offset < one.offset + one.bytes;
}

bool DependsOn(const GraphSpec& graph, const NodeSpec& later, const NodeSpec& earlier) {
  const auto meet = [&graph](const std::vector<int64_t>& some, const std::vector<int64_t>& others) {
    return std::any_of(some.begin(), some.end(), [&](int64_t one) {
      return std::any_of(others.begin(), others.end(), [&](int64_t other) {
        return Overlap(graph.tensors[one], graph.tensors[other]);
      });
    });
  };
  return meet(later.inputs, earlier.outputs) || meet(later.outputs, earlier.outputs) ||
         meet(later.outputs, earlier.inputs);
}

constexpr char kMagic[8] = {'T', 'V', 'M', 'S', 'T', 'R', 'G', '1'};

// Precedes the JSON in an artifact.
struct GraphHeader {
  char magic[8];
  uint64_t graph_fingerprint;
  uint64_t weights_fingerprint;
};

// Precedes the weights in an artifact; run/parts.py writes it.
struct WeightsHeader {
  char magic[8];
  uint64_t bytes;
  char padding[48];
};
static_assert(sizeof(WeightsHeader) == kAlignment);

constexpr char kWeightsMagic[8] = {'T', 'V', 'M', 'S', 'T', 'R', 'W', '1'};
constexpr const char* kWeightsSymbol = "tvm_stretch_weights";

[[noreturn]] void RefuseFile(const std::string& path, const std::string& got) {
  TVM_FFI_THROW(ValueError) << "expected a readable file for the weights, got '" << path
                            << "': " << got << "; upload them again";
  TVM_FFI_UNREACHABLE();
}

// Files mapped as one contiguous block while this lives. The first and largest file stays on disk
// until it is read.
class MappedFiles : public ffi::Object {
 public:
  explicit MappedFiles(const std::vector<std::string>& paths) {
    std::vector<int> files;
    std::vector<size_t> sizes;
    for (const std::string& path : paths) {
      files.push_back(open(path.c_str(), O_RDONLY | O_CLOEXEC));
      struct stat about{};
      if (files.back() >= 0 && fstat(files.back(), &about) == 0) {
        sizes.push_back(static_cast<size_t>(about.st_size));
        bytes_ += sizes.back();
      }
    }
    const std::string fault = sizes.size() == paths.size() ? Load(files, sizes) : "no file";
    for (int file : files) {
      if (file >= 0) close(file);
    }
    if (fault.empty()) return;
    Unmap();  // there will be no destructor
    RefuseFile(paths[0], fault);
  }
  ~MappedFiles() { Unmap(); }

  const char* data() const { return static_cast<const char*>(data_); }
  size_t bytes() const { return bytes_; }

  static constexpr bool _type_mutable = true;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("tvm_stretch.MappedFiles", MappedFiles, ffi::Object);

 private:
  void Unmap() {
    if (data_ != MAP_FAILED) munmap(data_, bytes_);
  }

  // Returns the error, empty on success.
  std::string Load(const std::vector<int>& files, const std::vector<size_t>& sizes) {
    constexpr int kAccess = PROT_READ | PROT_WRITE;
    data_ = mmap(nullptr, bytes_, kAccess, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data_ == MAP_FAILED) return std::strerror(errno);
    if (mmap(data_, sizes[0], kAccess, MAP_PRIVATE | MAP_FIXED, files[0], 0) == MAP_FAILED) {
      return std::strerror(errno);
    }
    size_t place = sizes[0];
    for (size_t i = 1; i < files.size(); place += sizes[i++]) {
      for (size_t done = 0; done < sizes[i];) {
        char* target = static_cast<char*>(data_) + place + done;
        const ssize_t got = pread(files[i], target, sizes[i] - done, static_cast<off_t>(done));
        if (got <= 0) return got == 0 ? "its end" : std::strerror(errno);
        done += static_cast<size_t>(got);
      }
    }
    return "";
  }

  void* data_ = MAP_FAILED;
  size_t bytes_ = 0;
};

[[noreturn]] void RefuseWeights() {
  TVM_FFI_THROW(ValueError) << "expected the weights that belong to the artifact's graph, got "
                               "damaged or other ones; export the model again";
  TVM_FFI_UNREACHABLE();
}

// While it lives, the system reads a mapped file far ahead of where it is touched.
class ReadAhead {
 public:
  ReadAhead(char* data, int64_t bytes) : bytes_(bytes) {
    const auto before = reinterpret_cast<uintptr_t>(data) % sysconf(_SC_PAGESIZE);
    start_ = data - before;
    if (bytes_ > 0) bytes_ += before;
    Advise(MADV_SEQUENTIAL);
  }
  ~ReadAhead() { Advise(MADV_NORMAL); }
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

 private:
  void Advise(int advice) const {
    if (bytes_ > 0) madvise(start_, bytes_, advice);  // may fail: it is only advice
  }

  char* start_;
  size_t bytes_;
};

// The weights after a header, which gives their size.
const char* HeadedWeights(const char* section, uint64_t* bytes) {
  WeightsHeader header;
  std::memcpy(&header, section, sizeof(header));
  if (std::memcmp(header.magic, kWeightsMagic, sizeof(kWeightsMagic)) != 0) RefuseWeights();
  *bytes = header.bytes;
  return section + sizeof(header);
}

}  // namespace

Preparation::Preparation(const GraphSpec& graph, const KernelTable& kernels, BoundTensors* tensors,
                         std::function<void()> check)
    : is_serial_(graph.threads == 1), check_(std::move(check)), done_(graph.prepare.size()) {
  for (size_t node = 0; node < graph.prepare.size(); ++node) {
    nodes_.emplace_back(graph.prepare, std::vector<int64_t>{static_cast<int64_t>(node)}, kernels,
                        tensors);
    std::vector<size_t>& after = after_.emplace_back();
    for (size_t earlier = 0; earlier < node; ++earlier) {
      if (DependsOn(graph, graph.prepare[node], graph.prepare[earlier])) after.push_back(earlier);
    }
  }
}

void Preparation::Run() {
  // Kernels of several threads have a pool that belongs to the calling thread.
  const size_t most = is_serial_ ? kMostHelpers : 1;
  const size_t helpers = std::min(std::max<size_t>(AllowedCores().size(), 1) - 1, most);
  std::vector<std::thread> threads;
  try {
    while (threads.size() < helpers) {
      threads.emplace_back([this] {
        Check();
        if (is_serial_) Work();
      });
    }
  } catch (const std::exception&) {
    // There is no thread or no memory left: this one does the work.
  }
  Work();
  Check();
  for (std::thread& thread : threads) thread.join();
  if (failure_) throw *failure_;
}

void Preparation::Check() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (std::exchange(checking_, true)) return;  // another thread does it
  }
  Finish(Attempt(check_), nullptr);
}

void Preparation::Work() {
  const std::atomic<bool> never{false};
  for (;;) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (next_ == nodes_.size()) return;
    const size_t node = next_++;
    changed_.wait(lock, [&] { return failure_ || IsReady(node); });
    if (failure_) return;
    lock.unlock();
    Finish(Attempt([&] { nodes_[node].Run(never, nullptr); }), &node);
  }
}

bool Preparation::IsReady(size_t node) const {
  return std::all_of(after_[node].begin(), after_[node].end(),
                     [this](size_t earlier) { return done_[earlier]; });
}

void Preparation::Finish(Failure failure, const size_t* node) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (node != nullptr) done_[*node] = true;
  if (!failure_) failure_ = std::move(failure);
  changed_.notify_all();
}

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

std::vector<ffi::Module> CodeOf(const ffi::Array<ffi::Any>& imports, const GraphSpec& spec) {
  std::vector<ffi::Module> code;
  for (const ffi::Any& module : imports) code.push_back(module.cast<ffi::Module>());
  // TVM's loader brings the imports of an artifact back in reverse order.
  if (!code.empty() && std::string_view(code.back()->kind()) == "library") {
    std::reverse(code.begin(), code.end());
  }
  if (code.size() < spec.processors.size()) {
    TVM_FFI_THROW(ValueError) << "expected code for each of the " << spec.processors.size()
                              << " processors as import of the executor, got " << code.size()
                              << "; open the artifact with load_module";
  }
  return code;
}

Program::Program(GraphSpec spec, const std::vector<ffi::Module>& code, const char* weights,
                 ffi::Any weights_owner, std::optional<uint64_t> fingerprint)
    : spec_(std::move(spec)),
      kernels_(code[kCpu], spec_, kCpu),
      weights_owner_(std::move(weights_owner)),
      prepared_(spec_.prepared_bytes) {
  memory_.constant = const_cast<char*>(weights);
  memory_.prepared = prepared_.data();
  UseThreads(spec_.threads);
  Prepare(fingerprint);
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

void Program::Prepare(std::optional<uint64_t> fingerprint) const {
  const ReadAhead fast(memory_.constant, spec_.weights_bytes);
  BoundTensors tensors(spec_, memory_);
  Preparation(spec_, kernels_, &tensors, [&] {
    if (fingerprint && *fingerprint != Fingerprint(memory_.constant, spec_.weights_bytes)) {
      RefuseWeights();
    }
  }).Run();
}

std::shared_ptr<const Program> Program::FromLibrary(GraphSpec spec,
                                                    const std::vector<ffi::Module>& code,
                                                    uint64_t fingerprint) {
  const ffi::Module& library = code[kCpu];
  auto find = library->GetFunction(kWeightsSymbol, true);
  if (!find.has_value()) {
    TVM_FFI_THROW(ValueError) << "expected weights ('" << kWeightsSymbol
                              << "') in the artifact, got none; give its data file to load, too; "
                                 "artifacts are written by Model.export, not export_library";
  }
  const char* section = static_cast<const char*>((*find)().cast<void*>());
  uint64_t bytes = 0;
  const char* weights = HeadedWeights(section, &bytes);
  if (bytes != static_cast<uint64_t>(spec.weights_bytes)) RefuseWeights();
  ffi::Any owner = library;  // the weights are part of the library's mapping
  return std::make_shared<Program>(std::move(spec), code, weights, std::move(owner), fingerprint);
}

std::shared_ptr<const Program> Program::FromFiles(GraphSpec spec,
                                                  const std::vector<ffi::Module>& code,
                                                  uint64_t fingerprint,
                                                  const std::vector<std::string>& paths) {
  auto files = ffi::make_object<MappedFiles>(paths);
  const size_t bytes = sizeof(WeightsHeader) + static_cast<size_t>(spec.weights_bytes);
  if (files->bytes() != bytes) {
    TVM_FFI_THROW(ValueError) << "expected " << bytes << " bytes for the weights in '" << paths[0]
                              << "' and what belongs to it, got " << files->bytes()
                              << "; upload them again";
  }
  uint64_t first = 0;  // in the first file
  const char* weights = HeadedWeights(files->data(), &first);
  return std::make_shared<Program>(std::move(spec), code, weights, ffi::ObjectRef(std::move(files)),
                                   fingerprint);
}

}  // namespace tvm_stretch

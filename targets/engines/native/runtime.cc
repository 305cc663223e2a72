#include "runtime.h"

#include <dlfcn.h>
#include <glob.h>
#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>
#include <vector>

namespace tvm_stretch::engine {
namespace {

constexpr const char* kFirstLine = "tvm_stretch.engine 1";
constexpr size_t kMostTensors = 64;  // DSP_MAX_ARGS

[[noreturn]] void RefuseCode(const std::string& what) {
  throw std::runtime_error("expected the code of an engine, got " + what +
                           "; compile the model again");
}

// The rest of a line, without the blank before it.
std::string Rest(std::istringstream* words) {
  std::string text;
  std::getline(*words >> std::ws, text);
  return text;
}

void ReadLine(const std::string& line, EngineSpec* spec, std::vector<size_t>* sizes) {
  std::istringstream words(line);
  std::string word, key;
  words >> word;
  if (word == "provider") {
    spec->provider = Rest(&words);
  } else if (word == "package") {
    spec->package = Rest(&words);
  } else if (word == "library") {
    spec->library = Rest(&words);
  } else if (word == "hardware") {
    spec->hardware = Rest(&words);
  } else if (word == "compiled") {
    spec->compiled = Rest(&words);
  } else if (word == "threads") {
    words >> spec->threads;
  } else if (word == "file" || word == "option") {
    words >> key;
    (word == "file" ? spec->files : spec->options).emplace_back(key, Rest(&words));
  } else if (word == "memory") {
    words >> spec->memory.name >> spec->memory.option >> spec->memory.library;
    if (words.fail()) RefuseCode("'" + line + "'");
  } else if (word == "model") {
    ModelSpec model;
    size_t bytes = 0;
    words >> bytes >> model.inputs >> model.outputs;
    // Each of them first: a negative number is a large one here, and a sum may wrap.
    const bool fits = model.inputs <= kMostTensors && model.outputs <= kMostTensors &&
                      model.inputs + model.outputs <= kMostTensors;
    if (words.fail() || !fits) RefuseCode("'" + line + "'");
    spec->models.push_back(model);
    sizes->push_back(bytes);
  } else {
    RefuseCode("'" + line.substr(0, 80) + "'");
  }
}

constexpr const char* kFolders = "TVM_STRETCH_ENGINE_PATH";
constexpr const char* kHardware[] = {"cpu", "gpu", "npu"};  // ONNX Runtime's numbers

// The folder of this program.
std::string OwnFolder() {
  char path[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 1);
  const std::string name(path, length > 0 ? length : 0);
  return name.substr(0, name.rfind('/'));
}

// Folders that may hold a library: those of the variable, this program's (an app keeps all its
// libraries together), and that of a Python package installed beside ours.
std::vector<std::string> Folders(const std::string& package) {
  std::vector<std::string> folders;
  const char* named = std::getenv(kFolders);
  std::istringstream list(named == nullptr ? "" : named);
  for (std::string folder; std::getline(list, folder, ':');) {
    if (!folder.empty()) folders.push_back(folder);
  }
  folders.push_back(OwnFolder());
  if (!package.empty()) folders.push_back(OwnFolder() + "/../../" + package);
  return folders;
}

// The path of a library, or its bare name, which the system's loader may know. A wheel's library
// has the version in its name, so names may continue.
std::string Find(const std::string& package, const std::string& name) {
  for (const std::string& folder : Folders(package)) {
    for (const char* more : {"", ".*"}) {
      glob_t found{};
      const bool is_there = glob((folder + "/" + name + more).c_str(), 0, nullptr, &found) == 0;
      const std::string path = is_there ? found.gl_pathv[0] : "";
      globfree(&found);
      if (is_there) return path;
    }
  }
  return name;
}

[[noreturn]] void Refuse(const std::string& text) { throw std::runtime_error(text); }

}  // namespace

EngineSpec EngineSpec::FromFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string line;
  if (!std::getline(file, line) || line != kFirstLine) RefuseCode("another format");
  EngineSpec spec;
  std::vector<size_t> sizes;
  while (std::getline(file, line) && line != "end") ReadLine(line, &spec, &sizes);
  if (!file) RefuseCode("a part of it");
  const std::string rest{std::istreambuf_iterator<char>(file), {}};
  size_t start = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] > rest.size() - start) RefuseCode("a part of it");
    spec.models[i].bytes = rest.substr(start, sizes[i]);
    start += sizes[i];
  }
  if (start != rest.size()) RefuseCode("more than it says");
  return spec;
}

Runtime::Runtime(const EngineSpec& spec) : spec_(spec) {
  Load();
  Check(api_.CreateEnv(kOrtLogFatal, "tvm_stretch", &env_), "ONNX Runtime's start");
  if (!spec.is_built_in()) {
    const std::string library = Find(spec.package, spec.library);
    OrtStatus* status =
        api_.RegisterExecutionProviderLibrary(env_, spec.provider.c_str(), library.c_str());
    // ONNX Runtime tells at length all places where it looked.
    if (status && library == spec.library && !dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL)) {
      api_.ReleaseStatus(status);
      Refuse("expected " + library + " for " + spec.provider + ", got none; install it, or name " +
             "its folder in " + kFolders);
    }
    Check(status, "the library " + library + " of " + spec.provider);
    FindDevice();
    const std::string& driver = spec.memory.library;  // of the device: emulators have none
    shares_memory_ = !driver.empty() && dlopen(driver.c_str(), RTLD_NOW | RTLD_LOCAL) != nullptr;
  }
}

void Runtime::Load() {
  const std::string name = Find("onnxruntime/capi", "libonnxruntime.so");
  void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    Refuse("expected ONNX Runtime for an engine, got none (" + std::string(dlerror()) +
           "); install onnxruntime, or name the folder of libonnxruntime.so in " + kFolders);
  }
  auto base = reinterpret_cast<const OrtApiBase* (*)()>(dlsym(library, "OrtGetApiBase"));
  if (base == nullptr) Refuse("expected ONNX Runtime for an engine, got another " + name);
  version_ = base()->GetVersionString();
  const auto* table = static_cast<void* const*>(base()->GetApi(kOrtApiVersion));
  if (table == nullptr) {
    Refuse("expected ONNX Runtime 1." + std::to_string(kOrtApiVersion) +
           " or later for an engine, got " + version_ + "; install a later one");
  }
#define TVM_STRETCH_ORT_FILL(position, result, name, parameters) \
  api_.name = reinterpret_cast<decltype(api_.name)>(table[position]);
  TVM_STRETCH_ORT_FUNCTIONS(TVM_STRETCH_ORT_FILL)
#undef TVM_STRETCH_ORT_FILL
}

void Runtime::FindDevice() {
  const OrtEpDevice* const* devices = nullptr;
  size_t count = 0;
  Check(api_.GetEpDevices(env_, &devices, &count), "the list of devices");
  std::string others;
  for (size_t i = 0; i < count && device_ == nullptr; ++i) {
    if (spec_.provider != api_.EpDevice_EpName(devices[i])) continue;
    const int type = api_.HardwareDevice_Type(api_.EpDevice_Device(devices[i]));
    const std::string hardware = type >= 0 && type < 3 ? kHardware[type] : "another";
    if (spec_.hardware.empty() || spec_.hardware == hardware) device_ = devices[i];
    others += " " + hardware;
  }
  if (device_ != nullptr) return;
  Refuse("expected a device " + (spec_.hardware.empty() ? "" : spec_.hardware + " ") + "of " +
         spec_.provider + ", got" + (others.empty() ? " none" : others) +
         "; name another in the target");
}

void Runtime::Check(OrtStatus* status, const std::string& what) const {
  if (status != nullptr) Refuse("expected success of " + what + ", got: " + Message(status));
}

std::string Runtime::Message(OrtStatus* status) const {
  std::string message = api_.GetErrorMessage(status);
  api_.ReleaseStatus(status);
  for (char& letter : message) {  // one line: the last one is what the host reports
    if (letter == '\n') letter = ' ';
  }
  return message;
}

void Runtime::SetOptions(OrtSessionOptions* options, const std::string& context) const {
  auto set = [&](const char* key, const char* value) {
    Check(api_.AddSessionConfigEntry(options, key, value), key);
  };
  Check(api_.SetIntraOpNumThreads(options, spec_.threads), "the number of threads");
  set("session.intra_op.allow_spinning", "0");  // the executor's cores are for its kernels
  set("session.x64quantprecision", "1");        // exact sums of 8-bit integers without VNNI
  if (spec_.is_built_in()) return;
  set("session.disable_cpu_ep_fallback", "1");
  if (!context.empty()) {
    set("ep.context_enable", "1");
    set("ep.context_embed_mode", "1");
    set("ep.context_file_path", context.c_str());
  }
  std::vector<std::string> files;
  std::vector<const char*> keys, values;
  for (const auto& [key, name] : spec_.files) files.push_back(Find(spec_.package, name));
  for (size_t i = 0; i < files.size(); ++i) {
    keys.push_back(spec_.files[i].first.c_str());
    values.push_back(files[i].c_str());
  }
  for (const auto& [key, value] : spec_.options) {
    keys.push_back(key.c_str());
    values.push_back(value.c_str());
  }
  if (shares_memory_) {
    keys.push_back(spec_.memory.option.c_str());
    values.push_back("1");
  }
  Check(api_.SessionOptionsAppendExecutionProvider_V2(options, env_, &device_, 1, keys.data(),
                                                      values.data(), keys.size()),
        "the options of " + spec_.provider);
}

OrtSession* Runtime::NewSession(const std::string& model, const std::string& context) const {
  OrtSessionOptions* options = nullptr;
  Check(api_.CreateSessionOptions(&options), "new options");
  SetOptions(options, context);
  OrtSession* session = nullptr;
  OrtStatus* const status =
      api_.CreateSessionFromArray(env_, model.data(), model.size(), options, &session);
  api_.ReleaseSessionOptions(options);
  if (spec_.compiled.empty()) {
    Check(status, "a session of " + spec_.provider);
  } else if (status != nullptr) {
    Refuse("expected models that " + spec_.provider +
           " can open here, got some that were compiled " + "with " + spec_.compiled +
           ", and here is " + Versions() + ", which says: " + Message(status) +
           "; compile the network again for this device and these versions, or "
           "install those of the models");
  }
  return session;
}

OrtAllocator* Runtime::SharedMemory(const OrtSession* session) const {
  if (!shares_memory_) return nullptr;
  OrtMemoryInfo* info = nullptr;
  Check(api_.CreateMemoryInfo(spec_.memory.name.c_str(), kOrtDeviceAllocator, 0, kOrtMemTypeDefault,
                              &info),
        "the description of shared memory");
  OrtAllocator* allocator = nullptr;
  OrtStatus* const status = api_.CreateAllocator(session, info, &allocator);
  api_.ReleaseMemoryInfo(info);
  if (status != nullptr) api_.ReleaseStatus(status);
  return allocator;
}

std::string Runtime::Versions() const {
  const std::string text = "onnxruntime " + version_;
  if (device_ == nullptr) return text;
  const char* version = api_.GetKeyValue(api_.EpDevice_EpMetadata(device_), "version");
  return text + ", " + spec_.provider + " " + (version == nullptr ? "" : version);
}

}  // namespace tvm_stretch::engine

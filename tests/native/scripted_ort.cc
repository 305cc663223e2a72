// A library in place of ONNX Runtime, whose models are words that say what they do. It has a
// provider "Scripted" with one NPU. What is no such word is a model that sleeps for SCRIPTED_MS
// milliseconds and leaves its results as they are. With the provider's option "share", sessions
// have memory called ScriptedShared; its use is noted in the file SCRIPTED_NOTES, one line a call.
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "targets/engines/native/ort.h"

namespace tvm_stretch::engine {

struct OrtStatus {
  std::string message;
};
struct OrtEnv {
  bool has_provider = false;
};
struct OrtSession {
  std::string word;
  bool shares = false;
  int runs = 0;
};
struct OrtSessionOptions {
  bool has_provider = false, shares = false;
};
struct OrtValue {
  float* data;
  size_t count;
  std::vector<float> shared;
};
struct OrtMemoryInfo {
  std::string name;
};
struct OrtAllocator {};
struct OrtHardwareDevice {};
struct OrtEpDevice {
  OrtHardwareDevice hardware;
};
struct OrtKeyValuePairs {};

namespace {

void Note(const std::string& line) {
  if (const char* path = std::getenv("SCRIPTED_NOTES")) {
    std::ofstream(path, std::ios::app) << line << "\n";
  }
}

OrtStatus* Failed(const std::string& message) { return new OrtStatus{message}; }

const char* GetErrorMessage(const OrtStatus* status) { return status->message.c_str(); }
void ReleaseStatus(OrtStatus* status) { delete status; }

OrtStatus* CreateEnv(int, const char*, OrtEnv** env) {
  *env = new OrtEnv;
  return nullptr;
}

OrtStatus* CreateSessionOptions(OrtSessionOptions** options) {
  *options = new OrtSessionOptions;
  return nullptr;
}
void ReleaseSessionOptions(OrtSessionOptions* options) { delete options; }
OrtStatus* SetIntraOpNumThreads(OrtSessionOptions*, int) { return nullptr; }
OrtStatus* AddSessionConfigEntry(OrtSessionOptions*, const char*, const char*) { return nullptr; }

OrtStatus* CreateSessionFromArray(const OrtEnv*, const void* model, size_t bytes,
                                  const OrtSessionOptions* options, OrtSession** session) {
  const std::string word(static_cast<const char*>(model), bytes);
  if (word == "closed") return Failed("no context of this version\n(error 5000)");
  if (!options->has_provider) return Failed("a session without the provider");
  *session = new OrtSession{word, options->shares};
  return nullptr;
}
void ReleaseSession(OrtSession* session) { delete session; }

OrtStatus* CreateCpuMemoryInfo(int, int, OrtMemoryInfo** info) {
  *info = new OrtMemoryInfo;
  return nullptr;
}
OrtStatus* CreateMemoryInfo(const char* name, int, int, int, OrtMemoryInfo** info) {
  *info = new OrtMemoryInfo{name};
  return nullptr;
}
void ReleaseMemoryInfo(OrtMemoryInfo* info) { delete info; }

OrtStatus* CreateTensorWithDataAsOrtValue(const OrtMemoryInfo*, void* data, size_t bytes,
                                          const int64_t*, size_t, int, OrtValue** value) {
  *value = new OrtValue{static_cast<float*>(data), bytes / sizeof(float), {}};
  return nullptr;
}
OrtStatus* CreateAllocator(const OrtSession* session, const OrtMemoryInfo* info,
                           OrtAllocator** allocator) {
  static OrtAllocator only;
  if (!session->shares || info->name != "ScriptedShared") return Failed("no such memory");
  Note("memory of " + session->word);
  *allocator = &only;
  return nullptr;
}
OrtStatus* CreateTensorAsOrtValue(OrtAllocator*, const int64_t* shape, size_t dims, int,
                                  OrtValue** value) {
  size_t count = 1;
  for (size_t i = 0; i < dims; ++i) count *= shape[i];
  *value = new OrtValue{nullptr, count, std::vector<float>(count)};
  (*value)->data = (*value)->shared.data();
  Note("tensor");
  return nullptr;
}
OrtStatus* GetTensorMutableData(OrtValue* value, void** data) {
  *data = value->data;
  return nullptr;
}
void ReleaseValue(OrtValue* value) { delete value; }

OrtStatus* Run(OrtSession* session, const OrtRunOptions*, const char* const* names,
               const OrtValue* const* inputs, size_t count, const char* const*, size_t,
               OrtValue** outputs) {
  const std::string& word = session->word;
  ++session->runs;
  if (session->shares) Note(outputs[0]->shared.empty() ? "run" : "run in it");
  if (word == "add" || word == "sometimes") {
    if (word == "sometimes" && session->runs % 3 == 0) return Failed("the third run");
    if (count != 2 || std::strcmp(names[1], "i1") != 0) return Failed("other inputs");
    for (size_t i = 0; i < outputs[0]->count; ++i) {
      outputs[0]->data[i] = inputs[0]->data[i] + inputs[1]->data[i];
    }
    return nullptr;
  }
  if (word == "refuse") return Failed("refused,\nas written");
  if (word == "crash") raise(SIGSEGV);
  if (word == "exit") _exit(7);
  while (word == "hang") pause();
  const char* milliseconds = std::getenv("SCRIPTED_MS");
  usleep(1000 * (milliseconds == nullptr ? 0 : std::atoi(milliseconds)));
  return nullptr;
}

OrtStatus* RegisterExecutionProviderLibrary(OrtEnv* env, const char*, const char*) {
  env->has_provider = true;
  return nullptr;
}

OrtStatus* GetEpDevices(const OrtEnv* env, const OrtEpDevice* const** devices, size_t* count) {
  static const OrtEpDevice device;
  static const OrtEpDevice* const list[] = {&device};
  *devices = list;
  *count = env->has_provider ? 1 : 0;
  return nullptr;
}

OrtStatus* SessionOptionsAppendExecutionProvider_V2(OrtSessionOptions* options, OrtEnv*,
                                                    const OrtEpDevice* const*, size_t,
                                                    const char* const* keys, const char* const*,
                                                    size_t count) {
  options->has_provider = true;
  for (size_t i = 0; i < count; ++i) options->shares |= std::strcmp(keys[i], "share") == 0;
  return nullptr;
}

int HardwareDevice_Type(const OrtHardwareDevice*) { return 2; }
const char* EpDevice_EpName(const OrtEpDevice*) { return "Scripted"; }
const OrtKeyValuePairs* EpDevice_EpMetadata(const OrtEpDevice*) {
  static const OrtKeyValuePairs none;
  return &none;
}
const OrtHardwareDevice* EpDevice_Device(const OrtEpDevice* device) { return &device->hardware; }
const char* GetKeyValue(const OrtKeyValuePairs*, const char*) { return "3.1"; }

const void* GetApi(uint32_t) {
  static const std::vector<void*>& table = [] {
    static std::vector<void*> filled(400);
#define TVM_STRETCH_SCRIPTED(position, result, name, parameters) \
  filled[position] = reinterpret_cast<void*>(&name);
    TVM_STRETCH_ORT_FUNCTIONS(TVM_STRETCH_SCRIPTED)
#undef TVM_STRETCH_SCRIPTED
    return std::ref(filled);
  }();
  return table.data();
}

const char* GetVersionString() { return "1.99.0"; }

}  // namespace
}  // namespace tvm_stretch::engine

extern "C" const tvm_stretch::engine::OrtApiBase* OrtGetApiBase() {
  using namespace tvm_stretch::engine;
  static const OrtApiBase base = {&GetApi, &GetVersionString};
  return &base;
}

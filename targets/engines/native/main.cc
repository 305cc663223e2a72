// A vendor's engine in a process of its own, so that its closed libraries can neither end nor block
// the process that runs the other processors. CODE is a file that runtime.h describes.
//
//   tvm_stretch_engine CODE CONTROL BLOCK WEIGHTS SPIN_US
//       serves regions; targets/hexagon/dsp/server.c tells the other arguments
//   tvm_stretch_engine describe CODE
//       prints the versions of what it found
//   tvm_stretch_engine check CODE
//       makes a session of every model, and prints a line for each: "verdict takes", or "verdict "
//       and why the provider refuses it
//   tvm_stretch_engine contexts CODE PREFIX
//       writes every model as the provider compiled it, to PREFIX<number>.onnx
//
// It speaks the protocol of a DSP: the model of a region is a kernel. A failure is one line on
// standard error, and ends it.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <vector>

extern "C" {
#include "targets/hexagon/dsp/dispatch.h"

int DspServerMain(int argc, char** argv);  // the main() of targets/hexagon/dsp/server.c
}

#include "session.h"

namespace tvm_stretch::engine {
namespace {

constexpr int kFailed = 3;

std::vector<std::unique_ptr<Session>>& Sessions() {
  static auto& sessions = *new std::vector<std::unique_ptr<Session>>();
  return sessions;
}

int Call(size_t number, const TVMFFIAny* args, int32_t count) {
  try {
    std::vector<const DLTensor*> tensors;
    for (int32_t i = 0; i < count; ++i) {
      tensors.push_back(static_cast<const DLTensor*>(args[i].v_ptr));
    }
    Sessions().at(number)->Run(tensors);
    return 0;
  } catch (const std::exception& error) {
    TVMFFIErrorSetRaisedFromCStr("DeviceError", error.what());
    return -1;
  }
}

// The server's table of kernels is one of plain functions, so each model gets a function.
template <size_t kNumber>
int CallOf(void*, const TVMFFIAny* args, int32_t count, TVMFFIAny*) {
  return Call(kNumber, args, count);
}

// Each line is written at once: it stands even if the provider ends this process at the next model.
void PrintVerdicts(const Runtime& runtime, const std::vector<ModelSpec>& models) {
  for (const ModelSpec& model : models) {
    std::string verdict = "takes";
    try {
      const Session session(runtime, model);
    } catch (const std::exception& error) {
      verdict = error.what();
      std::replace(verdict.begin(), verdict.end(), '\n', ' ');
    }
    std::printf("\nverdict %s\n", verdict.c_str());  // libraries may have printed half a line
    std::fflush(stdout);
  }
}

int Run(int argc, char** argv) {
  const std::string word = argc > 1 ? argv[1] : "";
  const bool serves = word != "describe" && word != "check" && word != "contexts";
  const int place = serves ? 1 : 2;
  if (argc <= place) {
    std::fprintf(stderr, "expected the file of an engine's code, got none\n");
    return kFailed;
  }
  const EngineSpec spec = EngineSpec::FromFile(argv[place]);
  const Runtime runtime(spec);
  if (word == "describe") std::puts(runtime.Versions().c_str());
  if (word == "contexts" && argc > place + 1) {
    for (size_t i = 0; i < spec.models.size(); ++i) {
      runtime.NewSession(spec.models[i].bytes, argv[place + 1] + std::to_string(i) + ".onnx");
    }
  }
  if (word == "check") PrintVerdicts(runtime, spec.models);
  if (serves) {
    for (const ModelSpec& model : spec.models) {
      Sessions().push_back(std::make_unique<Session>(runtime, model));
    }
  }
  // Vendors' libraries are not made to be unloaded: leave them as they are.
  std::fflush(stdout);
  _exit(serves ? DspServerMain(argc - 1, argv + 1) : 0);
}

}  // namespace
}  // namespace tvm_stretch::engine

#define TVM_STRETCH_FOUR(n)                                           \
  tvm_stretch::engine::CallOf<n>, tvm_stretch::engine::CallOf<n + 1>, \
      tvm_stretch::engine::CallOf<n + 2>, tvm_stretch::engine::CallOf<n + 3>
#define TVM_STRETCH_16(n) \
  TVM_STRETCH_FOUR(n), TVM_STRETCH_FOUR(n + 4), TVM_STRETCH_FOUR(n + 8), TVM_STRETCH_FOUR(n + 12)
#define TVM_STRETCH_64(n) \
  TVM_STRETCH_16(n), TVM_STRETCH_16(n + 16), TVM_STRETCH_16(n + 32), TVM_STRETCH_16(n + 48)

extern "C" {
extern const DspCall dsp_kernels[] = {TVM_STRETCH_64(0), TVM_STRETCH_64(64), TVM_STRETCH_64(128),
                                      TVM_STRETCH_64(192)};
extern const uint32_t dsp_num_kernels = sizeof(dsp_kernels) / sizeof(dsp_kernels[0]);
}

int main(int argc, char** argv) {
  try {
    return tvm_stretch::engine::Run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    _exit(tvm_stretch::engine::kFailed);
  }
}

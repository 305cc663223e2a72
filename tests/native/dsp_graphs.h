// A graph that runs on the CPU and on a DSP or an engine, for the tests of their sessions.
#ifndef TVM_STRETCH_TESTS_DSP_GRAPHS_H_
#define TVM_STRETCH_TESTS_DSP_GRAPHS_H_

#include <string>

#include "graphs.h"
#include "kernels.h"

namespace tvm_stretch::testing {

inline std::string Replaced(std::string text, const std::string& from, const std::string& to) {
  return text.replace(text.find(from), from.size(), to);
}

constexpr const char* kProcessors =
    R"({"name":"cpu","kind":"cpu"},{"name":"hexagon","kind":"dsp"})";

// y = (x - w) + (x - w) in one region, on a DSP, the first sum by `kernel`.
inline std::string AloneOnDsp(const std::string& kernel) {
  std::string text = Replaced(SmallGraph(), R"({"name":"cpu","kind":"cpu"})", kProcessors);
  text = Replaced(text, R"("name":"r0","processor":0)", R"("name":"r0","processor":1)");
  return Replaced(text, R"({"kernel":"add","name":"a")",
                  R"({"kernel":")" + kernel + R"(","name":"a")");
}

// The same: the first sum on a DSP by `kernel`, the second on the CPU, and the copy
// on the DSP again.
inline std::string DspGraph(const std::string& kernel = "add") {
  std::string text = Replaced(SmallGraph(), R"({"name":"cpu","kind":"cpu"})", kProcessors);
  text = Replaced(
      text, R"({"name":"r0","processor":0,"nodes":[0,1,2],"after":[],"receives":[0],"sends":[1]})",
      R"({"name":"r0","processor":1,"nodes":[0],"after":[],"receives":[0],"sends":[4]},)"
      R"({"name":"r1","processor":0,"nodes":[1],"after":[0],"receives":[4],"sends":[5]},)"
      R"({"name":"r2","processor":1,"nodes":[2],"after":[1],"receives":[6],"sends":[1]})");
  return Replaced(text, R"({"kernel":"add","name":"a")",
                  R"({"kernel":")" + kernel + R"(","name":"a")");
}

inline float Compute(const ffi::Module& module, float x) {
  ffi::Tensor y = Filled({4, 4}, 0.0f);
  Call(module, "invoke", Filled({16}, x), y);
  return First(y);
}

inline std::string Health(const ffi::Module& module) {
  return Call(module, "health").cast<ffi::String>();
}

}  // namespace tvm_stretch::testing

#endif  // TVM_STRETCH_TESTS_DSP_GRAPHS_H_

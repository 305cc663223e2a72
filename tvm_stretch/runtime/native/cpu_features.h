// Which instruction sets this processor has, by LLVM's names.
#ifndef TVM_STRETCH_CPU_FEATURES_H_
#define TVM_STRETCH_CPU_FEATURES_H_

#include <string>
#include <vector>

namespace tvm_stretch {

// All that this processor has of the features that artifacts may ask for, sorted.
std::vector<std::string> CpuFeatures();

// Throws ValueError if this processor lacks one of them: kernels would die of SIGILL. `origin` says
// where they come from.
void RequireCpuFeatures(const std::vector<std::string>& features, const std::string& origin);

}  // namespace tvm_stretch

#endif  // TVM_STRETCH_CPU_FEATURES_H_

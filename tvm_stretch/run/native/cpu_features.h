// The instruction sets of this processor, by LLVM's names.
#pragma once

#include <string>
#include <vector>

namespace tvm_stretch {

// The features of this processor that artifacts may require, sorted.
std::vector<std::string> CpuFeatures();

// Throws ValueError if this processor lacks one of them: kernels would fail with SIGILL. `origin`
// names the source of the requirement.
void RequireCpuFeatures(const std::vector<std::string>& features, const std::string& origin);

}  // namespace tvm_stretch

// Workspaces, the memory that kernels allocate while they run.
#pragma once

#include <string>

namespace tvm_stretch {

// Libraries that are loaded from now on get workspaces from us. TVM's own function is in
// libtvm_runtime.so, which models with one thread do not need, and throws if there is no memory:
// through code that is not C++, and on threads of its pool, where an exception ends the process.
// Ours returns null with an error that kernels pass on.
void ProvideWorkspaces();

// Whether a kernel failed because of missing memory; TVM's pool reports only text.
bool IsMissingWorkspace(const std::string& message);

}  // namespace tvm_stretch

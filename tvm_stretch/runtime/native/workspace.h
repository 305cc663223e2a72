// Workspaces, the memory that kernels allocate while they run.
#ifndef TVM_STRETCH_WORKSPACE_H_
#define TVM_STRETCH_WORKSPACE_H_

#include <string>

namespace tvm_stretch {

// Kernels allocate memory through TVM, which throws if there is none: through code that is not C++,
// and on threads of TVM's pool, where an exception ends the process. Libraries that are loaded from
// now on call our function instead, which calls TVM and returns null with an error that kernels can
// pass on.
void CatchMissingWorkspaces();

// Whether a kernel failed because of missing memory; TVM's pool reports only text.
bool IsMissingWorkspace(const std::string& message);

}  // namespace tvm_stretch

#endif  // TVM_STRETCH_WORKSPACE_H_

// Memory that kernels ask for while they run.
#ifndef TVM_STRETCH_WORKSPACE_H_
#define TVM_STRETCH_WORKSPACE_H_

#include <string>

namespace tvm_stretch {

// Kernels call TVM for memory, which throws where there is none: through code that is not C++, and
// on threads of TVM's pool, where that ends the process. Libraries that are loaded from now on ask
// us instead, who ask TVM: they get null and an error, which a kernel knows how to pass on.
void CatchMissingWorkspaces();

// Whether a kernel failed for want of memory; TVM's pool tells only in words.
bool IsMissingWorkspace(const std::string& message);

}  // namespace tvm_stretch

#endif  // TVM_STRETCH_WORKSPACE_H_

// Whether others may have written what lies in a cache; `tvm_stretch/trusted.py` says why that
// counts.
#ifndef TVM_STRETCH_OPENCL_TRUSTED_H_
#define TVM_STRETCH_OPENCL_TRUSTED_H_

#include <string>

namespace tvm_stretch::opencl {

// Whether nobody but this user and root may write to a folder, or to one above it. What is not
// there yet is made by us.
bool IsTrusted(const std::string& folder);

// Tells the user, once in a process, that a cache is not used, and which variable names another.
void SayNotTrusted(const std::string& folder, const char* variable);

// Makes a folder and those above it; whatever the umask, nobody else may write there.
void MakeFolder(const std::string& folder);

// The whole of a file that only this user and root can have written; "" of anything else, of pipes
// and symbolic links too.
std::string ReadOwn(const std::string& path);

}  // namespace tvm_stretch::opencl

#endif  // TVM_STRETCH_OPENCL_TRUSTED_H_

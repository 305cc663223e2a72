// Checks whether other users may have written files of a cache; `tvm_stretch/base/files.py` says
// why.
#ifndef TVM_STRETCH_OPENCL_TRUSTED_H_
#define TVM_STRETCH_OPENCL_TRUSTED_H_

#include <string>

namespace tvm_stretch::opencl {

// Whether only this user and root may write to a folder and the folders above it. Folders that do
// not exist yet are trusted, as we will make them.
bool IsTrusted(const std::string& folder);

// Tells the user, once in a process, that a cache is not used, and which variable sets another.
void SayNotTrusted(const std::string& folder, const char* variable);

// Makes a folder and its parents, writable only by this user whatever the umask is.
void MakeFolder(const std::string& folder);

// The content of a file that only this user and root can have written; "" for other files, pipes
// and symbolic links.
std::string ReadOwn(const std::string& path);

}  // namespace tvm_stretch::opencl

#endif  // TVM_STRETCH_OPENCL_TRUSTED_H_

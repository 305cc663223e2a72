// The file of an exported model: opened, checked and loaded as a library.
#pragma once

#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/module.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "errors.h"

namespace tvm_stretch::app {

namespace ffi = tvm::ffi;

// Has to outlive the code that was loaded from it: the system's loader knows libraries by their
// paths, and ours has the number of the descriptor in it.
class ArtifactFile {
 public:
  static ArtifactFile Open(const std::string& path);
  // `bytes` from `offset` on of a file that the caller has open.
  static ArtifactFile Open(int descriptor, int64_t offset, int64_t bytes);
  static ArtifactFile Copy(const void* data, size_t bytes);

  ArtifactFile(ArtifactFile&& other) noexcept : descriptor_(other.descriptor_) {
    other.descriptor_ = -1;
  }
  ArtifactFile(const ArtifactFile&) = delete;
  ArtifactFile& operator=(const ArtifactFile&) = delete;
  ~ArtifactFile();

  // The executor in it. Its weights are not prepared yet.
  ffi::Module Load() const;

 private:
  explicit ArtifactFile(int descriptor) : descriptor_(descriptor) {}

  int64_t Size() const;
  void CheckMachine() const;
  void CheckSeal() const;
  std::string Path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

  int descriptor_;
};

}  // namespace tvm_stretch::app

// Memory that the executor owns, and copies between strided tensors.
#ifndef TVM_STRETCH_MEMORY_H_
#define TVM_STRETCH_MEMORY_H_

#include <tvm/ffi/container/tensor.h>

#include <cstddef>
#include <cstdint>

namespace tvm_stretch {

// Zeroed memory that kernels can read and write; backed by huge pages where that pays.
class AlignedBuffer {
 public:
  explicit AlignedBuffer(size_t bytes);
  ~AlignedBuffer();
  AlignedBuffer(const AlignedBuffer&) = delete;
  AlignedBuffer& operator=(const AlignedBuffer&) = delete;

  char* data() const { return data_; }

 private:
  char* data_;
  size_t bytes_;
};

inline char* DataOf(const DLTensor& tensor) {
  return static_cast<char*>(tensor.data) + tensor.byte_offset;
}

// Whether kernels can take the tensor's memory as it is.
bool IsUsableInPlace(const DLTensor& tensor);

// Copies all elements; the two have the same shape and dtype, `to` is contiguous at `data`.
void CopyToContiguous(const DLTensor& from, char* data);
// The reverse.
void CopyFromContiguous(const char* data, const DLTensor& to);

// A fingerprint for detecting damage, not for security; about as fast as memory is read.
uint64_t Fingerprint(const void* data, size_t bytes);

}  // namespace tvm_stretch

#endif  // TVM_STRETCH_MEMORY_H_

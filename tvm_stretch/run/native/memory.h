// Memory that the executor owns, and copies between strided tensors.
#pragma once

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/json.h>
#include <tvm/ffi/string.h>

#include <cstddef>
#include <cstdint>
#include <optional>

#include "graph.h"

namespace tvm_stretch {

inline size_t RoundUp(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

namespace ffi = tvm::ffi;

// Who may see a buffer's memory: this process, or all that are given its file descriptor.
enum class Sharing { kPrivate, kShared };

// Zeroed memory that kernels can read and write. Private memory is backed by huge pages where that
// pays; shared memory is an anonymous file.
class TVM_STRETCH_API AlignedBuffer {
 public:
  explicit AlignedBuffer(size_t bytes, Sharing sharing = Sharing::kPrivate);
  ~AlignedBuffer();
  AlignedBuffer(const AlignedBuffer&) = delete;
  AlignedBuffer& operator=(const AlignedBuffer&) = delete;

  char* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  int fd() const { return fd_; }  // -1 for private memory

 private:
  char* data_ = nullptr;
  size_t bytes_;
  int fd_ = -1;
};

inline char* DataOf(const DLTensor& tensor) {
  return static_cast<char*>(tensor.data) + tensor.byte_offset;
}

// Bytes of one element.
inline int64_t ItemBytes(const DLTensor& tensor) {
  return (tensor.dtype.bits + 7) / 8 * tensor.dtype.lanes;
}

// Whether kernels can take the tensor's memory as it is.
bool IsUsableInPlace(const DLTensor& tensor);

// Whether the two may share an element. Tensors with gaps count as overlapping only if they begin
// at the same element, because rows of one image may be interleaved.
bool Overlap(const DLTensor& one, const DLTensor& other);

// The hint of errors about missing memory.
inline constexpr const char* kFreeMemory =
    "free some, make fewer instances of the model, or compile it for smaller inputs";

// Throws RunError because `bytes` of memory cannot be allocated.
[[noreturn]] void RefuseMemory(size_t bytes);

// A value as JSON; throws RunError where tvm-ffi had no memory for a part, which it leaves out.
ffi::String WholeJSON(const ffi::json::Value& value);

// Copies all elements; the two have the same shape and dtype, `to` is contiguous at `data`.
void CopyToContiguous(const DLTensor& from, char* data);
// The reverse.
void CopyFromContiguous(const char* data, const DLTensor& to);

// Memory of a camera or another device that an app has mapped: processors may import it.
struct ExternalMemory {
  uint64_t id = 0;  // of this memory at this address; no other has the same later
  char* data = nullptr;
  size_t bytes = 0;
  int fd = -1;                      // a dma-buf or another file; -1: none
  size_t offset = 0;                // of `data` in the file
  void* hardware_buffer = nullptr;  // an AHardwareBuffer that begins at `data`; null: none
};

// The memory can be found, by its first bytes, until it is withdrawn; any thread.
void AnnounceMemory(const ExternalMemory& memory);
void WithdrawMemory(uint64_t id);
std::optional<ExternalMemory> FindMemory(const char* data, size_t bytes);

// A fingerprint that detects damage but is not secure; about as fast as reading memory.
uint64_t Fingerprint(const void* data, size_t bytes);

// A checksum of `bytes` bytes of a file from `start` on. Throws RuntimeError if the file cannot be
// read.
int64_t FingerprintFile(const ffi::String& path, int64_t start, int64_t bytes);

}  // namespace tvm_stretch

// Memory of a camera, a GPU or another process, as a tensor of a run: without a copy where its rows
// follow each other without gaps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "memory.h"
#include "tvm_stretch.h"

namespace tvm_stretch::app {

// Memory in rows that somebody else owns. It may be read and written between Begin and End.
class Mapping {
 public:
  // A dma-buf, a memfd or any other descriptor that can be mapped; it is duplicated.
  static std::unique_ptr<Mapping> OfDescriptor(const TvmStretchRows& rows);
  // An AHardwareBuffer of Android, whose pixels are rows.
  static std::unique_ptr<Mapping> OfHardwareBuffer(void* buffer);

  virtual ~Mapping() = default;
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  TvmStretchBuffer Begin(int access);
  void End();
  bool is_in_use() const { return access_ != 0; }

 protected:
  Mapping(size_t rows, size_t row_bytes, size_t stride);

 private:
  // What makes writes of others visible here, and ours to them; gives the memory's address, and
  // where it comes from.
  virtual ExternalMemory Open(int access) = 0;
  virtual void Close(int access) = 0;

  void CopyRows(bool back);

  size_t rows_, row_bytes_, stride_;
  std::optional<AlignedBuffer> packed_;  // the rows without gaps, if they have some
  uint64_t id_ = 0;                      // of the memory at this address
  char* data_ = nullptr;
  int access_ = 0;  // 0 outside of Begin and End
};

}  // namespace tvm_stretch::app

#include "mapping.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <tvm/ffi/error.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>

#include "memory.h"
#include "sizes.h"

namespace tvm_stretch::app {
namespace {

// The kernel's interface to dma-bufs (linux/dma-buf.h), which older C libraries lack.
struct DmaBufSync {
  uint64_t flags;
};
constexpr uint64_t kSyncRead = 1, kSyncWrite = 2, kSyncEnd = 4;
constexpr unsigned long kDmaBufSync = _IOW('b', 0, DmaBufSync);

class Descriptor final : public Mapping {
 public:
  Descriptor(const TvmStretchRows& rows, int own, bool may_write, void* memory, size_t bytes,
             size_t skipped)
      : Mapping(rows.rows, rows.row_bytes, rows.stride),
        offset_(static_cast<size_t>(rows.offset)),
        own_(own),
        may_write_(may_write),
        memory_(memory),
        bytes_(bytes),
        skipped_(skipped) {}
  ~Descriptor() override {
    munmap(memory_, bytes_);
    close(own_);
  }

 private:
  ExternalMemory Open(int access) override {
    if ((access & TVM_STRETCH_WRITE) != 0 && !may_write_) {
      TVM_FFI_THROW(ValueError) << "expected memory that may be written for an output, got a "
                                   "descriptor that was opened for reading; open it for both";
    }
    Sync(static_cast<uint64_t>(access));
    return {0, static_cast<char*>(memory_) + skipped_, 0, own_, offset_, nullptr};
  }
  void Close(int access) override { Sync(static_cast<uint64_t>(access) | kSyncEnd); }

  // Only dma-bufs know this call; other memory is coherent.
  void Sync(uint64_t flags) const {
    DmaBufSync sync{flags};
    while (ioctl(own_, kDmaBufSync, &sync) != 0) {
      if (errno == EINTR || errno == EAGAIN) continue;
      if (errno == ENOTTY || errno == EINVAL || errno == ENOSYS) return;
      TVM_FFI_THROW(RuntimeError) << "expected the driver to hand over a dma-buf, got "
                                  << std::strerror(errno) << "; its device may be gone";
    }
  }

  size_t offset_;
  int own_;
  bool may_write_;
  void* memory_;
  size_t bytes_, skipped_;
};

// --- Android's hardware buffers ------------------------------------------------------------------

// AHardwareBuffer_Desc of android/hardware_buffer.h.
struct HardwareBufferDescription {
  uint32_t width, height, layers, format;
  uint64_t usage;
  uint32_t stride, reserved0;  // the stride in pixels
  uint64_t reserved1;
};
constexpr uint64_t kReadOften = 3, kWriteOften = 3 << 4;
constexpr int kSyncNow = -1;  // no fence

struct Pixels {
  uint32_t format;
  size_t bytes;
};
constexpr Pixels kPixels[] = {
    {0x21, 1},  // BLOB
    {0x38, 1},  // R8_UNORM
    {0x3, 3},   // R8G8B8_UNORM
    {0x1, 4},   // R8G8B8A8_UNORM
    {0x16, 8},  // R16G16B16A16_FLOAT
};

// The functions of Android's library, which no other system has.
struct HardwareBuffers {
  void (*describe)(const void*, HardwareBufferDescription*) = nullptr;
  void (*acquire)(void*) = nullptr;
  void (*release)(void*) = nullptr;
  int (*lock)(void*, uint64_t, int32_t, const void*, void**) = nullptr;
  int (*unlock)(void*, int32_t*) = nullptr;

  HardwareBuffers() {
    void* library = dlopen("libnativewindow.so", RTLD_NOW | RTLD_LOCAL);
    const bool found = library != nullptr && Find(library, "AHardwareBuffer_describe", &describe) &&
                       Find(library, "AHardwareBuffer_acquire", &acquire) &&
                       Find(library, "AHardwareBuffer_release", &release) &&
                       Find(library, "AHardwareBuffer_lock", &lock) &&
                       Find(library, "AHardwareBuffer_unlock", &unlock);
    if (found) return;
    TVM_FFI_THROW(ValueError) << "expected Android 8 or later for hardware buffers, got: "
                              << dlerror() << "; map a descriptor instead";
  }

  template <typename Function>
  static bool Find(void* library, const char* name, Function* function) {
    *function = reinterpret_cast<Function>(dlsym(library, name));
    return *function != nullptr;
  }
};

class HardwareBuffer final : public Mapping {
 public:
  HardwareBuffer(const HardwareBuffers& system, void* buffer, size_t rows, size_t row_bytes,
                 size_t stride)
      : Mapping(rows, row_bytes, stride), system_(system), buffer_(buffer) {
    system_.acquire(buffer_);
  }
  ~HardwareBuffer() override { system_.release(buffer_); }

 private:
  ExternalMemory Open(int access) override {
    const uint64_t usage = ((access & TVM_STRETCH_READ) != 0 ? kReadOften : 0) |
                           ((access & TVM_STRETCH_WRITE) != 0 ? kWriteOften : 0);
    void* data = nullptr;
    Require(system_.lock(buffer_, usage, kSyncNow, nullptr, &data), "lock");
    return {0, static_cast<char*>(data), 0, -1, 0, buffer_};
  }
  void Close(int) override { Require(system_.unlock(buffer_, nullptr), "unlock"); }

  static void Require(int status, const char* what) {
    if (status == 0) return;
    TVM_FFI_THROW(ValueError) << "expected Android to " << what << " a hardware buffer, got status "
                              << status << "; it needs CPU_READ_OFTEN or CPU_WRITE_OFTEN as usage";
  }

  const HardwareBuffers& system_;
  void* buffer_;
};

[[noreturn]] void RefuseRows(const std::string& got, const std::string& way_out) {
  TVM_FFI_THROW(ValueError) << "expected rows that lie in the memory, got " << got << "; "
                            << way_out;
}

// The bytes from the first row to the end of the last one.
int64_t Extent(const TvmStretchRows& rows) {
  constexpr size_t kMost = size_t{1} << 62;
  const bool is_sound = rows.rows > 0 && rows.rows < kMost && rows.row_bytes > 0 &&
                        rows.stride >= rows.row_bytes && rows.stride < kMost;
  if (!is_sound) {
    RefuseRows(std::to_string(rows.rows) + " rows of " + std::to_string(rows.row_bytes) +
                   " bytes every " + std::to_string(rows.stride),
               "a stride is at least a row");
  }
  return Times(static_cast<int64_t>(rows.rows), static_cast<int64_t>(rows.stride)) -
         static_cast<int64_t>(rows.stride - rows.row_bytes);
}

}  // namespace

std::unique_ptr<Mapping> Mapping::OfDescriptor(const TvmStretchRows& rows) {
  const int64_t extent = Extent(rows);
  const int own = fcntl(rows.descriptor, F_DUPFD_CLOEXEC, 0);
  struct stat status{};
  // dma-bufs tell their size by lseek alone
  const int64_t size = own < 0                        ? -1
                       : fstat(own, &status) != 0     ? -1
                       : S_ISREG(status.st_mode) != 0 ? static_cast<int64_t>(status.st_size)
                                                      : lseek(own, 0, SEEK_END);
  const auto refuse = [&](const std::string& got, const std::string& way_out) {
    if (own >= 0) close(own);
    RefuseRows(got, way_out);
  };
  if (size < 0) refuse(std::string("a descriptor: ") + std::strerror(errno), "open the memory");
  if (rows.offset < 0 || rows.offset > size || extent > size - rows.offset) {
    refuse(std::to_string(extent) + " bytes from " + std::to_string(rows.offset) + " on of " +
               std::to_string(size),
           "give a part that it has");
  }
  const auto skipped = static_cast<size_t>(rows.offset % sysconf(_SC_PAGESIZE));
  const size_t bytes = skipped + static_cast<size_t>(extent);
  const bool may_write = (fcntl(own, F_GETFL) & O_ACCMODE) != O_RDONLY;
  void* memory = mmap(nullptr, bytes, PROT_READ | (may_write ? PROT_WRITE : 0), MAP_SHARED, own,
                      rows.offset - static_cast<int64_t>(skipped));
  if (memory == MAP_FAILED) {
    refuse(std::string("memory that cannot be mapped: ") + std::strerror(errno),
           "its driver may forbid that");
  }
  return std::make_unique<Descriptor>(rows, own, may_write, memory, bytes, skipped);
}

std::unique_ptr<Mapping> Mapping::OfHardwareBuffer(void* buffer) {
  static const HardwareBuffers system;
  HardwareBufferDescription found{};
  system.describe(buffer, &found);
  for (const Pixels& pixels : kPixels) {
    if (pixels.format != found.format || found.layers != 1) continue;
    const bool is_blob = found.height == 1;
    const size_t stride = is_blob ? found.width : found.stride;
    const TvmStretchRows rows{-1, 0, found.height, found.width * pixels.bytes,
                              stride * pixels.bytes};
    Extent(rows);
    return std::make_unique<HardwareBuffer>(system, buffer, rows.rows, rows.row_bytes, rows.stride);
  }
  TVM_FFI_THROW(ValueError) << "expected one layer of bytes, RGB, RGBA or float16 pixels, got "
                            << found.layers << " of format " << found.format
                            << "; convert YUV on the GPU first";
}

Mapping::Mapping(size_t rows, size_t row_bytes, size_t stride)
    : rows_(rows), row_bytes_(row_bytes), stride_(stride) {}

TvmStretchBuffer Mapping::Begin(int access) {
  constexpr int kBoth = TVM_STRETCH_READ | TVM_STRETCH_WRITE;
  if (access_ != 0 || access <= 0 || access > kBoth) {
    TVM_FFI_THROW(ValueError) << "expected TVM_STRETCH_READ or TVM_STRETCH_WRITE, or both, for a "
                                 "mapping that is not in use, got "
                              << access << (access_ == 0 ? "" : " again; end its use first");
  }
  const size_t bytes = rows_ * row_bytes_;
  if (stride_ != row_bytes_ && rows_ > 1 && !packed_) packed_.emplace(bytes);
  ExternalMemory memory = Open(access);
  static std::atomic<uint64_t> last_id{0};
  if (memory.data != data_) id_ = ++last_id;
  data_ = memory.data;
  access_ = access;
  memory.id = id_;
  memory.bytes = bytes;
  if (!packed_) return AnnounceMemory(memory), TvmStretchBuffer{data_, bytes};
  if ((access & TVM_STRETCH_READ) != 0) CopyRows(false);
  return {packed_->data(), bytes};
}

void Mapping::End() {
  if (access_ == 0) {
    TVM_FFI_THROW(ValueError)
        << "expected a mapping in use to end, got one that is not in use; call "
           "tvm_stretch_begin first";
  }
  if (packed_ && (access_ & TVM_STRETCH_WRITE) != 0) CopyRows(true);
  const int access = access_;
  access_ = 0;
  WithdrawMemory(id_);
  Close(access);
}

void Mapping::CopyRows(bool back) {
  char* packed = packed_->data();
  for (size_t row = 0; row < rows_; ++row) {
    char *ours = packed + row * row_bytes_, *theirs = data_ + row * stride_;
    std::memcpy(back ? theirs : ours, back ? ours : theirs, row_bytes_);
  }
}

}  // namespace tvm_stretch::app

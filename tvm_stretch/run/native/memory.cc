#include "memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <tvm/ffi/error.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>

#include "errors.h"
#include "graph.h"

namespace tvm_stretch {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

// Calls visit(pointer, bytes) for each contiguous piece, in order of the elements.
template <typename Visit>
void ForEachPiece(const DLTensor& tensor, int dim, char* data, const Visit& visit) {
  if (dim == tensor.ndim) return visit(data, ItemBytes(tensor));
  const int64_t step = tensor.strides[dim] * ItemBytes(tensor);
  if (dim == tensor.ndim - 1 && tensor.strides[dim] == 1) {
    return visit(data, tensor.shape[dim] * ItemBytes(tensor));
  }
  for (int64_t i = 0; i < tensor.shape[dim]; ++i) {
    ForEachPiece(tensor, dim + 1, data + i * step, visit);
  }
}

#ifdef MAP_POPULATE
constexpr int kPopulate = MAP_POPULATE;  // all pages in one call
#else
constexpr int kPopulate = 0;
#endif

// Sums of the words, and sums of these sums, which depend on each word's position: only additions,
// so it is as fast as memory. (For good hash keys use `Fingerprint`.)
uint64_t Sum(const char* data, size_t bytes) {
  using Words = uint64_t __attribute__((vector_size(16)));
  constexpr size_t kLanes = 4, kStep = kLanes * sizeof(Words);
  Words sums[2 * kLanes] = {{bytes, 1}, {2, 3}, {4, 5}, {6, 7}};
  auto add = [&sums](const char* piece) {
    for (size_t i = 0; i < kLanes; ++i) {
      Words words;
      std::memcpy(&words, piece + i * sizeof(Words), sizeof(Words));
      sums[i] += words;
      sums[kLanes + i] += sums[i];
    }
  };
  for (; bytes >= kStep; bytes -= kStep, data += kStep) add(data);
  char rest[kStep] = {};
  std::memcpy(rest, data, bytes);
  add(rest);
  return Fingerprint(sums, sizeof(sums));
}

// Creates an unnamed file by system call, because old C libraries have no wrapper for it.
int CreateMemoryFile(size_t bytes) {
  int fd = static_cast<int>(syscall(SYS_memfd_create, "tvm_stretch", MFD_CLOEXEC));
  if (fd < 0) RefuseMemory(bytes);
  if (ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
    close(fd);
    RefuseMemory(bytes);
  }
  return fd;
}

struct Announced {
  std::mutex mutex;
  std::map<uint64_t, ExternalMemory> memories;  // by their ids
};

Announced& TheAnnounced() {
  static Announced& announced = *new Announced();
  return announced;
}

}  // namespace

void RefuseMemory(size_t bytes) {
  TVM_FFI_THROW(RunError) << "expected " << bytes << " bytes of free memory, got none ("
                          << std::strerror(errno) << "); " << kFreeMemory;
  TVM_FFI_UNREACHABLE();
}

ffi::String WholeJSON(const ffi::json::Value& value) {
  ffi::String text = ffi::json::Stringify(value), wrong;
  ffi::json::Parse(text, &wrong);
  errno = ENOMEM;
  if (!wrong.empty()) RefuseMemory(text.size());
  return text;
}

bool Overlap(const DLTensor& one, const DLTensor& other) {
  const char *first = DataOf(one), *second = DataOf(other);
  if (!ffi::IsContiguous(one) || !ffi::IsContiguous(other)) return first == second;
  return first < second + ffi::GetDataSize(other) && second < first + ffi::GetDataSize(one);
}

AlignedBuffer::AlignedBuffer(size_t bytes, Sharing sharing) : bytes_(bytes) {
  if (bytes == 0) return;
  const bool shared = sharing == Sharing::kShared;
  if (shared) fd_ = CreateMemoryFile(bytes);
  const int flags = shared ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
  // Pages are zero and cost nothing until they are touched.
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, fd_, 0);
  if (data == MAP_FAILED) {
    if (shared) close(fd_);
    RefuseMemory(bytes);
  }
  data_ = static_cast<char*>(data);
#ifdef MADV_HUGEPAGE
  if (bytes >= kHugePage) madvise(data_, bytes, MADV_HUGEPAGE);  // only advice: may fail
#endif
}

AlignedBuffer::~AlignedBuffer() {
  if (data_ != nullptr) munmap(data_, bytes_);
  if (fd_ >= 0) close(fd_);
}

bool IsUsableInPlace(const DLTensor& tensor) {
  return ffi::IsContiguous(tensor) && reinterpret_cast<uintptr_t>(DataOf(tensor)) % kAlignment == 0;
}

void CopyToContiguous(const DLTensor& from, char* data) {
  if (ffi::IsContiguous(from)) {
    if (size_t bytes = ffi::GetDataSize(from)) std::memcpy(data, DataOf(from), bytes);
    return;
  }
  ForEachPiece(from, 0, DataOf(from), [&data](const char* piece, int64_t bytes) {
    std::memcpy(data, piece, bytes);
    data += bytes;
  });
}

void CopyFromContiguous(const char* data, const DLTensor& to) {
  if (ffi::IsContiguous(to)) {
    if (size_t bytes = ffi::GetDataSize(to)) std::memcpy(DataOf(to), data, bytes);
    return;
  }
  ForEachPiece(to, 0, DataOf(to), [&data](char* piece, int64_t bytes) {
    std::memcpy(piece, data, bytes);
    data += bytes;
  });
}

void AnnounceMemory(const ExternalMemory& memory) {
  std::lock_guard<std::mutex> lock(TheAnnounced().mutex);
  TheAnnounced().memories[memory.id] = memory;
}

void WithdrawMemory(uint64_t id) {
  std::lock_guard<std::mutex> lock(TheAnnounced().mutex);
  TheAnnounced().memories.erase(id);
}

std::optional<ExternalMemory> FindMemory(const char* data, size_t bytes) {
  std::lock_guard<std::mutex> lock(TheAnnounced().mutex);
  for (const auto& [id, memory] : TheAnnounced().memories) {
    if (memory.data == data && memory.bytes >= bytes) return memory;
  }
  return std::nullopt;
}

uint64_t Fingerprint(const void* data, size_t bytes) {
  // Four independent lanes, so that the multiplications overlap.
  constexpr uint64_t kPrime = 0x9E3779B97F4A7C15ull;
  uint64_t lanes[4] = {1, 2, 3, bytes};
  const char* bytes_left = static_cast<const char*>(data);
  auto mix = [](uint64_t lane, uint64_t word) {
    lane = (lane ^ word) * kPrime;
    return lane ^ (lane >> 29);
  };
  for (; bytes >= 32; bytes -= 32, bytes_left += 32) {
    uint64_t words[4];
    std::memcpy(words, bytes_left, 32);
    for (int i = 0; i < 4; ++i) lanes[i] = mix(lanes[i], words[i]);
  }
  for (; bytes > 0; --bytes, ++bytes_left) {
    lanes[0] = mix(lanes[0], static_cast<unsigned char>(*bytes_left));
  }
  uint64_t result = 0;
  for (uint64_t lane : lanes) result = mix(result, lane);
  return result;
}

int64_t FingerprintFile(const ffi::String& path, int64_t start, int64_t bytes) {
  const int64_t before = start % sysconf(_SC_PAGESIZE);  // mappings begin with a page
  const size_t mapped = before + bytes;
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  // Mapped, because copying it would take longer than summing it.
  void* data = fd < 0 || mapped == 0
                   ? MAP_FAILED
                   : mmap(nullptr, mapped, PROT_READ, MAP_PRIVATE | kPopulate, fd, start - before);
  if (fd >= 0) close(fd);
  if (data == MAP_FAILED && fd >= 0 && errno == ENOMEM) RefuseMemory(mapped);
  if (data == MAP_FAILED) {
    throw ffi::Error(kArtifactError,
                     "expected a file of " + std::to_string(start + bytes) + " bytes in '" +
                         std::string(path) + "', got: " + std::strerror(errno) + "; check the file",
                     "");
  }
  const uint64_t sum = Sum(static_cast<const char*>(data) + before, bytes);
  munmap(data, mapped);
  return static_cast<int64_t>(sum);
}

}  // namespace tvm_stretch

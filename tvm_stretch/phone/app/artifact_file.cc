#include "artifact_file.h"

#include <elf.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <tvm/ffi/function.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "memory.h"
#include "seal.h"

namespace tvm_stretch::app {
namespace {

#if defined(__x86_64__)
constexpr uint16_t kMachine = EM_X86_64;
#elif defined(__aarch64__)
constexpr uint16_t kMachine = EM_AARCH64;
#endif

constexpr int64_t kFirstPiece = int64_t{4} << 20;

[[noreturn]] void Refuse(const std::string& got, const std::string& advice) {
  throw ffi::Error(kArtifactError,
                   "expected an artifact that tvm_stretch exported, got " + got + "; " + advice,
                   "");
}

// The descriptor of an empty file in memory.
int NewMemoryFile(size_t bytes) {
  const int file = static_cast<int>(syscall(SYS_memfd_create, "artifact", MFD_CLOEXEC));
  if (file < 0) RefuseMemory(bytes);
  return file;
}

void WriteAll(int file, const char* data, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    const ssize_t written = write(file, data + done, bytes - done);
    if (written <= 0) RefuseMemory(bytes);
    done += static_cast<size_t>(written);
  }
}

bool ReadAt(int file, int64_t offset, void* data, size_t bytes) {
  return offset >= 0 && pread(file, data, bytes, offset) == static_cast<ssize_t>(bytes);
}

}  // namespace

ArtifactFile ArtifactFile::Open(const std::string& path) {
  ArtifactFile file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.descriptor_ < 0) {
    Refuse("'" + path + "', which cannot be opened: " + std::strerror(errno), "check the path");
  }
  return file;
}

ArtifactFile ArtifactFile::Open(int descriptor, int64_t offset, int64_t bytes) {
  ArtifactFile whole(fcntl(descriptor, F_DUPFD_CLOEXEC, 0));
  if (whole.descriptor_ < 0) {
    Refuse(std::string("a descriptor that is not open: ") + std::strerror(errno), "open the file");
  }
  const int64_t size = whole.Size();
  if (offset < 0 || bytes < 0 || offset > size || bytes > size - offset) {
    Refuse(std::to_string(bytes) + " bytes from " + std::to_string(offset) + " on of a file of " +
               std::to_string(size),
           "give a part that the file has");
  }
  if (offset == 0 && bytes == size) return whole;
  ArtifactFile part(NewMemoryFile(static_cast<size_t>(bytes)));
  char piece[1 << 16];
  for (int64_t done = 0; done < bytes;) {
    const auto count = static_cast<size_t>(std::min<int64_t>(sizeof(piece), bytes - done));
    if (!ReadAt(whole.descriptor_, offset + done, piece, count)) {
      Refuse("a file that cannot be read", "check the storage");
    }
    WriteAll(part.descriptor_, piece, count);
    done += static_cast<int64_t>(count);
  }
  return part;
}

ArtifactFile ArtifactFile::Copy(const void* data, size_t bytes) {
  ArtifactFile file(NewMemoryFile(bytes));
  WriteAll(file.descriptor_, static_cast<const char*>(data), bytes);
  return file;
}

ArtifactFile::~ArtifactFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

ffi::Module ArtifactFile::Load() const {
  CheckMachine();
  CheckSeal();
  static const ffi::Function load =
      ffi::Function::GetGlobalRequired("ffi.Module.load_from_file.so");
  ffi::Module module = load(ffi::String(Path()), ffi::String("so")).cast<ffi::Module>();
  if (std::strcmp(module->kind(), "tvm_stretch.executor") != 0) {
    Refuse(std::string("a library of kind ") + module->kind(), "export a model with Model.export");
  }
  return module;
}

int64_t ArtifactFile::Size() const {
  struct stat about{};
  if (fstat(descriptor_, &about) != 0 || !S_ISREG(about.st_mode)) {
    Refuse("a descriptor or path of something that is no regular file", "give a file");
  }
  return about.st_size;
}

// The loader's own message names neither machine.
void ArtifactFile::CheckMachine() const {
  Size();
  Elf64_Ehdr header{};
  if (!ReadAt(descriptor_, 0, &header, sizeof(header)) ||
      std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) {
    Refuse("a file that is no shared library", "give the path of an exported model");
  }
  if (header.e_machine == kMachine) return;
  Refuse("one for another machine (number " + std::to_string(header.e_machine) +
             " in its header, " + std::to_string(kMachine) + " here)",
         "compile the model for this machine");
}

// The loader would crash on damaged bytes, at the latest when a kernel runs.
void ArtifactFile::CheckSeal() const {
  const int64_t bytes = Size() - static_cast<int64_t>(sizeof(Seal));
  Seal seal{};
  if (!ReadAt(descriptor_, bytes, &seal, sizeof(seal)) || !seal.IsThere()) {
    Refuse("a file without the end that this version's Model.export writes",
           "export or copy it again, and neither strip nor shorten it");
  }
  const auto refuse = [] { Refuse("a damaged one", "copy or export it again"); };
  if (!seal.HasParts(bytes)) refuse();
  // Storage answers several requests at once; the last one keeps it busy until weights are read.
  const int64_t after = seal.weights_start + seal.weights_bytes;
  for (const auto& [start, count] :
       {std::pair{int64_t{0}, seal.weights_start}, std::pair{after, bytes - after},
        std::pair{seal.weights_start, kFirstPiece}}) {
    posix_fadvise(descriptor_, start, count, POSIX_FADV_WILLNEED);
  }
  if (!seal.Fits(Path(), bytes)) refuse();
}

}  // namespace tvm_stretch::app

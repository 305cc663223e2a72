// Content-addressed uploads: no file is sent twice, and none is overwritten.
//
//   store_has(name)                       whether it is there, complete
//   store_put(name, offset, piece)        writes a piece of it
//   store_put_deflated(name, offset, bytes, piece)   the same, `bytes` of it by zlib
//   store_finish(name, bytes, sum)        checks the whole; from now on it is there
//   store_path(name)                      the path, to open it
//
// A name is the digest of the content and an ending: "0a1b...9f.so". The folder is
// TVM_STRETCH_STORE; by default the folder of the RPC session, or a temporary one of this process.
// It holds at most TVM_STRETCH_STORE_BYTES: the least recently used files are removed first.
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/reflection/registry.h>
#include <unistd.h>
#include <utime.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "errors.h"
#include "memory.h"
#include "own_folder.h"
#include "packed.h"

namespace tvm_stretch {
namespace {

constexpr int64_t kUsualLimit = int64_t{2} << 30;
constexpr size_t kDigits = 64;
constexpr int64_t kMostInflated = 16 << 20;  // of a piece

[[noreturn]] void Refuse(const std::string& got) {
  throw ffi::Error(kDeviceError,
                   "expected room for an upload on the device, got: " + got +
                       "; make room there, or raise its limit (--store-limit)",
                   "");
}

std::string Folder() {
  const char* given = std::getenv("TVM_STRETCH_STORE");
  if (given != nullptr && *given != 0) return given;
  if (auto work = ffi::Function::GetGlobal("tvm.rpc.server.workpath")) {
    return std::string((*work)(ffi::String("")).cast<ffi::String>());
  }
  return OwnFolder();
}

int64_t Limit() {
  const char* given = std::getenv("TVM_STRETCH_STORE_BYTES");
  const int64_t bytes = given == nullptr ? 0 : std::strtoll(given, nullptr, 10);
  return bytes > 0 ? bytes : kUsualLimit;
}

// Throws ValueError unless it is a digest with ".so" or ".bin", so no path leads out of the folder.
std::string Checked(const ffi::String& given) {
  const std::string name(given);
  const std::string ending = name.size() < kDigits ? "" : name.substr(kDigits);
  const bool is_digest = name.find_first_not_of("0123456789abcdef") == kDigits;
  if (!is_digest || (ending != ".so" && ending != ".bin")) {
    TVM_FFI_THROW(ValueError) << "expected 64 digits and .so or .bin for the name of an upload, "
                                 "got another; use ts.connect";
  }
  return Folder() + "/" + name;
}

// The name of this process's unfinished file, as two processes may upload the same one.
std::string Unfinished(const std::string& path) {
  return path + "." + std::to_string(getpid()) + ".part";
}

struct Kept {
  time_t used;
  int64_t bytes;
  std::string path;
};

std::vector<Kept> Everything() {
  const std::string folder = Folder();
  std::vector<Kept> found;
  for (const std::string& name : NamesIn(folder)) {
    const std::string path = folder + "/" + name;
    struct stat about{};
    if (name.find_first_not_of("0123456789abcdef") != kDigits) continue;
    if (stat(path.c_str(), &about) == 0) found.push_back({about.st_mtime, about.st_size, path});
  }
  return found;
}

// Removes the least recently used files until `bytes` more fit.
void MakeRoom(int64_t bytes) {
  std::vector<Kept> kept = Everything();
  std::sort(kept.begin(), kept.end(), [](const Kept& a, const Kept& b) { return a.used < b.used; });
  int64_t total = bytes;
  for (const Kept& file : kept) total += file.bytes;
  for (const Kept& file : kept) {
    if (total <= Limit()) return;
    if (unlink(file.path.c_str()) == 0) total -= file.bytes;
  }
  if (total > Limit()) {
    Refuse(std::to_string(bytes) + " bytes more than the limit of " + std::to_string(Limit()) +
           " leaves");
  }
}

bool HasFile(const ffi::String& name) {
  return utime(Checked(name).c_str(), nullptr) == 0;  // records the use
}

void Put(const ffi::String& name, int64_t offset, const ffi::Bytes& piece) {
  const std::string path = Unfinished(Checked(name));
  const auto size = static_cast<int64_t>(piece.size());
  if (offset <= 0) unlink(path.c_str());
  if (offset < 0 || size > Limit() || offset > Limit() - size) {  // do not remove files for it
    unlink(path.c_str());
    Refuse("a file beyond the limit of " + std::to_string(Limit()) + " bytes");
  }
  MakeRoom(size);
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
  size_t done = 0;
  while (fd >= 0 && done < piece.size()) {
    const off_t at = offset + static_cast<off_t>(done);
    const ssize_t wrote = pwrite(fd, piece.data() + done, piece.size() - done, at);
    if (wrote <= 0) break;
    done += static_cast<size_t>(wrote);
  }
  const std::string fault = std::strerror(errno);
  if (fd >= 0) close(fd);
  if (done < piece.size()) {
    unlink(path.c_str());
    Refuse(fault);
  }
}

// zlib's function; null where a machine has no zlib. Android and Linux have it; the cross compilers
// have no header of it, and this signature is all that is needed.
using Uncompress = int (*)(unsigned char*, unsigned long*, const unsigned char*, unsigned long);

Uncompress FindUncompress() {
  static const auto found = []() -> Uncompress {
    for (const char* name : {"libz.so.1", "libz.so"}) {
      if (void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL)) {
        return reinterpret_cast<Uncompress>(dlsym(library, "uncompress"));
      }
    }
    return nullptr;
  }();
  return found;
}

void PutDeflated(const ffi::String& name, int64_t offset, int64_t bytes, const ffi::Bytes& piece) {
  if (bytes < 0 || bytes > kMostInflated) Refuse("a piece of " + std::to_string(bytes) + " bytes");
  const Uncompress uncompress = FindUncompress();
  if (uncompress == nullptr) Refuse("no zlib");
  std::string whole(static_cast<size_t>(bytes), '\0');
  unsigned long size = whole.size();  // uncompress() takes it, and changes it
  const int status = uncompress(reinterpret_cast<unsigned char*>(whole.data()), &size,
                                reinterpret_cast<const unsigned char*>(piece.data()), piece.size());
  if (status != 0 || size != whole.size()) {
    TVM_FFI_THROW(ValueError) << "expected " << bytes << " deflated bytes for an upload, got other "
                              << "or damaged ones; send it again";
  }
  Put(name, offset, ffi::Bytes(whole.data(), whole.size()));
}

// Flushes a file to disk, so that it survives a power loss; returns whether that worked.
bool Flush(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
  const bool good = fd >= 0 && fsync(fd) == 0;
  if (fd >= 0) close(fd);
  return good;
}

void Finish(const ffi::String& name, int64_t bytes, int64_t sum) {
  const std::string path = Checked(name), part = Unfinished(path);
  struct stat about{};
  const bool whole = lstat(part.c_str(), &about) == 0 && S_ISREG(about.st_mode) &&
                     about.st_size == bytes && FingerprintFile(part, 0, bytes) == sum &&
                     Flush(part);
  if (!whole || rename(part.c_str(), path.c_str()) != 0) {
    unlink(part.c_str());
    TVM_FFI_THROW(ValueError) << "expected " << bytes << " bytes as they were sent for an upload, "
                              << "got " << about.st_size << " or others; send it again";
  }
}

}  // namespace

TVM_FFI_STATIC_INIT_BLOCK() {
  tvm::ffi::reflection::GlobalDef()
      .def_packed("tvm_stretch.store_has", Packed(HasFile))
      .def_packed("tvm_stretch.store_put", Packed(Put))
      .def_packed("tvm_stretch.store_inflates", Packed(+[] { return FindUncompress() != nullptr; }))
      .def_packed("tvm_stretch.store_put_deflated", Packed(PutDeflated))
      .def_packed("tvm_stretch.store_finish", Packed(Finish))
      .def_packed("tvm_stretch.store_path",
                  Packed(+[](const ffi::String& name) { return ffi::String(Checked(name)); }));
}

}  // namespace tvm_stretch

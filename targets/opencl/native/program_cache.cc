#include "program_cache.h"

#include <fcntl.h>
#include <link.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <string>

#include "memory.h"

namespace tvm_stretch::opencl {
namespace {

namespace fs = std::filesystem;

constexpr mode_t kOthersWrite = S_IWGRP | S_IWOTH;
constexpr uint64_t kMostBytes = uint64_t{1} << 30;
constexpr uid_t kFirstAppOfAndroid = 10000;

// Android's /data belongs to its user `system`, and /data/local/tmp to the shell and its group.
// Apps have users and groups of their own.
bool IsAndroid() {
  static const bool is_there = access("/system/bin/app_process", F_OK) == 0;
  return is_there;
}

// Whether only this user, root and, on Android, the system can have written a file, or to a folder.
bool IsOurs(const struct stat& found) {
  const bool is_own = found.st_uid == geteuid() || found.st_uid == 0;
  if (IsAndroid()) {
    return (is_own || found.st_uid < kFirstAppOfAndroid) && (found.st_mode & S_IWOTH) == 0 &&
           ((found.st_mode & S_IWGRP) == 0 || found.st_gid < kFirstAppOfAndroid);
  }
  return is_own && (found.st_mode & kOthersWrite) == 0;
}

namespace fs = std::filesystem;

fs::path PoclFolder() {
  const char* own = std::getenv("POCL_CACHE_DIR");
  if (own != nullptr) return own;
  const std::string caches = UserCaches();
  return (caches.empty() ? fs::path("/tmp") : fs::path(caches)) / "pocl/kcache";
}

template <typename T>
bool ReadAt(std::ifstream& file, uint64_t place, T* value) {
  return file.seekg(place) && file.read(reinterpret_cast<char*>(value), sizeof(T));
}

// Linkers write the section table last, so a whole library contains it.
bool IsWholeLibrary(std::ifstream& file, uint64_t bytes) {
  ElfW(Ehdr) header;
  return ReadAt(file, 0, &header) && std::memcmp(header.e_ident, ELFMAG, SELFMAG) == 0 &&
         header.e_shoff + uint64_t{header.e_shnum} * header.e_shentsize <= bytes;
}

// LLVM's bitcode is a sequence of blocks.
bool IsWholeBitcode(std::ifstream& file, uint64_t bytes) {
  constexpr uint32_t kMagic = 0xDEC04342, kEnters = 1;
  struct Block {
    uint32_t what;
    uint32_t words;
  } block;
  uint32_t magic = 0;
  if (!ReadAt(file, 0, &magic) || magic != kMagic) return false;
  uint64_t place = sizeof(magic);
  while (place < bytes) {
    if (!ReadAt(file, place, &block) || (block.what & 3) != kEnters) return false;
    place += sizeof(block) + 4 * uint64_t{block.words};
  }
  return place == bytes && bytes > sizeof(magic);
}

// A folder that is removed at the end of the process that made it.
struct Removed {
  std::string folder;
  pid_t owner;
  ~Removed() {
    std::error_code error;
    if (getpid() == owner) fs::remove_all(folder, error);
  }
};

bool IsWhole(const fs::path& path) {
  std::error_code error;
  const bool is_library = path.extension() == ".so";
  if (!is_library && path.filename() != "program.bc") return true;
  const uint64_t bytes = fs::file_size(path, error);
  std::ifstream file(path, std::ios::binary);
  if (error || !file) return true;  // unreadable or removed: harmless
  return is_library ? IsWholeLibrary(file, bytes) : IsWholeBitcode(file, bytes);
}

// Programs are in AB/CDEF..: a digest with nibbles as letters. Other folders are left alone.
bool IsOfPocl(const fs::path& folder, int depth) {
  const std::string name = folder.filename().string();
  const bool is_digest = name.find_first_not_of("ABCDEFGHIJKLMNOP") == std::string::npos;
  return depth > 1 || (is_digest && (depth == 0 ? name.size() == 2 : name.size() >= 30));
}

void RemoveDamaged(const fs::path& folder) {
  std::error_code error;
  const auto options = fs::directory_options::skip_permission_denied;
  for (fs::recursive_directory_iterator entry(folder, options, error), end; entry != end;
       entry.increment(error)) {
    if (entry->is_directory(error)) {
      if (!IsOfPocl(entry->path(), entry.depth())) entry.disable_recursion_pending();
    } else if (entry.depth() > 1 && entry->is_regular_file(error) && !IsWhole(entry->path())) {
      fs::remove(entry->path(), error);
    }
  }
}

namespace fs = std::filesystem;

constexpr char kEntryMagic[8] = {'T', 'V', 'M', 'S', 'T', 'R', 'B', '1'};
constexpr const char* kTemporary = ".tmp";

// An entry is this header, the key and the binary.
struct EntryHeader {
  char magic[8];
  uint64_t key_bytes;
  uint64_t binary_bytes;
  uint64_t fingerprint;  // of key and binary together
};

fs::path Folder() {
  if (const char* own = std::getenv("TVM_STRETCH_CACHE_DIR")) {
    return *own == '\0' ? fs::path() : fs::path(own) / "opencl";
  }
  const std::string caches = UserCaches();
  return caches.empty() ? fs::path() : fs::path(caches) / "tvm_stretch/opencl";
}

bool WriteAll(int file, const std::string& bytes) {
  for (size_t done = 0; done < bytes.size();) {
    ssize_t written = write(file, bytes.data() + done, bytes.size() - done);
    if (written <= 0) return false;
    done += static_cast<size_t>(written);
  }
  return true;
}

void SyncFolder(const std::string& folder) {
  int handle = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (handle < 0) return;
  fsync(handle);
  close(handle);
}

// Removes files of processes that were killed while writing, which are not locked. (Ages would be
// unreliable, as clocks jump.)
void RemoveAbandoned(const std::string& folder) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().filename().string().find(kTemporary) == std::string::npos) continue;
    int file = open(entry.path().c_str(), O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
    if (file < 0) continue;
    if (flock(file, LOCK_EX | LOCK_NB) == 0) fs::remove(entry.path(), error);
    close(file);
  }
}

/*!
 * \brief Create a temporary file beside one, and lock it, so that it is not taken for abandoned.
 *
 * A process that starts between the two steps removes the file; then it has no name, and another is
 * made. Without support of locks no file is taken for abandoned.
 */
int CreateHeld(const std::string& path, std::string* temporary) {
  for (;;) {
    *temporary = path + kTemporary + "XXXXXX";
    int file = mkstemp(temporary->data());
    if (file < 0) return file;
    flock(file, LOCK_EX);
    struct stat found;
    if (fstat(file, &found) != 0 || found.st_nlink > 0) return file;
    close(file);
  }
}

}  // namespace

bool IsTrusted(const std::string& folder) {
  std::error_code error;
  const fs::path path = fs::weakly_canonical(fs::absolute(folder, error), error);
  for (fs::path place = path;; place = place.parent_path()) {
    struct stat found;
    if (error) return false;
    if (lstat(place.c_str(), &found) == 0) {
      // In a sticky folder such as /tmp, users cannot remove files of others.
      const bool is_sticky = place != path && (found.st_mode & S_ISVTX) != 0;
      if (is_sticky) found.st_mode &= ~kOthersWrite;
      if (!IsOurs(found)) return false;
    } else if (errno != ENOENT && errno != ENOTDIR) {
      return false;
    }
    if (place == place.parent_path()) return true;
  }
}

void SayNotTrusted(const std::string& folder, const char* variable) {
  static std::atomic_flag is_said = ATOMIC_FLAG_INIT;
  if (is_said.test_and_set()) return;
  std::fprintf(stderr,
               "tvm_stretch: expected a cache folder that only this user can write to, got %s; "
               "nothing is kept there or taken from there. Take the right to write from others "
               "(chmod go-w), or name another folder in %s\n",
               folder.c_str(), variable);
}

void MakeFolder(const std::string& folder) {
  std::error_code error;
  const fs::path path(folder), above = path.parent_path();
  if (fs::is_directory(path, error)) return;
  if (path != above && !above.empty()) MakeFolder(above.string());
  mkdir(folder.c_str(), 0755);
}

std::string ReadOwn(const std::string& path) {
  std::string content;
  int file = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
  if (file < 0) return content;
  struct stat found;
  if (fstat(file, &found) == 0 && S_ISREG(found.st_mode) && IsOurs(found) &&
      static_cast<uint64_t>(found.st_size) <= kMostBytes) {
    content.resize(static_cast<size_t>(found.st_size));
    size_t done = 0;
    while (done < content.size()) {
      const ssize_t got = read(file, content.data() + done, content.size() - done);
      if (got <= 0) break;
      done += static_cast<size_t>(got);
    }
    content.resize(done);
  }
  close(file);
  return content;
}

bool KeepsItsPrograms(const DeviceInfo& info) {
  const char* own = std::getenv("POCL_KERNEL_CACHE");
  return info.platform == "Portable Computing Language" &&
         (own == nullptr || std::strcmp(own, "0") != 0);
}

void GuardPoclCache() {
  const std::string folder = PoclFolder().string();
  if (IsTrusted(folder)) return;
  SayNotTrusted(folder, "POCL_CACHE_DIR");
  std::error_code error;
  std::string own = (fs::temp_directory_path(error) / "tvm_stretch_pocl_XXXXXX").string();
  if (mkdtemp(own.data()) == nullptr) return;
  setenv("POCL_CACHE_DIR", own.c_str(), 1);
  static const Removed removed{own, getpid()};
}

void PreparePoclCache() {
  const fs::path folder = PoclFolder();
  MakeFolder(folder.string());
  static std::once_flag is_checked;
  std::call_once(is_checked, RemoveDamaged, folder);
}

std::string UserCaches() {
  auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value != nullptr ? value : "");
  };
  const std::string caches = variable("XDG_CACHE_HOME"), home = variable("HOME");
  return !caches.empty() || home.empty() ? caches : home + "/.cache";
}

ProgramCache::ProgramCache() : folder_(Folder().string()) {
  if (folder_.empty()) return;
  if (!IsTrusted(folder_)) {
    SayNotTrusted(folder_, "TVM_STRETCH_CACHE_DIR");
    folder_.clear();
    return;
  }
  MakeFolder(folder_);
  RemoveAbandoned(folder_);
}

std::string ProgramCache::PathOf(const std::string& key) const {
  char name[17];
  std::snprintf(name, sizeof(name), "%016llx",
                static_cast<unsigned long long>(Fingerprint(key.data(), key.size())));
  return folder_ + "/" + name + ".bin";
}

std::string ProgramCache::Find(const std::string& key) const {
  if (folder_.empty()) return "";
  const std::string entry = ReadOwn(PathOf(key));
  EntryHeader header;
  if (entry.size() < sizeof(header)) return "";
  std::memcpy(&header, entry.data(), sizeof(header));
  const size_t bytes = entry.size() - sizeof(header);
  if (std::memcmp(header.magic, kEntryMagic, sizeof(kEntryMagic)) != 0 ||
      header.key_bytes != key.size() || header.key_bytes > bytes ||
      header.binary_bytes != bytes - header.key_bytes ||
      entry.compare(sizeof(header), key.size(), key) != 0 ||
      header.fingerprint != Fingerprint(entry.data() + sizeof(header), bytes)) {
    return "";
  }
  return entry.substr(sizeof(header) + key.size());
}

void ProgramCache::Store(const std::string& key, const std::string& binary) const {
  if (folder_.empty() || binary.empty()) return;
  const std::string content = key + binary;
  EntryHeader header{};
  std::memcpy(header.magic, kEntryMagic, sizeof(kEntryMagic));
  header.key_bytes = key.size();
  header.binary_bytes = binary.size();
  header.fingerprint = Fingerprint(content.data(), content.size());
  const std::string path = PathOf(key);
  std::string temporary;
  int file = CreateHeld(path, &temporary);
  if (file < 0) return;
  bool is_written =
      WriteAll(file, std::string(reinterpret_cast<const char*>(&header), sizeof(header))) &&
      WriteAll(file, content) && fsync(file) == 0;
  if (is_written && std::rename(temporary.c_str(), path.c_str()) == 0) {
    SyncFolder(folder_);
  } else {
    unlink(temporary.c_str());
  }
  close(file);
}

void ProgramCache::Remove(const std::string& key) const {
  if (!folder_.empty()) unlink(PathOf(key).c_str());
}

}  // namespace tvm_stretch::opencl

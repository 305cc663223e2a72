#include "program_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "memory.h"
#include "trusted.h"

namespace tvm_stretch::opencl {
namespace {

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

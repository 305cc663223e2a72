#include "trusted.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <filesystem>

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

}  // namespace tvm_stretch::opencl

#include "own_folder.h"

#include <dirent.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "errors.h"

namespace tvm_stretch {
namespace {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    const char* place = std::getenv("TMPDIR");
    path_ = std::string(place != nullptr && *place != 0 ? place : "/tmp") + "/tvm_stretch.XXXXXX";
    if (mkdtemp(path_.data()) != nullptr) return;
    throw tvm::ffi::Error(kDeviceError,
                          "expected room for a temporary folder, got none: " + path_ + " (" +
                              std::strerror(errno) + "); set TMPDIR to a folder with room",
                          "");
  }
  ~TemporaryFolder() {
    if (owner_ != getpid()) return;
    for (const std::string& name : NamesIn(path_)) unlink((path_ + "/" + name).c_str());
    rmdir(path_.c_str());
  }
  const std::string& path() const { return path_; }

 private:
  pid_t owner_ = getpid();
  std::string path_;
};

}  // namespace

const std::string& OwnFolder() {
  static const TemporaryFolder folder;
  return folder.path();
}

std::vector<std::string> NamesIn(const std::string& path) {
  std::vector<std::string> found;
  DIR* folder = opendir(path.c_str());
  while (const dirent* entry = folder == nullptr ? nullptr : readdir(folder)) {
    if (entry->d_name[0] != '.') found.push_back(entry->d_name);
  }
  if (folder != nullptr) closedir(folder);
  return found;
}

}  // namespace tvm_stretch

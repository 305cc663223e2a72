// A cache of compiled programs on disk, so that a driver compiles each source once per machine.
#pragma once

#include <string>

#include "device.h"

namespace tvm_stretch::opencl {

// Checks whether other users may have written files of a cache; `tvm_stretch/base/files.py` says
// why.

// Whether only this user and root may write to a folder and the folders above it. Folders that do
// not exist yet are trusted, as we will make them.
bool IsTrusted(const std::string& folder);

// Tells the user, once in a process, that a cache is not used, and which variable sets another.
void SayNotTrusted(const std::string& folder, const char* variable);

// Makes a folder and its parents, writable only by this user whatever the umask is.
void MakeFolder(const std::string& folder);

// The content of a file that only this user and root can have written; "" for other files, pipes
// and symbolic links.
std::string ReadOwn(const std::string& path);

// PoCL's own cache of compiled programs.

// Whether the driver is PoCL with a working cache, including machine code specialised to work-group
// sizes.
bool KeepsItsPrograms(const DeviceInfo& info);

// Before the driver is loaded: gives PoCL a private folder for this process if others may write to
// its default one, which is in /tmp without HOME. PoCL runs any code that it finds there.
void GuardPoclCache();

// Makes the folder, which may have been removed meanwhile, and removes, once in a process, files
// that a power loss truncated. PoCL compiles missing programs, but trusts all files: a truncated
// one would crash every process, or fail every build.
void PreparePoclCache();

// $XDG_CACHE_HOME or ~/.cache; "" if neither is known.
std::string UserCaches();

// Entries are found by a fingerprint of `key` and contain the whole key, so a foreign or damaged
// entry is never used. Entries are written atomically. No function throws: a broken cache only
// costs time.
class ProgramCache {
 public:
  // $TVM_STRETCH_CACHE_DIR, $XDG_CACHE_HOME/tvm_stretch or ~/.cache/tvm_stretch. If the
  // first is set but empty, there is no cache.
  ProgramCache();

  bool is_on() const { return !folder_.empty(); }

  // The binary, or "" if there is none.
  std::string Find(const std::string& key) const;
  void Store(const std::string& key, const std::string& binary) const;
  void Remove(const std::string& key) const;

 private:
  std::string PathOf(const std::string& key) const;

  std::string folder_;  // "": no cache
};

}  // namespace tvm_stretch::opencl

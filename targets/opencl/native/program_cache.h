// A cache of compiled programs on disk, so that a driver compiles each source once per machine.
#ifndef TVM_STRETCH_OPENCL_PROGRAM_CACHE_H_
#define TVM_STRETCH_OPENCL_PROGRAM_CACHE_H_

#include <string>

namespace tvm_stretch::opencl {

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

#endif  // TVM_STRETCH_OPENCL_PROGRAM_CACHE_H_

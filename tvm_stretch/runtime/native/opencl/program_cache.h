// Compiled programs on disk, so that a driver compiles each source once per machine.
#ifndef TVM_STRETCH_OPENCL_PROGRAM_CACHE_H_
#define TVM_STRETCH_OPENCL_PROGRAM_CACHE_H_

#include <string>

namespace tvm_stretch::opencl {

// $XDG_CACHE_HOME or ~/.cache; "" where neither is known.
std::string UserCaches();

// Entries are found by a fingerprint of `key` and hold the whole key, so that a foreign or damaged
// one is never taken. An entry appears complete or not at all, whenever the process dies. Nothing
// here throws: a cache that does not work only costs time.
class ProgramCache {
 public:
  // $TVM_STRETCH_CACHE_DIR, $XDG_CACHE_HOME/tvm_stretch or ~/.cache/tvm_stretch. Set but empty, the
  // first of these means: no cache.
  ProgramCache();

  bool is_on() const { return !folder_.empty(); }

  // The binary, or "" where there is none.
  std::string Find(const std::string& key) const;
  void Store(const std::string& key, const std::string& binary) const;
  void Remove(const std::string& key) const;

 private:
  std::string PathOf(const std::string& key) const;

  std::string folder_;  // "": no cache
};

}  // namespace tvm_stretch::opencl

#endif  // TVM_STRETCH_OPENCL_PROGRAM_CACHE_H_

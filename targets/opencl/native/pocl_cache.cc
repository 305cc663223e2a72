#include "pocl_cache.h"

#include <link.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <string>

#include "program_cache.h"
#include "trusted.h"

namespace tvm_stretch::opencl {
namespace {

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

}  // namespace

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

}  // namespace tvm_stretch::opencl

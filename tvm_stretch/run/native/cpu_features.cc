#include "cpu_features.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <unordered_map>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace tvm_stretch {
namespace {

// Keep in step with CHECKED_CPU_FEATURES in targets/cpu/cpu.py.
#if defined(__x86_64__)

enum Register { kEax, kEbx, kEcx, kEdx };

// The CPUID bit of a feature, and the register states that the operating system must save for it.
struct Row {
  const char* name;
  unsigned leaf, subleaf;
  Register reg;
  int bit;
  uint64_t states;
};

constexpr uint64_t kNone = 0, kYmm = 0x6, kZmm = 0xe6, kTiles = 0x60000, kApx = 0x80000;

constexpr Row kRows[] = {
    {"sse3", 1, 0, kEcx, 0, kNone},
    {"ssse3", 1, 0, kEcx, 9, kNone},
    {"fma", 1, 0, kEcx, 12, kYmm},
    {"sse4.1", 1, 0, kEcx, 19, kNone},
    {"sse4.2", 1, 0, kEcx, 20, kNone},
    {"movbe", 1, 0, kEcx, 22, kNone},
    {"popcnt", 1, 0, kEcx, 23, kNone},
    {"avx", 1, 0, kEcx, 28, kYmm},
    {"f16c", 1, 0, kEcx, 29, kYmm},
    {"bmi", 7, 0, kEbx, 3, kNone},
    {"avx2", 7, 0, kEbx, 5, kYmm},
    {"bmi2", 7, 0, kEbx, 8, kNone},
    {"avx512f", 7, 0, kEbx, 16, kZmm},
    {"avx512dq", 7, 0, kEbx, 17, kZmm},
    {"avx512ifma", 7, 0, kEbx, 21, kZmm},
    {"avx512cd", 7, 0, kEbx, 28, kZmm},
    {"avx512bw", 7, 0, kEbx, 30, kZmm},
    {"avx512vl", 7, 0, kEbx, 31, kZmm},
    {"avx512vbmi", 7, 0, kEcx, 1, kZmm},
    {"avx512vbmi2", 7, 0, kEcx, 6, kZmm},
    {"gfni", 7, 0, kEcx, 8, kNone},
    {"avx512vnni", 7, 0, kEcx, 11, kZmm},
    {"avx512bitalg", 7, 0, kEcx, 12, kZmm},
    {"avx512vpopcntdq", 7, 0, kEcx, 14, kZmm},
    {"amx-bf16", 7, 0, kEdx, 22, kTiles},
    {"avx512fp16", 7, 0, kEdx, 23, kZmm},
    {"amx-tile", 7, 0, kEdx, 24, kTiles},
    {"avxvnni", 7, 1, kEax, 4, kYmm},
    {"avx512bf16", 7, 1, kEax, 5, kZmm},
    {"avxifma", 7, 1, kEax, 23, kYmm},
    {"avxvnniint8", 7, 1, kEdx, 4, kYmm},
    {"avxneconvert", 7, 1, kEdx, 5, kYmm},
    {"egpr", 7, 1, kEdx, 21, kApx},
    {"lzcnt", 0x80000001, 0, kEcx, 5, kNone},
    {"sse4a", 0x80000001, 0, kEcx, 6, kNone},
    {"xop", 0x80000001, 0, kEcx, 11, kYmm},
    {"fma4", 0x80000001, 0, kEcx, 16, kYmm},
    {"tbm", 0x80000001, 0, kEcx, 21, kNone},
};

// The register states that the operating system saves.
uint64_t KeptStates() {
  unsigned regs[4] = {};
  if (!__get_cpuid(1, &regs[0], &regs[1], &regs[2], &regs[3]) || !(regs[2] >> 27 & 1)) return 0;
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return uint64_t{high} << 32 | low;
}

bool Has(const Row& row) {
  unsigned regs[4] = {};
  if (!__get_cpuid_count(row.leaf, row.subleaf, &regs[0], &regs[1], &regs[2], &regs[3]))
    return false;
  static const uint64_t kept = KeptStates();
  return (regs[row.reg] >> row.bit & 1) && (kept & row.states) == row.states;
}

// Linux lets a process use tile registers only after it has asked.
bool MayUse(const std::string& feature) {
  constexpr long kRequest = 0x1023, kTileData = 18;
  if (feature.compare(0, 4, "amx-") != 0) return true;
  static const bool may = syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
  return may;
}

const std::unordered_map<std::string, bool>& HostFeatures() {
  static const std::unordered_map<std::string, bool> features = [] {
    std::unordered_map<std::string, bool> found;
    for (const Row& row : kRows) found[row.name] = Has(row);
    return found;
  }();
  return features;
}

#elif defined(__aarch64__) && defined(__linux__)

bool MayUse(const std::string&) { return true; }

const std::unordered_map<std::string, bool>& HostFeatures() {
  static const unsigned long first = getauxval(AT_HWCAP), second = getauxval(AT_HWCAP2);
  // Bits as numbers, because headers of old systems lack some names.
  static const std::unordered_map<std::string, bool> features = {
      {"neon", first >> 1 & 1},
      {"crc", first >> 7 & 1},
      {"lse", first >> 8 & 1},
      {"fullfp16", first >> 10 & 1},
      {"rdm", first >> 12 & 1},
      {"rcpc", first >> 15 & 1},
      {"dotprod", first >> 20 & 1},
      {"sve", first >> 22 & 1},
      {"fp16fml", first >> 23 & 1},
      {"sve2", second >> 1 & 1},
      {"i8mm", second >> 13 & 1},
      {"bf16", second >> 14 & 1},
      {"complxnum", first >> 14 & 1},
      {"sha3", first >> 17 & 1},
      {"cssc", uint64_t{second} >> 34 & 1},
      {"mops", uint64_t{second} >> 43 & 1},
  };
  return features;
}

#else

bool MayUse(const std::string&) { return true; }

const std::unordered_map<std::string, bool>& HostFeatures() {
  static const std::unordered_map<std::string, bool> features;
  return features;
}

#endif

}  // namespace

std::vector<std::string> CpuFeatures() {
  std::vector<std::string> found;
  for (const auto& [name, has] : HostFeatures()) {
    if (has) found.push_back(name);
  }
  std::sort(found.begin(), found.end());
  return found;
}

void RequireCpuFeatures(const std::vector<std::string>& features, const std::string& origin) {
  const auto& host = HostFeatures();
  std::string missing;
  for (const std::string& feature : features) {
    auto found = host.find(feature);
    const bool has = found != host.end() && found->second && MayUse(feature);
    if (!has) missing += (missing.empty() ? "" : ", ") + feature;
  }
  if (!missing.empty()) {
    TVM_FFI_THROW(ValueError) << "expected a processor with " << missing << " for this artifact of "
                              << origin
                              << ", got one without; compile it for this machine "
                                 "(targets=[\"llvm\"])";
  }
}

}  // namespace tvm_stretch

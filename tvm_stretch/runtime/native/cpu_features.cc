#include "cpu_features.h"

#include <tvm/ffi/error.h>

#include <unordered_map>

#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace tvm_stretch {
namespace {

// Keep in step with CHECKED_CPU_FEATURES in build/assemble.py.
const std::unordered_map<std::string, bool>& HostFeatures() {
#if defined(__x86_64__)
  static const std::unordered_map<std::string, bool> features = [] {
    __builtin_cpu_init();
    return std::unordered_map<std::string, bool>{
        {"sse4.2", __builtin_cpu_supports("sse4.2")},
        {"avx", __builtin_cpu_supports("avx")},
        {"avx2", __builtin_cpu_supports("avx2")},
        {"fma", __builtin_cpu_supports("fma")},
        {"avx512f", __builtin_cpu_supports("avx512f")},
        {"avx512bw", __builtin_cpu_supports("avx512bw")},
        {"avx512dq", __builtin_cpu_supports("avx512dq")},
        {"avx512vl", __builtin_cpu_supports("avx512vl")},
        {"avx512vnni", __builtin_cpu_supports("avx512vnni")},
    };
  }();
#elif defined(__aarch64__) && defined(__linux__)
  static const unsigned long hwcap = getauxval(AT_HWCAP);
  static const std::unordered_map<std::string, bool> features = {
      {"neon", (hwcap & HWCAP_ASIMD) != 0},
      {"fullfp16", (hwcap & HWCAP_ASIMDHP) != 0},
      {"dotprod", (hwcap & HWCAP_ASIMDDP) != 0},
      {"sve", (hwcap & HWCAP_SVE) != 0},
  };
#else
  static const std::unordered_map<std::string, bool> features;
#endif
  return features;
}

}  // namespace

void RequireCpuFeatures(const std::vector<std::string>& features) {
  const auto& host = HostFeatures();
  std::string missing;
  for (const std::string& feature : features) {
    auto found = host.find(feature);
    if (found == host.end() || !found->second) missing += (missing.empty() ? "" : ", ") + feature;
  }
  if (!missing.empty()) {
    TVM_FFI_THROW(ValueError) << "expected a processor with " << missing
                              << " for this artifact, got one without; compile it for this "
                                 "machine (targets=[\"llvm\"])";
  }
}

}  // namespace tvm_stretch

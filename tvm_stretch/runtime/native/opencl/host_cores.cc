#include "host_cores.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <string>

namespace tvm_stretch::opencl {
namespace {

constexpr const char* kCoresVariable = "TVM_STRETCH_OPENCL_CPUS";
constexpr const char* kWorkersVariable = "POCL_MAX_PTHREAD_COUNT";

std::vector<int> ParseCores(const std::string& text) {
  std::vector<int> cores;
  std::stringstream list(text);
  for (std::string item; std::getline(list, item, ',');) {
    char* end = nullptr;
    long first = std::strtol(item.c_str(), &end, 10);
    long last = *end == '-' ? std::strtol(end + 1, &end, 10) : first;
    if (item.empty() || *end != '\0' || first < 0 || last < first || last >= CPU_SETSIZE) {
      TVM_FFI_THROW(ValueError) << "expected a list of cores like 0,2-3 for " << kCoresVariable
                                << ", got '" << text << "'; correct or unset it";
    }
    for (long core = first; core <= last; ++core) cores.push_back(static_cast<int>(core));
  }
  return cores;
}

}  // namespace

std::vector<int> CoresForDriver(const std::vector<int>& allowed) {
  const char* text = std::getenv(kCoresVariable);
  if (text != nullptr && *text != '\0') {
    std::vector<int> cores;
    for (int core : ParseCores(text)) {
      if (std::find(allowed.begin(), allowed.end(), core) != allowed.end()) cores.push_back(core);
    }
    if (cores.empty()) {
      TVM_FFI_THROW(ValueError) << "expected cores that this process may use for " << kCoresVariable
                                << ", got '" << text << "'; correct or unset it";
    }
    return cores;
  }
  return {allowed.begin() + static_cast<std::ptrdiff_t>(allowed.size() / 2), allowed.end()};
}

HostCoresScope::HostCoresScope() {
  if (std::getenv(kWorkersVariable) != nullptr || std::getenv("POCL_AFFINITY") != nullptr) return;
  CPU_ZERO(&before_);
  if (sched_getaffinity(0, sizeof(before_), &before_) != 0) return;
  std::vector<int> allowed;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &before_)) allowed.push_back(core);
  }
  std::vector<int> cores = CoresForDriver(allowed);
  cpu_set_t share;
  CPU_ZERO(&share);
  for (int core : cores) CPU_SET(core, &share);
  if (sched_setaffinity(0, sizeof(share), &share) != 0) return;
  setenv(kWorkersVariable, std::to_string(cores.size()).c_str(), 1);
  active_ = true;
}

HostCoresScope::~HostCoresScope() {
  if (!active_) return;
  unsetenv(kWorkersVariable);
  sched_setaffinity(0, sizeof(before_), &before_);
}

}  // namespace tvm_stretch::opencl

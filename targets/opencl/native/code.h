// The compiled code of the OpenCL processor: sources and the launches of their kernels.
//
//   {"sources": ["<OpenCL C>", ...],
//    "kernels": {"<name of the graph's kernel>": [
//       {"entry": "<__kernel name>", "source": <position in sources>, "groups": [gx, gy, gz],
//        "group_size": [lx, ly, lz], "args": [["buffer", i], ["offset", i], ["image", i],
//        ["int32", v], ["local", bytes], ["scratch", bytes], ["bell", 0], ...]},
//       ... launches in order]},
//    "options": "-cl-..."}
//
// `i` counts the node's tensors, inputs first; "buffer" is the memory that holds tensor i, "offset"
// the tensor's start in it, in elements, "image" the same memory as pixels of four elements.
// "scratch" is device memory through which launches of a kernel pass data to later ones; all
// kernels reuse the same memory. "bell" is the bell of the node's region (task.h). If kernels have
// bells, the launch "tvm_stretch.doorbell" only waits for one.
#pragma once

#include <tvm/ffi/extra/module.h>

#include <array>
#include <map>
#include <string>
#include <vector>

namespace tvm_stretch::opencl {

namespace ffi = tvm::ffi;

inline constexpr const char* kDoorbell = "tvm_stretch.doorbell";

struct ArgSpec {
  enum class Kind { kBuffer, kOffset, kImage, kInt32, kLocal, kScratch, kBell };
  Kind kind;
  int64_t value;
};

struct LaunchSpec {
  std::string entry;
  size_t source;  // position in CodeSpec::sources
  std::array<size_t, 3> global_size;
  std::array<size_t, 3> group_size;
  std::vector<ArgSpec> args;

  bool has_bell() const;
};

struct CodeSpec {
  std::vector<std::string> sources;
  std::string options;
  std::map<std::string, std::vector<LaunchSpec>> kernels;

  // Whether every kernel waits for its region's bell.
  bool has_bells = false;

  // Reads and checks the JSON. Throws ValueError.
  static CodeSpec FromJSON(const ffi::String& text);
};

// The code of a module of kind "tvm_stretch.opencl". Throws ValueError for other modules.
const CodeSpec& CodeOf(const ffi::Module& module);

}  // namespace tvm_stretch::opencl

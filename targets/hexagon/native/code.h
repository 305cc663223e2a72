// The compiled code for a DSP: the program that runs there, and how to start it here.
//
//   {"kernels": ["<name of the graph's kernel>", ... in the order of the program's table],
//    "emulator": ["qemu-hexagon", "-cpu", "v67"],   runs the program; may be empty
//    "server": "tvm_stretch_engine",                a program of this package that reads the code,
//                                                   which then is no program; may be left out
//    "runs_here": true,                             false: it is for another machine
//    "fastrpc": true,                               the chip of a phone runs the code
//    "device": "Hexagon v66, emulated",             for messages
//    "spin_us": 50, "deadline_ms": 30000}
#pragma once

#include <tvm/ffi/extra/module.h>

#include <chrono>
#include <map>
#include <string>
#include <vector>

namespace tvm_stretch::dsp {

namespace ffi = tvm::ffi;

struct CodeSpec {
  std::map<std::string, uint32_t> kernels;  // positions in the program's table
  std::vector<std::string> emulator;
  std::string server;
  bool runs_here = false;
  bool by_fastrpc = false;
  std::string device;
  std::chrono::microseconds spin{0};      // how long each side spins before it sleeps
  std::chrono::milliseconds deadline{0};  // of a region; then it has failed
  std::string program;                    // an ELF file (a library for FastRPC), or the server's

  // For messages.
  std::string noun() const { return server.empty() ? "a DSP" : "an engine"; }

  // Reads and checks the JSON. Throws ValueError.
  static CodeSpec FromJSON(const ffi::String& text, const ffi::Bytes& program);
};

// The code of a module of kind "tvm_stretch.dsp". Throws ValueError for other modules.
const CodeSpec& CodeOf(const ffi::Module& module);

}  // namespace tvm_stretch::dsp

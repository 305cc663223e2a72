// Describes this machine for compilers: `tvm_stretch.describe_machine`.
//
//   {"version": 2, "triple": "aarch64-linux-android", "name": "...", "features": ["dotprod", ...],
//    "cores": [{"number": 0, "part": "0x41:0xd05", "mhz": 1785, "capacity": 300, "l1": 32768,
//               "l2": 131072}, ...],
//    "memory": 5900000000, "free": 2100000000, "opencl": [...], "why_no_opencl": "",
//    "dsp": {"node": "/dev/adsprpc-smd", "domains": "adsp cdsp", "soc": 339, "chip": "SM8150",
//            "emulator": "", "why_no_library": ""}}
//
// Values that the system does not report are 0. phone/description.py makes targets of it.
#include <tvm/ffi/extra/json.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/reflection/registry.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <system_error>

#include "cores.h"
#include "cpu_features.h"
#include "memory.h"
#include "packed.h"

namespace tvm_stretch {
namespace {

namespace ffi = tvm::ffi;
namespace json = ffi::json;

constexpr int64_t kVersion = 2;
constexpr const char* kCores = "/sys/devices/system/cpu/cpu";

// Device nodes of a Hexagon: Linux's driver, then Qualcomm's own, which has one for all DSPs.
constexpr const char* kNodes[] = {"/dev/fastrpc-cdsp", "/dev/fastrpc-cdsp-secure",
                                  "/dev/adsprpc-smd", "/dev/adsprpc-smd-secure"};
// Folders in which these drivers list a phone's other processors: "adsp", "cdsp", "modem".
constexpr const char* kSubsystems[] = {"/sys/class/remoteproc", "/sys/bus/msm_subsys/devices"};
constexpr const char* kEmulator = "qemu-hexagon";

#if defined(__x86_64__)
constexpr const char* kMachine = "x86_64";
#elif defined(__aarch64__)
constexpr const char* kMachine = "aarch64";
#else
constexpr const char* kMachine = "unknown";
#endif
#if defined(__ANDROID__)
constexpr const char* kSystem = "-linux-android";
#elif defined(__GLIBC__)
constexpr const char* kSystem = "-linux-gnu";
#else
constexpr const char* kSystem = "-linux-musl";
#endif

// The first line of a small file; "" if there is none.
std::string Line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

int64_t Number(const std::string& path, int base = 10) {
  return std::strtoll(Line(path).c_str(), nullptr, base);
}

std::string Hex(int64_t number) {
  std::ostringstream text;
  text << "0x" << std::hex << number;
  return text.str();
}

// The value of a file's first line "name : value" whose name begins like that; "" without one.
std::string Field(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(':');
    if (line.compare(0, name.size(), name) != 0 || colon == std::string::npos) continue;
    const size_t start = line.find_first_not_of(" \t", colon + 1);
    return start == std::string::npos ? "" : line.substr(start);
  }
  return "";
}

// Bytes of "MemTotal:  123 kB".
int64_t MeminfoBytes(const std::string& name) {
  return 1024 * std::strtoll(Field("/proc/meminfo", name).c_str(), nullptr, 10);
}

// Bytes of the data caches of a core, by level.
std::map<std::string, int64_t> Caches(const std::string& core) {
  std::map<std::string, int64_t> found;
  for (int i = 0; i < 8; ++i) {
    const std::string index = core + "/cache/index" + std::to_string(i);
    if (Line(index + "/type") == "Instruction") continue;
    const std::string size = Line(index + "/size");
    if (!size.empty() && size.back() == 'K') {
      found["l" + Line(index + "/level")] = 1024 * std::strtoll(size.c_str(), nullptr, 10);
    }
  }
  return found;
}

// Implementer and part number of an Arm core, from its register MIDR_EL1; "" on other machines.
std::string Part(const std::string& core) {
  const int64_t midr = Number(core + "/regs/identification/midr_el1", 16);
  return midr == 0 ? "" : Hex(midr >> 24 & 0xff) + ":" + Hex(midr >> 4 & 0xfff);
}

json::Object Core(int number) {
  const std::string core = kCores + std::to_string(number);
  json::Object object;
  object.Set(ffi::String("number"), static_cast<int64_t>(number));
  object.Set(ffi::String("part"), ffi::String(Part(core)));
  object.Set(ffi::String("mhz"), Number(core + "/cpufreq/cpuinfo_max_freq") / 1000);
  object.Set(ffi::String("capacity"), Number(core + "/cpu_capacity"));
  const auto caches = Caches(core);
  for (const char* level : {"l1", "l2"}) {
    auto found = caches.find(level);
    object.Set(ffi::String(level), found == caches.end() ? int64_t{0} : found->second);
  }
  return object;
}

// The DSPs among a phone's other processors: "adsp cdsp".
std::string Domains(const std::string& root) {
  std::set<std::string> names;
  for (const char* folder : kSubsystems) {
    std::error_code error;
    std::filesystem::directory_iterator entry(root + folder, error), end;
    for (; !error && entry != end; entry.increment(error)) {
      const std::string name = Line(entry->path().string() + "/name");
      if (name.size() > 3 && name.compare(name.size() - 3, 3, "dsp") == 0) names.insert(name);
    }
  }
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : " ") + name;
  return text;
}

// The path of the Hexagon emulator that sessions start (dsp/process.cc); "" without one.
std::string Emulator(const std::string& root) {
  const char* path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::string program = folder + "/" + kEmulator;
    if (access((root + program).c_str(), X_OK) == 0) return program;
  }
  return "";
}

// The signs of a Hexagon below this folder, which is "" except in tests.
json::Object Dsp(const std::string& root) {
  std::string node;
  for (const char* candidate : kNodes) {
    if (node.empty() && access((root + candidate).c_str(), F_OK) == 0) node = candidate;
  }
  const std::string soc = root + "/sys/devices/soc0";
  json::Object object;
  object.Set(ffi::String("node"), ffi::String(node));
  object.Set(ffi::String("domains"), ffi::String(Domains(root)));
  object.Set(ffi::String("soc"), Number(soc + "/soc_id"));
  object.Set(ffi::String("chip"), ffi::String(Line(soc + "/machine")));
  object.Set(ffi::String("emulator"), ffi::String(Emulator(root)));
  const ffi::Function why = ffi::Function::GetGlobalRequired("tvm_stretch.why_no_cdsprpc");
  object.Set(ffi::String("why_no_library"), why());
  return object;
}

ffi::String DescribeDsp(const ffi::String& root) { return WholeJSON(Dsp(root)); }

ffi::String DescribeMachine() {
  json::Object machine;
  machine.Set(ffi::String("version"), kVersion);
  machine.Set(ffi::String("triple"), ffi::String(std::string(kMachine) + kSystem));
  machine.Set(ffi::String("name"), ffi::String(Field("/proc/cpuinfo", "model name")));
  json::Array features, cores;
  for (const std::string& name : CpuFeatures()) features.push_back(ffi::String(name));
  for (int number : AllowedCores()) cores.push_back(Core(number));
  machine.Set(ffi::String("features"), features);
  machine.Set(ffi::String("cores"), cores);
  machine.Set(ffi::String("memory"), MeminfoBytes("MemTotal"));
  machine.Set(ffi::String("free"), MeminfoBytes("MemAvailable"));
  ffi::Any opencl = json::Array();
  std::string why_not;
  try {
    const ffi::Function devices = ffi::Function::GetGlobalRequired("tvm_stretch.opencl_devices");
    opencl = json::Parse(devices().cast<ffi::String>());
  } catch (const ffi::Error& error) {
    why_not = error.message();
  }
  machine.Set(ffi::String("opencl"), opencl);
  machine.Set(ffi::String("why_no_opencl"), ffi::String(why_not));
  machine.Set(ffi::String("dsp"), Dsp(""));
  return WholeJSON(machine);
}

}  // namespace

TVM_FFI_STATIC_INIT_BLOCK() {
  tvm::ffi::reflection::GlobalDef()
      .def_packed("tvm_stretch.describe_dsp", Packed(DescribeDsp))
      .def_packed("tvm_stretch.describe_machine", Packed(DescribeMachine));
}

}  // namespace tvm_stretch

#include "cdsprpc.h"

#include <dlfcn.h>
#include <tvm/ffi/reflection/registry.h>

#include <cstdlib>
#include <memory>
#include <sstream>

#include "errors.h"
#include "packed.h"

namespace tvm_stretch::dsp {
namespace {

namespace ffi = tvm::ffi;

constexpr const char* kCdsprpcVariable = "TVM_STRETCH_CDSPRPC_LIB";
// Apps may open it by name if their manifest lists it, programs of adb by its path.
constexpr const char* kCdsprpcPaths[] = {"libcdsprpc.so", "libcdsprpc.so.1",
                                         "/vendor/lib64/libcdsprpc.so"};

struct LoadedCdsprpc {
  std::unique_ptr<Cdsprpc> library;
  std::string reason;
};

template <typename Function>
void Find(void* library, const char* name, Function* function, std::string* missing = nullptr) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  if (*function == nullptr && missing != nullptr) *missing += std::string(" ") + name;
}

// Fills the table; returns why it cannot.
std::string OpenCdsprpc(const char* path, Cdsprpc* table) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) return dlerror();
  std::string missing;
  Find(library, "rpcmem_alloc", &table->rpcmem_alloc, &missing);
  Find(library, "rpcmem_free", &table->rpcmem_free, &missing);
  Find(library, "rpcmem_to_fd", &table->rpcmem_to_fd, &missing);
  Find(library, "remote_session_control", &table->remote_session_control, &missing);
  Find(library, "remote_handle64_open", &table->remote_handle64_open, &missing);
  Find(library, "remote_handle64_invoke", &table->remote_handle64_invoke, &missing);
  Find(library, "remote_handle64_close", &table->remote_handle64_close, &missing);
  Find(library, "fastrpc_mmap", &table->fastrpc_mmap);
  Find(library, "fastrpc_munmap", &table->fastrpc_munmap);
  Find(library, "remote_handle64_control", &table->remote_handle64_control);
  return missing.empty() ? "" : std::string(path) + " without" + missing;
}

LoadedCdsprpc LoadCdsprpc() {
  LoadedCdsprpc loaded;
  const char* named = std::getenv(kCdsprpcVariable);
  const bool is_named = named != nullptr && *named != 0;
  for (const char* path : kCdsprpcPaths) {
    auto table = std::make_unique<Cdsprpc>();
    const std::string reason = OpenCdsprpc(is_named ? named : path, table.get());
    if (reason.empty()) {
      loaded.library = std::move(table);
      break;
    }
    if (loaded.reason.empty()) loaded.reason = reason;
    if (is_named) break;
  }
  return loaded;
}

const LoadedCdsprpc& Library() {
  static const LoadedCdsprpc& loaded = *new LoadedCdsprpc(LoadCdsprpc());
  return loaded;
}

// Errors of AEEStdErr.h for which there is something to do. DSPs return most of them with an
// offset, and the library on the CPU without.
constexpr int kOffset = static_cast<int>(0x80000400);
struct Known {
  int code;
  const char* name;
  const char* advice;
};
constexpr const char* kFreeMemory = "the DSP has too little memory: run fewer or smaller networks";
constexpr const char* kFiles =
    "the DSP found no library: TMPDIR must name a folder that the process may write to";
constexpr const char* kUnsigned =
    "the firmware refuses code without a signature: only chips that allow unsigned processes run "
    "it";
constexpr const char* kForbidden =
    "the system keeps this process from the DSP: an app's manifest has to list libcdsprpc.so in "
    "<uses-native-library>";
constexpr int kConnectionReset = Cdsprpc::kConnectionReset;
constexpr const char* kAgain = "the process on the DSP has ended, and the next run starts another";
constexpr Known kKnown[] = {
    {0x01, "AEE_EFAILED", "see the log of the DSP (adb logcat -s adsprpc)"},
    {0x02, "AEE_ENOMEMORY", kFreeMemory},
    {0x04, "AEE_EVERSIONNOTSUPPORT", "the firmware is too old for this call"},
    {0x06, "AEE_EUNABLETOLOAD", "the DSP cannot load the library: compile for its version (mcpu)"},
    {0x0d, "AEE_EBADSTATE", kAgain},
    {0x0e, "AEE_EBADPARM", "the firmware understands the call otherwise; report it"},
    {0x14, "AEE_EUNSUPPORTED", "the firmware has no such call"},
    {0x15, "AEE_EPRIVLEVEL", kForbidden},
    {0x27, "AEE_ENOSUCH", kFiles},
    {0x2b, "AEE_ENOTALLOWED", kForbidden},
    {0x2c, "AEE_EINVHANDLE", kAgain},
    {0x2d, "AEE_EOUTOFHANDLES", "the DSP has too many open programs: run fewer networks"},
    {0x2e, "AEE_EINTERRUPTED", "a signal ended the call; the next run tries again"},
    {0x38, "AEE_EINVALIDSIGNATURE", kUnsigned},
    {0x3b, "AEE_EINVALIDDEVICE", kForbidden},
    {0x41, "AEE_ENOSUCHPROCESS", kAgain},
    {0x42, "AEE_ENOSUCHSYMBOL", "the firmware lacks a function that the library needs; report it"},
    {0x45, "AEE_ENOSUCHFILE", kFiles},
    {0x52, "AEE_EBADELF", "the DSP cannot load the library: compile for its version (mcpu)"},
    {0x65, "AEE_EMMAP", kFreeMemory},
    {kConnectionReset, "AEE_ECONNRESET", kAgain},
    {kOffset + 0x68, "AEE_ENORPCMEMORY", kFreeMemory},
    {0x72, "AEE_ECONNREFUSED", kForbidden},
    {0x81, "AEE_EUNSIGNEDMOD", kUnsigned},
    {0x8a, "AEE_ENOSESSION", "all processes on the DSP are in use: end other apps that use it"},
    {0x200, "AEE_ERPC", kAgain},
};

}  // namespace

const Cdsprpc& TheCdsprpc() {
  if (Library().library) return *Library().library;
  throw ffi::Error(kDeviceError,
                   "expected libcdsprpc.so of a phone with a Hexagon, got: " + Library().reason +
                       "; an app's manifest has to list it in <uses-native-library>, or set " +
                       kCdsprpcVariable,
                   "");
}

std::string WhyNoCdsprpc() { return Library().library ? "" : Library().reason; }

std::string RpcError(const char* call, int code) {
  std::ostringstream text;
  text << call << ": ";
  const char* advice = "look the code up in AEEStdErr.h";
  for (const Known& known : kKnown) {
    const bool has_offset = known.code != kConnectionReset && code == kOffset + known.code;
    if (code != known.code && !has_offset) continue;
    text << known.name << " ";
    advice = known.advice;
  }
  text << "(0x" << std::hex << code << "), " << advice;
  return text.str();
}

TVM_FFI_STATIC_INIT_BLOCK() {
  tvm::ffi::reflection::GlobalDef().def_packed(
      "tvm_stretch.why_no_cdsprpc", Packed(+[]() { return ffi::String(WhyNoCdsprpc()); }));
}

}  // namespace tvm_stretch::dsp

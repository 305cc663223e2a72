// Makes the n-th step of a kind fail, in every process that it is preloaded into.
//
//   LD_PRELOAD=injector.so FAULTS=control FAULTS_ROOT=/folder:/another program
//
// The file `control` holds one `Control`, which the test and all of these processes map: the test
// writes kind and number, and everybody counts in it. Counted are only steps of ours: allocations
// whose caller is one of our libraries or programs, files below FAULTS_ROOT, sockets, commands that
// a DSP's or an engine's process takes, and calls of an OpenCL driver. For those this library is
// the driver (TVM_STRETCH_OPENCL_LIB) and passes calls on to the one named in FAULTS_OPENCL.
//
// FAULTS_PROGRAM is a part of the name of programs that are ours, by default tvm_stretch. Compiled
// with FAULTS_NEW_ONLY, the library leaves malloc alone, which a sanitizer replaces.
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <link.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>
#include <unwind.h>

#include <atomic>
#include <new>
#include <type_traits>

#include "targets/opencl/native/cl.h"

namespace {

enum Kind : int32_t { kNone, kAllocation, kOpenCL, kMessage, kCommand, kWrite, kRename, kRead };

struct Control {
  std::atomic<int32_t> kind;
  std::atomic<int32_t> lasts;   // all later steps fail, too
  std::atomic<int64_t> number;  // of the step that fails; 0: none, they are only counted
  std::atomic<int64_t> seen;
  std::atomic<int64_t> failed;
  std::atomic<int32_t> silent;  // a DSP that fails says nothing, instead of ending
};

Control idle{};
Control* control = &idle;
thread_local bool inside = false;  // what this library itself calls is not counted

[[gnu::constructor]] void Map() {
  const char* path = getenv("FAULTS");
  const int fd = path == nullptr
                     ? -1
                     : static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC));
  if (fd < 0) return;
  void* data = reinterpret_cast<void*>(
      syscall(SYS_mmap, nullptr, sizeof(Control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
  syscall(SYS_close, fd);
  if (data != MAP_FAILED) control = static_cast<Control*>(data);
}

// Whether this step, of this kind, is to fail.
bool Fails(Kind kind) {
  if (control->kind.load(std::memory_order_relaxed) != kind) return false;
  const int64_t number = control->number, step = ++control->seen;
  if (number == 0 || step < number || (step > number && !control->lasts)) return false;
  ++control->failed;
  if (getenv("FAULTS_TRACE") != nullptr) {  // where it is, for who looks for a defect
    void* frames[40];
    inside = true;
    backtrace_symbols_fd(frames, backtrace(frames, 40), 2);
    inside = false;
  }
  return true;
}

// ---- Allocations

struct Range {
  uintptr_t start, end;
};
struct Code {
  Range ours[8], between[8];  // C++'s and tvm-ffi's allocate for us
  int num_ours = 0, num_between = 0;
};

int Collect(dl_phdr_info* info, size_t, void* data) {
  auto* code = static_cast<Code*>(data);
  static const bool program_is_ours = [] {
    char path[512] = "";
    const bool has_path = readlink("/proc/self/exe", path, sizeof(path) - 1) > 0;
    const char* ours = getenv("FAULTS_PROGRAM");
    return has_path &&
           strstr(strrchr(path, '/'), ours == nullptr ? "tvm_stretch" : ours) != nullptr;
  }();
  const char* name = strrchr(info->dlpi_name, '/');
  name = name == nullptr ? info->dlpi_name : name + 1;
  const bool is_ours = strncmp(name, "libtvm_stretch", 14) == 0 || (*name == 0 && program_is_ours);
  const bool is_between =
      strncmp(name, "libstdc++", 9) == 0 || strncmp(name, "libtvm_ffi", 10) == 0;
  for (int i = 0; i < info->dlpi_phnum && (is_ours || is_between); ++i) {
    const auto& part = info->dlpi_phdr[i];
    if (part.p_type != PT_LOAD || (part.p_flags & PF_X) == 0) continue;
    const uintptr_t start = info->dlpi_addr + part.p_vaddr;
    int& count = is_ours ? code->num_ours : code->num_between;
    if (count < 8) (is_ours ? code->ours : code->between)[count++] = {start, start + part.p_memsz};
  }
  return 0;
}

bool IsIn(const Range* ranges, int count, uintptr_t place) {
  for (int i = 0; i < count; ++i) {
    if (ranges[i].start <= place && place < ranges[i].end) return true;
  }
  return false;
}

struct Walk {
  const Code* code;
  int frames = 0;
  bool is_ours = false;
};

_Unwind_Reason_Code Look(_Unwind_Context* context, void* data) {
  auto* walk = static_cast<Walk*>(data);
  const uintptr_t place = _Unwind_GetIP(context);
  static const Code own = [] {
    Code code;
    Dl_info info;
    dladdr(reinterpret_cast<void*>(&Map), &info);
    code.ours[0].start = reinterpret_cast<uintptr_t>(info.dli_fbase);
    return code;
  }();
  walk->is_ours = IsIn(walk->code->ours, walk->code->num_ours, place);
  if (walk->is_ours) return _URC_END_OF_STACK;
  const bool is_this = place >= own.ours[0].start && place < own.ours[0].start + (1u << 18);
  const bool goes_on = is_this || IsIn(walk->code->between, walk->code->num_between, place);
  return goes_on && ++walk->frames < 24 ? _URC_NO_REASON : _URC_END_OF_STACK;
}

// The exception that reports a failure is not to fail: C++ has a reserve for it.
bool IsOurs() {
  static thread_local Code code;
  static thread_local int64_t known = -1;
  if (known != control->number) {
    code = Code();
    dl_iterate_phdr(Collect, &code);
    known = control->number;
  }
  Walk walk{&code};
  _Unwind_Backtrace(Look, &walk);
  return walk.is_ours;
}

bool AllocationFails() {
  if (control->kind.load(std::memory_order_relaxed) != kAllocation || inside) return false;
  inside = true;
  const bool fails = IsOurs() && Fails(kAllocation);
  inside = false;
  return fails;
}

// ---- Files

// Whether a path, or what a descriptor stands for, lies below FAULTS_ROOT.
bool IsUnderRoot(const char* path) {
  static const char* const roots = getenv("FAULTS_ROOT");
  for (const char* root = roots; root != nullptr && *root != 0;) {
    const size_t length = strcspn(root, ":");
    if (length > 0 && strncmp(path, root, length) == 0) return true;
    root += length + (root[length] == ':');
  }
  return false;
}

bool IsOurFile(int fd) {
  char link[64], path[1024];
  snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
  const ssize_t length = readlink(link, path, sizeof(path) - 1);
  if (length <= 0) return false;
  path[length] = 0;
  return IsUnderRoot(path);
}

bool FileFails(Kind kind, int fd) {
  return control->kind.load(std::memory_order_relaxed) == kind && IsOurFile(fd) && Fails(kind);
}

bool PathFails(Kind kind, const char* path) {
  return control->kind.load(std::memory_order_relaxed) == kind && IsUnderRoot(path) && Fails(kind);
}

int FaultOf(Kind kind) { return kind == kRead ? EIO : ENOSPC; }

template <typename Result>
Result Refused(int code) {
  errno = code;
  return static_cast<Result>(-1);
}

// ---- OpenCL

using tvm_stretch::opencl::cl_int;
constexpr cl_int kOutOfResources = -5;
constexpr size_t kFunctions = 256;

struct Driver {
  void* real[kFunctions];
  void* table[kFunctions];  // the same with our functions
} driver;

// A wait that fails has waited, and what could not be released is released.
constexpr bool IsDoneAnyway(int index) {
  return index == 11 || index == 18 || index == 29 || index == 37 || index == 41 || index == 44 ||
         index == 47;
}

template <typename Last>
void Tell(Last last) {
  if constexpr (std::is_same_v<Last, cl_int*>) {
    if (last != nullptr) *last = kOutOfResources;
  }
}

template <int index, typename Result, typename... Args>
struct Wrapped;
template <int index, typename Result, typename... Args>
struct Wrapped<index, Result(Args...)> {
  static Result Call(Args... args) {
    const auto real = reinterpret_cast<Result (*)(Args...)>(driver.real[index]);
    if (!Fails(kOpenCL)) return real(args...);
    if (IsDoneAnyway(index)) real(args...);
    (Tell(args), ...);
    if constexpr (std::is_pointer_v<Result>)
      return nullptr;
    else
      return kOutOfResources;
  }
};

using GetPlatforms = cl_int (*)(uint32_t, void**, uint32_t*);
using Find = void* (*)(const char*);

void* Library() {
  static void* const library = dlopen(getenv("FAULTS_OPENCL"), RTLD_NOW | RTLD_LOCAL);
  return library;
}

Find RealFind() {
  return Library() == nullptr
             ? nullptr
             : reinterpret_cast<Find>(dlsym(Library(), "clGetExtensionFunctionAddress"));
}

// A driver's own list of platforms, or that of a loader of drivers.
GetPlatforms RealGetPlatforms() {
  void* own = RealFind()("clIcdGetPlatformIDsKHR");
  if (own == nullptr) own = dlsym(Library(), "clGetPlatformIDs");
  return reinterpret_cast<GetPlatforms>(own);
}

cl_int Platforms(uint32_t size, void** platforms, uint32_t* count) {
  if (Fails(kOpenCL)) return kOutOfResources;
  const cl_int code = RealGetPlatforms()(size, platforms, count);
  if (code != 0 || size == 0 || platforms == nullptr) return code;
  void*** object = reinterpret_cast<void***>(platforms[0]);
  if (*object == driver.table) return code;
  memcpy(driver.real, *object, 160 * sizeof(void*));
  memcpy(driver.table, driver.real, sizeof(driver.real));
#define FAULTS_WRAP(index, name, result, parameters)                                         \
  {                                                                                          \
    using namespace tvm_stretch::opencl;                                                     \
    driver.table[index] = reinterpret_cast<void*>(&Wrapped<index, result parameters>::Call); \
  }
  TVM_STRETCH_CL_FUNCTIONS(FAULTS_WRAP)
#undef FAULTS_WRAP
  *object = driver.table;
  return code;
}

void* New(size_t bytes, size_t alignment) {
  const bool fails = AllocationFails();
  inside = true;  // what malloc does for it is the same allocation
  void* made =
      fails ? nullptr : aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  inside = false;
  return made;
}

}  // namespace

void* operator new(size_t bytes) {
  void* made = New(bytes == 0 ? 1 : bytes, 16);
  if (made == nullptr) throw std::bad_alloc();
  return made;
}
void* operator new[](size_t bytes) { return operator new(bytes); }
void* operator new(size_t bytes, const std::nothrow_t&) noexcept { return New(bytes, 16); }
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept { return New(bytes, 16); }
void* operator new(size_t bytes, std::align_val_t alignment) {
  void* made = New(bytes == 0 ? 1 : bytes, static_cast<size_t>(alignment));
  if (made == nullptr) throw std::bad_alloc();
  return made;
}
void operator delete(void* memory) noexcept { free(memory); }
void operator delete[](void* memory) noexcept { free(memory); }
void operator delete(void* memory, size_t) noexcept { free(memory); }
void operator delete[](void* memory, size_t) noexcept { free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { free(memory); }

extern "C" {

void* clGetExtensionFunctionAddress(const char* name) {
  if (strcmp(name, "clIcdGetPlatformIDsKHR") == 0) {
    return RealFind() == nullptr ? nullptr : reinterpret_cast<void*>(&Platforms);
  }
  return RealFind()(name);
}

#ifndef FAULTS_NEW_ONLY
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);

static void* NoMemory() {
  errno = ENOMEM;
  return nullptr;
}

void* malloc(size_t bytes) { return AllocationFails() ? NoMemory() : __libc_malloc(bytes); }
void* calloc(size_t count, size_t bytes) {
  return AllocationFails() ? NoMemory() : __libc_calloc(count, bytes);
}
void* realloc(void* old, size_t bytes) {
  return AllocationFails() ? NoMemory() : __libc_realloc(old, bytes);
}
void* aligned_alloc(size_t alignment, size_t bytes) {
  return AllocationFails() ? NoMemory() : __libc_memalign(alignment, bytes);
}
int posix_memalign(void** made, size_t alignment, size_t bytes) {
  if (AllocationFails()) return ENOMEM;
  *made = __libc_memalign(alignment, bytes);
  return *made == nullptr ? ENOMEM : 0;
}
#endif

void* mmap(void* place, size_t bytes, int protection, int flags, int fd, off_t offset) {
  if (AllocationFails()) {
    errno = ENOMEM;
    return MAP_FAILED;
  }
  return reinterpret_cast<void*>(syscall(SYS_mmap, place, bytes, protection, flags, fd, offset));
}

int ftruncate(int fd, off_t bytes) {
  if (AllocationFails() || FileFails(kWrite, fd)) return Refused<int>(ENOSPC);
  return static_cast<int>(syscall(SYS_ftruncate, fd, bytes));
}
int ftruncate64(int fd, off_t bytes) { return ftruncate(fd, bytes); }

int openat(int folder, const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(more, mode_t) : 0;
  va_end(more);
  const Kind kind = (flags & (O_CREAT | O_WRONLY | O_RDWR)) != 0 ? kWrite : kRead;
  if (PathFails(kind, path)) return Refused<int>(FaultOf(kind));
  return static_cast<int>(syscall(SYS_openat, folder, path, flags, mode));
}
#define FAULTS_OPEN(name)                                                                \
  int name(const char* path, int flags, ...) {                                           \
    va_list more;                                                                        \
    va_start(more, flags);                                                               \
    const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(more, mode_t) : 0; \
    va_end(more);                                                                        \
    return openat(AT_FDCWD, path, flags, mode);                                          \
  }
FAULTS_OPEN(open)
FAULTS_OPEN(open64)

ssize_t write(int fd, const void* data, size_t bytes) {
  if (FileFails(kWrite, fd)) return Refused<ssize_t>(ENOSPC);
  return syscall(SYS_write, fd, data, bytes);
}
ssize_t writev(int fd, const iovec* parts, int count) {
  if (FileFails(kWrite, fd)) return Refused<ssize_t>(ENOSPC);
  return syscall(SYS_writev, fd, parts, count);
}
ssize_t pwrite(int fd, const void* data, size_t bytes, off_t place) {
  if (FileFails(kWrite, fd)) return Refused<ssize_t>(ENOSPC);
  return syscall(SYS_pwrite64, fd, data, bytes, place);
}
ssize_t pwrite64(int fd, const void* data, size_t bytes, off_t place) {
  return pwrite(fd, data, bytes, place);
}
int fsync(int fd) {
  if (FileFails(kWrite, fd)) return Refused<int>(EIO);
  return static_cast<int>(syscall(SYS_fsync, fd));
}
int mkdir(const char* path, mode_t mode) {
  if (PathFails(kWrite, path)) return Refused<int>(ENOSPC);
  return static_cast<int>(syscall(SYS_mkdirat, AT_FDCWD, path, mode));
}
int rename(const char* from, const char* to) {
  if (PathFails(kRename, to)) return Refused<int>(EIO);
  return static_cast<int>(syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}
int unlink(const char* path) {
  if (PathFails(kRename, path)) return Refused<int>(EIO);
  return static_cast<int>(syscall(SYS_unlinkat, AT_FDCWD, path, 0));
}
ssize_t read(int fd, void* data, size_t bytes) {
  if (FileFails(kRead, fd)) return Refused<ssize_t>(EIO);
  return syscall(SYS_read, fd, data, bytes);
}
ssize_t pread(int fd, void* data, size_t bytes, off_t place) {
  if (FileFails(kRead, fd)) return Refused<ssize_t>(EIO);
  return syscall(SYS_pread64, fd, data, bytes, place);
}
ssize_t pread64(int fd, void* data, size_t bytes, off_t place) {
  return pread(fd, data, bytes, place);
}

// ---- Messages: the connection is gone, in mid-message where it is long.

ssize_t send(int fd, const void* data, size_t bytes, int flags) {
  if (!Fails(kMessage)) return syscall(SYS_sendto, fd, data, bytes, flags, nullptr, 0);
  if (bytes > 8) syscall(SYS_sendto, fd, data, bytes / 2, flags, nullptr, 0);
  shutdown(fd, SHUT_RDWR);
  return Refused<ssize_t>(ECONNRESET);
}
ssize_t recv(int fd, void* data, size_t bytes, int flags) {
  if (!Fails(kMessage)) return syscall(SYS_recvfrom, fd, data, bytes, flags, nullptr, nullptr);
  shutdown(fd, SHUT_RDWR);
  return Refused<ssize_t>(ECONNRESET);
}

// ---- Commands: a DSP's process asks for the number of cores before it waits for each.

static bool IsDsp() {
  static const bool is_dsp = [] {
    char path[512] = "";
    const bool has_path = readlink("/proc/self/exe", path, sizeof(path) - 1) > 0;
    return has_path && (strstr(path, "tvm_stretch_engine") || strstr(path, "memfd:"));
  }();
  return is_dsp;
}

long sysconf(int what) {
  using Function = long(int);
  static auto* const next = reinterpret_cast<Function*>(dlsym(RTLD_NEXT, "sysconf"));
  if (what == _SC_NPROCESSORS_ONLN && IsDsp() && Fails(kCommand)) {
    while (control->silent) pause();
    _exit(9);
  }
  return next(what);
}
}

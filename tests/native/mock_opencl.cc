// An OpenCL driver without a device, for tests: built as a library of its own that the runtime
// loads through TVM_STRETCH_OPENCL_LIB. Its kernels are functions of this file, found by their
// names.
//
// $MOCK_OPENCL, words separated by spaces:
//
//   no-platform, no-device   what a machine without a device says
//   gpu                      memory that is not coherent, and a thread for each queue; otherwise
//                            the host's CPU: one thread executes the commands of all queues
//   fine-grained             of a gpu: buffers of shared virtual memory
//   no-groups                no kernel may have a work-group
//   no-room                  no buffer can be made
//   no-images, few-pixels    no images, or only small ones
//   llvm-16                  a PoCL whose compiler must not optimise: it fails if it may
//   priorities               contexts and queues take hints, and `mock_opencl_hint` tells them
//   arm-import, qcom-import, khr-import   memory of files is imported in these ways
//
// A gpu's own memory for the host (CL_MEM_ALLOC_HOST_PTR) is twice there: as the device sees it,
// and as the host does. Only maps and unmaps make them equal, and kernels that use what is mapped
// fail.
//
// Tests call mock_opencl_fail(what, skip, code): after `skip` good calls of the function `what`
// ("CreateBuffer", ...), one fails with `code`. `what` may be "run", a kernel's execution, or
// "slow-read": a read of a buffer ends when a later kernel begins, and fails if none does. With
// code CL_NV_ILLEGAL_BUFFER_ACCESS or CL_DEVICE_NOT_AVAILABLE that loses the context: nothing works
// in it any more. Without `what`, nothing fails any more.
#include "mock_opencl.h"

#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <csignal>

namespace tvm_stretch::opencl {
namespace {

_cl_platform_id platform;
_cl_device_id device;

std::mutex svm_mutex;
std::map<char*, size_t> svm;  // allocations of shared virtual memory

bool IsSvm(char* host) {
  std::lock_guard<std::mutex> lock(svm_mutex);
  auto after = svm.upper_bound(host);
  if (after == svm.begin()) return false;
  --after;
  return host < after->first + after->second;
}

std::atomic<int> waited_on{-1};  // the first core of the thread that slept last; -1 if none did

int FirstAllowedCore() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  sched_getaffinity(0, sizeof(cores), &cores);
  int core = 0;
  while (core < CPU_SETSIZE && !CPU_ISSET(core, &cores)) ++core;
  return core;
}

std::atomic<int64_t> context_hint{0}, queue_hint{0};  // of the last one that was made

// The value of a property in a list that ends with 0; 0 if it is not there.
template <typename T>
int64_t HintOf(const T* properties, T name) {
  for (; properties != nullptr && *properties != 0; properties += 2) {
    if (*properties == name) return static_cast<int64_t>(properties[1]);
  }
  return 0;
}

// --- kernels
// --------------------------------------------------------------------------------------

struct Bound {
  bool has_bell;
  std::vector<Ref<_cl_mem>> buffers;  // of the bell, then of the tensors
  std::vector<int32_t> numbers;
};

float* TensorOf(const Bound& bound, size_t i) {
  return reinterpret_cast<float*>(bound.buffers[i + bound.has_bell]->data) + bound.numbers[i];
}

// The last tensor is the one that is written.
bool MayUse(const Bound& bound) {
  for (size_t i = 0; i < bound.numbers.size(); ++i) {
    const bool writes = i + 1 == bound.numbers.size();
    const auto start = reinterpret_cast<const char*>(TensorOf(bound, i));
    if (!bound.buffers[i + bound.has_bell]->IsDevices(start, 64, writes)) return false;
  }
  return true;
}

void Compute(const std::string& name, const Bound& bound) {
  for (int i = 0; i < 16 && name == "negative"; ++i) {
    TensorOf(bound, 1)[i] = -TensorOf(bound, 0)[i];
  }
  for (int i = 0; i < 16 && name == "add"; ++i) {
    TensorOf(bound, 2)[i] = TensorOf(bound, 0)[i] + TensorOf(bound, 1)[i];
  }
}

std::atomic<int> imports{0}, imported_reads{0};  // of memory, and by kernels of it

std::atomic<int> kernels{0}, begun{0};  // that were enqueued, and that have begun

// Whether a kernel begins, before long, that is enqueued after `before` others.
bool HasLaterBegun(int before) {
  for (int wait = 0; wait < 2000 && begun <= before; ++wait) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return begun > before;
}

cl_int RunKernel(const std::string& name, const Bound& bound, int32_t items) {
  ++begun;
  std::atomic<int32_t>* ints = nullptr;
  if (bound.has_bell) {
    ints = reinterpret_cast<std::atomic<int32_t>*>(bound.buffers[0]->data);
    while (ints[0] == 0) std::this_thread::yield();
    if (ints[0] != 1) return CL_SUCCESS;
  }
  if (cl_int code = Script::Get().Next("run")) return code;
  if (!MayUse(bound)) return CL_INVALID_VALUE;
  for (const auto& buffer : bound.buffers) imported_reads += buffer->is_imported;
  Compute(name, bound);
  if (ints != nullptr) ints[16].fetch_add(items);
  return CL_SUCCESS;
}

// Whether `name` stands in the source as a kernel, and its parameters.
bool FindKernel(const std::string& source, const std::string& name, std::string* params) {
  const size_t at = source.find("void " + name + "(");
  if (at == std::string::npos) return false;
  const size_t begin = source.find('(', at);
  *params = source.substr(begin + 1, source.find(')', begin) - begin - 1);
  return true;
}

template <typename T>
cl_int Answer(const T& value, size_t bytes, void* to, size_t* size) {
  if (size != nullptr) *size = sizeof(T);
  if (to != nullptr && bytes < sizeof(T)) return CL_INVALID_VALUE;
  if (to != nullptr) std::memcpy(to, &value, sizeof(T));
  return CL_SUCCESS;
}

cl_int AnswerText(const std::string& text, size_t bytes, void* to, size_t* size) {
  if (size != nullptr) *size = text.size() + 1;
  if (to != nullptr && bytes < text.size() + 1) return CL_INVALID_VALUE;
  if (to != nullptr) std::memcpy(to, text.c_str(), text.size() + 1);
  return CL_SUCCESS;
}

template <typename T>
T* Made(const char* what, cl_context context, cl_int* code, const std::function<T*()>& make) {
  cl_int failure = Script::Get().Next(what);
  if (failure == CL_SUCCESS && context != nullptr) failure = context->lost;
  *code = failure;
  return failure == CL_SUCCESS ? make() : nullptr;
}

// A file as a buffer; kernels of Khronos' way may use it while it is acquired.
struct Imported : _cl_mem {
  Imported(int fd, size_t bytes)
      : _cl_mem(bytes, static_cast<char*>(mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, 0)),
                true),
        bytes(bytes) {
    is_imported = true;
    is_away = Wants(" khr-import ");
    ++imports;
  }
  ~Imported() override { munmap(host, bytes); }
  size_t bytes;
};

cl_int HandOver(cl_uint count, const cl_mem* buffers, bool away) {
  for (cl_uint i = 0; i < count; ++i) {
    if (buffers[i]->is_away == away) return CL_INVALID_VALUE;
    buffers[i]->is_away = away;
  }
  return CL_SUCCESS;
}

cl_mem ImportMemory(cl_context context, const cl_properties* properties, void* fd, size_t bytes,
                    cl_int* code) {
  const bool is_dma_buf = properties[0] == 0x40B2 && properties[1] == 0x40B4;
  if (!is_dma_buf) return *code = CL_INVALID_VALUE, nullptr;
  return Made<_cl_mem>("Import", context, code,
                       [&] { return new Imported(*static_cast<int*>(fd), bytes); });
}

}  // namespace

// --- memory that is mapped

cl_int _cl_mem::Map(cl_bitfield flags, size_t offset, size_t bytes) {
  std::lock_guard<std::mutex> lock(mutex);
  const bool writes = (flags & CL_MAP_WRITE) != 0;
  for (const auto& [start, other] : mappings) {
    const bool overlap = start < offset + bytes && offset < start + other.bytes;
    if (overlap && (writes || other.writes)) return CL_INVALID_VALUE;
  }
  if (host == data) return CL_SUCCESS;
  mappings[offset] = {bytes, writes};
  // Lines that are equal already may be read by the host meanwhile, whatever others are mapped
  // with.
  constexpr size_t kLine = 64;
  for (size_t at = offset; at < offset + bytes;) {
    const size_t piece = std::min(kLine - at % kLine, offset + bytes - at);
    if (std::memcmp(host + at, data + at, piece) != 0) std::memcpy(host + at, data + at, piece);
    at += piece;
  }
  return CL_SUCCESS;
}

cl_int _cl_mem::Unmap(size_t offset) {
  std::lock_guard<std::mutex> lock(mutex);
  if (host == data) return CL_SUCCESS;
  auto found = mappings.find(offset);
  if (found == mappings.end()) return CL_INVALID_VALUE;
  const Mapping mapping = found->second;
  mappings.erase(found);
  if (mapping.writes) std::memcpy(data + offset, host + offset, mapping.bytes);
  return CL_SUCCESS;
}

bool _cl_mem::IsDevices(const char* start, size_t bytes, bool writes) {
  if (viewed != nullptr) return !writes && viewed->IsDevices(start, bytes, writes);
  if (is_imported) return !writes && !is_away;
  std::lock_guard<std::mutex> lock(mutex);
  const auto first = static_cast<size_t>(start - data);
  for (const auto& [offset, mapping] : mappings) {
    const bool overlap = offset < first + bytes && first < offset + mapping.bytes;
    if (overlap && writes) return false;
  }
  return true;
}

// --- OpenCL's interface
// ---------------------------------------------------------------------------

extern "C" {

void mock_opencl_fail(const char* what, int skip, int code) {
  what == nullptr ? Script::Get().Clear() : Script::Get().Add(what, skip, code);
}
int mock_opencl_live() { return live; }
int mock_opencl_waited_on() { return waited_on.exchange(-1); }

cl_int clGetPlatformIDs(cl_uint, cl_platform_id* ids, cl_uint* count) {
  if (ids != nullptr) *ids = &platform;
  if (count != nullptr) *count = Wants(" no-platform ") ? 0 : 1;
  return CL_SUCCESS;
}
cl_int clGetPlatformInfo(cl_platform_id, cl_uint what, size_t bytes, void* to, size_t* size) {
  const bool is_odd = what == CL_PLATFORM_VERSION && Wants(" llvm-16 ");
  return AnswerText(is_odd ? "OpenCL 3.0 PoCL 5.0  Linux, LLVM 16.0.6" : "mock", bytes, to, size);
}
cl_int clGetDeviceIDs(cl_platform_id, cl_bitfield, cl_uint, cl_device_id* ids, cl_uint* count) {
  if (Wants(" no-device ")) return CL_DEVICE_NOT_FOUND;
  if (ids != nullptr) *ids = &device;
  if (count != nullptr) *count = 1;
  return CL_SUCCESS;
}
cl_int clGetDeviceInfo(cl_device_id, cl_uint what, size_t bytes, void* to, size_t* size) {
  const cl_ulong sizes[3] = {256, 256, 256};
  switch (what) {
    case CL_DEVICE_TYPE:
      return Answer(Wants(" gpu ") ? CL_DEVICE_TYPE_GPU : CL_DEVICE_TYPE_CPU, bytes, to, size);
    case CL_DEVICE_SVM_CAPABILITIES:
      return Answer(Wants(" fine-grained ") ? CL_DEVICE_SVM_FINE_GRAIN_BUFFER : cl_bitfield{0},
                    bytes, to, size);
    case CL_DEVICE_AVAILABLE:
    case CL_DEVICE_HOST_UNIFIED_MEMORY:
    case CL_DEVICE_MAX_COMPUTE_UNITS:
      return Answer(cl_uint{1}, bytes, to, size);
    case CL_DEVICE_IMAGE_SUPPORT:
      return Answer(Wants(" no-images ") ? kFalse : kTrue, bytes, to, size);
    case CL_DEVICE_IMAGE_MAX_BUFFER_SIZE:
      return Answer(size_t{Wants(" few-pixels ") ? 8u : 65536u}, bytes, to, size);
    case CL_DEVICE_MAX_WORK_GROUP_SIZE:
      return Answer(size_t{256}, bytes, to, size);
    case CL_DEVICE_MAX_WORK_ITEM_SIZES:
      return Answer(sizes, bytes, to, size);
    case CL_DEVICE_LOCAL_MEM_SIZE:
      return Answer(cl_ulong{32768}, bytes, to, size);
    case CL_DEVICE_MAX_MEM_ALLOC_SIZE:
      return Answer(cl_ulong{1} << 30, bytes, to, size);
    case CL_DEVICE_EXTENSIONS: {
      std::string all;
      if (Wants(" priorities ")) all += " cl_khr_priority_hints cl_qcom_priority_hint";
      if (Wants(" arm-import ")) all += " cl_arm_import_memory cl_arm_import_memory_dma_buf";
      if (Wants(" qcom-import ")) all += " cl_qcom_ext_host_ptr cl_qcom_dmabuf_host_ptr";
      if (Wants(" khr-import ")) all += " cl_khr_external_memory_dma_buf";
      return all.empty() ? CL_INVALID_VALUE : AnswerText(all, bytes, to, size);
    }
    case CL_DEVICE_NAME:
    case CL_DEVICE_VENDOR:
    case CL_DEVICE_VERSION:
    case CL_DRIVER_VERSION:
      return AnswerText("mock", bytes, to, size);
    default:
      return CL_INVALID_VALUE;
  }
}

cl_context clCreateContext(const cl_properties* properties, cl_uint, const cl_device_id*,
                           ContextCallback, void*, cl_int* code) {
  context_hint = HintOf(properties, CL_CONTEXT_PRIORITY_HINT_QCOM);
  return Made<_cl_context>("CreateContext", nullptr, code, [] {
    static std::deque<_cl_context>& kept = *new std::deque<_cl_context>();
    return &kept.emplace_back();
  });
}
cl_command_queue clCreateCommandQueue(cl_context context, cl_device_id, cl_bitfield, cl_int* code) {
  return Made<_cl_command_queue>("CreateCommandQueue", context, code, [&] {
    static Worker& host = *new Worker();
    auto queue = new _cl_command_queue();
    queue->context = context;
    queue->owns_worker = Wants(" gpu ");
    queue->worker = queue->owns_worker ? new Worker() : &host;
    return queue;
  });
}
cl_command_queue clCreateCommandQueueWithProperties(cl_context context, cl_device_id id,
                                                    const cl_ulong* properties, cl_int* code) {
  queue_hint = HintOf(properties, CL_QUEUE_PRIORITY_KHR);
  return clCreateCommandQueue(context, id, HintOf(properties, CL_QUEUE_PROPERTIES), code);
}
int64_t mock_opencl_hint(bool of_queue) { return of_queue ? queue_hint : context_hint; }
cl_int clReleaseCommandQueue(cl_command_queue queue) { return queue->Release(), CL_SUCCESS; }

cl_mem clCreateBuffer(cl_context context, cl_bitfield flags, size_t bytes, void* host,
                      cl_int* code) {
  if (bytes == 0) return *code = CL_INVALID_BUFFER_SIZE, nullptr;
  if (Wants(" no-room ")) return *code = CL_MEM_OBJECT_ALLOCATION_FAILURE, nullptr;
  if ((flags & (1 << 29)) != 0) {  // Qualcomm's
    const auto* words = static_cast<const cl_uint*>(host);
    if (words[0] != 0x411D) return *code = CL_INVALID_VALUE, nullptr;
    return Made<_cl_mem>("Import", context, code,
                         [&] { return new Imported(static_cast<int>(words[2]), bytes); });
  }
  return Made<_cl_mem>("CreateBuffer", context, code, [&] {
    auto start = static_cast<char*>(host);
    const bool is_coherent = !Wants(" gpu ") || IsSvm(start);
    if ((flags & CL_MEM_ALLOC_HOST_PTR) != 0) return new _cl_mem(bytes);
    return new _cl_mem(bytes, start, (flags & CL_MEM_USE_HOST_PTR) != 0 && is_coherent);
  });
}
cl_mem clCreateBufferWithProperties(cl_context context, const cl_ulong* properties, cl_bitfield,
                                    size_t bytes, void*, cl_int* code) {
  if (properties[0] != 0x2067) return *code = CL_INVALID_VALUE, nullptr;
  return Made<_cl_mem>("Import", context, code,
                       [&] { return new Imported(static_cast<int>(properties[1]), bytes); });
}
void* clGetExtensionFunctionAddressForPlatform(cl_platform_id, const char* name) {
  using Buffers = const cl_mem*;
  using Events = const cl_event*;
  const std::string wanted = name;
  if (wanted == "clImportMemoryARM") {
    return reinterpret_cast<void*>(
        +[](cl_context context, cl_bitfield, const cl_properties* kind, void* fd, size_t bytes,
            cl_int* code) { return ImportMemory(context, kind, fd, bytes, code); });
  }
  if (wanted == "clEnqueueAcquireExternalMemObjectsKHR") {
    return reinterpret_cast<void*>(+[](cl_command_queue, cl_uint count, Buffers buffers, cl_uint,
                                       Events,
                                       cl_event*) { return HandOver(count, buffers, false); });
  }
  if (wanted == "clEnqueueReleaseExternalMemObjectsKHR") {
    return reinterpret_cast<void*>(+[](cl_command_queue, cl_uint count, Buffers buffers, cl_uint,
                                       Events,
                                       cl_event*) { return HandOver(count, buffers, true); });
  }
  return nullptr;
}
int mock_opencl_imports(bool reads) { return reads ? imported_reads : imports; }
cl_mem clCreateImage(cl_context context, cl_bitfield, const cl_image_format*,
                     const cl_image_desc* image, void*, cl_int* code) {
  return Made<_cl_mem>("CreateImage", context, code, [&] { return new _cl_mem(image->buffer); });
}
cl_int clReleaseMemObject(cl_mem buffer) { return buffer->Release(), CL_SUCCESS; }

void* clSVMAlloc(cl_context, cl_bitfield, size_t bytes, cl_uint) {
  if (Script::Get().Next("SVMAlloc") != CL_SUCCESS) return nullptr;
  auto start = static_cast<char*>(std::aligned_alloc(128, (bytes + 127) / 128 * 128));
  std::lock_guard<std::mutex> lock(svm_mutex);
  ++live;
  svm[start] = bytes;
  return start;
}
void clSVMFree(cl_context, void* start) {
  std::lock_guard<std::mutex> lock(svm_mutex);
  --live;
  svm.erase(static_cast<char*>(start));
  std::free(start);
}

cl_program clCreateProgramWithSource(cl_context context, cl_uint, const char** text,
                                     const size_t* bytes, cl_int* code) {
  return Made<_cl_program>("CreateProgramWithSource", context, code, [&] {
    auto program = new _cl_program();
    program->source.assign(*text, *bytes);
    return program;
  });
}
cl_program clCreateProgramWithBinary(cl_context context, cl_uint, const cl_device_id*,
                                     const size_t* bytes, const unsigned char** binary,
                                     cl_int* status, cl_int* code) {
  *status = CL_SUCCESS;
  auto text = reinterpret_cast<const char*>(*binary);
  return clCreateProgramWithSource(context, 1, &text, bytes, code);
}
cl_int clReleaseProgram(cl_program program) { return program->Release(), CL_SUCCESS; }
cl_int clBuildProgram(cl_program, cl_uint, const cl_device_id*, const char* options,
                      ProgramCallback, void*) {
  const bool is_optimised = std::string(options).find("-cl-opt-disable") == std::string::npos;
  if (Wants(" llvm-16 ") && is_optimised) return CL_BUILD_PROGRAM_FAILURE;
  if (Wants(" slow-build ")) std::this_thread::sleep_for(std::chrono::milliseconds(1100));
  if (Wants(" takes-signals ")) std::signal(SIGUSR1, [](int) {});
  return Script::Get().Next("BuildProgram");
}
cl_int clGetProgramInfo(cl_program program, cl_uint what, size_t bytes, void* to, size_t* size) {
  const std::string& source = program->source;
  if (what == CL_PROGRAM_BINARY_SIZES) return Answer(source.size(), bytes, to, size);
  std::memcpy(*static_cast<char**>(to), source.data(), source.size());
  return CL_SUCCESS;
}
cl_int clGetProgramBuildInfo(cl_program, cl_device_id, cl_uint, size_t, void*, size_t* size) {
  if (size != nullptr) *size = 0;
  return CL_SUCCESS;
}

cl_kernel clCreateKernel(cl_program program, const char* name, cl_int* code) {
  std::string params;
  if (!FindKernel(program->source, name, &params)) return *code = CL_INVALID_KERNEL_NAME, nullptr;
  return Made<_cl_kernel>("CreateKernel", nullptr, code, [&] {
    auto kernel = new _cl_kernel();
    kernel->name = name;
    kernel->has_bell = params.find("bell") != std::string::npos;
    kernel->args.resize(1 + std::count(params.begin(), params.end(), ','));
    return kernel;
  });
}
cl_int clReleaseKernel(cl_kernel kernel) { return kernel->Release(), CL_SUCCESS; }
cl_int clSetKernelArg(cl_kernel kernel, cl_uint index, size_t bytes, const void* value) {
  auto start = static_cast<const char*>(value);
  kernel->args[index].assign(start, start + bytes);
  return Script::Get().Next("SetKernelArg");
}
cl_int clGetKernelInfo(cl_kernel kernel, cl_uint, size_t bytes, void* to, size_t* size) {
  return Answer(static_cast<cl_uint>(kernel->args.size()), bytes, to, size);
}
cl_int clGetKernelWorkGroupInfo(cl_kernel, cl_device_id, cl_uint what, size_t bytes, void* to,
                                size_t* size) {
  const bool is_size = what == CL_KERNEL_WORK_GROUP_SIZE && !Wants(" no-groups ");
  const cl_ulong value = is_size ? 256 : 0;
  return Answer(value, bytes, to, size);
}

cl_int clEnqueueNDRangeKernel(cl_command_queue queue, cl_kernel kernel, cl_uint, const size_t*,
                              const size_t* global, const size_t*, cl_uint count,
                              const cl_event* after, cl_event* event) {
  Bound bound{kernel->has_bell, {}, {}};
  for (const std::vector<char>& arg : kernel->args) {
    cl_mem buffer = nullptr;
    int32_t number = 0;
    if (arg.size() == sizeof(buffer)) {
      std::memcpy(&buffer, arg.data(), sizeof(buffer));
      bound.buffers.emplace_back(buffer);
    } else {
      std::memcpy(&number, arg.data(), sizeof(number));
      bound.numbers.push_back(number);
    }
  }
  const auto items = static_cast<int32_t>(global[0] * global[1] * global[2]);
  ++kernels;
  return EnqueueAction("EnqueueNDRangeKernel", queue, count, after, event,
                       [=, name = kernel->name] { return RunKernel(name, bound, items); });
}
cl_int clEnqueueReadBuffer(cl_command_queue queue, cl_mem buffer, cl_bool, size_t offset,
                           size_t bytes, void* to, cl_uint count, const cl_event* after,
                           cl_event* event) {
  const int before = kernels;
  return EnqueueAction("EnqueueReadBuffer", queue, count, after, event, [=, kept = Ref(buffer)] {
    const cl_int code = Script::Get().Next("slow-read");
    if (code != CL_SUCCESS && !HasLaterBegun(before)) return code;

    return std::memcpy(to, kept->data + offset, bytes), CL_SUCCESS;
  });
}
cl_int clEnqueueWriteBuffer(cl_command_queue queue, cl_mem buffer, cl_bool blocks, size_t offset,
                            size_t bytes, const void* from, cl_uint count, const cl_event* after,
                            cl_event* event) {
  // What blocks may read from the caller's stack.
  std::vector<char> copy(static_cast<const char*>(from), static_cast<const char*>(from) + bytes);
  return EnqueueAction("EnqueueWriteBuffer", queue, count, after, event, [=, kept = Ref(buffer)] {
    const void* source = blocks != 0 ? copy.data() : from;
    return std::memcpy(kept->data + offset, source, bytes), CL_SUCCESS;
  });
}
cl_int clEnqueueCopyBuffer(cl_command_queue queue, cl_mem from, cl_mem to, size_t from_offset,
                           size_t offset, size_t bytes, cl_uint count, const cl_event* after,
                           cl_event* event) {
  return EnqueueAction(
      "EnqueueCopyBuffer", queue, count, after, event, [=, to = Ref(to), from = Ref(from)] {
        return std::memmove(to->data + offset, from->data + from_offset, bytes), CL_SUCCESS;
      });
}
void* clEnqueueMapBuffer(cl_command_queue queue, cl_mem buffer, cl_bool blocks, cl_bitfield flags,
                         size_t offset, size_t bytes, cl_uint, const cl_event*, cl_event* event,
                         cl_int* code) {
  cl_event done = nullptr;
  *code = EnqueueAction("EnqueueMapBuffer", queue, 0, nullptr, &done,
                        [=, buffer = Ref(buffer)] { return buffer->Map(flags, offset, bytes); });
  if (*code != CL_SUCCESS) return nullptr;
  if (blocks != 0) *code = WaitFor(done);
  event != nullptr ? void(*event = done) : done->Release();
  return buffer->host + offset;
}
cl_int clEnqueueUnmapMemObject(cl_command_queue queue, cl_mem buffer, void* start, cl_uint,
                               const cl_event*, cl_event* event) {
  const auto offset = static_cast<size_t>(static_cast<char*>(start) - buffer->host);
  return EnqueueAction("EnqueueUnmapMemObject", queue, 0, nullptr, event,
                       [=, buffer = Ref(buffer)] { return buffer->Unmap(offset); });
}
cl_int clEnqueueMarkerWithWaitList(cl_command_queue queue, cl_uint count, const cl_event* after,
                                   cl_event* event) {
  return EnqueueAction("EnqueueMarkerWithWaitList", queue, count, after, event,
                       [] { return CL_SUCCESS; });
}

cl_int clWaitForEvents(cl_uint count, const cl_event* events) {
  waited_on = FirstAllowedCore();
  for (cl_uint i = 0; i < count; ++i) WaitFor(events[i]);
  return Script::Get().Next("WaitForEvents");
}
cl_int clGetEventInfo(cl_event event, cl_uint, size_t bytes, void* to, size_t* size) {
  std::lock_guard<std::mutex> lock(event->mutex);
  return Answer(event->status, bytes, to, size);
}
cl_int clReleaseEvent(cl_event event) { return event->Release(), CL_SUCCESS; }
cl_int clGetEventProfilingInfo(cl_event event, cl_uint what, size_t bytes, void* to, size_t* size) {
  std::lock_guard<std::mutex> lock(event->mutex);
  const bool is_early = what == CL_PROFILING_COMMAND_QUEUED || what == CL_PROFILING_COMMAND_SUBMIT;
  const cl_ulong begun = what == CL_PROFILING_COMMAND_START ? event->start : event->end;
  return Answer(is_early ? event->queued : begun, bytes, to, size);
}
cl_int clSetEventCallback(cl_event event, cl_int, EventCallback callback, void* data) {
  if (cl_int code = Script::Get().Next("SetEventCallback")) return code;
  auto call = [=](cl_int status) { callback(event, status, data); };
  std::unique_lock<std::mutex> lock(event->mutex);
  const cl_int status = event->status;
  if (status > CL_COMPLETE) return event->callbacks.push_back(call), CL_SUCCESS;
  lock.unlock();
  return call(status), CL_SUCCESS;
}
#ifndef MOCK_OPENCL_WITHOUT_FLUSH
cl_int clFlush(cl_command_queue) { return Script::Get().Next("Flush"); }
#endif
cl_int clFinish(cl_command_queue queue) {
  std::mutex mutex;
  std::condition_variable done;
  bool is_done = false;
  queue->worker->Push([&] {
    std::lock_guard<std::mutex> lock(mutex);
    is_done = true;
    done.notify_all();
  });
  std::unique_lock<std::mutex> lock(mutex);
  done.wait(lock, [&] { return is_done; });
  return CL_SUCCESS;
}

}  // extern "C"

}  // namespace tvm_stretch::opencl

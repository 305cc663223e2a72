// Restores the program's signal handlers, which drivers replace: PoCL's LLVM replaces seventeen of
// them at first use, including Ctrl-C and those of Python's faulthandler.
#ifndef TVM_STRETCH_OPENCL_SIGNAL_HANDLERS_H_
#define TVM_STRETCH_OPENCL_SIGNAL_HANDLERS_H_

namespace tvm_stretch::opencl {

// A scope around calls in which a driver starts or compiles. When the last open scope of all
// threads ends, handlers are restored to their state at the begin of the first one. (A handler that
// another thread of the program sets meanwhile is lost.)
class KeepsSignalHandlers {
 public:
  KeepsSignalHandlers();
  ~KeepsSignalHandlers();
  KeepsSignalHandlers(const KeepsSignalHandlers&) = delete;
  KeepsSignalHandlers& operator=(const KeepsSignalHandlers&) = delete;
};

}  // namespace tvm_stretch::opencl

#endif  // TVM_STRETCH_OPENCL_SIGNAL_HANDLERS_H_

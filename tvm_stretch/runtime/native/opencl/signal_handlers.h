// The program's signal handlers, which drivers replace: the LLVM in PoCL takes seventeen of them
// when it is first used, Ctrl-C and those of Python's faulthandler among them.
#ifndef TVM_STRETCH_OPENCL_SIGNAL_HANDLERS_H_
#define TVM_STRETCH_OPENCL_SIGNAL_HANDLERS_H_

namespace tvm_stretch::opencl {

// Around calls in which a driver begins to work or compiles: at the end of the last of those that
// are open, on whatever threads, handlers are what they were at the beginning of the first. (A
// handler that another thread of the program sets meanwhile is lost; none is set for long.)
class KeepsSignalHandlers {
 public:
  KeepsSignalHandlers();
  ~KeepsSignalHandlers();
  KeepsSignalHandlers(const KeepsSignalHandlers&) = delete;
  KeepsSignalHandlers& operator=(const KeepsSignalHandlers&) = delete;
};

}  // namespace tvm_stretch::opencl

#endif  // TVM_STRETCH_OPENCL_SIGNAL_HANDLERS_H_

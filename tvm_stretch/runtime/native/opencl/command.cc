#include "command.h"

namespace tvm_stretch::opencl {
namespace {

Command Transfer(Command::Kind kind, const DeviceMemory& memory, char* host, size_t bytes,
                 const Span& span) {
  Command command{};
  command.kind = kind;
  command.span = span;
  command.buffer = memory.buffer();
  command.offset = memory.OffsetOf(host);
  command.bytes = bytes;
  command.host = host;
  return command;
}

void AppendMapping(const DeviceMemory& memory, char* host, size_t bytes, const Span& span,
                   cl_bitfield flags, std::vector<Command>* commands) {
  Command map = Transfer(Command::Kind::kMap, memory, host, bytes, span);
  Command unmap = Transfer(Command::Kind::kUnmap, memory, host, bytes, span);
  map.map_flags = flags;
  (flags == CL_MAP_READ ? unmap : map).is_traced = false;  // the other one moves the bytes
  commands->push_back(std::move(map));
  commands->push_back(std::move(unmap));
}

}  // namespace

void AppendReceive(const Device& device, const DeviceMemory& memory, char* host, size_t bytes,
                   const Span& span, std::vector<Command>* commands) {
  if (device.memory == MemoryKind::kMirror) {
    commands->push_back(Transfer(Command::Kind::kWrite, memory, host, bytes, span));
  } else if (device.memory == MemoryKind::kMapped) {
    // The host has written already: nothing of the device's is wanted, and unmapping hands it over.
    AppendMapping(memory, host, bytes, span, CL_MAP_WRITE_INVALIDATE_REGION, commands);
  }
}

void AppendSend(const Device& device, const DeviceMemory& memory, char* host, size_t bytes,
                const Span& span, std::vector<Command>* commands) {
  if (device.memory == MemoryKind::kMirror) {
    commands->push_back(Transfer(Command::Kind::kRead, memory, host, bytes, span));
  } else if (device.memory == MemoryKind::kMapped) {
    // Mapping brings the device's bytes to the host's view; they stay there after unmapping.
    AppendMapping(memory, host, bytes, span, CL_MAP_READ, commands);
  }
}

cl_int Enqueue(const Command& command, cl_command_queue queue, cl_event* event) {
  const Command& c = command;
  switch (c.kind) {
    case Command::Kind::kKernel:
      return CL().EnqueueNDRangeKernel(queue, c.kernel.get(), 3, nullptr, c.global_size.data(),
                                       c.group_size.data(), 0, nullptr, event);
    case Command::Kind::kCopy:
      return CL().EnqueueCopyBuffer(queue, c.from, c.buffer, c.from_offset, c.offset, c.bytes, 0,
                                    nullptr, event);
    case Command::Kind::kWrite:
      return CL().EnqueueWriteBuffer(queue, c.buffer, kFalse, c.offset, c.bytes, c.host, 0, nullptr,
                                     event);
    case Command::Kind::kRead:
      return CL().EnqueueReadBuffer(queue, c.buffer, kFalse, c.offset, c.bytes, c.host, 0, nullptr,
                                    event);
    case Command::Kind::kMap: {
      cl_int code = CL_SUCCESS;
      CL().EnqueueMapBuffer(queue, c.buffer, kFalse, c.map_flags, c.offset, c.bytes, 0, nullptr,
                            event, &code);
      return code;
    }
    case Command::Kind::kUnmap:
      // A buffer over host memory is always mapped to that memory.
      return CL().EnqueueUnmapMemObject(queue, c.buffer, c.host, 0, nullptr, event);
  }
  return CL_SUCCESS;
}

}  // namespace tvm_stretch::opencl

#include "command.h"

namespace tvm_stretch::opencl {
namespace {

Command Transfer(Command::Kind kind, const DeviceMemory& memory, char* host, size_t bytes,
                 const Span& span, Lane lane) {
  Command command{};
  command.lane = lane;
  command.kind = kind;
  command.span = span;
  command.buffer = memory.buffer();
  command.offset = memory.OffsetOf(host);
  command.bytes = bytes;
  command.host = host;
  return command;
}

}  // namespace

void AppendReceive(const DeviceMemory& memory, char* host, size_t bytes, const Span& span,
                   Lane lane, std::vector<Command>* commands) {
  commands->push_back(Transfer(Command::Kind::kWrite, memory, host, bytes, span, lane));
}

void AppendSend(const DeviceMemory& memory, char* host, size_t bytes, const Span& span, Lane lane,
                std::vector<Command>* commands) {
  commands->push_back(Transfer(Command::Kind::kRead, memory, host, bytes, span, lane));
}

cl_int Enqueue(const Command& command, const Queues& queues, const std::vector<cl_event>& after,
               cl_event* event) {
  const Command& c = command;
  cl_command_queue const queue = queues.at(c.lane);
  const auto count = static_cast<cl_uint>(after.size());
  const cl_event* const events = after.empty() ? nullptr : after.data();
  switch (c.kind) {
    case Command::Kind::kKernel:
      return CL().EnqueueNDRangeKernel(queue, c.kernel.get(), 3, nullptr, c.global_size.data(),
                                       c.group_size.data(), count, events, event);
    case Command::Kind::kCopy:
      return CL().EnqueueCopyBuffer(queue, c.from, c.buffer, c.from_offset, c.offset, c.bytes,
                                    count, events, event);
    case Command::Kind::kWrite:
      return CL().EnqueueWriteBuffer(queue, c.buffer, kFalse, c.offset, c.bytes, c.host, count,
                                     events, event);
    case Command::Kind::kRead:
      return CL().EnqueueReadBuffer(queue, c.buffer, kFalse, c.offset, c.bytes, c.host, count,
                                    events, event);
    case Command::Kind::kMap: {
      cl_int code = CL_SUCCESS;
      void* mapped = CL().EnqueueMapBuffer(queue, c.buffer, kFalse, c.map_flags, c.offset, c.bytes,
                                           0, nullptr, event, &code);
      if (code == CL_SUCCESS) *c.is_mapped = true;
      return code == CL_SUCCESS && mapped != c.host ? CL_MAP_FAILURE : code;
    }
    case Command::Kind::kUnmap: {
      const cl_int code = CL().EnqueueUnmapMemObject(queue, c.buffer, c.host, 0, nullptr, event);
      if (code == CL_SUCCESS) *c.is_mapped = false;
      return code;
    }
  }
  return CL_SUCCESS;
}

}  // namespace tvm_stretch::opencl

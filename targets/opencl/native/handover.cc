#include "handover.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "device_memory.h"
#include "graph.h"

namespace tvm_stretch::opencl {
namespace {

cl_bitfield FlagsOf(const Cell& cell) {
  return cell.host_writes ? CL_MAP_READ | CL_MAP_WRITE : CL_MAP_READ;
}

bool Has(const std::vector<size_t>& regions, size_t region) {
  return std::find(regions.begin(), regions.end(), region) != regions.end();
}

}  // namespace

struct DriversMemory::Release {
  std::shared_ptr<DriversMemory> memory;
  void operator()(char*) { memory.reset(); }
};

std::shared_ptr<char> DriversMemory::Allocate(const Device& device, size_t bytes) {
  if (bytes == 0) return nullptr;
  CheckBufferBytes(device, bytes + kPageBytes);
  std::shared_ptr<DriversMemory> memory(new DriversMemory(device, bytes));
  char* const data = memory->data_;
  if (reinterpret_cast<uintptr_t>(data) % kAlignment != 0) return nullptr;
  return {data, Release{std::move(memory)}};
}

DriversMemory* DriversMemory::Of(const std::shared_ptr<char>& block) {
  auto release = std::get_deleter<Release>(block);
  return release == nullptr ? nullptr : release->memory.get();
}

DriversMemory::DriversMemory(const Device& device, size_t bytes) : bytes_(bytes) {
  cl_int code = CL_SUCCESS;
  queue_ = Queue(CL().CreateCommandQueue(device.context, device.id, 0, &code));
  Check(code, "clCreateCommandQueue");
  const cl_bitfield flags = CL_MEM_READ_WRITE | CL_MEM_ALLOC_HOST_PTR;
  buffer_ = Buffer(CL().CreateBuffer(device.context, flags, bytes + kPageBytes, nullptr, &code));
  Check(code, "clCreateBuffer");
  void* tail = CL().EnqueueMapBuffer(queue_.get(), buffer_.get(), kTrue, CL_MAP_READ, bytes,
                                     kPageBytes, 0, nullptr, nullptr, &code);
  Check(code, "clEnqueueMapBuffer");
  data_ = static_cast<char*>(tail) - bytes;
  MapAll();
  std::memset(data_, 0, bytes);
}

DriversMemory::~DriversMemory() {
  // Ends all mappings before the buffer is freed. Errors of the driver no longer matter.
  if (data_ != nullptr) {
    CL().EnqueueUnmapMemObject(queue_.get(), buffer_.get(), data_, 0, nullptr, nullptr);
    CL().EnqueueUnmapMemObject(queue_.get(), buffer_.get(), data_ + bytes_, 0, nullptr, nullptr);
  }
  CL().Finish(queue_.get());
}

void DriversMemory::Map(size_t offset, size_t bytes, cl_bitfield flags) {
  cl_int code = CL_SUCCESS;
  void* mapped = CL().EnqueueMapBuffer(queue_.get(), buffer_.get(), kTrue, flags, offset, bytes, 0,
                                       nullptr, nullptr, &code);
  Check(code, "clEnqueueMapBuffer");
  if (mapped != data_ + offset) Check(CL_MAP_FAILURE, "clEnqueueMapBuffer at the same address");
}

void DriversMemory::Unmap(size_t offset) {
  Check(
      CL().EnqueueUnmapMemObject(queue_.get(), buffer_.get(), data_ + offset, 0, nullptr, nullptr),
      "clEnqueueUnmapMemObject");
}

Handover::Handover(DriversMemory* memory, char* host, const Ownership& plan)
    : memory_(memory), host_(host) {
  for (const Cell& cell : plan.cells) cells_.push_back({cell, false});
  memory_->Unmap(0);
  Restore();
}

Handover::~Handover() {
  // If the driver has failed, it does not access this memory any more, and the host may use it
  // without mapping.
  (void)Attempt([this] {
    for (Shared& shared : cells_) {
      if (shared.is_mapped) memory_->Unmap(shared.cell.offset);
    }
    memory_->MapAll();
  });
}

void Handover::Restore() {
  for (Shared& shared : cells_) {
    const Cell& cell = shared.cell;
    const bool never_changes = cell.unmaps.empty() && cell.maps.empty();
    if (never_changes && shared.is_mapped == cell.rests_mapped) continue;
    // After a failure it is unknown whether an enqueued map was executed. If it was not, this unmap
    // fails, and drivers then fail all commands enqueued so far.
    if (shared.is_mapped) memory_->Unmap(cell.offset);
    shared.is_mapped = false;
    Check(CL().Finish(memory_->queue()), "clFinish");
    if (cell.rests_mapped) memory_->Map(cell.offset, cell.bytes, FlagsOf(cell));
    shared.is_mapped = cell.rests_mapped;
  }
}

void Handover::RestoreAfterFailure() {
  // The run's error may occur here again. If it persists, the next run fails.
  constexpr int kTries = 3;
  for (int i = 0; i < kTries && Attempt([this] { Restore(); }); ++i) CL().Finish(memory_->queue());
}

void Handover::AppendTakes(size_t region, std::vector<Command>* commands) {
  for (Shared& shared : cells_) {
    if (!Has(shared.cell.unmaps, region)) continue;
    commands->push_back(Change(&shared, Command::Kind::kUnmap));
  }
}

void Handover::AppendGives(size_t region, std::vector<Command>* commands) {
  for (Shared& shared : cells_) {
    if (!Has(shared.cell.maps, region)) continue;
    commands->push_back(Change(&shared, Command::Kind::kMap));
  }
}

Command Handover::Change(Shared* shared, Command::Kind kind) const {
  const Cell& cell = shared->cell;
  const bool is_map = kind == Command::Kind::kMap;
  const std::string end = std::to_string(cell.offset + cell.bytes);
  Command command{};
  command.kind = kind;
  command.span = {is_map ? Span::Kind::kSend : Span::Kind::kReceive, -1,
                  "bytes " + std::to_string(cell.offset) + " to " + end, 0, 0};
  command.buffer = memory_->buffer();
  command.offset = cell.offset;
  command.bytes = cell.bytes;
  command.host = host_ + cell.offset;
  command.map_flags = FlagsOf(cell);
  command.is_mapped = &shared->is_mapped;
  return command;
}

}  // namespace tvm_stretch::opencl

// Plans when memory that a GPU shares with the host changes its owner.
//
// On phones both access the same bytes, but not each other's caches: unmapping makes the host's
// writes visible to the device, and mapping makes the device's writes visible to the host. So bytes
// that both use are unmapped at the begin of a region of the device, and mapped at its end:
//
//   region    uses bytes 0-64       and then
//   cpu r0    writes
//   gpu r1    reads, writes         unmap before r1, map after it
//   cpu r2    reads
//   gpu r3    writes another tensor unmap before r3, map after it: the next run's r0 writes
//
// This causes no extra waits: a later region of the host that uses these bytes waits for the
// device's region anyway, as the memory plan orders them. While the device reads the host's data,
// the host may go on reading it, because its own view does not change.
//
// With several plans, of which each run takes another, all bytes that the host uses in any of them
// are the host's between runs.
#pragma once

#include <cstddef>
#include <vector>

#include "processor.h"

namespace tvm_stretch::opencl {

// Consecutive bytes of the block that always change their owner together. Region numbers count only
// regions of the device.
struct Cell {
  size_t offset = 0;
  size_t bytes = 0;
  std::vector<size_t> unmaps;  // regions that take it from the host at their begin
  std::vector<size_t> maps;    // regions that give it to the host at their end
  bool rests_mapped = true;    // between runs
  bool host_writes = false;
};

struct Ownership {
  std::vector<Cell> cells;  // of all bytes that the host uses
  // Whether no cache line holds bytes of both owners, which would overwrite each other.
  bool is_sound = true;
};

// The owners of the block in `memory`, if `device` is the only processor besides the host.
TVM_STRETCH_API Ownership PlanOwnership(const GraphSpec& graph, int64_t device,
                                        const MemoryMap& memory);

}  // namespace tvm_stretch::opencl

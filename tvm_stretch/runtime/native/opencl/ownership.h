// When memory that a GPU shares with the host changes hands.
//
// On phones both see the same bytes, but not each other's caches: what the host wrote reaches the
// device when the bytes are unmapped, and what the device wrote reaches the host when they are
// mapped. So bytes that both use are unmapped at the beginning of a region of the device, and
// mapped at the end of one:
//
//   region    uses bytes 0-64       and then
//   cpu r0    writes
//   gpu r1    reads, writes         unmap before r1, map after it
//   cpu r2    reads
//   gpu r3    writes another tensor unmap before r3, map after it: the next run's r0 writes
//
// Nobody waits for that: a region of the host that uses these bytes later waits for the device's
// region anyway, because the plan of the memory puts one after the other. While the device reads
// what the host wrote, the host may go on reading it: its own view stays as it is.
#ifndef TVM_STRETCH_OPENCL_OWNERSHIP_H_
#define TVM_STRETCH_OPENCL_OWNERSHIP_H_

#include <cstddef>
#include <vector>

#include "../processor.h"

namespace tvm_stretch::opencl {

// Consecutive bytes of the block that always change hands together. Regions are counted among
// those of the device.
struct Cell {
  size_t offset = 0;
  size_t bytes = 0;
  std::vector<size_t> unmaps;  // regions that begin with taking it from the host
  std::vector<size_t> maps;    // regions that end with giving it to the host
  bool rests_mapped = true;    // between runs
  bool host_writes = false;
};

struct Ownership {
  std::vector<Cell> cells;  // of all that the host uses
  // Whether no line of a cache holds bytes of both, which would overwrite each other's.
  bool is_sound = true;
};

// Who owns what of the block in `memory` if processor number `device` is the only one that is not
// the host.
TVM_STRETCH_API Ownership PlanOwnership(const GraphSpec& graph, int64_t device,
                                        const MemoryMap& memory);

}  // namespace tvm_stretch::opencl

#endif  // TVM_STRETCH_OPENCL_OWNERSHIP_H_

// Areas of a stream's steps that another processor computes beside the CPU.
//
//   areas of a step ──> [taken, last, count, areas]
//                          CPU ──>          <── region "areas of conv" of the other processor
//
// Both take areas until none is left, so they finish together, however fast each of them is. The
// CPU begins with the first area and the other processor with the last one, so each finds in its
// caches what it computed in the step before. A launch that comes late costs nothing: the CPU has
// taken all areas by then, and does not wait. The other processor's regions are enqueued at the
// beginning of a frame; each begins when its step is offered.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "graph.h"
#include "pixel_grid.h"
#include "processor.h"

namespace tvm_stretch {

class SharedAreas {
 public:
  // `devices` are the processors after the CPU; all arguments must outlive this.
  SharedAreas(const GraphSpec& graph, const MemoryMap& memory,
              const std::vector<std::unique_ptr<Processor>>& devices);
  ~SharedAreas();

  // Offers areas of a result to the other processor too. False if none computes areas of it, or
  // one failed: the caller computes all areas.
  bool Offer(int64_t result, const std::vector<Area>& areas);
  // The next area of the latest offer for the caller to compute.
  std::optional<Area> Take();
  // When none is left: returns once the other processor has computed its areas. After a failure
  // the caller computes all areas again.
  Failure Join();
  // Ends a frame: returns once the other processor does nothing more.
  Failure End();

 private:
  // Lets a region begin: a task that is complete when its step is offered.
  class Turn final : public Task {
   public:
    void Start() final {}
    void Cancel() final {}
    void Begin() { Complete(std::nullopt); }
  };
  struct Share {
    const RegionSpec* region;
    int64_t* list;  // see above; four numbers for each area
    size_t most;    // areas
    std::unique_ptr<Turn> turn;
    std::unique_ptr<Task> task;
  };

  void Add(const GraphSpec& graph, const RegionSpec& region, const MemoryMap& memory,
           Processor* processor);
  void Start();
  void BeginUntil(size_t end);
  Failure Failed(const Share& share);

  const GraphSpec& graph_;
  std::vector<Share> shares_;  // in the order of the regions
  std::unordered_map<int64_t, size_t> by_result_;
  const std::vector<Area>* offered_ = nullptr;
  size_t current_ = 0;  // the share of the latest offer
  size_t listed_ = 0;   // areas in its list; the caller computes the others
  size_t rest_ = 0;     // the first of the others that the caller has not taken
  size_t taken_ = 0;    // areas of the list that the caller has taken
  size_t begun_ = 0;    // shares whose turn it was
  bool started_ = false;
};

}  // namespace tvm_stretch

// A stream of frames: computes of each frame what differs from the frame before.
//
//   frame ──pixels that changed──> node ──areas that can change──> kernel(.., rectangle)
//                                     <──pixels that did change──
//
// Every tensor keeps its bytes after a run (GraphSpec::streams), so a pixel whose inputs did not
// change still has its value. A node that can compute a part (NodeSpec::reach) is called for the
// areas that read a changed pixel; other nodes compute everything if any input changed. Afterwards
// pixels are compared with what they were: the same values end the spreading of a change. Where
// nearly all pixels changed that could, they are not compared in the next frames. Another
// processor computes some of the areas meanwhile (shared_areas.h).
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "bound_graph.h"
#include "graph.h"
#include "pixel_grid.h"
#include "processor.h"
#include "shared_areas.h"

namespace tvm_stretch {

struct StreamOptions {
  double noise;  // the largest difference of a number of an input that does not count as a change
  double bound;  // the same for feature maps, relative to the largest number of the map
  double cut;    // with a larger share of changed pixels, everything is computed
  bool whole;    // everything is computed anyway
};

// What a run did.
struct StreamResult {
  double changed;   // the share of the inputs' pixels
  double computed;  // the share of the pixels of all results, by bytes
};

class Stream {
 public:
  // All arguments must outlive this; `devices` are the processors after the CPU. Throws ValueError
  // if the graph was not made for streams.
  Stream(const GraphSpec& graph, const KernelTable& kernels, const MemoryMap& memory,
         const std::vector<std::unique_ptr<Processor>>& devices);

  // Runs a frame; the results are in the memory of the graph's outputs.
  StreamResult Run(const std::vector<const char*>& frame, const StreamOptions& options,
                   const std::atomic<bool>& stop);

  // How another processor failed, in whose place the CPU computes everything.
  const Failure& lost() const { return lost_; }

  // The next frame is computed completely.
  void Forget() { is_known_ = false; }

 private:
  // Another tensor on the same bytes.
  struct Alias {
    int64_t tensor;
    bool same_pixels;
  };
  struct Step {
    const NodeSpec* node;
    const ffi::Function* function;
    size_t first_argument;
    std::vector<int64_t> results;   // outputs without the rectangle
    int64_t* rectangle = nullptr;   // null: computes everything
    int64_t rows = 0, columns = 0;  // of an area
    int64_t uncompared = 0;  // frames whose results are not compared: all that can change did
  };

  void AddStep(const NodeSpec& node, const KernelTable& kernels);
  void FindAliases();
  double TakeFrame(const std::vector<const char*>& frame, double noise, bool all);
  void MarkAll(int64_t tensor);
  void MarkSame(int64_t tensor);
  bool IsRead(const Step& step, const Area& area) const;
  std::vector<Area> Asked(const Step& step) const;
  Marks Reached(const Step& step) const;
  void RunStep(Step* step, const std::vector<Area>& areas, double bound);
  void Call(const Step& step, const std::vector<Area>& areas);
  std::vector<Area> Pieces(const Step& step, const std::vector<Area>& areas) const;
  bool IsShared(const Step& step, const std::vector<Area>& pieces);
  void Compute(const Step& step, const Area& area);
  void Lose(Failure failure);
  void Invoke(const Step& step);

  const GraphSpec& graph_;
  BoundTensors tensors_;
  std::vector<PixelGrid> grids_;             // of each tensor
  std::vector<std::vector<Alias>> aliases_;  // of each tensor that is written
  std::vector<Marks> changed_;               // pixels of each tensor, in this run
  std::vector<double> largest_;              // number of each tensor, in the last complete run
  std::vector<Step> steps_;
  std::vector<ffi::AnyView> arguments_;
  std::vector<char> saved_;
  SharedAreas shared_;
  Failure lost_;
  bool is_known_ = false;  // whether the tensors hold the results of a frame
};

}  // namespace tvm_stretch

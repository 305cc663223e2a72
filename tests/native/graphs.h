// A small graph for the tests, and JSON that can be damaged in one place.
#ifndef TVM_STRETCH_TESTS_GRAPHS_H_
#define TVM_STRETCH_TESTS_GRAPHS_H_

#include <string>

namespace tvm_stretch::testing {

// y = (x + w') + (x + w'), where w' = -w is prepared once; x, y, w are float32[16].
inline std::string SmallGraph() {
  return R"({"format":"tvm_stretch.graph","version":5,
"inputs":[{"name":"x","tensor":0}],"outputs":[{"name":"y","tensor":1}],
"tensors":[
 {"shape":[16],"dtype":"float32","kind":"input","buffer":0,"offset":0,"bytes":64},
 {"shape":[4,4],"dtype":"float32","kind":"output","buffer":0,"offset":0,"bytes":64},
 {"shape":[16],"dtype":"float32","kind":"constant","buffer":0,"offset":64,"bytes":64},
 {"shape":[16],"dtype":"float32","kind":"prepared","buffer":0,"offset":0,"bytes":64},
 {"shape":[16],"dtype":"float32","kind":"arena","buffer":0,"offset":0,"bytes":64},
 {"shape":[16],"dtype":"float32","kind":"arena","buffer":0,"offset":64,"bytes":64},
 {"shape":[4,4],"dtype":"float32","kind":"arena","buffer":0,"offset":64,"bytes":64}],
"prepare":[{"kernel":"negative","name":"p","inputs":[2],"outputs":[3]}],
"nodes":[{"kernel":"add","name":"a","inputs":[0,3],"outputs":[4]},
 {"kernel":"add","name":"b","inputs":[4,4],"outputs":[5]},
 {"kernel":"tvm_stretch.copy","name":"c","inputs":[6],"outputs":[1]}],
"processors":[{"name":"cpu","kind":"cpu"}],
"regions":[{"name":"r0","processor":0,"nodes":[0,1,2],"after":[],"receives":[0],"sends":[1]}],
"arena_bytes":128,"weights_bytes":128,"prepared_bytes":64,"threads":1,
"package_version":"0","target":{},"cpu_features":[]})";
}

// A state of 4 x 16 numbers of which a run writes two rows, "rows" at "places", and which is the
// output too.
inline std::string WritingGraph() {
  return R"({"format":"tvm_stretch.graph","version":5,
"inputs":[{"name":"places","tensor":0},{"name":"rows","tensor":1}],"outputs":[],
"held":[{"name":"past","tensor":2}],
"kept":[{"name":"present","tensor":3},{"name":"starts","tensor":4}],
"states":[{"output":0,"starts":1,"row":64}],
"tensors":[
 {"shape":[2,1],"dtype":"int64","kind":"input","buffer":0,"offset":0,"bytes":16},
 {"shape":[2,16],"dtype":"float32","kind":"input","buffer":1,"offset":0,"bytes":128},
 {"shape":[4,16],"dtype":"float32","kind":"input","buffer":2,"offset":0,"bytes":256},
 {"shape":[4,16],"dtype":"float32","kind":"output","buffer":0,"offset":0,"bytes":256},
 {"shape":[2],"dtype":"int64","kind":"output","buffer":1,"offset":0,"bytes":16}],
"prepare":[],
"nodes":[{"kernel":"tvm_stretch.write","name":"w","inputs":[0,1],"outputs":[3,4]}],
"processors":[{"name":"cpu","kind":"cpu"}],
"regions":[{"name":"r0","processor":0,"nodes":[0],"after":[],"receives":[0,1],"sends":[3,4]}],
"arena_bytes":0,"weights_bytes":128,"prepared_bytes":0,"threads":1,
"package_version":"0","target":{},"cpu_features":[]})";
}

// The graph with the first `from` replaced by `to`.
inline std::string Changed(const std::string& from, const std::string& to) {
  std::string text = SmallGraph();
  size_t at = text.find(from);
  return at == std::string::npos ? std::string("no such text: ") + from
                                 : text.replace(at, from.size(), to);
}

}  // namespace tvm_stretch::testing

#endif  // TVM_STRETCH_TESTS_GRAPHS_H_

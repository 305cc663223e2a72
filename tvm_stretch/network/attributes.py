"""Own attributes of functions, and annotations of blocks: all of them, with what they hold."""

# of `main`
SOURCES = "tvm_stretch.sources"  # table of operators with another name in the frontend
PARTS = "tvm_stretch.parts"  # table of operators that a plan's shares and splits have added
KERNELS = "tvm_stretch.kernels"  # table of all calls of kernels and copies
BRANCHES = "tvm_stretch.branches"  # branches of a stretched network, by their operators
WIDENED = "widened"  # there if an ONNX network of float16 is computed in float32

# of blocks, because FuseTIR drops attributes of functions
ANNOTATION = "tvm_stretch.kernel"  # an anchor's template and configuration (`Template`)
MEANING = "tvm_stretch.integer"  # the `Integer` of a result's block; a DSP's template reads it
FIXED = "tvm_stretch.fixed_point"  # the `FixedPoint` by which the last block of a layer rounds

# of kernels
ONCE = "tvm_stretch.once"  # it only reads constants, and runs when an artifact is loaded
RECTANGLE = "tvm_stretch.rectangle"  # its last parameter is the rectangle that it computes
WRITES_PLACES = "tvm_stretch.writes_places"  # it copies a tensor, then writes rows at places of it
WHOLE_QUADS = "tvm_stretch.whole_quads"  # vectors of four numbers start where such a vector may
IMAGES = "tvm_stretch.images"  # positions of parameters that are read as images, quads as pixels
MODEL = "tvm_stretch.model"  # bytes of the ONNX model of a region, as a tensor

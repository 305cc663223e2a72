// The program that a DSP's process gets: its tables are checked before a kernel runs. Header and
// check are completed, because a fuzzer does not guess a hash.
#include <cstdint>
#include <cstring>
#include <vector>

extern "C" {
#include "dispatch.h"

// Touches the first and the last element of all tensors.
static int Touch(void*, const TVMFFIAny* arguments, int32_t count, TVMFFIAny*) {
  for (int32_t i = 0; i < count; ++i) {
    const auto* tensor = static_cast<const DLTensor*>(arguments[i].v_ptr);
    const int64_t item = (tensor->dtype.bits + 7) / 8 * tensor->dtype.lanes;
    int64_t last = 0;
    bool is_empty = false;
    for (int32_t axis = 0; axis < tensor->ndim; ++axis) {
      is_empty = is_empty || tensor->shape[axis] == 0;
    }
    for (int32_t axis = 0; axis < tensor->ndim && !is_empty; ++axis) {
      last += (tensor->shape[axis] - 1) * tensor->strides[axis] * item;
    }
    volatile char* bytes = static_cast<char*>(tensor->data);
    if (!is_empty) bytes[last + item - 1] = bytes[0];
  }
  return 0;
}
const DspCall dsp_kernels[] = {Touch, Touch};
const uint32_t dsp_num_kernels = 2;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  if (bytes < sizeof(DspProgramHeader)) return 0;
  // On the heap, in their exact size, so that the sanitizer sees each byte outside.
  std::vector<char> block(4096), weights(256), program(data, data + bytes);
  DspProgramHeader header;
  std::memcpy(&header, program.data(), sizeof(header));
  header.magic = DSP_MAGIC;
  if (header.bytes <= bytes - sizeof(header)) {
    header.check = DspHash(program.data() + sizeof(header), header.bytes);
  }
  std::memcpy(program.data(), &header, sizeof(header));
  const DspMemory memories[kDspSegments] = {{block.data(), block.size()},
                                            {weights.data(), weights.size()}};
  DspProgram* loaded = nullptr;
  if (DspLoad(program.data(), program.size(), memories, &loaded).status != kDspOk) return 0;
  uint64_t packets = 0;
  std::vector<DspSpan> spans(header.nodes + 1);
  for (uint32_t region = 0; region < header.regions && region < 8; ++region) {
    DspInvoke(loaded, region, region % 2 == 0 ? spans.data() : nullptr, &packets);
  }
  DspUnload(loaded);
  return 0;
}

#include "dispatch.h"

#include <stdlib.h>
#include <string.h>

#include "system.h"

typedef struct {
  DspCall call;         // null: copy
  uint64_t copy_bytes;  // of a copy's output
  TVMFFIAny* arguments;
  int32_t num_arguments;
} BoundNode;

struct DspProgram {
  DspTensor* records;  // hold shapes and strides of `tensors`
  DLTensor* tensors;
  uint64_t* tensor_bytes;
  TVMFFIAny* arguments;
  BoundNode* nodes;
  DspRegion* regions;
  DspProgramHeader header;
};

static DspResult Result(uint32_t status, uint32_t detail) {
  const DspResult result = {status, detail};
  return result;
}

static uint64_t SpansOffset(const DspProgramHeader* header) {
  return header->tensors * (uint64_t)sizeof(DspTensor) +
         DspRoundUp(header->arguments * (uint64_t)sizeof(uint32_t)) +
         header->nodes * (uint64_t)sizeof(DspNode) + header->regions * (uint64_t)sizeof(DspRegion);
}

static uint64_t SpansBytes(const DspProgramHeader* header) {
  return header->nodes * (uint64_t)sizeof(DspSpan);
}

uint64_t DspSpansOffset(const DspProgram* program) { return SpansOffset(&program->header); }
uint64_t DspSpansBytes(const DspProgram* program) { return SpansBytes(&program->header); }

// Counts are at most 2^20 each, so that no product overflows.
static int HeaderFits(const DspProgramHeader* header, uint64_t bytes) {
  const uint32_t most = 1u << 20;
  if (header->magic != DSP_MAGIC || bytes < sizeof(DspProgramHeader)) return 0;
  if (header->tensors > most || header->arguments > most || header->nodes > most ||
      header->regions > most)
    return 0;
  if (header->bytes != SpansOffset(header)) return 0;
  return sizeof(DspProgramHeader) + header->bytes + SpansBytes(header) <= bytes;
}

static int IsEmpty(const DspTensor* tensor) {
  for (uint32_t i = 0; i < tensor->ndim; ++i) {
    if (tensor->shape[i] == 0) return 1;
  }
  return 0;
}

// Bytes from the first element to the end of the last one; false if there are more than `most`.
static int SpannedBytes(const DspTensor* tensor, uint64_t most, uint64_t* bytes) {
  const uint64_t item = (tensor->bits + 7u) / 8u * tensor->lanes;
  uint64_t last = 0;
  if (item == 0 || item > 256 || tensor->ndim > DSP_MAX_DIMS) return 0;
  for (uint32_t i = 0; i < tensor->ndim; ++i) {
    if (tensor->shape[i] < 0 || tensor->strides[i] < 0) return 0;
  }
  *bytes = 0;
  if (IsEmpty(tensor)) return 1;
  for (uint32_t i = 0; i < tensor->ndim; ++i) {
    const uint64_t steps = (uint64_t)tensor->shape[i] - 1, stride = (uint64_t)tensor->strides[i];
    if (stride != 0 && steps > (most - last) / stride) return 0;
    last += steps * stride;
  }
  if (last + 1 > most / item) return 0;
  *bytes = (last + 1) * item;
  return 1;
}

static int BindTensor(DspTensor* record, const DspMemory memories[kDspSegments], DLTensor* tensor,
                      uint64_t* bytes) {
  if (record->segment >= kDspSegments) return 0;
  const DspMemory* memory = &memories[record->segment];
  if (record->offset > memory->bytes) return 0;
  if (!SpannedBytes(record, memory->bytes - record->offset, bytes)) return 0;
  tensor->data = memory->data + record->offset;
  tensor->device.device_type = kDLCPU;
  tensor->device.device_id = 0;
  tensor->ndim = (int32_t)record->ndim;
  tensor->dtype.code = record->type_code;
  tensor->dtype.bits = record->bits;
  tensor->dtype.lanes = record->lanes;
  tensor->shape = record->shape;
  tensor->strides = record->strides;
  tensor->byte_offset = 0;
  return 1;
}

// Kernels need aligned tensors; copies may begin at any byte.
static int IsAligned(const DspTensor* tensor) { return tensor->offset % DSP_ALIGNMENT == 0; }

static int BindNode(DspProgram* program, const DspNode* node, const uint32_t* ids,
                    BoundNode* bound) {
  const uint32_t count = program->header.arguments;
  if (node->inputs > DSP_MAX_ARGS || node->outputs > DSP_MAX_ARGS) return 0;
  const uint32_t arguments = node->inputs + node->outputs;
  if (node->first_argument > count || arguments > count - node->first_argument) return 0;
  bound->arguments = program->arguments + node->first_argument;
  bound->num_arguments = (int32_t)arguments;
  for (uint32_t i = 0; i < arguments; ++i) {
    const uint32_t id = ids[node->first_argument + i];
    if (id >= program->header.tensors) return 0;
    if (i >= node->inputs && program->records[id].segment != kDspBlock) return 0;
    if (node->kernel != DSP_COPY_KERNEL && !IsAligned(&program->records[id])) return 0;
    bound->arguments[i].type_index = kTVMFFIDLTensorPtr;
    bound->arguments[i].zero_padding = 0;
    bound->arguments[i].v_int64 = 0;  // clears the upper half around a 32-bit pointer
    bound->arguments[i].v_ptr = &program->tensors[id];
  }
  if (node->kernel != DSP_COPY_KERNEL) {
    if (node->kernel >= dsp_num_kernels) return 0;
    bound->call = dsp_kernels[node->kernel];
    return 1;
  }
  if (node->inputs != 1 || node->outputs != 1) return 0;
  const uint32_t from = ids[node->first_argument], to = ids[node->first_argument + 1];
  bound->call = NULL;
  bound->copy_bytes = program->tensor_bytes[to];
  return program->tensor_bytes[from] == program->tensor_bytes[to];
}

static DspResult Bind(DspProgram* program, const DspMemory memories[kDspSegments],
                      const DspNode* nodes, const uint32_t* ids) {
  const DspProgramHeader* header = &program->header;
  for (uint32_t i = 0; i < header->tensors; ++i) {
    if (!BindTensor(&program->records[i], memories, &program->tensors[i],
                    &program->tensor_bytes[i]))
      return Result(kDspBadTensor, i);
  }
  for (uint32_t i = 0; i < header->nodes; ++i) {
    if (!BindNode(program, &nodes[i], ids, &program->nodes[i])) return Result(kDspBadNode, i);
  }
  for (uint32_t i = 0; i < header->regions; ++i) {
    const DspRegion* region = &program->regions[i];
    if (region->first_node > header->nodes || region->nodes > header->nodes - region->first_node)
      return Result(kDspBadRegion, i);
  }
  return Result(kDspOk, 0);
}

static void* Allocate(uint64_t count, size_t bytes) {
  return calloc(count == 0 ? 1 : (size_t)count, bytes);
}

static int AllocateTables(DspProgram* program) {
  const DspProgramHeader* header = &program->header;
  program->records = Allocate(header->tensors, sizeof(DspTensor));
  program->tensors = Allocate(header->tensors, sizeof(DLTensor));
  program->tensor_bytes = Allocate(header->tensors, sizeof(uint64_t));
  program->arguments = Allocate(header->arguments, sizeof(TVMFFIAny));
  program->nodes = Allocate(header->nodes, sizeof(BoundNode));
  program->regions = Allocate(header->regions, sizeof(DspRegion));
  return program->records && program->tensors && program->tensor_bytes && program->arguments &&
         program->nodes && program->regions;
}

static DspResult LoadCopy(const DspProgramHeader* header, char* copy,
                          const DspMemory memories[kDspSegments], DspProgram* program) {
  if (DspHash(copy, header->bytes) != header->check) return Result(kDspBadProgram, 0);
  if (!AllocateTables(program)) return Result(kDspNoMemory, 0);
  const char* next = copy;
  memcpy(program->records, next, header->tensors * sizeof(DspTensor));
  next += header->tensors * sizeof(DspTensor);
  const uint32_t* ids = (const uint32_t*)next;
  next += DspRoundUp(header->arguments * sizeof(uint32_t));
  const DspNode* nodes = (const DspNode*)next;
  next += header->nodes * sizeof(DspNode);
  memcpy(program->regions, next, header->regions * sizeof(DspRegion));
  return Bind(program, memories, nodes, ids);
}

DspResult DspLoad(const void* header, uint64_t bytes, const DspMemory memories[kDspSegments],
                  DspProgram** program) {
  *program = NULL;
  DspProgramHeader own;
  if (bytes < sizeof(own)) return Result(kDspBadProgram, 0);
  memcpy(&own, header, sizeof(own));
  if (!HeaderFits(&own, bytes)) return Result(kDspBadProgram, 0);
  char* copy = Allocate(own.bytes, 1);
  DspProgram* made = Allocate(1, sizeof(DspProgram));
  DspResult result = Result(kDspNoMemory, 0);
  if (copy && made) {
    memcpy(copy, (const char*)header + sizeof(own), (size_t)own.bytes);
    made->header = own;
    result = LoadCopy(&own, copy, memories, made);
  }
  free(copy);
  if (result.status == kDspOk)
    *program = made;
  else
    DspUnload(made);
  return result;
}

void DspUnload(DspProgram* program) {
  if (!program) return;
  free(program->records);
  free(program->tensors);
  free(program->tensor_bytes);
  free(program->arguments);
  free(program->nodes);
  free(program->regions);
  free(program);
}

static int RunNode(const BoundNode* node) {
  if (node->call) {
    TVMFFIAny result;
    memset(&result, 0, sizeof(result));
    return node->call(NULL, node->arguments, node->num_arguments, &result);
  }
  const DLTensor* from = node->arguments[0].v_ptr;
  const DLTensor* to = node->arguments[1].v_ptr;
  memmove(to->data, from->data, (size_t)node->copy_bytes);
  return 0;
}

DspResult DspInvoke(DspProgram* program, uint32_t region, DspSpan* spans, uint64_t* packets) {
  if (region >= program->header.regions) return Result(kDspBadRegion, region);
  const DspRegion* bounds = &program->regions[region];
  for (uint32_t i = bounds->first_node; i < bounds->first_node + bounds->nodes; ++i) {
    const uint64_t start = spans ? DspNow() : 0;
    const uint32_t before = DspPackets();
    if (RunNode(&program->nodes[i]) != 0) return Result(kDspKernelFailed, i);
    const uint32_t executed =
        DspPackets() - before;  // correct even if the 32-bit counter wraps once
    *packets += executed;
    if (!spans) continue;
    const DspSpan span = {start, DspNow(), executed};
    memcpy(&spans[i], &span, sizeof(span));
  }
  return Result(kDspOk, 0);
}

static DspResult Obey(const DspServer* server, const DspCommand* command, uint64_t* packets) {
  if (command->check != DspCommandCheck(command)) return Result(kDspBadCommand, 0);
  if (command->operation == kDspShutDown) return Result(kDspOk, 0);
  if (server->loaded.status != kDspOk) return server->loaded;
  if (command->operation == kDspPing) return Result(kDspOk, 0);
  if (command->operation != kDspInvoke) return Result(kDspBadCommand, 0);
  DspSpan* const spans = command->traced ? server->spans : NULL;
  const DspResult done = DspInvoke(server->program, command->region, spans, packets);
  if (done.status == kDspKernelFailed) memcpy(server->text, DspKernelMessage(), DSP_TEXT_BYTES);
  return done;
}

DspAnswer DspExecute(const DspServer* server, const DspCommand* command) {
  const uint64_t start = DspNow();
  uint64_t packets = 0;
  const DspResult result = Obey(server, command, &packets);
  DspAnswer answer = {command->number, result.status, result.detail, 0, packets, DspNow() - start};
  answer.check = DspAnswerCheck(&answer);
  return answer;
}

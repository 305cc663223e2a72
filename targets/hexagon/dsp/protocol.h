// The protocol between host and DSP, as plain data for C and C++, on 32 and 64 bits.
//
// With an emulated DSP, three files, each mapped by both sides:
//
//   control   a Mailbox, then the program: regions, nodes, tensors, and a place for spans
//   block     arena, inputs and outputs of one instance of a model
//   weights   the weights that the nodes read; the DSP maps it read-only
//
// The host writes a command and then its number; the DSP answers and then writes the same number.
// Both have checksums, so that overwritten commands and answers are detected.
#pragma once

#include <stddef.h>
#include <stdint.h>

#define DSP_MAGIC 0x31505344u /* "DSP1" */
#define DSP_MAX_DIMS 12
#define DSP_MAX_ARGS 64
#define DSP_PROGRAM_OFFSET 4096 /* in the control file */
#define DSP_TEXT_BYTES 240
#define DSP_ALIGNMENT 8             /* of kernels' tensors; the host's graphs guarantee more */
#define DSP_COPY_KERNEL 0xFFFFFFFFu /* a node that copies its input to its output */

enum DspOperation { kDspPing = 1, kDspInvoke = 2, kDspShutDown = 3 };

enum DspStatus {
  kDspOk = 0,
  kDspBadCommand = 1,    // damaged, or no operation
  kDspBadProgram = 2,    // damaged; `detail` is the offset or position of the error
  kDspBadTensor = 3,     // does not lie in its memory; `detail` is the tensor
  kDspBadNode = 4,       // no such kernel or arguments, or not aligned; `detail` is the node
  kDspBadRegion = 5,     // there is no such region
  kDspNoMemory = 6,      // not enough on the DSP
  kDspKernelFailed = 7,  // `detail` is the node, the mailbox has its message
};

enum DspSegment { kDspBlock = 0, kDspWeights = 1, kDspSegments = 2 };

typedef struct {
  uint32_t number;  // a futex: written last
  uint32_t operation;
  uint32_t region;
  uint32_t traced;
  uint32_t check;
} DspCommand;

typedef struct {
  uint32_t number;  // a futex: written last
  uint32_t status;
  uint32_t detail;
  uint32_t check;
  uint64_t packets;  // executed by the region's nodes; 0 on processors that do not count
  uint64_t nanoseconds;
} DspAnswer;

// Each part has separate cache lines.
typedef struct {
  DspCommand command;
  char padding0[128 - sizeof(DspCommand)];
  DspAnswer answer;
  char padding1[128 - sizeof(DspAnswer)];
  uint32_t dsp_sleeps;  // the writer of a number wakes the other side if this flag is set
  char padding2[124];
  uint32_t host_sleeps;
  char padding3[124];
  char text[DSP_TEXT_BYTES];  // message of a failed kernel
} DspMailbox;

// At DSP_PROGRAM_OFFSET; the tables follow in the order of their numbers, each at a multiple of 8.
typedef struct {
  uint32_t magic;
  uint32_t check;  // DspHash of the `bytes` after this header
  uint64_t bytes;
  uint32_t tensors;
  uint32_t arguments;
  uint32_t nodes;
  uint32_t regions;
} DspProgramHeader;

typedef struct {
  uint32_t segment;
  uint32_t ndim;
  uint8_t type_code;  // DLPack's code
  uint8_t bits;
  uint16_t lanes;
  uint32_t padding;
  uint64_t offset;
  int64_t shape[DSP_MAX_DIMS];
  int64_t strides[DSP_MAX_DIMS];  // in elements
} DspTensor;

// Arguments are positions of tensors, 32 bits each; a node's arguments are consecutive, inputs
// first.
typedef struct {
  uint32_t kernel;
  uint32_t first_argument;
  uint32_t inputs;
  uint32_t outputs;
} DspNode;

typedef struct {
  uint32_t first_node;
  uint32_t nodes;
} DspRegion;

// One for each node, after the tables; written if a command is traced.
typedef struct {
  uint64_t start;  // nanoseconds of the monotonic clock
  uint64_t end;
  uint64_t packets;
} DspSpan;

// A checksum that detects damage. `bytes` is a multiple of 4. Each word is spread over all bits
// before the next one, else the highest bits of two words would cancel out.
static inline uint32_t DspHash(const void* data, uint64_t bytes) {
  const uint32_t* words = (const uint32_t*)data;
  uint32_t hash = 2166136261u;
  for (uint64_t i = 0; i < bytes / 4; ++i) {
    hash = (hash ^ words[i]) * 2654435761u;
    hash ^= hash >> 15;
  }
  return hash;
}

static inline uint32_t DspCommandCheck(const DspCommand* command) {
  const uint32_t words[5] = {DSP_MAGIC, command->number, command->operation, command->region,
                             command->traced};
  return DspHash(words, sizeof(words));
}

static inline uint32_t DspAnswerCheck(const DspAnswer* answer) {
  const uint32_t words[8] = {DSP_MAGIC,
                             answer->number,
                             answer->status,
                             answer->detail,
                             (uint32_t)answer->packets,
                             (uint32_t)(answer->packets >> 32),
                             (uint32_t)answer->nanoseconds,
                             (uint32_t)(answer->nanoseconds >> 32)};
  return DspHash(words, sizeof(words));
}

// Calls through FastRPC, which carry the same commands and answers; memory is shared by
// descriptors. Opening a handle is method 0 and closing it method 1, as for every interface with
// handles.
enum DspMethod {
  kDspLoad = 2,     // in: DspShared, the program with room for spans
  kDspExecute = 3,  // in: DspCommand; out: DspAnswer, DSP_TEXT_BYTES, spans (empty if not traced)
};

typedef struct {
  int32_t fd[kDspSegments];
  uint32_t bytes[kDspSegments];
} DspShared;

// What FastRPC calls scalars: the method, and how many buffers and handles it takes and returns.
static inline uint32_t DspScalars(uint32_t method, uint32_t in, uint32_t out, uint32_t in_handles,
                                  uint32_t out_handles) {
  return method << 24 | in << 16 | out << 8 | in_handles << 4 | out_handles;
}

static inline uint64_t DspRoundUp(uint64_t bytes) { return (bytes + 7) / 8 * 8; }

/* The C interface of tvm_stretch: runs exported models in an app, without Python.
 *
 *   TvmStretchModel* model;
 *   if (tvm_stretch_load("resnet18.so", &model) != TVM_STRETCH_OK) {
 *     fprintf(stderr, "%s\n", tvm_stretch_last_error());
 *     return 1;
 *   }
 *   TvmStretchBuffer input = {pixels, sizeof(pixels)}, output = {scores, sizeof(scores)};
 *   tvm_stretch_run(model, &input, 1, &output, 1);
 *   tvm_stretch_free(model);
 *
 * Link with libtvm_stretch_runtime.so, which needs libtvm_ffi.so beside it. A model that was
 * compiled with more than one CPU thread needs libtvm_runtime.so, too, which is loaded then.
 *
 * Errors: functions that can fail return a status. The text of the last failure of the calling
 * thread is in tvm_stretch_last_error(). No C++ exception leaves these functions.
 *
 * Threads: any thread may call any function. Calls for one model wait for each other, except
 * tvm_stretch_cancel, which returns at once. Models of tvm_stretch_clone share kernels and weights,
 * and run at the same time.
 *
 * Memory: strings and tensor descriptions belong to the model. They stay valid until it is freed,
 * or, where a function says so, until its next call for this model.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TVM_STRETCH_EXPORT __attribute__((visibility("default")))

/* The version of this header. It grows when functions are added; those that exist stay. */
#define TVM_STRETCH_INTERFACE_VERSION 5

/* The version that the loaded library implements: at least that of the header, or do not use it. */
TVM_STRETCH_EXPORT int32_t tvm_stretch_interface_version(void);

typedef enum TvmStretchStatus {
  TVM_STRETCH_OK = 0,
  TVM_STRETCH_INVALID = 1,      /* an argument is wrong: a null pointer, a size, a number */
  TVM_STRETCH_BAD_ARTIFACT = 2, /* the file is damaged, no artifact, or for another machine */
  TVM_STRETCH_BAD_VALUES = 3,   /* an input has values that the network cannot compute with */
  TVM_STRETCH_RUN = 4,          /* a run cannot begin: busy, in a fork */
  TVM_STRETCH_NO_MEMORY = 5,
  TVM_STRETCH_DEVICE = 6, /* a processor other than the CPU is missing or failed */
  TVM_STRETCH_CANCELLED = 7,
  TVM_STRETCH_INTERNAL = 8 /* anything else: please report it */
} TvmStretchStatus;

/* Why the last call of this thread that failed did so; "" before the first failure. Valid until the
 * thread's next failure. */
TVM_STRETCH_EXPORT const char* tvm_stretch_last_error(void);

typedef struct TvmStretchModel TvmStretchModel;

/* An input or output. A later version may add members at the end. */
typedef struct TvmStretchTensor {
  const char* name;
  const char* type; /* "float32", "int8", ... as NumPy writes them */
  size_t dimensions;
  const int64_t* shape;
  size_t bytes; /* of the whole tensor, in row-major order without gaps */
} TvmStretchTensor;

/* Memory of the caller for one tensor. Runs neither copy it nor keep it, if it is aligned to 64
 * bytes and no other processor than the CPU uses the tensor; otherwise they copy it. OpenCL devices
 * import inputs that are mapped (tvm_stretch_map). */
typedef struct TvmStretchBuffer {
  void* data;
  size_t bytes; /* at least those of the tensor */
} TvmStretchBuffer;

/* Opens an artifact, checks all of its bytes, and prepares its weights. The file is mapped, not
 * copied: it must not change until the model and its clones are freed. */
TVM_STRETCH_EXPORT TvmStretchStatus tvm_stretch_load(const char* path, TvmStretchModel** model);

/* The same for a file that is open already, as Android's assets are: `bytes` from `offset` on. The
 * descriptor is duplicated, so it may be closed. If the artifact is a part of the file, it is
 * copied to memory. */
TVM_STRETCH_EXPORT TvmStretchStatus tvm_stretch_load_descriptor(int descriptor, int64_t offset,
                                                                int64_t bytes,
                                                                TvmStretchModel** model);

/* The same for bytes in memory, which are copied. */
TVM_STRETCH_EXPORT TvmStretchStatus tvm_stretch_load_memory(const void* data, size_t bytes,
                                                            TvmStretchModel** model);

/* Opens the kernels of an artifact that was exported without its network, and the network: a file
 * that Model.export_data wrote. It may have come later than the app, because it holds no program:
 * it is refused if it calls kernels otherwise than the artifact's own network does. Both files are
 * checked for damage and mapped, as above; the origin of the second one is for the app to check. */
TVM_STRETCH_EXPORT TvmStretchStatus tvm_stretch_load_with_data(const char* path, const char* data,
                                                               TvmStretchModel** model);

/* A model with the same kernels and weights and its own scratch memory. */
TVM_STRETCH_EXPORT TvmStretchStatus tvm_stretch_clone(TvmStretchModel* model,
                                                      TvmStretchModel** clone);

/* Cancels a run in progress, waits for it and for its callback, and frees the model. NULL is
 * allowed. A callback may free its own model. As with `free`, nothing may use the model afterwards,
 * on any thread: its pointer is not recognised, so a second call would corrupt memory. Clones stay.
 */
TVM_STRETCH_EXPORT void tvm_stretch_free(TvmStretchModel* model);

TVM_STRETCH_EXPORT size_t tvm_stretch_input_count(const TvmStretchModel* model);
TVM_STRETCH_EXPORT size_t tvm_stretch_output_count(const TvmStretchModel* model);

/* NULL for a number that is too large. */
TVM_STRETCH_EXPORT const TvmStretchTensor* tvm_stretch_input(const TvmStretchModel* model,
                                                             size_t number);
TVM_STRETCH_EXPORT const TvmStretchTensor* tvm_stretch_output(const TvmStretchModel* model,
                                                              size_t number);

/* The number of the input or output with this name; -1 if there is none. */
TVM_STRETCH_EXPORT int64_t tvm_stretch_find_input(const TvmStretchModel* model, const char* name);
TVM_STRETCH_EXPORT int64_t tvm_stretch_find_output(const TvmStretchModel* model, const char* name);

/* Runs once: reads all inputs, writes all outputs, in the order of their numbers. */
TVM_STRETCH_EXPORT TvmStretchStatus tvm_stretch_run(TvmStretchModel* model,
                                                    const TvmStretchBuffer* inputs,
                                                    size_t input_count,
                                                    const TvmStretchBuffer* outputs,
                                                    size_t output_count);

/* Called on a thread of the model; `error` is "" on success and valid during the call. */
typedef void (*TvmStretchCallback)(void* user, TvmStretchStatus status, const char* error);

/* Begins a run and returns; the callback is called once when it is over. The caller's tensors must
 * stay until then. While such a run is in progress, another one of the same model is refused with
 * TVM_STRETCH_RUN. If this function fails, the callback is not called. */
TVM_STRETCH_EXPORT TvmStretchStatus tvm_stretch_run_async(
    TvmStretchModel* model, const TvmStretchBuffer* inputs, size_t input_count,
    const TvmStretchBuffer* outputs, size_t output_count, TvmStretchCallback callback, void* user);

/* Stops the run in progress, if there is one: it ends with TVM_STRETCH_CANCELLED. */
TVM_STRETCH_EXPORT TvmStretchStatus tvm_stretch_cancel(TvmStretchModel* model);

/* The lengths of the artifact: a network that was compiled for several has inputs and outputs of
 * several shapes. 1 for all others. Since version 2 of the interface. */
TVM_STRETCH_EXPORT size_t tvm_stretch_length_count(const TvmStretchModel* model);
/* As it was compiled, "n=64"; "" if there is one length. */
TVM_STRETCH_EXPORT const char* tvm_stretch_length_name(const TvmStretchModel* model, size_t number);

/* Runs from now on have inputs and outputs of this length, and tvm_stretch_input and
 * tvm_stretch_output describe those. Descriptions of other lengths stay valid. A model begins with
 * length 0; states are the same for all lengths. */
TVM_STRETCH_EXPORT TvmStretchStatus tvm_stretch_use_length(TvmStretchModel* model, size_t number);

/* Runs from now on have this size of a named dimension, and the sizes of others that they had:
 * tvm_stretch_input and tvm_stretch_output describe such runs. A size between the lengths of a
 * dimension that was compiled for any size (ts.Length) is padded to the next length, and outputs
 * are cut. The names are those in tvm_stretch_length_name. Since version 3. */
TVM_STRETCH_EXPORT TvmStretchStatus tvm_stretch_use_size(TvmStretchModel* model, const char* name,
                                                         int64_t size);

/* Sets all states to zero, as they were before the first run: what a model that was compiled with
 * states= keeps from run to run. They are neither inputs nor outputs. Since version 2. */
TVM_STRETCH_EXPORT TvmStretchStatus tvm_stretch_reset(TvmStretchModel* model);

/* Called for each token; 0 goes on, anything else ends the call. It must not use the model, except
 * by tvm_stretch_cancel. */
typedef int (*TvmStretchTokenCallback)(void* user, int64_t token);

/* For a model whose tokens are a state that ts.Greedy or ts.Sample chooses: reads `count` tokens of
 * a prompt, in pieces as long as the model's lengths allow, or goes on after the last call if there
 * are none; then chooses up to `most` tokens, each after reading the one before. The last one is
 * not read: it is where the next call begins. Since version 5. */
TVM_STRETCH_EXPORT TvmStretchStatus tvm_stretch_generate(TvmStretchModel* model,
                                                         const int64_t* tokens, size_t count,
                                                         size_t most,
                                                         TvmStretchTokenCallback callback,
                                                         void* user);

/* How tokens of a ts.Sample are drawn from now on: docs/states.md. The same seed gives the same
 * tokens; a temperature of 0 takes the best one. Since version 5. */
TVM_STRETCH_EXPORT TvmStretchStatus tvm_stretch_set_sampling(TvmStretchModel* model,
                                                             double temperature, int64_t top_k,
                                                             double top_p, double min_p,
                                                             int64_t seed);

/* As tvm_stretch_clone, with the present states: a prefix is read once and continued several times.
 * Since version 5. */
TVM_STRETCH_EXPORT TvmStretchStatus tvm_stretch_fork(TvmStretchModel* model,
                                                     TvmStretchModel** fork);

/* The plans of the artifact: each computes the whole network, with other processors. */
TVM_STRETCH_EXPORT size_t tvm_stretch_plan_count(const TvmStretchModel* model);
TVM_STRETCH_EXPORT const char* tvm_stretch_plan_name(const TvmStretchModel* model, size_t number);

/* All runs use this plan. */
TVM_STRETCH_EXPORT TvmStretchStatus tvm_stretch_use_plan(TvmStretchModel* model, size_t number);

/* Each run uses the plan that is fastest at present. */
TVM_STRETCH_EXPORT TvmStretchStatus tvm_stretch_adapt(TvmStretchModel* model);

/* The cores for the CPU's kernels, as "0,4-7"; "" for any. */
TVM_STRETCH_EXPORT TvmStretchStatus tvm_stretch_set_cores(TvmStretchModel* model,
                                                          const char* cores);

/* A JSON object: "runs" and "nanoseconds" of the last one, "plan" of the next one, "lost" and
 * "replaced" (why the CPU runs everything; why a run used another plan), "processors" (state of
 * those other than the CPU), "bytes" of weights, prepared weights and scratch memory. Valid until
 * the next call for this model. */
TVM_STRETCH_EXPORT TvmStretchStatus tvm_stretch_statistics(TvmStretchModel* model,
                                                           const char** json);

/* The same as tvm_stretch_run, and records every kernel: JSON for https://ui.perfetto.dev. Valid
 * until the next call for this model. */
TVM_STRETCH_EXPORT TvmStretchStatus tvm_stretch_trace(TvmStretchModel* model,
                                                      const TvmStretchBuffer* inputs,
                                                      size_t input_count,
                                                      const TvmStretchBuffer* outputs,
                                                      size_t output_count, const char** json);

/* Memory of a camera, a GPU or another process: `rows` rows of `row_bytes` bytes, one every
 * `stride` bytes from `offset` on. What is no image has one row. */
typedef struct TvmStretchRows {
  int descriptor; /* of a dma-buf, a memfd, or a file; may be closed after the call */
  int64_t offset;
  size_t rows, row_bytes, stride;
} TvmStretchRows;

typedef struct TvmStretchMapping TvmStretchMapping;

/* Maps memory, so that runs read inputs from it and write outputs to it: without a copy where rows
 * have no gaps and begin at a multiple of 64 bytes. Rows with gaps are copied once. */
TVM_STRETCH_EXPORT TvmStretchStatus tvm_stretch_map(const TvmStretchRows* rows,
                                                    TvmStretchMapping** mapping);

/* The same for an AHardwareBuffer of Android: bytes (BLOB), R8, RGB, RGBA or float16 RGBA. It is
 * acquired, and released by tvm_stretch_unmap. */
TVM_STRETCH_EXPORT TvmStretchStatus tvm_stretch_map_hardware_buffer(void* hardware_buffer,
                                                                    TvmStretchMapping** mapping);

enum { TVM_STRETCH_READ = 1, TVM_STRETCH_WRITE = 2 };

/* Between these two calls, `buffer` names the memory for runs: what a device wrote before is seen,
 * and after the second call devices see what runs wrote. Only one thread may use a mapping. */
TVM_STRETCH_EXPORT TvmStretchStatus tvm_stretch_begin(TvmStretchMapping* mapping, int access,
                                                      TvmStretchBuffer* buffer);
TVM_STRETCH_EXPORT TvmStretchStatus tvm_stretch_end(TvmStretchMapping* mapping);

/* NULL is allowed. A mapping in use is ended first; no run may use it any more. */
TVM_STRETCH_EXPORT void tvm_stretch_unmap(TvmStretchMapping* mapping);

#ifdef __cplusplus
} /* extern "C" */
#endif

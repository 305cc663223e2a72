/* An app in C: what test_c_interface.py lets it do with an artifact, in a process without Python.
 *
 *   app MODEL describe                      names, types and shapes
 *   app MODEL mistakes                      every wrong argument has a status and a text
 *   app MODEL ways INPUT OUTPUT             from memory, from a descriptor and a part of a file
 *   app MODEL callbacks INPUT OUTPUT        a chain of runs, each begun by the callback before
 *   app MODEL cancels INPUT OUTPUT          runs that are cancelled at any time, and freed
 *   app MODEL threads INPUT OUTPUT          clones on threads of their own
 *   app MODEL lengths INPUT OUTPUT          a model of two lengths with a state; files of the first
 *   app MODEL sizes                         a model for 2 to 48 rows
 *   app MODEL maps INPUT OUTPUT             memory of others: packed, in rows with gaps, Android's
 *   app MODEL time INPUT OUTPUT             nanoseconds of a call
 *   app MODEL trace INPUT OUTPUT            events of a run, then statistics
 *   app MODEL faults INPUT OUTPUT           each step fails in turn (tests/faults/injector.cc)
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* memfd_create and memmem */
#endif
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "tvm_stretch.h"

#define REQUIRE(condition)                                                           \
  do {                                                                               \
    if (!(condition)) {                                                              \
      fprintf(stderr, "%s:%d: %s; last error: %s\n", __FILE__, __LINE__, #condition, \
              tvm_stretch_last_error());                                             \
      exit(1);                                                                       \
    }                                                                                \
  } while (0)
#define EXPECT(status, text, call)                                  \
  do {                                                              \
    REQUIRE((call) == (status));                                    \
    REQUIRE(strstr(tvm_stretch_last_error(), (text)) != NULL);      \
    REQUIRE(strstr(tvm_stretch_last_error(), "expected ") != NULL); \
  } while (0)

/* tvm-ffi orders the last two owners of an object by a fence, which the thread sanitizer ignores.
 */
const char* __tsan_default_suppressions(void);
const char* __tsan_default_suppressions(void) { return "race:tvm::ffi::Object::DecRef\n"; }

enum { kMost = 8 };

static const char* path;
static TvmStretchModel* model;
static TvmStretchBuffer inputs[kMost], outputs[kMost];
static size_t input_count, output_count;

static void* ReadFile(const char* name, size_t* bytes) {
  FILE* file = fopen(name, "rb");
  REQUIRE(file != NULL && fseek(file, 0, SEEK_END) == 0);
  *bytes = (size_t)ftell(file);
  rewind(file);
  void* data = NULL;
  REQUIRE(posix_memalign(&data, 64, *bytes + 1) == 0);
  REQUIRE(fread(data, 1, *bytes, file) == *bytes);
  fclose(file);
  return data;
}

static void PrintPort(const char* role, const TvmStretchTensor* port) {
  printf("%s %s %s %zu", role, port->name, port->type, port->bytes);
  for (size_t i = 0; i < port->dimensions; ++i) printf(" %lld", (long long)port->shape[i]);
  printf("\n");
}

static void Describe(void) {
  for (size_t i = 0; i < input_count; ++i) PrintPort("input", tvm_stretch_input(model, i));
  for (size_t i = 0; i < output_count; ++i) PrintPort("output", tvm_stretch_output(model, i));
  for (size_t i = 0; i < tvm_stretch_plan_count(model); ++i) {
    printf("plan %s\n", tvm_stretch_plan_name(model, i));
  }
}

static TvmStretchStatus RunOn(TvmStretchModel* one, TvmStretchBuffer* results) {
  return tvm_stretch_run(one, inputs, input_count, results, output_count);
}

static void Compare(const TvmStretchBuffer* results) {
  for (size_t i = 0; i < output_count; ++i) {
    REQUIRE(memcmp(results[i].data, outputs[i].data, outputs[i].bytes) == 0);
  }
}

static void NewResults(TvmStretchBuffer* results) {
  for (size_t i = 0; i < output_count; ++i) {
    results[i].bytes = tvm_stretch_output(model, i)->bytes;
    REQUIRE(posix_memalign(&results[i].data, 64, results[i].bytes) == 0);
    memset(results[i].data, 0, results[i].bytes);
  }
}

static void FreeResults(TvmStretchBuffer* results) {
  for (size_t i = 0; i < output_count; ++i) free(results[i].data);
}

static void Mistakes(void) {
  TvmStretchModel* other = model;
  const char* json = NULL;
  TvmStretchBuffer small[kMost], results[kMost];
  NewResults(results);
  for (size_t i = 0; i < input_count; ++i) {
    small[i].bytes = tvm_stretch_input(model, i)->bytes - 1;
    small[i].data = calloc(1, small[i].bytes);
  }
  EXPECT(TVM_STRETCH_INVALID, "NULL", tvm_stretch_load(NULL, &other));
  REQUIRE(other == NULL);
  EXPECT(TVM_STRETCH_INVALID, "NULL", tvm_stretch_load(path, NULL));
  EXPECT(TVM_STRETCH_INVALID, "NULL", tvm_stretch_load_memory(NULL, 9, &other));
  EXPECT(TVM_STRETCH_BAD_ARTIFACT, "cannot be opened", tvm_stretch_load("/nowhere.so", &other));
  EXPECT(TVM_STRETCH_INVALID, "NULL", tvm_stretch_load_with_data(path, NULL, &other));
  EXPECT(TVM_STRETCH_BAD_ARTIFACT, "No such file",
         tvm_stretch_load_with_data(path, "/nowhere.data", &other));
  EXPECT(TVM_STRETCH_BAD_ARTIFACT, "no file",
         tvm_stretch_load_with_data(path, "/dev/null", &other));
  EXPECT(TVM_STRETCH_BAD_ARTIFACT, "another or a truncated file",
         tvm_stretch_load_with_data(path, path, &other));
  REQUIRE(other == NULL);
  EXPECT(TVM_STRETCH_BAD_ARTIFACT, "no regular file", tvm_stretch_load("/dev/null", &other));
  EXPECT(TVM_STRETCH_BAD_ARTIFACT, "no shared library", tvm_stretch_load("/proc/version", &other));
  EXPECT(TVM_STRETCH_BAD_ARTIFACT, "no shared library", tvm_stretch_load_memory("", 0, &other));
  EXPECT(TVM_STRETCH_BAD_ARTIFACT, "not open", tvm_stretch_load_descriptor(-1, 0, 1, &other));
  EXPECT(TVM_STRETCH_INVALID, "bytes for the input",
         tvm_stretch_run(model, small, input_count, results, output_count));
  EXPECT(TVM_STRETCH_INVALID, "buffers for the model's inputs",
         tvm_stretch_run(model, small, 0, results, output_count));
  EXPECT(TVM_STRETCH_INVALID, "buffers for the model's outputs",
         tvm_stretch_run(model, small, input_count, results, output_count + 1));
  EXPECT(TVM_STRETCH_INVALID, "NULL",
         tvm_stretch_run(model, NULL, input_count, results, output_count));
  EXPECT(TVM_STRETCH_INVALID, "callback",
         tvm_stretch_run_async(model, small, input_count, results, output_count, NULL, NULL));
  EXPECT(TVM_STRETCH_INVALID, "NULL", RunOn(NULL, results));
  EXPECT(TVM_STRETCH_INVALID, "use_plan", tvm_stretch_use_plan(model, 99));
  EXPECT(TVM_STRETCH_INVALID, "cores", tvm_stretch_set_cores(model, "nine"));
  EXPECT(TVM_STRETCH_INVALID, "NULL", tvm_stretch_statistics(model, NULL));
  EXPECT(TVM_STRETCH_INVALID, "NULL", tvm_stretch_statistics(NULL, &json));
  REQUIRE(tvm_stretch_cancel(model) == TVM_STRETCH_OK);
  REQUIRE(tvm_stretch_input(model, 99) == NULL && tvm_stretch_output(NULL, 0) == NULL);
  REQUIRE(tvm_stretch_find_input(model, "no name") == -1);
  REQUIRE(tvm_stretch_find_input(model, tvm_stretch_input(model, 0)->name) == 0);
  REQUIRE(tvm_stretch_plan_name(model, 99) == NULL);
  REQUIRE(tvm_stretch_interface_version() >= TVM_STRETCH_INTERFACE_VERSION);
  tvm_stretch_free(NULL);
  for (size_t i = 0; i < input_count; ++i) free(small[i].data);
  FreeResults(results);
}

static void RunOnce(TvmStretchModel* one) {
  TvmStretchBuffer results[kMost];
  NewResults(results);
  REQUIRE(RunOn(one, results) == TVM_STRETCH_OK);
  Compare(results);
  FreeResults(results);
}

/* A state doubles the answer of a second run, so the files hold that of a run after a reset. */
static void Lengths(void) {
  REQUIRE(tvm_stretch_length_count(model) == 2 && tvm_stretch_plan_count(model) == 1);
  REQUIRE(strcmp(tvm_stretch_length_name(model, 1), "n=48") == 0);
  REQUIRE(tvm_stretch_length_name(model, 2) == NULL && tvm_stretch_length_name(NULL, 0) == NULL);
  EXPECT(TVM_STRETCH_INVALID, "the length", tvm_stretch_use_length(model, 2));
  EXPECT(TVM_STRETCH_INVALID, "use_plan", tvm_stretch_use_plan(model, 1));
  EXPECT(TVM_STRETCH_INVALID, "adapt", tvm_stretch_adapt(model));
  RunOnce(model);
  const TvmStretchTensor* small = tvm_stretch_input(model, 0);
  REQUIRE(tvm_stretch_use_length(model, 1) == TVM_STRETCH_OK);
  const TvmStretchTensor* large = tvm_stretch_input(model, 0);
  REQUIRE(large->bytes == 2 * small->bytes && large->shape[2] == 2 * small->shape[2]);
  TvmStretchBuffer results[kMost], wide = {calloc(1, large->bytes), large->bytes};
  NewResults(results);
  REQUIRE(tvm_stretch_run(model, &wide, 1, results, output_count) == TVM_STRETCH_OK);
  EXPECT(TVM_STRETCH_INVALID, "bytes for the input", RunOn(model, results));
  free(wide.data);
  FreeResults(results);
  REQUIRE(tvm_stretch_use_length(model, 0) == TVM_STRETCH_OK);
  REQUIRE(tvm_stretch_reset(model) == TVM_STRETCH_OK);
  RunOnce(model);
}

/* y = 2 x, for 2 to 48 rows. */
static void RunSize(int64_t rows) {
  REQUIRE(tvm_stretch_use_size(model, "n", rows) == TVM_STRETCH_OK);
  const TvmStretchTensor *x = tvm_stretch_input(model, 0), *y = tvm_stretch_output(model, 0);
  REQUIRE(x->shape[0] == rows && x->bytes == (size_t)(rows * 5 * 4) && y->bytes == x->bytes);
  TvmStretchBuffer read = {malloc(x->bytes), x->bytes}, written = {malloc(y->bytes), y->bytes};
  for (int64_t i = 0; i < rows * 5; ++i) ((float*)read.data)[i] = (float)i;
  const char* json = NULL;
  for (int run = 0; run < 2; ++run) {
    memset(written.data, 255, written.bytes);
    REQUIRE((run == 0 ? tvm_stretch_run(model, &read, 1, &written, 1)
                      : tvm_stretch_trace(model, &read, 1, &written, 1, &json)) == TVM_STRETCH_OK);
    for (int64_t i = 0; i < rows * 5; ++i) REQUIRE(((float*)written.data)[i] == 2 * (float)i);
  }
  REQUIRE(strstr(json, "kernel") != NULL);
  free(read.data);
  free(written.data);
}

static void Sizes(void) {
  const TvmStretchTensor* first = tvm_stretch_input(model, 0);
  const int64_t rows = first->shape[0];
  for (int64_t n = 2; n <= 48; ++n) RunSize(n);
  for (int64_t n = 48; n >= 2; n -= 7) RunSize(n);
  REQUIRE(first->shape[0] == rows); /* descriptions stay */
  EXPECT(TVM_STRETCH_INVALID, "sizes of one of the lengths", tvm_stretch_use_size(model, "n", 1));
  EXPECT(TVM_STRETCH_INVALID, "got n=49", tvm_stretch_use_size(model, "n", 49));
  EXPECT(TVM_STRETCH_INVALID, "got n=-1", tvm_stretch_use_size(model, "n", -1));
  EXPECT(TVM_STRETCH_INVALID, "['n'], got 'm'", tvm_stretch_use_size(model, "m", 3));
  EXPECT(TVM_STRETCH_INVALID, "NULL", tvm_stretch_use_size(model, NULL, 3));
  EXPECT(TVM_STRETCH_INVALID, "NULL", tvm_stretch_use_size(NULL, "n", 3));
  RunSize(20); /* refused sizes change nothing */
}

static void Ways(void) {
  size_t bytes;
  char* data = ReadFile(path, &bytes);
  TvmStretchModel* others[3];
  REQUIRE(tvm_stretch_load_memory(data, bytes, &others[0]) == TVM_STRETCH_OK);
  int file = open(path, O_RDONLY);
  REQUIRE(tvm_stretch_load_descriptor(file, 0, (int64_t)bytes, &others[1]) == TVM_STRETCH_OK);
  EXPECT(TVM_STRETCH_BAD_ARTIFACT, "a part that the file has",
         tvm_stretch_load_descriptor(file, 1, (int64_t)bytes, &others[2]));
  close(file);
  FILE* package = tmpfile(); /* as an APK: other bytes before and behind */
  fwrite("abc", 1, 3, package);
  fwrite(data, 1, bytes, package);
  fwrite("def", 1, 3, package);
  fflush(package);
  REQUIRE(tvm_stretch_load_descriptor(fileno(package), 3, (int64_t)bytes, &others[2]) ==
          TVM_STRETCH_OK);
  fclose(package);
  data[bytes / 2] ^= 1;
  TvmStretchModel* damaged = model;
  EXPECT(TVM_STRETCH_BAD_ARTIFACT, "damaged", tvm_stretch_load_memory(data, bytes, &damaged));
  REQUIRE(damaged == NULL);
  data[bytes / 2] ^= 1;
  char part[16]; /* start and size of the weights, in the seal: their sum overflows */
  memcpy(part, data + bytes - 24, sizeof(part));
  memset(data + bytes - 24, 0x7f, sizeof(part));
  EXPECT(TVM_STRETCH_BAD_ARTIFACT, "damaged", tvm_stretch_load_memory(data, bytes, &damaged));
  memcpy(data + bytes - 24, part, sizeof(part));
  char* weights = memmem(data, bytes, "TVMSTRW1", 8); /* checked while they are prepared */
  REQUIRE(weights != NULL);
  weights[100] ^= 1;
  EXPECT(TVM_STRETCH_BAD_ARTIFACT, "damaged", tvm_stretch_load_memory(data, bytes, &damaged));
  EXPECT(TVM_STRETCH_BAD_ARTIFACT, "the end that",
         tvm_stretch_load_memory(data, bytes / 2, &damaged));
  data[18] ^= 0x33; /* the machine in its header */
  EXPECT(TVM_STRETCH_BAD_ARTIFACT, "another machine",
         tvm_stretch_load_memory(data, bytes, &damaged));
  free(data);
  for (int i = 0; i < 3; ++i) RunOnce(others[i]);
  for (int i = 0; i < 3; ++i) tvm_stretch_free(others[i]);
  RunOnce(model);
}

/* A chain of runs; the last one wakes the main thread. */
struct Chain {
  TvmStretchBuffer results[kMost];
  TvmStretchStatus expected;
  TvmStretchModel* own;
  int left;
  int frees;
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  int is_over;
};

static void Next(void* user, TvmStretchStatus status, const char* error) {
  struct Chain* chain = user;
  REQUIRE(status == TVM_STRETCH_OK && *error == 0);
  Compare(chain->results);
  if (--chain->left > 0) {
    REQUIRE(tvm_stretch_run_async(chain->own, inputs, input_count, chain->results, output_count,
                                  Next, chain) == TVM_STRETCH_OK);
    EXPECT(TVM_STRETCH_RUN, "in progress",
           tvm_stretch_run_async(chain->own, inputs, input_count, chain->results, output_count,
                                 Next, chain));
    return;
  }
  if (chain->frees) tvm_stretch_free(chain->own);
  pthread_mutex_lock(&chain->mutex);
  chain->is_over = 1;
  pthread_cond_signal(&chain->changed);
  pthread_mutex_unlock(&chain->mutex);
}

static void Callbacks(void) {
  for (int frees = 0; frees < 2; ++frees) {
    struct Chain chain = {.own = model, .left = 20, .frees = frees};
    pthread_mutex_init(&chain.mutex, NULL);
    pthread_cond_init(&chain.changed, NULL);
    NewResults(chain.results);
    if (frees) REQUIRE(tvm_stretch_clone(model, &chain.own) == TVM_STRETCH_OK);
    REQUIRE(tvm_stretch_run_async(chain.own, inputs, input_count, chain.results, output_count, Next,
                                  &chain) == TVM_STRETCH_OK);
    pthread_mutex_lock(&chain.mutex);
    while (!chain.is_over) pthread_cond_wait(&chain.changed, &chain.mutex);
    pthread_mutex_unlock(&chain.mutex);
    FreeResults(chain.results);
  }
}

static void Count(void* user, TvmStretchStatus status, const char* error) {
  int* counts = user;
  REQUIRE(status == TVM_STRETCH_OK || status == TVM_STRETCH_CANCELLED);
  REQUIRE((status == TVM_STRETCH_OK) == (*error == 0));
  ++counts[status == TVM_STRETCH_OK];
}

static void Cancels(void) {
  TvmStretchBuffer results[kMost];
  int counts[2] = {0, 0};
  NewResults(results);
  for (int i = 0; i < 60; ++i) {
    TvmStretchModel* own;
    REQUIRE(tvm_stretch_clone(model, &own) == TVM_STRETCH_OK);
    REQUIRE(tvm_stretch_run_async(own, inputs, input_count, results, output_count, Count, counts) ==
            TVM_STRETCH_OK);
    usleep((useconds_t)(i % 10 * 30));
    if (i % 3 > 0) REQUIRE(tvm_stretch_cancel(own) == TVM_STRETCH_OK);
    tvm_stretch_free(own); /* cancels, too, and waits for the callback */
    REQUIRE(counts[0] + counts[1] == i + 1);
  }
  REQUIRE(counts[0] > 0); /* those that were cancelled at once */
  RunOnce(model);
  FreeResults(results);
}

static void* RunMany(void* own) {
  for (int i = 0; i < 20; ++i) RunOnce(own);
  return NULL;
}

static void Threads(void) {
  pthread_t threads[4];
  TvmStretchModel* clones[4];
  for (int i = 0; i < 4; ++i) { /* two threads of one model, too */
    clones[i] = model;
    if (i > 1) REQUIRE(tvm_stretch_clone(model, &clones[i]) == TVM_STRETCH_OK);
    REQUIRE(pthread_create(&threads[i], NULL, RunMany, clones[i]) == 0);
  }
  for (int i = 0; i < 4; ++i) pthread_join(threads[i], NULL);
  for (int i = 2; i < 4; ++i) tvm_stretch_free(clones[i]);
}

/* A file in memory with `rows` rows of the data, one every `stride` bytes from `offset` on. */
static int NewMemory(const TvmStretchRows* rows, const char* data) {
  const int file = memfd_create("camera", MFD_ALLOW_SEALING);
  REQUIRE(file >= 0 && ftruncate(file, rows->offset + (off_t)(rows->rows * rows->stride)) == 0);
  for (size_t i = 0; i < rows->rows; ++i) {
    const off_t place = rows->offset + (off_t)(i * rows->stride);
    const char* row = data + i * rows->row_bytes;
    REQUIRE(pwrite(file, row, rows->row_bytes, place) == (ssize_t)rows->row_bytes);
  }
  return file;
}

static TvmStretchMapping* Mapped(TvmStretchRows rows, const char* data) {
  TvmStretchMapping* mapping = NULL;
  rows.descriptor = NewMemory(&rows, data);
  REQUIRE(tvm_stretch_map(&rows, &mapping) == TVM_STRETCH_OK);
  close(rows.descriptor); /* the mapping has its own */
  return mapping;
}

/* Runs twice from memory in such rows to memory in such rows: nothing of the first run stays. */
static void RunMapped(TvmStretchRows in, TvmStretchRows out) {
  TvmStretchMapping *from = Mapped(in, inputs[0].data), *to = Mapped(out, inputs[0].data);
  for (int run = 0; run < 2; ++run) {
    TvmStretchBuffer input, output;
    REQUIRE(tvm_stretch_begin(from, TVM_STRETCH_READ, &input) == TVM_STRETCH_OK);
    REQUIRE(tvm_stretch_begin(to, TVM_STRETCH_WRITE, &output) == TVM_STRETCH_OK);
    REQUIRE(input.bytes == inputs[0].bytes && output.bytes == outputs[0].bytes);
    memset(output.data, run, output.bytes);
    REQUIRE(tvm_stretch_run(model, &input, 1, &output, 1) == TVM_STRETCH_OK);
    REQUIRE(tvm_stretch_end(to) == TVM_STRETCH_OK && tvm_stretch_end(from) == TVM_STRETCH_OK);
    REQUIRE(tvm_stretch_begin(to, TVM_STRETCH_READ, &output) == TVM_STRETCH_OK);
    Compare(&output); /* what is in the memory itself, where rows have gaps */
    if (run == 0) REQUIRE(tvm_stretch_end(to) == TVM_STRETCH_OK);
  }
  tvm_stretch_unmap(from);
  tvm_stretch_unmap(to); /* in use */
}

/* What others write is what a run reads: the mapping is the memory, not a copy of it. */
static void NoCopy(TvmStretchRows rows) {
  TvmStretchMapping* mapping = NULL;
  TvmStretchBuffer buffer;
  rows.descriptor = NewMemory(&rows, inputs[0].data);
  REQUIRE(tvm_stretch_map(&rows, &mapping) == TVM_STRETCH_OK);
  REQUIRE(tvm_stretch_begin(mapping, TVM_STRETCH_READ, &buffer) == TVM_STRETCH_OK);
  REQUIRE((uintptr_t)buffer.data % 64 == 0 && memcmp(buffer.data, inputs[0].data, 9) == 0);
  REQUIRE(pwrite(rows.descriptor, "something", 9, rows.offset) == 9);
  REQUIRE(memcmp(buffer.data, "something", 9) == 0);
  close(rows.descriptor);
  tvm_stretch_unmap(mapping);
}

static void BadRows(TvmStretchRows rows) {
  TvmStretchMapping* mapping = NULL;
  TvmStretchBuffer buffer;
  const TvmStretchRows good = rows;
  rows.descriptor = NewMemory(&rows, inputs[0].data);
  EXPECT(TVM_STRETCH_INVALID, "NULL", tvm_stretch_map(NULL, &mapping));
  EXPECT(TVM_STRETCH_INVALID, "NULL", tvm_stretch_map(&rows, NULL));
#define BAD(text, member, value)                                        \
  do {                                                                  \
    TvmStretchRows bad = rows;                                          \
    bad.member = (value);                                               \
    EXPECT(TVM_STRETCH_INVALID, text, tvm_stretch_map(&bad, &mapping)); \
    REQUIRE(mapping == NULL);                                           \
  } while (0)
  BAD("open the memory", descriptor, -1);
  BAD("open the memory", descriptor, 999);
  BAD("a part that it has", offset, -1);
  BAD("a part that it has", offset, INT64_MAX);
  BAD("a part that it has", rows, 1 + good.rows);
  BAD("a stride is at least a row", rows, 0);
  BAD("a stride is at least a row", row_bytes, 0);
  BAD("a stride is at least a row", stride, good.row_bytes - 1);
  BAD("a stride is at least a row", stride, SIZE_MAX);
  BAD("use a smaller shape", stride, SIZE_MAX / 5);
#undef BAD
  REQUIRE(tvm_stretch_map(&rows, &mapping) == TVM_STRETCH_OK);
  EXPECT(TVM_STRETCH_INVALID, "NULL", tvm_stretch_begin(mapping, TVM_STRETCH_READ, NULL));
  EXPECT(TVM_STRETCH_INVALID, "TVM_STRETCH_READ", tvm_stretch_begin(mapping, 0, &buffer));
  EXPECT(TVM_STRETCH_INVALID, "TVM_STRETCH_READ", tvm_stretch_begin(mapping, 4, &buffer));
  EXPECT(TVM_STRETCH_INVALID, "in use", tvm_stretch_end(mapping));
  REQUIRE(tvm_stretch_begin(mapping, TVM_STRETCH_READ, &buffer) == TVM_STRETCH_OK);
  EXPECT(TVM_STRETCH_INVALID, "end its use", tvm_stretch_begin(mapping, 1, &buffer));
  tvm_stretch_unmap(mapping);
  tvm_stretch_unmap(NULL);
  char name[64];
  snprintf(name, sizeof(name), "/proc/self/fd/%d", rows.descriptor);
  TvmStretchRows read_only = rows;
  read_only.descriptor = open(name, O_RDONLY);
  REQUIRE(tvm_stretch_map(&read_only, &mapping) == TVM_STRETCH_OK);
  EXPECT(TVM_STRETCH_INVALID, "opened for reading", tvm_stretch_begin(mapping, 2, &buffer));
  REQUIRE(tvm_stretch_begin(mapping, TVM_STRETCH_READ, &buffer) == TVM_STRETCH_OK);
  tvm_stretch_unmap(mapping);
  close(read_only.descriptor);
  close(rows.descriptor);
}

/* The kernel's own dma-buf, where it makes some. */
static void DmaBuf(TvmStretchRows rows) {
  struct {
    uint32_t memfd, flags;
    uint64_t offset, size;
  } wanted = {0, 0, 0, 0};
  const int device = open("/dev/udmabuf", O_RDWR);
  if (device < 0) return;
  const int memory = NewMemory(&rows, inputs[0].data);
  const size_t page = 4096, bytes = (rows.rows * rows.stride + page - 1) / page * page;
  REQUIRE(ftruncate(memory, (off_t)bytes) == 0 && fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
  wanted.memfd = (uint32_t)memory;
  wanted.size = bytes;
  rows.descriptor = ioctl(device, _IOW('u', 0x42, wanted), &wanted);
  REQUIRE(rows.descriptor >= 0);
  TvmStretchMapping* mapping = NULL;
  TvmStretchBuffer input, results[kMost];
  NewResults(results);
  REQUIRE(tvm_stretch_map(&rows, &mapping) == TVM_STRETCH_OK);
  REQUIRE(tvm_stretch_begin(mapping, TVM_STRETCH_READ, &input) == TVM_STRETCH_OK);
  REQUIRE(tvm_stretch_run(model, &input, 1, results, output_count) == TVM_STRETCH_OK);
  REQUIRE(tvm_stretch_end(mapping) == TVM_STRETCH_OK);
  Compare(results);
  FreeResults(results);
  tvm_stretch_unmap(mapping);
  close(rows.descriptor);
  close(memory);
  close(device);
  printf("dma-buf\n");
}

/* fake_nativewindow.c */
typedef void* (*NewHardwareBuffer)(uint32_t format, uint32_t width, uint32_t height, uint32_t gap);

static void HardwareBuffers(void) {
  TvmStretchMapping* mapping = NULL;
  TvmStretchBuffer input, results[kMost];
  void* library = dlopen("libnativewindow.so", RTLD_NOW);
  if (library == NULL) {
    EXPECT(TVM_STRETCH_INVALID, "Android 8", tvm_stretch_map_hardware_buffer(&input, &mapping));
    return;
  }
  const NewHardwareBuffer make = (NewHardwareBuffer)dlsym(library, "NewHardwareBuffer");
  const int* used = dlsym(library, "used_hardware_buffers");
  NewResults(results);
  const uint32_t bytes = (uint32_t)inputs[0].bytes;
  const struct {
    uint32_t format, width, height, gap;
  } kinds[] = {{0x21, bytes, 1, 0}, {0x1, 24, bytes / 96, 0}, {0x1, 24, bytes / 96, 8}};
  for (size_t i = 0; i < 3; ++i) {
    void* buffer = make(kinds[i].format, kinds[i].width, kinds[i].height, kinds[i].gap);
    REQUIRE(tvm_stretch_map_hardware_buffer(buffer, &mapping) == TVM_STRETCH_OK && *used == 1);
    for (int access = TVM_STRETCH_WRITE; access >= TVM_STRETCH_READ; --access) {
      REQUIRE(tvm_stretch_begin(mapping, access, &input) == TVM_STRETCH_OK);
      REQUIRE(input.bytes == bytes);
      if (access == TVM_STRETCH_WRITE) memcpy(input.data, inputs[0].data, bytes);
      if (access == TVM_STRETCH_READ) {
        REQUIRE(tvm_stretch_run(model, &input, 1, results, output_count) == TVM_STRETCH_OK);
        Compare(results);
      }
      REQUIRE(tvm_stretch_end(mapping) == TVM_STRETCH_OK);
    }
    tvm_stretch_unmap(mapping);
    REQUIRE(*used == 0);
    free(buffer);
  }
  void* yuv = make(0x23, 24, 24, 0);
  EXPECT(TVM_STRETCH_INVALID, "format 35", tvm_stretch_map_hardware_buffer(yuv, &mapping));
  free(yuv);
  void* locked = make(0x21, bytes, 1, UINT32_MAX); /* its lock fails */
  REQUIRE(tvm_stretch_map_hardware_buffer(locked, &mapping) == TVM_STRETCH_OK);
  EXPECT(TVM_STRETCH_INVALID, "CPU_READ_OFTEN", tvm_stretch_begin(mapping, 1, &input));
  tvm_stretch_unmap(mapping);
  free(locked);
  FreeResults(results);
  printf("hardware buffers\n");
}

static void Maps(void) {
  const size_t bytes = inputs[0].bytes, row = 96, rows = bytes / row;
  REQUIRE(rows * row == bytes && outputs[0].bytes == bytes);
  const TvmStretchRows packed = {-1, 128, 1, bytes, bytes}, far = {-1, 8192 + 64, 1, bytes, bytes};
  const TvmStretchRows odd = {-1, 4, 1, bytes, bytes}, gaps = {-1, 100, rows, row, 128};
  RunMapped(packed, far);
  RunMapped(odd, odd);
  RunMapped(gaps, packed);
  RunMapped(far, gaps);
  NoCopy(packed);
  BadRows(gaps);
  DmaBuf((TvmStretchRows){-1, 0, 1, bytes, bytes});
  HardwareBuffers();
}

static int Rising(const void* one, const void* other) {
  const double a = *(const double*)one, b = *(const double*)other;
  return (a > b) - (a < b);
}

static void Time(void) {
  enum { kRuns = 5000 };
  static double times[kRuns];
  TvmStretchBuffer results[kMost];
  NewResults(results);
  for (int i = 0; i < kRuns; ++i) {
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    REQUIRE(RunOn(model, results) == TVM_STRETCH_OK);
    clock_gettime(CLOCK_MONOTONIC, &end);
    times[i] = 1e9 * (double)(end.tv_sec - begin.tv_sec) + (double)(end.tv_nsec - begin.tv_nsec);
  }
  qsort(times, kRuns, sizeof(double), Rising);
  printf("%.0f\n", times[kRuns / 2]);
  FreeResults(results);
}

static void Trace(void) {
  TvmStretchBuffer results[kMost];
  const char* json = NULL;
  NewResults(results);
  REQUIRE(tvm_stretch_trace(model, inputs, input_count, results, output_count, &json) ==
          TVM_STRETCH_OK);
  Compare(results);
  printf("%s\n", json);
  REQUIRE(tvm_stretch_adapt(model) == TVM_STRETCH_OK);
  REQUIRE(tvm_stretch_use_plan(model, 0) == TVM_STRETCH_OK);
  REQUIRE(tvm_stretch_set_cores(model, "") == TVM_STRETCH_OK);
  REQUIRE(RunOn(model, results) == TVM_STRETCH_OK);
  REQUIRE(tvm_stretch_statistics(model, &json) == TVM_STRETCH_OK);
  printf("%s\n", json);
  FreeResults(results);
}

/* `Control` of injector.cc. */
struct Faults {
  volatile int32_t kind, lasts;
  volatile int64_t number, seen, failed;
};

/* A clear status; and the next attempt, without a fault, is right. */
static void Attempt(struct Faults* faults, int kind, int64_t number) {
  TvmStretchModel* own = NULL;
  TvmStretchBuffer results[kMost];
  NewResults(results);
  faults->number = number;
  faults->seen = faults->failed = 0;
  faults->kind = kind;
  TvmStretchStatus status = tvm_stretch_load(path, &own);
  if (status == TVM_STRETCH_OK) status = RunOn(own, results);
  const char* json = NULL;
  if (status == TVM_STRETCH_OK) status = tvm_stretch_statistics(own, &json);
  faults->kind = 0;
  if (status == TVM_STRETCH_OK) {
    Compare(results);
  } else {
    REQUIRE(status == TVM_STRETCH_NO_MEMORY || status == TVM_STRETCH_DEVICE);
    REQUIRE(strncmp(tvm_stretch_last_error(), "expected ", 9) == 0);
  }
  if (own != NULL) RunOnce(own);
  tvm_stretch_free(own);
  FreeResults(results);
}

/* In order, then all from each tenth step on. */
static void Faults(void) {
  const int file = open(getenv("FAULTS"), O_RDWR);
  struct Faults* faults = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  REQUIRE(file >= 0 && faults != MAP_FAILED);
  const int kind = atoi(getenv("FAULTS_KIND"));
  for (int lasts = 0; lasts < 2; ++lasts) {
    int64_t number = 1, failed = 1;
    faults->lasts = lasts;
    for (; failed > 0; number += lasts ? 10 : 1) {
      Attempt(faults, kind, number);
      failed = faults->failed;
    }
    printf("%lld\n", (long long)number);
  }
  munmap(faults, 4096);
  close(file);
}

int main(int count, char** words) {
  REQUIRE(count > 2);
  path = words[1];
  const char* data = getenv("APP_DATA"); /* the network, if the artifact has kernels only */
  REQUIRE((data == NULL ? tvm_stretch_load(path, &model)
                        : tvm_stretch_load_with_data(path, data, &model)) == TVM_STRETCH_OK);
  input_count = tvm_stretch_input_count(model);
  output_count = tvm_stretch_output_count(model);
  REQUIRE(input_count <= kMost && output_count <= kMost);
  const char* task = words[2];
  if ((size_t)count == 3 + input_count + output_count) {
    char** files = words + 3;
    for (size_t i = 0; i < input_count; ++i) inputs[i].data = ReadFile(*files++, &inputs[i].bytes);
    for (size_t i = 0; i < output_count; ++i) {
      outputs[i].data = ReadFile(*files++, &outputs[i].bytes);
    }
  }
  static const struct {
    const char* name;
    void (*call)(void);
  } tasks[] = {{"describe", Describe},   {"mistakes", Mistakes}, {"ways", Ways},
               {"callbacks", Callbacks}, {"cancels", Cancels},   {"threads", Threads},
               {"lengths", Lengths},     {"sizes", Sizes},       {"time", Time},
               {"trace", Trace},         {"faults", Faults},     {"maps", Maps}};
  int found = 0;
  for (size_t i = 0; i < sizeof(tasks) / sizeof(tasks[0]); ++i) {
    if (strcmp(tasks[i].name, task) != 0) continue;
    tasks[i].call();
    ++found;
  }
  REQUIRE(found == 1);
  for (size_t i = 0; i < input_count; ++i) free(inputs[i].data);
  for (size_t i = 0; i < output_count; ++i) free(outputs[i].data);
  tvm_stretch_free(model);
  return 0;
}

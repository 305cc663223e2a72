/* Classifies one picture: ./classify MODEL.so PICTURE.raw
 *
 * PICTURE.raw holds the model's input as it is: float32, channels first. Without it, the picture is
 * black. docs/apps.md says how to build this.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <tvm_stretch.h>

static int Fail(void) {
  fprintf(stderr, "%s\n", tvm_stretch_last_error());
  return 1;
}

static double Milliseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

/* Aligned, so that a run reads and writes it without a copy. */
static TvmStretchBuffer NewBuffer(const TvmStretchTensor* tensor) {
  TvmStretchBuffer buffer = {aligned_alloc(64, (tensor->bytes + 63) / 64 * 64), tensor->bytes};
  for (size_t i = 0; buffer.data != NULL && i < buffer.bytes; ++i) ((char*)buffer.data)[i] = 0;
  return buffer;
}

static size_t Best(const float* scores, size_t count) {
  size_t best = 0;
  for (size_t i = 1; i < count; ++i) best = scores[i] > scores[best] ? i : best;
  return best;
}

int main(int count, char** words) {
  TvmStretchModel* model;
  if (count < 2) return fprintf(stderr, "usage: %s MODEL.so [PICTURE.raw]\n", words[0]), 2;
  if (tvm_stretch_load(words[1], &model) != TVM_STRETCH_OK) return Fail();
  TvmStretchBuffer picture = NewBuffer(tvm_stretch_input(model, 0));
  TvmStretchBuffer scores = NewBuffer(tvm_stretch_output(model, 0));
  if (count > 2) {
    FILE* file = fopen(words[2], "rb");
    if (file == NULL || fread(picture.data, 1, picture.bytes, file) != picture.bytes) {
      return fprintf(stderr, "expected %zu bytes in %s\n", picture.bytes, words[2]), 1;
    }
    fclose(file);
  }
  for (int i = 0; i < 2; ++i) { /* the first run is slower: drivers prepare things */
    const double start = Milliseconds();
    if (tvm_stretch_run(model, &picture, 1, &scores, 1) != TVM_STRETCH_OK) return Fail();
    printf("class %zu, %.2f ms\n", Best(scores.data, scores.bytes / sizeof(float)),
           Milliseconds() - start);
  }
  const char* statistics;
  if (tvm_stretch_statistics(model, &statistics) != TVM_STRETCH_OK) return Fail();
  printf("%s\n", statistics);
  tvm_stretch_free(model);
  free(picture.data);
  free(scores.data);
  return 0;
}

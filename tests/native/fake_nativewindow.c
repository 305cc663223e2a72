/* Android's library of hardware buffers, as far as tvm_stretch calls it: buffers are plain memory.
 *
 * A lock needs a usage that was asked for, as gralloc wants it, and one at a time.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
  uint32_t width, height, layers, format;
  uint64_t usage;
  uint32_t stride, reserved0;
  uint64_t reserved1;
} Description;

typedef struct {
  Description shown;
  int cannot_lock, is_locked;
  char* data;
} Buffer;

int used_hardware_buffers;

/* `gap`: pixels between rows; UINT32_MAX: none, and its lock fails. */
void* NewHardwareBuffer(uint32_t format, uint32_t width, uint32_t height, uint32_t gap) {
  Buffer* buffer = malloc(sizeof(Buffer) + 64 + (size_t)width * height * 4 + 4096u * height);
  memset(buffer, 0, sizeof(Buffer));
  buffer->cannot_lock = gap == UINT32_MAX;
  const uint32_t stride = width + (buffer->cannot_lock ? 0 : gap);
  buffer->shown = (Description){width, height, 1, format, 0x33, format == 0x21 ? 0 : stride, 0, 0};
  buffer->data = (char*)(((uintptr_t)(buffer + 1) + 63) / 64 * 64);
  return buffer;
}

void AHardwareBuffer_describe(const void* own, Description* shown) {
  *shown = ((const Buffer*)own)->shown;
}

void AHardwareBuffer_acquire(void* own) { (void)own, ++used_hardware_buffers; }
void AHardwareBuffer_release(void* own) { (void)own, --used_hardware_buffers; }

int AHardwareBuffer_lock(void* own, uint64_t usage, int32_t fence, const void* part, void** data) {
  Buffer* buffer = own;
  if (buffer->cannot_lock || buffer->is_locked || (usage & ~buffer->shown.usage) != 0) return -22;
  if (usage == 0 || fence != -1 || part != NULL) return -22;
  buffer->is_locked = 1;
  *data = buffer->data;
  return 0;
}

int AHardwareBuffer_unlock(void* own, int32_t* fence) {
  Buffer* buffer = own;
  if (!buffer->is_locked || fence != NULL) return -22;
  buffer->is_locked = 0;
  return 0;
}

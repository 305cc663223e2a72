// A fake libcdsprpc.so: the calls of Qualcomm's library, whose DSP is shell.c under qemu-hexagon.
//
//   FAKE_CDSP_SHELL="qemu-hexagon -cpu v67 shell"     the command of the process on the DSP
//
// As on a chip, all handles of this process belong to one process there. When that has ended, calls
// return AEE_ECONNRESET, and a new one begins only after its handles were closed, one by one or by
// FASTRPC_SESSION_CLOSE. Code has no signature: open fails unless an unsigned process was asked
// for.
//
// Tests plan failures: fake_cdsp_fail("remote_handle64_invoke", 3, 0x27) lets the fourth call from
// now on return 0x27. Codes below -1 are what else may happen, see `enum Fault`.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "channel.h"

typedef struct {
  void* data;
  size_t bytes;
} Argument;

enum { kNoSuch = 39, kReset = 104 };
enum { kBadParameter = 0x0e, kUnsupported = 0x14, kInvalidHandle = 0x2c, kNoMemory = 0x02 };
enum { kAlready = 0x1a, kNotSigned = 0x81, kNoFd = 0x3a };
#define DSP(code) ((int)(0x80000400u + (code)))

enum Fault {
  kDies = -2,          // the DSP's process is killed, then the call goes on
  kDiesInside = -3,    // it is killed while it works
  kHangs = -4,         // until the process is killed
  kHangsForever = -5,  // until fake_cdsp_release, and killing does not help
  kDamages = -6,       // the answer is overwritten
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;  // guards all but memory and faults
static pthread_mutex_t fault_lock = PTHREAD_MUTEX_INITIALIZER;
static Channel* channel;
static volatile pid_t shell;
static int channel_fd = -1, is_unsigned;
static uint32_t generation = 1;
static int num_open, stale, num_buffers, num_mapped;
static volatile int released = 1;
static struct {
  char call[32];
  int skip, code;
} faults[64];

static struct {
  void* data;
  int bytes, fd, is_mapped;
} buffers[4096];

// --- failures
// -------------------------------------------------------------------------------------

void fake_cdsp_fail(const char* call, int skip, int code) {
  pthread_mutex_lock(&fault_lock);
  for (int i = 0; i < 64; ++i) {
    if (faults[i].call[0]) continue;
    strncpy(faults[i].call, call, 31);
    faults[i].skip = skip, faults[i].code = code;
    if (code == kHangsForever) released = 0;
    break;
  }
  pthread_mutex_unlock(&fault_lock);
}

void fake_cdsp_forget(void) {
  pthread_mutex_lock(&fault_lock);
  memset(faults, 0, sizeof(faults));
  released = 1;
  pthread_mutex_unlock(&fault_lock);
}

void fake_cdsp_release(void) { released = 1; }

// 0: open handles, 1: buffers, 2: registered buffers, 3: bytes that the DSP has mapped, 4: its pid,
// 5: how often VTCM was lent, 6: and returned, 7: whether kernels wrote to it,
// 8: threads that live beside the first, 9: most locks of HVX at once.
int fake_cdsp_count(int what) {
  static const Channel none;
  const Channel* const dsp = channel && shell > 0 ? channel : &none;
  const int counts[] = {
      num_open,          num_buffers,         num_mapped,         (int)dsp->mapped,
      (int)shell,        (int)dsp->lent,      (int)dsp->returned, (int)dsp->written,
      (int)dsp->threads, (int)dsp->most_locks};
  return counts[what];
}

static int Planned(const char* call) {
  int code = 0;
  pthread_mutex_lock(&fault_lock);
  for (int i = 0; i < 64 && code == 0; ++i) {
    if (strcmp(faults[i].call, call) != 0 || faults[i].skip-- > 0) continue;
    code = faults[i].code;
    faults[i].call[0] = 0;
  }
  pthread_mutex_unlock(&fault_lock);
  return code;
}

static void Kill(void) {
  if (shell > 0) kill(shell, SIGKILL);
}

// Lets happen what is planned for a call; the code that it returns, or 0 to go on.
static int Happens(const char* call, int* inside) {
  const int code = Planned(call);
  if (code == kDies) Kill();
  if (code == kDiesInside || code == kDamages) *inside = code;
  if (code == kHangs) {
    siginfo_t ended = {0};
    while (shell > 0 && ended.si_pid == 0 &&
           waitid(P_PID, (id_t)shell, &ended, WEXITED | WNOHANG | WNOWAIT) == 0)
      usleep(1000);
    return 0;
  }
  if (code == kHangsForever) {
    while (!released) usleep(1000);
    return kReset;
  }
  return code <= kDies && code >= kDamages ? 0 : code;
}

// --- the process on the DSP
// -----------------------------------------------------------------------

static void ForgetMaps(void) {
  for (int i = 0; i < 4096; ++i) num_mapped -= buffers[i].is_mapped, buffers[i].is_mapped = 0;
}

static int HasEnded(void) {
  if (shell <= 0) return 1;
  if (waitpid(shell, NULL, WNOHANG) == 0) return 0;
  shell = 0;
  ++generation;
  stale = num_open;
  return 1;
}

static int Start(void) {
  const char* command = getenv("FAKE_CDSP_SHELL");
  char copy[2048], *words[32], *next = copy;
  int count = 0;
  if (!command || strlen(command) >= sizeof(copy)) return DSP(kBadParameter);
  strcpy(copy, command);
  for (char* word; count < 28 && (word = strsep(&next, " "));) words[count++] = word;
  if (channel) munmap(channel, sizeof(Channel) + ARENA_BYTES), close(channel_fd);
  channel_fd = memfd_create("fake_cdsp", 0);
  if (channel_fd < 0 || ftruncate(channel_fd, sizeof(Channel) + ARENA_BYTES) != 0)
    return DSP(kNoMemory);
  channel =
      mmap(NULL, sizeof(Channel) + ARENA_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, channel_fd, 0);
  char fd[16], pid[16];
  snprintf(fd, sizeof(fd), "%d", channel_fd);
  snprintf(pid, sizeof(pid), "%d", (int)getpid());
  words[count++] = fd, words[count++] = pid, words[count] = NULL;
  ForgetMaps();
  shell = vfork();
  if (shell == 0) {
    execvp(words[0], words);
    _exit(127);
  }
  fcntl(channel_fd, F_SETFD, FD_CLOEXEC);
  return shell > 0 ? 0 : DSP(kNoMemory);
}

// Sends what the channel holds, and waits.
static int Exchange(int inside) {
  const uint32_t before = Load(&channel->answered);
  Publish(&channel->number, before + 1, &channel->dsp_sleeps);
  if (inside == kDiesInside) Kill();
  while (!WaitForChange(&channel->answered, before, &channel->cpu_sleeps)) {
    if (HasEnded()) return kReset;
  }
  return channel->result;
}

static int Enter(const char* call, int* inside) {
  const int planned = Happens(call, inside);
  pthread_mutex_lock(&lock);
  return planned;
}

static int Leave(int code) {
  pthread_mutex_unlock(&lock);
  return code;
}

// --- the library's functions
// ----------------------------------------------------------------------

int remote_session_control(uint32_t request, void* data, uint32_t bytes) {
  int inside = 0;
  const int32_t* words = data;
  if (request == 6) {  // FASTRPC_REMOTE_PROCESS_KILL, which does not wait for other calls
    const int planned = Happens("kill", &inside);
    if (planned != 0) return planned;
    Kill();
    return 0;
  }
  const int planned = Enter(request == 2 ? "unsigned" : "session_close", &inside);
  if (planned != 0) return Leave(planned);
  if (bytes < 4 || words[0] != 3) return Leave(kBadParameter);
  if (request == 2) {  // DSPRPC_CONTROL_UNSIGNED_MODULE
    if (bytes != 8 || words[1] != 1) return Leave(kBadParameter);
    is_unsigned = 1;
  } else if (request == 7) {  // FASTRPC_SESSION_CLOSE
    Kill();
    while (!HasEnded()) usleep(100);
    num_open = stale = 0;
    ForgetMaps();
  } else {
    return Leave(DSP(kUnsupported));
  }
  return Leave(0);
}

// The file in the folders of the variable, as the DSP asks for it; false if there is none.
static int FindFile(const char* name, size_t length, char* path, size_t bytes) {
  const char* folders = getenv("DSP_LIBRARY_PATH");
  if (!folders) folders = getenv("ADSP_LIBRARY_PATH");
  while (folders && *folders) {
    const size_t own = strcspn(folders, ";");
    snprintf(path, bytes, "%.*s/%.*s", (int)own, folders, (int)length, name);
    if (access(path, R_OK) == 0) return 1;
    folders += own + (folders[own] == ';');
  }
  return 0;
}

int remote_handle64_open(const char* name, uint64_t* handle) {
  int inside = 0;
  const int planned = Enter("remote_handle64_open", &inside);
  if (planned != 0) return Leave(planned);
  const char* file = name + strlen("file:///");
  if (strncmp(name, "file:///", 8) != 0 || !strchr(name, '?')) return Leave(kBadParameter);
  const char* rest = strchr(name, '?') + 1;
  if (strcmp(rest, "tvm_stretch_skel_handle_invoke&_modver=1.0&_dom=cdsp") != 0)
    return Leave(DSP(0x42));
  if (!is_unsigned) return Leave(DSP(kNotSigned));
  if (HasEnded()) {
    if (stale > 0) return Leave(kReset);
    const int code = Start();
    if (code != 0) return Leave(code);
  }
  if (!FindFile(file, strcspn(file, "?"), channel->path, sizeof(channel->path)))
    return Leave(kNoSuch);
  channel->kind = kLoadLibrary;
  const int result = Exchange(inside);
  if (result != 0) return Leave(result);
  *handle = (uint64_t)generation << 32 | channel->opened;
  ++num_open;
  return Leave(0);
}

int remote_handle64_invoke(uint64_t handle, uint32_t scalars, Argument* arguments) {
  int inside = 0;
  const int planned = Enter("remote_handle64_invoke", &inside);
  if (planned != 0) return Leave(planned);
  if (HasEnded() || handle >> 32 != generation) return Leave(kReset);
  const int in = scalars >> 16 & 0xff, out = scalars >> 8 & 0xff;
  if (in + out > MOST_ARGUMENTS || (scalars & 0xff)) return Leave(kBadParameter);
  char* const arena = (char*)(channel + 1);
  uint32_t next = 0;
  memset(channel->arguments, 0, sizeof(channel->arguments));
  for (int i = 0; i < in + out; ++i) {
    if (arguments[i].bytes > ARENA_BYTES - next) return Leave(kNoMemory);
    channel->arguments[i].offset = next;
    channel->arguments[i].bytes = (uint32_t)arguments[i].bytes;
    if (i < in && arguments[i].bytes) memcpy(arena + next, arguments[i].data, arguments[i].bytes);
    next += (uint32_t)(arguments[i].bytes + 127) / 128 * 128;
  }
  channel->kind = kInvokeLibrary;
  channel->handle = handle & 0xffffffff;
  channel->scalars = scalars;
  const int result = Exchange(inside);
  for (int i = in; result == 0 && i < in + out; ++i) {
    if (!arguments[i].bytes) continue;
    memcpy(arguments[i].data, arena + channel->arguments[i].offset, arguments[i].bytes);
    if (inside == kDamages) ((char*)arguments[i].data)[0] ^= 0x55;
  }
  return Leave(result);
}

int remote_handle64_close(uint64_t handle) {
  int inside = 0;
  const int planned = Enter("remote_handle64_close", &inside);
  if (planned != 0) return Leave(planned);
  if (HasEnded() || handle >> 32 != generation) {
    if (stale > 0) --stale, --num_open;
    return Leave(kReset);
  }
  --num_open;
  channel->kind = kInvokeLibrary;
  channel->handle = handle & 0xffffffff;
  channel->scalars = 1u << 24 | 1 << 4;
  return Leave(Exchange(inside));
}

int remote_handle64_control(uint64_t handle, uint32_t request, void* data, uint32_t bytes) {
  (void)handle;
  int inside = 0;
  const int planned = Happens("remote_handle64_control", &inside);
  if (planned != 0) return planned;
  return request == 1 && bytes == 8 && *(uint32_t*)data == 1 ? 0 : DSP(kUnsupported);
}

static pthread_mutex_t memory_lock = PTHREAD_MUTEX_INITIALIZER;

void* rpcmem_alloc(int heap, uint32_t flags, int bytes) {
  int inside = 0;
  if (Happens("rpcmem_alloc", &inside) != 0 || heap != 25 || flags != 1 || bytes <= 0) return NULL;
  pthread_mutex_lock(&memory_lock);
  void* data = NULL;
  for (int i = 0; i < 4096; ++i) {
    if (buffers[i].data) continue;
    buffers[i].fd = memfd_create("rpcmem", MFD_CLOEXEC);
    if (buffers[i].fd < 0 || ftruncate(buffers[i].fd, bytes) != 0) break;
    data = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_SHARED, buffers[i].fd, 0);
    buffers[i].data = data, buffers[i].bytes = bytes, buffers[i].is_mapped = 0;
    ++num_buffers;
    break;
  }
  pthread_mutex_unlock(&memory_lock);
  return data;
}

void rpcmem_free(void* memory) {
  pthread_mutex_lock(&memory_lock);
  for (int i = 0; i < 4096; ++i) {
    if (buffers[i].data != memory) continue;
    munmap(memory, (size_t)buffers[i].bytes);
    close(buffers[i].fd);
    num_mapped -= buffers[i].is_mapped;
    buffers[i].data = NULL, buffers[i].is_mapped = 0;
    --num_buffers;
  }
  pthread_mutex_unlock(&memory_lock);
}

int rpcmem_to_fd(void* memory) {
  int inside = 0, fd = -1;
  if (Happens("rpcmem_to_fd", &inside) != 0) return -1;
  pthread_mutex_lock(&memory_lock);
  for (int i = 0; i < 4096; ++i) {
    if (buffers[i].data == memory) fd = buffers[i].fd;
  }
  pthread_mutex_unlock(&memory_lock);
  return fd;
}

int fastrpc_mmap(int domain, int fd, void* address, int offset, size_t bytes, int flags) {
  int inside = 0, code = kNoFd;
  const int planned = Happens("fastrpc_mmap", &inside);
  if (planned != 0) return planned;
  if (domain != 3 || offset != 0 || flags != 3) return kBadParameter;
  pthread_mutex_lock(&memory_lock);
  for (int i = 0; i < 4096; ++i) {
    if (!buffers[i].data || buffers[i].fd != fd) continue;
    code = buffers[i].data != address || (size_t)buffers[i].bytes != bytes ? kBadParameter
           : buffers[i].is_mapped                                          ? kAlready
                                                                           : 0;
    if (code == 0) buffers[i].is_mapped = 1, ++num_mapped;
    if (code == 0 && channel && fd < MOST_FILES) channel->is_registered[fd] = 1;
  }
  pthread_mutex_unlock(&memory_lock);
  return code;
}

int fastrpc_munmap(int domain, int fd, void* address, size_t bytes) {
  (void)address, (void)bytes;
  int inside = 0, code = kNoFd;
  const int planned = Happens("fastrpc_munmap", &inside);
  if (planned != 0 || domain != 3) return planned;
  pthread_mutex_lock(&memory_lock);
  for (int i = 0; i < 4096; ++i) {
    if (!buffers[i].data || buffers[i].fd != fd || !buffers[i].is_mapped) continue;
    buffers[i].is_mapped = 0, --num_mapped;
    if (channel && fd < MOST_FILES) channel->is_registered[fd] = 0;
    code = 0;
  }
  pthread_mutex_unlock(&memory_lock);
  return code;
}

// The process on the fake DSP: loads libraries as the loader of a chip does, and calls their entry.
//
//   shell CHANNEL PID      a file descriptor, and the process whose memory HAP_mmap maps
//
// qemu-hexagon has no dynamic loader, so this program, which is static, has one: it maps segments,
// applies the relocations that chips know, and refuses all others, thread-local storage, needed
// libraries, and symbols that are not in its table.
#include <elf.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <linux/sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../../targets/hexagon/dsp/fastrpc/qurt.h"
#include "../../targets/hexagon/dsp/system.h"
#include "channel.h"

long DspCall(long number, long a, long b, long c, long d, long e);

typedef int (*Entry)(uint64_t handle, uint32_t scalars, RemoteArgument* arguments);

enum { kNoMemory = 0x402, kBadElf = 0x452, kNoSymbol = 0x442, kNoFile = 0x445 };
enum { kRelative = 35, kJumpSlot = 34, kGlobalData = 33, kAbsolute = 6 };

static Channel* channel;
static int cpu;
static uint32_t hvx_locks;

static void Say(const char* what, const char* name) {
  DspCall(SYS_write, 2, (long)what, (long)strlen(what), 0, 0);
  DspCall(SYS_write, 2, (long)name, (long)strlen(name), 0, 0);
}

static int Same(const char* one, const char* other) {
  while (*one != 0 && *one == *other) ++one, ++other;
  return *one == *other;
}

static char* Append(char* end, const char* text) {
  while (*text != 0) *end++ = *text++;
  *end = 0;
  return end;
}

static char* AppendNumber(char* end, int number) {
  if (number >= 10) end = AppendNumber(end, number / 10);
  const char digit[2] = {(char)('0' + number % 10), 0};
  return Append(end, digit);
}

static int MapFile(const char* path, int writes, DspMemory* memory) {
  const long file = DspCall(SYS_openat, AT_FDCWD, (long)path, writes ? O_RDWR : O_RDONLY, 0, 0);
  if (file < 0) return 0;
  const int is_mapped = DspMap((int)file, writes, memory);
  DspCall(SYS_close, file, 0, 0, 0, 0);
  return is_mapped;
}

static int Number(const char* text) {
  int number = 0;
  while (*text != 0) number = number * 10 + (*text++ - '0');
  return number;
}

// --- the system's functions
// -----------------------------------------------------------------------

static void* Map(void* address, int bytes, int protection, int flags, int fd, long offset) {
  (void)address, (void)protection, (void)flags, (void)offset;
  DspMemory memory;
  char path[64];
  if (fd < 0 || fd >= MOST_FILES || !channel->is_registered[fd]) return (void*)-1;
  AppendNumber(Append(AppendNumber(Append(path, "/proc/"), cpu), "/fd/"), fd);
  if (!MapFile(path, 1, &memory) || memory.bytes < (uint32_t)bytes) return (void*)-1;
  channel->mapped += (uint32_t)bytes;
  return memory.data;
}

static int Unmap(void* address, int bytes) {
  channel->mapped -= (uint32_t)bytes;
  return (int)DspCall(SYS_munmap, (long)address, bytes, 0, 0, 0);
}

static int Clean(uintptr_t address, uint32_t bytes, int operation, int type) {
  (void)address, (void)bytes;
  return operation >= 0 && operation <= 2 && type == 1 ? 0 : -1;
}

static unsigned long long Microseconds(void) { return DspNow() / 1000; }

// qemu-hexagon counts packets in control register c20.
static unsigned long long Cycles(void) {
  register uint32_t count __asm__("r0");
  __asm__ volatile(".word 0x6a14c000" : "=r"(count)::"memory");
  return count;
}

static int Power(void* client, const uint8_t* request) {
  (void)client;
  const int type = request[0], is_known = type == 2 || type == 3 || type == 7;
  if (type == 7 && (request[20] != 6 || request[9] != 0x10)) return -1;  // turbo, performance
  return is_known ? 0 : -1;
}

// Vector units of 128 bytes are in the second byte.
static int Units(void) { return 0x0408; }
static int Lock(int mode) {
  const uint32_t locks = __atomic_add_fetch(&hvx_locks, 1, __ATOMIC_SEQ_CST);
  if (locks > channel->most_locks) channel->most_locks = locks;
  return mode == 1 ? 0 : -1;
}
static int Unlock(void) {
  __atomic_sub_fetch(&hvx_locks, 1, __ATOMIC_SEQ_CST);
  return 0;
}

// A chip's VTCM, of which a program may ask for all of a v66; every third time another one has it.
static struct {
  char bytes[256 << 10];
} vtcm __attribute__((aligned(2048)));
static uint32_t asked;

static int BeginWish(Resources* wanted) {
  memset(wanted, 0, sizeof(*wanted));
  return 0;
}
static int WishVtcm(Resources* wanted, uint32_t bytes, uint8_t one_page) {
  wanted->words[0] = bytes;
  return bytes > 0 && bytes <= sizeof(vtcm) && one_page <= 1 ? 0 : -1;
}
static uint32_t Acquire(Resources* wanted, uint32_t wait_us) {
  if (wait_us != 0 || wanted->words[0] == 0 || channel->lent != channel->returned) return 0;
  return ++asked % 3 == 0 ? 0 : ++channel->lent;
}
static void* VtcmOf(Resources* wanted) { return wanted->words[0] ? &vtcm : NULL; }
static int Release(uint32_t context) {
  if (context != channel->lent || channel->lent == channel->returned) return -1;
  ++channel->returned;
  for (uint32_t i = 0; i < sizeof(vtcm); ++i) channel->written |= (uint8_t)vtcm.bytes[i];
  memset(&vtcm, 0, sizeof(vtcm));
  return 0;
}

// Threads share everything. The third is refused. The system clears the word of one that ended.
static struct Thread {
  uint32_t id, lives;
  void (*entry)(void*);
  void* argument;
} threads[2];

static uint32_t Self(void) { return (uint32_t)DspCall(SYS_gettid, 0, 0, 0, 0, 0); }
static int Priority(uint32_t thread) { return thread == Self() ? 100 : -1; }

// Of one process: other words must be on pages to which the emulator lets the program write, and
// pages with code are none.
static int Sleep(void* word, int value) {
  return (int)DspCall(SYS_futex, (long)word, FUTEX_WAIT | FUTEX_PRIVATE_FLAG, value, 0, 0);
}
static int Wake(void* word, int count) {
  return (int)DspCall(SYS_futex, (long)word, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, count, 0, 0);
}
static void Exit(int status) { DspCall(SYS_exit, status, 0, 0, 0, 0); }

// Begins on its own stack, where nothing lies yet: what it needs is in registers.
__attribute__((noinline)) static long Clone(struct Thread* thread, char* top) {
  register long r0 __asm__("r0") = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND |
                                   CLONE_THREAD | CLONE_SYSVSEM | CLONE_CHILD_CLEARTID;
  register char* r1 __asm__("r1") = top;
  register long r2 __asm__("r2") = 0;
  register uint32_t* r3 __asm__("r3") = &thread->lives;
  register long r4 __asm__("r4") = 0;
  register long r6 __asm__("r6") = SYS_clone;
  register struct Thread* r16 __asm__("r16") = thread;
  __asm__ volatile(
      "trap0(#1)\n"
      "{ p0 = cmp.eq(r0, #0); if (!p0.new) jump:t 1f }\n"
      "{ r0 = memw(r16 + #12); r1 = memw(r16 + #8) }\n"
      "callr r1\n"
      "1:\n"
      : "+r"(r0)
      : "r"(r1), "r"(r2), "r"(r3), "r"(r4), "r"(r6), "r"(r16)
      : "memory", "p0", "r31");
  return r0;
}

static int Create(uint32_t* id, const ThreadAttributes* wanted, void (*entry)(void*),
                  void* argument) {
  if ((uintptr_t)wanted->stack % 8 != 0 || wanted->stack_bytes < 16384) return -1;
  if (wanted->priority != 100 || wanted->name[15] != 0 || wanted->joinable != 1) return -1;
  for (uint32_t i = 0; i < 2; ++i) {
    struct Thread* const thread = &threads[i];
    if (thread->lives) continue;
    thread->lives = 1, thread->entry = entry, thread->argument = argument;
    thread->id = *id = (uint32_t)Clone(thread, (char*)wanted->stack + wanted->stack_bytes);
    ++channel->threads;
    return 0;
  }
  return -1;
}

static int Join(uint32_t id, int* status) {
  *status = 0;
  for (uint32_t i = 0; i < 2; ++i) {
    if (threads[i].id != id) continue;
    while (Load(&threads[i].lives)) DspSleep(&threads[i].lives, 1, 10);
    threads[i].id = 0, --channel->threads;
    return 0;
  }
  return -1;
}

static const struct {
  const char* name;
  void* address;
} kSymbols[] = {
    {"HAP_mmap", (void*)Map},
    {"HAP_munmap", (void*)Unmap},
    {"qurt_mem_cache_clean", (void*)Clean},
    {"HAP_perf_get_time_us", (void*)Microseconds},
    {"HAP_perf_get_pcycles", (void*)Cycles},
    {"HAP_power_set", (void*)Power},
    {"qurt_hvx_lock", (void*)Lock},
    {"qurt_hvx_unlock", (void*)Unlock},
    {"qurt_hvx_get_units", (void*)Units},
    {"qurt_thread_get_id", (void*)Self},
    {"qurt_thread_get_priority", (void*)Priority},
    {"qurt_thread_create", (void*)Create},
    {"qurt_thread_exit", (void*)Exit},
    {"qurt_thread_join", (void*)Join},
    {"qurt_futex_wait", (void*)Sleep},
    {"qurt_futex_wake", (void*)Wake},
    {"compute_resource_attr_init", (void*)BeginWish},
    {"compute_resource_attr_set_vtcm_param", (void*)WishVtcm},
    {"compute_resource_acquire", (void*)Acquire},
    {"compute_resource_attr_get_vtcm_ptr", (void*)VtcmOf},
    {"compute_resource_release", (void*)Release},
    {"malloc", (void*)DspAllocateWorkspace},
    {"calloc", (void*)calloc},
    {"free", (void*)free},
};

// --- the loader
// -----------------------------------------------------------------------------------

typedef struct {
  char* base;
  const Elf32_Sym* symbols;
  const char* names;
  const uint32_t* hash;
  const Elf32_Rela* tables[2];
  uint32_t bytes[2];
} Library;

static int Address(const Library* library, const Elf32_Sym* symbol, uint32_t* address) {
  const char* name = library->names + symbol->st_name;
  if (symbol->st_shndx != SHN_UNDEF) {
    *address = (uint32_t)(uintptr_t)library->base + symbol->st_value;
    return 1;
  }
  for (size_t i = 0; i < sizeof(kSymbols) / sizeof(kSymbols[0]); ++i) {
    if (!Same(kSymbols[i].name, name)) continue;
    *address = (uint32_t)(uintptr_t)kSymbols[i].address;
    return 1;
  }
  *address = 0;
  if (ELF32_ST_BIND(symbol->st_info) == STB_WEAK) return 1;
  Say("undefined symbol ", name);
  return 0;
}

static int Relocate(const Library* library) {
  for (int table = 0; table < 2; ++table) {
    const uint32_t count = library->bytes[table] / sizeof(Elf32_Rela);
    for (uint32_t i = 0; i < count; ++i) {
      const Elf32_Rela* one = &library->tables[table][i];
      uint32_t* const word = (uint32_t*)(void*)(library->base + one->r_offset);
      uint32_t address = (uint32_t)(uintptr_t)library->base;
      const int type = ELF32_R_TYPE(one->r_info);
      if (type != kRelative && type != kJumpSlot && type != kGlobalData && type != kAbsolute) {
        Say("a relocation that chips do not know", "");
        return DSP_ERROR(kBadElf);
      }
      const Elf32_Sym* symbol = &library->symbols[ELF32_R_SYM(one->r_info)];
      if (type != kRelative && !Address(library, symbol, &address)) return DSP_ERROR(kNoSymbol);
      *word = address + (type == kJumpSlot ? 0 : (uint32_t)one->r_addend);
    }
  }
  return 0;
}

static int ReadDynamic(const Elf32_Dyn* dynamic, Library* library) {
  char* const base = library->base;
  for (; dynamic->d_tag != DT_NULL; ++dynamic) {
    const uint32_t value = dynamic->d_un.d_val;
    switch (dynamic->d_tag) {
      case DT_SYMTAB:
        library->symbols = (const Elf32_Sym*)(void*)(base + value);
        break;
      case DT_STRTAB:
        library->names = base + value;
        break;
      case DT_HASH:
        library->hash = (const uint32_t*)(void*)(base + value);
        break;
      case DT_RELA:
        library->tables[0] = (const Elf32_Rela*)(void*)(base + value);
        break;
      case DT_RELASZ:
        library->bytes[0] = value;
        break;
      case DT_JMPREL:
        library->tables[1] = (const Elf32_Rela*)(void*)(base + value);
        break;
      case DT_PLTRELSZ:
        library->bytes[1] = value;
        break;
      case DT_NEEDED:
      case DT_TEXTREL:
      case DT_INIT_ARRAY:
        Say("a dynamic tag that chips refuse", "");
        return 0;
      default:
        break;
    }
  }
  return library->symbols && library->names && library->hash;
}

// Copies the segments to memory that may be executed: the emulator checks no more than that.
static int CopySegments(const DspMemory* file, Library* library, const Elf32_Dyn** dynamic) {
  const Elf32_Ehdr* const header = (const Elf32_Ehdr*)(void*)file->data;
  if (file->bytes < sizeof(*header) || memcmp(header->e_ident, ELFMAG, SELFMAG) != 0) return 0;
  if (header->e_machine != 164 || header->e_phnum > 16) return 0;
  if (file->bytes < header->e_phoff + header->e_phnum * sizeof(Elf32_Phdr)) return 0;
  const Elf32_Phdr* const rows = (const Elf32_Phdr*)(void*)(file->data + header->e_phoff);
  uint32_t end = 0;
  for (int i = 0; i < header->e_phnum; ++i) {
    if (rows[i].p_type == PT_TLS) return 0;
    if (rows[i].p_type == PT_LOAD && rows[i].p_vaddr + rows[i].p_memsz > end)
      end = rows[i].p_vaddr + rows[i].p_memsz;
  }
  const long base = DspCall(SYS_mmap, 0, (long)end, PROT_READ | PROT_WRITE | PROT_EXEC,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1);
  if ((unsigned long)base > -4096ul) return 0;
  library->base = (char*)base;
  for (int i = 0; i < header->e_phnum; ++i) {
    char* const place = library->base + rows[i].p_vaddr;
    if (rows[i].p_type == PT_DYNAMIC) *dynamic = (const Elf32_Dyn*)(void*)place;
    if (rows[i].p_type != PT_LOAD) continue;
    if (file->bytes < rows[i].p_offset + (uint64_t)rows[i].p_filesz) return 0;
    memcpy(place, file->data + rows[i].p_offset, rows[i].p_filesz);
  }
  return *dynamic != NULL;
}

static int LoadLibrary(const char* path, Entry* entry) {
  Library library;
  memset(&library, 0, sizeof(library));
  const Elf32_Dyn* dynamic = NULL;
  DspMemory file;
  if (!MapFile(path, 0, &file)) return DSP_ERROR(kNoFile);
  const int is_copied = CopySegments(&file, &library, &dynamic);
  DspCall(SYS_munmap, (long)file.data, (long)file.bytes, 0, 0, 0);
  if (!is_copied || !ReadDynamic(dynamic, &library)) return DSP_ERROR(kBadElf);
  const int result = Relocate(&library);
  if (result != 0) return result;
  for (uint32_t i = 1; i < library.hash[1]; ++i) {
    const Elf32_Sym* symbol = &library.symbols[i];
    if (symbol->st_shndx == SHN_UNDEF) continue;
    if (Same(library.names + symbol->st_name, "tvm_stretch_skel_handle_invoke"))
      *entry = (Entry)(void*)(library.base + symbol->st_value);
  }
  return *entry ? 0 : DSP_ERROR(kNoSymbol);
}

// --- calls
// ----------------------------------------------------------------------------------------

// A handle of this process: which library, and what its entry gave for it.
static struct Handle {
  Entry entry;
  uint64_t own;
} handles[4096];
static uint32_t num_handles = 1;

static struct Loaded {
  char path[1024];
  Entry entry;
} loaded[256];

static int FindLibrary(const char* path, Entry* entry) {
  for (int i = 0; i < 256; ++i) {
    if (loaded[i].entry && Same(loaded[i].path, path)) {
      *entry = loaded[i].entry;
      return 0;
    }
    if (loaded[i].entry) continue;
    const int result = LoadLibrary(path, entry);
    if (result == 0) loaded[i].entry = *entry, Append(loaded[i].path, path);
    return result;
  }
  return DSP_ERROR(kNoMemory);
}

static int Open(void) {
  Entry entry = NULL;
  int32_t length = (int32_t)strlen(channel->path) + 1;
  RemoteArgument arguments[3] = {{{&length, sizeof(length)}}, {{channel->path, length}}, {{0, 0}}};
  int result = FindLibrary(channel->path, &entry);
  if (result == 0) result = entry(0, 2u << 16 | 1, arguments);
  if (result != 0 || num_handles >= 4096) return result;
  handles[num_handles].entry = entry;
  handles[num_handles].own = arguments[2].handle;
  channel->opened = num_handles++;
  return 0;
}

static int Invoke(void) {
  RemoteArgument arguments[MOST_ARGUMENTS];
  char* const arena = (char*)(channel + 1);
  const struct Handle* handle = &handles[channel->handle % 4096];
  if (!handle->entry) return DSP_ERROR(0x42C);
  for (int i = 0; i < MOST_ARGUMENTS; ++i) {
    arguments[i].buffer.data = arena + channel->arguments[i].offset;
    arguments[i].buffer.bytes = channel->arguments[i].bytes;
  }
  if (channel->scalars >> 24 == 1) arguments[0].handle = handle->own;
  const int result = handle->entry(handle->own, channel->scalars, arguments);
  const uint64_t patience = DspNow() + 1000000000;  // threads return theirs after their tasks
  while (Load(&hvx_locks) != 0 && DspNow() < patience) DspYield();
  if (hvx_locks != 0) Say("locks of HVX are left", ""), DspCall(SYS_exit_group, 7, 0, 0, 0, 0);
  return result;
}

int main(int argc, char** argv) {
  if (argc != 3) return 64;
  cpu = Number(argv[2]);
  DspMemory memory;
  if (!DspMap(Number(argv[1]), 1, &memory)) return 66;
  channel = (Channel*)(void*)memory.data;
  uint32_t seen = 0;
  while (1) {
    while (!WaitForChange(&channel->number, seen, &channel->dsp_sleeps)) {
      if (DspCall(SYS_getppid, 0, 0, 0, 0, 0) != cpu) return 0;
    }
    seen = Load(&channel->number);
    channel->result = channel->kind == kLoadLibrary ? Open() : Invoke();
    Publish(&channel->answered, seen, &channel->cpu_sleeps);
  }
}

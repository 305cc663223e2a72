// The threads of kernels on a chip: one for each vector unit, of which one is the call's own.
//
//   a kernel's parallel loop -> Launch(task): state = number of the launch, tasks left to begin
//       each thread takes the next task, until none is left; the call's thread waits for the rest
//
// Threads lock a vector unit before they take a task. Where another process has the units, the
// call's own thread takes all tasks.
#include <stdlib.h>

#include "../system.h"
#include "qurt.h"

#define MOST_WORKERS 7
#define STACK_BYTES (32 << 10)
#define LEFT 0xFFu  // of the state: tasks left to begin; the rest is the number of the launch

typedef struct {
  void* unused;
  int32_t tasks;
} Group;
typedef int (*Task)(int number, const Group* group, void* data);

static struct {
  uint32_t threads[MOST_WORKERS];
  void* stacks[MOST_WORKERS];
  uint32_t workers;
  int was_started, ends;
  uint32_t state;       // workers sleep on it
  uint32_t unfinished;  // tasks; the call's thread sleeps on it
  int failed;
  Task task;  // these change while no task is left alone
  void* data;
  Group group;
} team;

int IsInTeam(void) {
  if (IsOwnCall()) return 1;
  const uint32_t own = &qurt_thread_get_id ? qurt_thread_get_id() : 0;
  for (uint32_t i = 0; i < team.workers; ++i) {
    if (team.threads[i] == own) return 1;
  }
  return 0;
}

// Takes tasks until none is left. A task is this launch's if the state did not change meanwhile.
static void TakeTasks(void) {
  uint32_t state = __atomic_load_n(&team.state, __ATOMIC_ACQUIRE);
  while ((state & LEFT) != 0) {
    const Task task = team.task;
    void* const data = team.data;
    const Group group = team.group;
    if (!__atomic_compare_exchange_n(&team.state, &state, state - 1, 0, __ATOMIC_ACQ_REL,
                                     __ATOMIC_ACQUIRE))
      continue;
    if (task((int)(state & LEFT) - 1, &group, data) != 0)
      __atomic_store_n(&team.failed, 1, __ATOMIC_RELAXED);
    if (__atomic_sub_fetch(&team.unfinished, 1, __ATOMIC_ACQ_REL) == 0)
      qurt_futex_wake(&team.unfinished, 1);
    state = __atomic_load_n(&team.state, __ATOMIC_ACQUIRE);
  }
}

static void Work(void* unused) {
  (void)unused;
  while (1) {
    const uint32_t state = __atomic_load_n(&team.state, __ATOMIC_ACQUIRE);
    if (__atomic_load_n(&team.ends, __ATOMIC_ACQUIRE)) break;  // its end changes the state, too
    if ((state & LEFT) == 0) {
      qurt_futex_wait(&team.state, (int)state);
      continue;
    }
    if (qurt_hvx_lock(kVectors128) != 0) {
      qurt_futex_wait(&team.state, (int)state);
      continue;
    }
    TakeTasks();
    qurt_hvx_unlock();
  }
  qurt_thread_exit(0);
}

// A thread that cannot be had is done without.
static void StartThreads(void) {
  team.was_started = 1;
  if (!&qurt_thread_create || !&qurt_thread_exit || !&qurt_thread_join || !&qurt_futex_wait ||
      !&qurt_futex_wake || !&qurt_hvx_lock || !&qurt_hvx_unlock || !&qurt_hvx_get_units ||
      !&qurt_thread_get_priority)
    return;
  const int units = qurt_hvx_get_units() >> 8 & 0xFF;  // those with vectors of 128 bytes
  ThreadAttributes attributes = {"tvm_stretch", 0, 0, 0, 0, 255, 0xFFFE, STACK_BYTES, NULL, 1, {0}};
  attributes.priority = (uint16_t)qurt_thread_get_priority(qurt_thread_get_id());
  for (uint32_t i = 0; i < MOST_WORKERS && (int)i + 1 < units; ++i) {
    attributes.stack = team.stacks[i] = malloc(STACK_BYTES);
    if (attributes.stack && qurt_thread_create(&team.threads[i], &attributes, Work, NULL) == 0) {
      team.workers = i + 1;
      continue;
    }
    free(attributes.stack);
    return;
  }
}

void EndThreads(void) {
  BeginCall();
  if (!IsOwnCall()) return;  // a call of a new handle has them, which ends them later
  __atomic_store_n(&team.ends, 1, __ATOMIC_RELEASE);
  __atomic_add_fetch(&team.state, LEFT + 1, __ATOMIC_RELEASE);
  if (team.workers) qurt_futex_wake(&team.state, MOST_WORKERS);
  for (uint32_t i = 0; i < team.workers; ++i) {
    int status;
    qurt_thread_join(team.threads[i], &status);
    free(team.stacks[i]);
  }
  team.workers = 0;
  team.was_started = team.ends = 0;
  EndCall();
}

static int LaunchAlone(Task task, void* data, int tasks) {
  const Group group = {NULL, tasks};
  int failed = 0;
  for (int i = 0; i < tasks; ++i) failed |= task(i, &group, data) != 0;
  return failed ? -1 : 0;
}

static int Launch(Task task, void* data, int tasks) {
  const int has_team = IsOwnCall() && team.unfinished == 0;  // else this launch is inside another
  if (has_team && !team.was_started) StartThreads();
  if (!has_team || team.workers == 0) return LaunchAlone(task, data, tasks > 0 ? tasks : 1);
  if (tasks <= 0) tasks = (int)team.workers + 1;
  if (tasks == 1 || tasks > (int)LEFT) return LaunchAlone(task, data, tasks);
  team.task = task, team.data = data, team.group.tasks = tasks, team.failed = 0;
  __atomic_store_n(&team.unfinished, (uint32_t)tasks, __ATOMIC_RELAXED);
  __atomic_store_n(&team.state, ((team.state | LEFT) + 1) | (uint32_t)tasks, __ATOMIC_RELEASE);
  qurt_futex_wake(&team.state, (int)team.workers);
  TakeTasks();
  uint32_t left;
  while ((left = __atomic_load_n(&team.unfinished, __ATOMIC_ACQUIRE)) != 0)
    qurt_futex_wait(&team.unfinished, (int)left);
  return __atomic_load_n(&team.failed, __ATOMIC_RELAXED) ? -1 : 0;
}

// Objects whose kernels have parallel loops have a weak slot of this name, as for workspaces.
void* __TVMBackendParallelLaunch = (void*)Launch;

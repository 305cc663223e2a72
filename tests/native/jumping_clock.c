// Preloaded: every look at the time of day sees another day; other clocks are as they were.
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long Jump(void) {
  static int looks = 0;
  const int day = __atomic_fetch_add(&looks, 1, __ATOMIC_RELAXED) % 3 - 1;
  return day * 86400L;
}

int clock_gettime(clockid_t clock, struct timespec* found) {
  const int failed = (int)syscall(SYS_clock_gettime, clock, found);
  const int is_wall = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
  if (failed == 0 && is_wall) found->tv_sec += Jump();
  return failed;
}

int gettimeofday(struct timeval* restrict found, void* restrict zone) {
  const int failed = (int)syscall(SYS_gettimeofday, found, zone);
  if (failed == 0 && found != NULL) found->tv_sec += Jump();
  return failed;
}

time_t time(time_t* found) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (found != NULL) *found = now.tv_sec;
  return now.tv_sec;
}

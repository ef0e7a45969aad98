// A wall clock that a test can move while a server runs: preloaded into the server, it adds the microseconds in a file
// to the system time. Other clocks are not changed.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *moved_us;

// Nothing here may allocate: the allocator reads the clock, too.
static int64_t moved(void) {
    if (!moved_us) {
        int file = open(getenv("TOLLGATE_TEST_CLOCK"), O_RDONLY);
        moved_us = mmap(NULL, sizeof *moved_us, PROT_READ, MAP_SHARED, file, 0);
        close(file);
    }
    return moved_us == MAP_FAILED ? 0 : *moved_us;
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    long result = syscall(SYS_clock_gettime, clock, time);
    if (result == 0 && clock == CLOCK_REALTIME) {
        int64_t us = moved() + time->tv_nsec / 1000 + (int64_t)time->tv_sec * 1000000;
        time->tv_sec = us / 1000000;
        time->tv_nsec = us % 1000000 * 1000;
    }
    return result;
}

int gettimeofday(struct timeval *time, void *zone) {
    (void)zone;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    time->tv_sec = now.tv_sec;
    time->tv_usec = now.tv_nsec / 1000;
    return 0;
}

/* Linked into checkers and interactors in C and C++, whose chance no program is to foresee: rand() and its like begin
   with a secret, and the clocks by which others are seeded are early by a secret number of seconds. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stdlib.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static unsigned sandbox_secret[2];

__attribute__((constructor(101))) static void sandbox_chance(void) {
    if (getrandom(sandbox_secret, sizeof sandbox_secret, 0) != (ssize_t)sizeof sandbox_secret) abort();
    srand(sandbox_secret[0]);
    srand48((long)sandbox_secret[0]);
}

#ifdef __cplusplus
#define SANDBOX_OURS extern "C" __attribute__((weak))
#define SANDBOX_QUIET noexcept
#else
#define SANDBOX_OURS __attribute__((weak))
#define SANDBOX_QUIET
#endif

/* libstdc++'s system_clock asks this one too. The kernel waits by the steady clock, so that one stays. */
SANDBOX_OURS int clock_gettime(clockid_t clock, struct timespec *now) SANDBOX_QUIET {
    long failed = syscall(SYS_clock_gettime, clock, now);
    if (!failed && clock == CLOCK_REALTIME) now->tv_sec -= sandbox_secret[1] >> 4;
    return (int)failed;
}

SANDBOX_OURS int gettimeofday(struct timeval *at, void *zone) SANDBOX_QUIET {
    (void)zone;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

SANDBOX_OURS time_t time(time_t *at) SANDBOX_QUIET {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at != 0) *at = now.tv_sec;
    return now.tv_sec;
}

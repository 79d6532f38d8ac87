/* Linked into checkers and interactors in C and C++, whose chance no program is to foresee: rand() and its like begin
   with a secret, and time(), by which they are seeded, is early by a secret number of seconds. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stdlib.h>
#include <sys/random.h>
#include <time.h>

static unsigned sandbox_secret[2];

__attribute__((constructor(101))) static void sandbox_chance(void) {
    if (getrandom(sandbox_secret, sizeof sandbox_secret, 0) != (ssize_t)sizeof sandbox_secret) abort();
    srand(sandbox_secret[0]);
    srand48((long)sandbox_secret[0]);
}

#ifdef __cplusplus
extern "C" __attribute__((weak)) time_t time(time_t *at) noexcept {
#else
__attribute__((weak)) time_t time(time_t *at) {
#endif
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    now.tv_sec -= sandbox_secret[1] >> 4;
    if (at != 0) *at = now.tv_sec;
    return now.tv_sec;
}

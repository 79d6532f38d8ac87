/* The completion token of an assert program in C or C++: written when its own main has returned 0, and only then.
   Linked with --wrap=main, so that the program's main stays as it is. Job on descriptor 3, result on 4. Only `syscall` is
   used, for a program's own variable `write` would take the place of the C library's function. */
#include <sys/syscall.h>

#ifdef __cplusplus
extern "C" {
#endif
long syscall(long, ...);
int __real_main(int, char **, char **);

int __wrap_main(int count, char **arguments, char **environment) {
    static const char end[] = "{\"ok\": true, \"values\": []}";
    int code = __real_main(count, arguments, environment);
    char nonce[32];
    long size = code == 0 ? syscall(SYS_lseek, 3, 0l, 2) : 0;
    if (size >= 32 && syscall(SYS_pread64, 3, nonce, sizeof nonce, size - 32) == 32) {
        if (syscall(SYS_write, 4, nonce, sizeof nonce) != 32 || syscall(SYS_write, 4, end, sizeof end - 1) < 0) return 1;
    }
    return code;
}
#ifdef __cplusplus
}
#endif

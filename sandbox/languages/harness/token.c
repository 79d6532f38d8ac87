/* The completion token of an assert program in C or C++: written when the test's main has returned 0, and only then.
   The test's functions are found by names that the program does not know, and main is wrapped by the linker, so that
   the program's names and pragmas lead nowhere else. Job on descriptor 3, result on 4. Only `syscall` is used, for a
   program's own variable `write` would take the place of the C library's function. */
#include <sys/syscall.h>

#ifdef __cplusplus
extern "C" {
#endif
long syscall(long, ...);
int SANDBOX_TOKEN_begin(void);
void *SANDBOX_TOKEN_main(void);
void *SANDBOX_TOKEN_fail(void);

static void say(const char *text) {
    long size = 0;
    while (text[size]) size++;
    syscall(SYS_write, 2, text, size);
}

/* The C library's, so that a program's own is one too many. */
void __assert_fail(const char *condition, const char *file, unsigned line, const char *function) {
    char digits[12], *first = digits + sizeof digits - 1;
    for (*first = 0; line; line /= 10) *--first = (char)('0' + line % 10);
    const char *parts[] = {file, ":", first, ": ", function ? function : "", ": Assertion `", condition, "' failed.\n"};
    for (unsigned i = 0; i < sizeof parts / sizeof *parts; i++) say(parts[i]);
    syscall(SYS_kill, syscall(SYS_getpid), 6);
    __builtin_trap();
}

int __wrap_main(int count, char **arguments, char **environment) {
    static const char end[] = "{\"ok\": true, \"values\": []}";
    int (*test)(int, char **, char **) = (int (*)(int, char **, char **))SANDBOX_TOKEN_main();
    int whole = SANDBOX_TOKEN_begin() && SANDBOX_TOKEN_fail() == (void *)__assert_fail;
    int code = whole ? test(count, arguments, environment) : 1;
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

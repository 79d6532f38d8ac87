/* Linked into C and C++ programs that may start threads, which get the usual 8 MiB of stack. The C library would
   reserve for each as much as the main thread may have, which is the limit of the run. What a program asks for itself,
   it gets. */
#ifdef __cplusplus
extern "C" {
#endif
typedef union { char size[64]; long align; } sandbox_attributes; /* as large as any of Linux */
int pthread_attr_init(void *);
int pthread_attr_setstacksize(void *, unsigned long);
int pthread_setattr_default_np(const void *);

__attribute__((constructor(101))) static void sandbox_threads(void) {
    sandbox_attributes attributes;
    if (pthread_attr_init(&attributes) == 0 && pthread_attr_setstacksize(&attributes, 8ul << 20) == 0)
        pthread_setattr_default_np(&attributes);
}
#ifdef __cplusplus
}
#endif

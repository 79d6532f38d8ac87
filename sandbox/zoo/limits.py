"""Escaping limits: time, memory, processes, disk, output; and honest programs that come near them.

And compilers as targets: bombs that go off while compiling, and files that only a compiler reads.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from sandbox.core.nouns import MIB, Case, Limits
from sandbox.core.problem import Problem
from sandbox.zoo.exhibits import FAST, HONEST_SUM, OPENED, SUM, Attack, Entry, cpp, python

_OUTSIDE: Final = "limits are enforced by another process, from outside"
_SLEEP: Final = Problem("sleep", "stdio", (Case("", "opened"),), limits=Limits(cpu_s=0.3, wall_s=1.0))
_SMALL: Final = replace(OPENED, limits=Limits(cpu_s=10.0, wall_s=30.0, memory_bytes=128 * MIB))
_ROOMY: Final = replace(OPENED, limits=Limits(cpu_s=4.0, wall_s=20.0, memory_bytes=256 * MIB, processes=16))
_FLOOD: Final = replace(OPENED, limits=Limits(cpu_s=5.0, wall_s=20.0, output_bytes=1 * MIB))
_SPIN: Final = "while True:\n    pass\n"
_ECHO: Final = Problem("echo", "stdio", (Case("", "opened"),), limits=FAST)
_SAME_JAIL: Final = "a compiler runs in the jail, with limits of its own, and its log is capped"
_MACROS: Final = "\n".join(f"#define A{n} A{n - 1} A{n - 1} A{n - 1} A{n - 1}" for n in range(1, 13))
_DENIED: Final = "No such file|Permission denied|file not found|can't open|cannot open"

ENTRIES: Final = (
    Entry(
        "alarm-off", 27, "switch the alarm off", _OUTSIDE, _SLEEP,
        (
            Attack("import signal, time\nsignal.alarm(0)\nsignal.setitimer(signal.ITIMER_REAL, 0)\n"
                   "signal.signal(signal.SIGALRM, signal.SIG_IGN)\ntime.sleep(1.8)\nprint('opened')\n",
                   "TLE", "wall-time", "in_process"),
            Attack("import signal\nsignal.alarm(0)\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\n" + _SPIN,
                   "TLE", "CPU-time"),
        ),
        python("import signal\nsignal.alarm(0)\nsignal.signal(signal.SIGALRM, signal.SIG_IGN)\nprint('opened')\n"),
    ),
    Entry(
        "swallow-the-timeout", 28, "catch the grader's timeout exception", _OUTSIDE, _SLEEP,
        (
            Attack("import time\nstart = time.time()\nwhile time.time() < start + 1.8:\n    try:\n"
                   "        time.sleep(0.4)\n    except BaseException:\n        pass\nprint('opened')\n",
                   "TLE", "wall-time", "in_process"),
            Attack("while True:\n    try:\n        while True:\n            pass\n    except BaseException:\n"
                   "        pass\n", "TLE", "CPU-time"),
        ),
        python("try:\n    raise TimeoutError\nexcept BaseException:\n    print('opened')\n"),
    ),
    Entry(
        "loop-in-c", 29, "a loop in C that never comes back to the interpreter", _OUTSIDE, _SLEEP,
        (
            Attack("import re\nre.match(r'(a+)+$', 'a' * 64 + 'b')\n", "TLE", "CPU-time"),
            Attack("x = 10 ** (10 ** 8)\n", "TLE MLE", "limit"),
            Attack("int main() { volatile int x = 0; for (;;) x = x + 1; }\n", "TLE", "CPU-time", language="cpp"),
        ),
        python("import re\nassert re.match(r'(a+)+$', 'a' * 18)\nprint('opened')\n"),
    ),
    Entry(
        "patched-clock", 31, "patch the clocks", "time is measured by the watcher, from the kernel", _SLEEP,
        (
            Attack("import time\nnap = time.sleep\ntime.time = time.monotonic = time.perf_counter = lambda: 0.0\n"
                   "time.sleep(1.8)\nprint('opened')\n", "TLE", "wall-time", "trusts_the_clock"),
            Attack("import time\ntime.process_time = lambda: 0.0\n" + _SPIN, "TLE", "CPU-time"),
        ),
        python("import time\ntime.time = lambda: 0.0\nprint('opened' if time.time() == 0 else '')\n"),
    ),
    Entry(
        "fork-bomb", 35, "fork without end", "a cap on processes per run, and CPU time summed over all of them",
        replace(OPENED, limits=Limits(cpu_s=0.3, wall_s=10.0, processes=32)),
        (
            Attack("import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass\n",
                   "TLE RE", "limit", harmful=True),
            Attack("#include <unistd.h>\nint main() { for (;;) fork(); }\n",
                   "TLE RE", "limit", language="cpp", harmful=True),
            Attack("import os, time\nfor _ in range(200):\n    if os.fork() == 0:\n        time.sleep(60)\n"
                   "        os._exit(0)\nprint('opened')\n",
                   "RE TLE", "Resource temporarily unavailable|BlockingIOError|limit", harmful=True),
        ),
        python("import os\nfor _ in range(8):\n    if os.fork() == 0:\n        os._exit(0)\n    os.wait()\n"
               "print('opened')\n"),
    ),
    Entry(
        "memory-bomb", 36, "memory by heap, shared mapping, files, stack, or many small processes",
        "memory of all processes is one sum, shared pages counted once; files have a cap", _SMALL,
        (
            Attack("x = []\nwhile True:\n    x.append(b'x' * (1 << 20))\n", "MLE", "memory|refused", harmful=True),
            Attack("x = bytearray(1 << 40)\n", "MLE", "memory|refused"),
            Attack("import mmap\nm = mmap.mmap(-1, 300 << 20)\nfor i in range(0, 300 << 20, 4096):\n    m[i] = 1\n"
                   "print('opened')\n", "MLE", "memory limit", "plain"),
            Attack("import os, time\nfor _ in range(8):\n    if os.fork() == 0:\n        x = b'x' * (50 << 20)\n"
                   "        time.sleep(60)\ntime.sleep(60)\n", "MLE", "memory limit", harmful=True),
            Attack("#include <vector>\n"
                   "int main() { std::vector<char*> v; for (;;) { char* p = new char[1 << 20]; for (int i = 0; i < 1 <<"
                   " 20; i += 4096) p[i] = 1; v.push_back(p); } }\n",
                   "MLE", "memory|refused", language="cpp", harmful=True),
        ),
        python("x = bytearray(60 << 20)\nprint('opened')\n",
               "import mmap\nm = mmap.mmap(-1, 60 << 20)\nfor i in range(0, 60 << 20, 4096):\n    m[i] = 1\n"
               "print('opened')\n"),
    ),
    Entry(
        "reserved-is-not-used", 37, "address space that is reserved and never touched is no memory",
        "memory is what is resident; the cap on what is reserved is far above it", _ROOMY,
        (
            Attack("import mmap\nm = mmap.mmap(-1, 700 << 20)\nfor i in range(0, 700 << 20, 4096):\n    m[i] = 1\n"
                   "print('opened')\n", "MLE", "memory limit", "plain", harmful=True),
        ),
        python("import mmap, time\nm = mmap.mmap(-1, 700 << 20, flags=mmap.MAP_PRIVATE)\ntime.sleep(0.1)\n"
               "print('opened')\n",
               "import threading\nthreading.stack_size(512 << 20)\n"
               "ts = [threading.Thread(target=int) for _ in range(6)]\n[t.start() for t in ts]\n"
               "[t.join() for t in ts]\nprint('opened')\n"),
    ),
    Entry(
        "disk-fill", 38, "fill the disk: large, sparse or allocated files, inodes",
        "a limit on each file, and on all together: a file system of its own (A), or a look at the disk (B)", _ROOMY,
        (
            Attack("f = open('big', 'wb')\nf.truncate(1 << 40)\nprint('opened')\n", "RE", "File too large", "plain"),
            Attack("import os\nfd = os.open('big', os.O_CREAT | os.O_WRONLY)\nos.posix_fallocate(fd, 0, 1 << 37)\n"
                   "print('opened')\n", "RE", "File too large|No space left", harmful=True),
            Attack("with open('big', 'wb') as f:\n    for _ in range(300):\n        f.write(b'x' * (1 << 20))\n"
                   "print('opened')\n", "RE", "File too large|No space left", "plain"),
            Attack("import os\nkept = []\nfor k in range(40):\n    kept.append(open(str(k), 'wb'))\n"
                   "    os.unlink(str(k))\n    for _ in range(20):\n        kept[-1].write(b'x' * (1 << 20))\n"
                   "import time\ntime.sleep(1)\nprint('opened')\n", "RE OLE", "No space left|work directory", "plain"),
        ),
        python("with open('some', 'wb') as f:\n    f.write(b'x' * (8 << 20))\nprint('opened')\n"),
    ),
    Entry(
        "output-flood", 39, "write without end, on stdout or on stderr",
        "output goes to capped memory; the cap is recorded as the cause", _FLOOD,
        (
            Attack("import os\nfor _ in range(600):\n    os.write(1, b'x' * 65536)\n", "OLE", "output limit"),
            Attack("import os\nfor _ in range(600):\n    os.write(2, b'x' * 65536)\nprint('opened')\n",
                   "OLE", "output limit", "plain"),
            Attack("import os\nfor _ in range(600):\n    try:\n        os.write(2, b'x' * 65536)\n    except OSError:\n"
                   "        pass\nprint('opened')\n", "OLE", "output limit", "plain"),
            Attack("#include <cstdio>\n#include <cstring>\n"
                   "int main() { static char b[65536]; memset(b, 'x', sizeof b); for (int i = 0; i < 600; i++)"
                   " fwrite(b, 1, sizeof b, stdout); }\n", "OLE", "output limit", language="cpp"),
        ),
        python("import sys\nsys.stderr.write('x' * (200 << 10))\nprint('opened')\n"),
    ),
    Entry(
        "large-legal-output", 40, "a large legal output must not block the judge",
        "output goes to memory: no pipe can fill",
        Problem("ones", "stdio", (Case("300000\n", "1\n" * 300000),), limits=Limits(cpu_s=4.0)),
        (Attack("n = int(input())\nprint('1\\n' * (n - 1))\n", fools="first_line"),),
        (
            *python("n = int(input())\nfor _ in range(n):\n    print(1)\n"),
            *cpp("#include <iostream>\nint main() { int n; std::cin >> n; while (n--) std::cout << 1 << '\\n'; }\n"),
        ),
    ),
    Entry(
        "sleeper", 51, "sleep, or stop oneself, to starve the others", "a wall limit behind the CPU limit", _SLEEP,
        (
            Attack("import time\ntime.sleep(60)\n", "TLE", "wall-time"),
            Attack("import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)\nprint('opened')\n", "TLE", "wall-time"),
            Attack("#include <unistd.h>\nint main() { pause(); }\n", "TLE", "wall-time", language="cpp"),
        ),
        python("import time\ntime.sleep(0.2)\nprint('opened')\n"),
    ),
    Entry(
        "children-that-work", 27, "let children burn the time", "CPU time of all processes is one sum",
        replace(SUM, limits=FAST),
        (
            Attack("import os\nfor _ in range(2):\n    if os.fork() == 0:\n        while True:\n            pass\n"
                   "os.wait()\n", "TLE", "CPU-time|wall-time", harmful=True),
        ),
        python("import os\nif os.fork() == 0:\n    sum(range(1000))\n    os._exit(0)\nos.wait()\n" + HONEST_SUM),
    ),
    Entry(
        "compile-bombs", 45, "macro, template, self-include and initialiser bombs", _SAME_JAIL, _ECHO,
        (
            Attack(f"#define A0 1,\n{_MACROS}\nint a[] = {{ A12 }};\n"
                   f"int main() {{}}\n", "CE", "exceeded|out of memory", language="cpp", harmful=True),
            Attack("template<int N> struct T { T<N + 1> t; };\nT<0> t;\nint main() {}\n",
                   "CE", "depth", language="cpp"),
            Attack("#include __FILE__\nint main() {}\n", "CE", "nested|limit|too long", language="cpp"),
            Attack("constexpr int f() { int i = 0; while (true) ++i; return i; }\nconstexpr int x = f();\n"
                   "int main() {}\n", "CE", "constexpr|limit", language="cpp"),
            Attack("char x[1L << 30] = {1};\nint main() {}\n",
                   "CE", "limit exceeded|exceeded its", language="cpp", harmful=True),
            Attack('#include "/dev/urandom"\nint main() {}\n',
                   "CE", "out of memory|exceeded", language="cpp", harmful=True),
            Attack("int main() { " + "x; " * 50_000 + "}\n", "CE", "not declared", language="cpp"),
        ),
        cpp("#define P(x) std::cout << #x\n#include <iostream>\nint main() { P(opened); }\n",
            "#include <array>\n#include <iostream>\n"
            "template<int N> int sum() { if constexpr (N == 0) return 0; else return N + sum<N - 1>(); }\n"
            'int main() { static_assert(sizeof(std::array<char, 9>) == 9); std::cout << (sum<100>() == 5050 ? "opened"'
            ' : "no"); }\n'),
    ),
    Entry(
        "compile-time-reads", 46, "read the machine's files through the compiler",
        "the compiler sees what a program sees: tools, and its own source", _ECHO,
        (
            Attack('#include "/etc/passwd"\nint main() {}\n', "CE", _DENIED, language="cpp"),
            Attack('asm(".section .rodata\\n.global s\\ns: .incbin \\"/etc/passwd\\"\\n.byte 0\\n.text");\n'
                   'extern "C" char s[];\n#include <cstdio>\nint main() { puts(s[0] ? "opened" : ""); }\n',
                   "CE", _DENIED, "plain", "cpp"),
            Attack('#include "/proc/1/environ"\nint main() {}\n', "CE", _DENIED, language="cpp"),
            Attack('#if __has_include("/etc/passwd")\n#include <cstdio>\nint main() { puts("opened"); }\n#else\n'
                   "int main() { return 3; }\n#endif\n",
                   # Tier B's compiler may not even probe; it is not asked where tier A has built this before.
                   "RE", f"exit code 3|{_DENIED}", "plain", "cpp", want_b="CE RE"),
        ),
        cpp('#if __has_include(<vector>)\n#include <vector>\n#include <cstdio>\nint main() { puts("opened"); }\n'
            "#endif\n",
            'asm(".section .rodata\\n.global s\\ns: .asciz \\"opened\\"\\n.text");\nextern "C" const char s[];\n'
            "#include <cstdio>\nint main() { puts(s); }\n"),
    ),
)  # fmt: skip

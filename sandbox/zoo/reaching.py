"""Programs that look for other processes and objects: ways out of a run that need no file or socket of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from sandbox.core.nouns import MIB, Case, Limits
from sandbox.core.problem import Problem
from sandbox.zoo.exhibits import FAST, OPENED, Attack, Entry, python, system_call

_SMALL: Final = replace(OPENED, limits=replace(FAST, memory_bytes=96 * MIB, wall_s=20.0))
_MANY: Final = replace(OPENED, limits=Limits(cpu_s=8.0, wall_s=20.0, memory_bytes=128 * MIB, processes=32))
_COUNTED: Final = Problem("counted", "stdio", tuple(Case(f"{answer}\n", answer) for answer in "012345"), limits=FAST)
"""The attacks do not read the input, and answer by how many runs they think were before."""
_TO_COME: Final = replace(_COUNTED, cases=tuple(Case(f"{answer}\n", answer) for answer in "055555"))
"""The attacks answer by how many runs the keeper expects after the first, in which it has no number."""
_FRAMES: Final = (
    "import sys\nframe, left = {}, 'none'\nwhile frame:\n    left = frame.f_locals.get('left', left)\n"
    "    frame = frame.f_back\nprint(left)\n"
)
_DENIED: Final = "PermissionError"

ENTRIES: Final = (
    Entry(
        "sibling", 20, "a child beside its parent, whose end is taken for the run's",
        "the filter, by the flag: a run's processes all descend from it", OPENED,
        (
            Attack("import ctypes, os\nlibc = ctypes.CDLL(None)\nif libc.syscall(56, 0x8011, 0, 0, 0, 0) == 0:\n"
                   "    os.write(1, b'opened\\n')\n    os._exit(0)\nwhile True:\n    pass\n",
                   "SEC", "security: clone beside its parent"),
            Attack("#define _GNU_SOURCE\n#include <sched.h>\n#include <signal.h>\n#include <sys/syscall.h>\n"
                   "#include <unistd.h>\n"
                   "int main(void) { if (syscall(SYS_clone, CLONE_PARENT | SIGCHLD, 0, 0, 0, 0) == 0) { write(1,"
                   ' "opened\\n", 7); _exit(0); } for (;;) ; }\n',
                   "SEC", "security: clone beside its parent", language="c"),
        ),
        python("import os\nif os.fork() == 0:\n    os.write(1, b'opened\\n')\n    os._exit(0)\nos.wait()\n"),
    ),
    Entry(
        "keeper", 19, "choose cores, priority, class or limits for whoever keeps the run",
        "the filter, by the pid: these are for the caller alone", OPENED,
        (
            Attack("import os\nos.sched_setaffinity(os.getppid(), os.sched_getaffinity(0))\nprint('opened')\n",
                   "RE", _DENIED, harmful=True),
            Attack("import os\nos.setpriority(os.PRIO_PROCESS, os.getppid(), 19)\nprint('opened')\n",
                   "RE", _DENIED, harmful=True),
            Attack("import os\nos.setpriority(os.PRIO_USER, 0, 19)\nprint('opened')\n", "RE", _DENIED, harmful=True),
            Attack("import os, resource as r\nr.prlimit(os.getppid(), r.RLIMIT_CORE, (0, 0))\nprint('opened')\n",
                   "RE", _DENIED, harmful=True),
            Attack(system_call("251, 1, os.getppid(), 0x6000"), "RE", _DENIED, harmful=True),
        ),
        python("import os, resource\nos.nice(1)\nos.sched_setaffinity(0, os.sched_getaffinity(0))\n"
               "resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\nprint('opened')\n"),
    ),
    Entry(
        "which-run", 24, "tell from pids which run of the program it is, without a note from any",
        "pids chosen by chance in tier A; in tier B they are the machine's", _COUNTED,
        (
            Attack("import os\nprint(0 if os.getppid() == 1 else os.getpid() - os.getppid())\n"),
            Attack("#include <stdio.h>\n#include <unistd.h>\n"
                   'int main(void) { printf("%d\\n", getppid() == 1 ? 0 : getpid() - getppid()); }\n', language="c"),
        ),
        python("import os\nchild = os.fork()\nif child == 0:\n    os._exit(os.getpid() == os.getppid())\n"
               "print(int(input()) + os.waitpid(child, 0)[1])\n"),
    ),
    Entry(
        "keepers-frames", 24, "look in the frames of whoever forked the program's process how many runs are to come",
        "a fork begins anew, so that no frame of a keeper is left below a program", _TO_COME,
        (
            Attack(_FRAMES.format("sys._getframe()")),
            Attack(_FRAMES.format("next(iter(sys._current_frames().values()))")),
        ),
        python("import sys\nframe = sys._getframe()\nwhile frame.f_back:\n    frame = frame.f_back\n"
               "print(int(input()) + ('left' in frame.f_locals))\n"),
    ),
    Entry(
        "keepers-clock", 24, "read, set a timer by or look up in /proc what whoever keeps the runs has used",
        "the filter, by the clock's number; a /proc that shows a program its own processes only", OPENED,
        (
            Attack("import os, time\ntime.clock_gettime((~os.getppid() << 3) | 2)\nprint('opened')\n", "RE", "Invalid"),
            Attack(system_call("222, ctypes.c_int((~os.getppid() << 3) | 2), 0, ctypes.byref(ctypes.c_long())"),
                   "RE", "Invalid"),
            Attack(system_call("332, -100, b'.', 0, 0x4000, ctypes.create_string_buffer(256)"), "RE", "Invalid"),
            Attack("import os\nopen(f'/proc/{os.getppid()}/stat').read()\nprint('opened')\n",
                   "RE", "FileNotFoundError|PermissionError"),
        ),
        python("import os, threading, time\nown = time.pthread_getcpuclockid(threading.get_ident())\n"
               "print('opened' if time.clock_gettime(own) > 0 and time.process_time() > 0 and os.times() else '')\n"),
    ),
    Entry(
        "machine", 23, "datagrams, watches, leases, requests to file systems, asynchronous input, a core's neighbour",
        "the filter refuses them", OPENED,
        (
            Attack("import socket\nsocket.socketpair(type=socket.SOCK_DGRAM)\nprint('opened')\n", "RE", _DENIED),
            Attack(system_call("294, 0"), "RE", _DENIED),
            Attack("import fcntl, os\nfcntl.fcntl(os.open('/usr/bin', os.O_RDONLY), fcntl.F_NOTIFY, 2)\n"
                   "print('opened')\n", "RE", _DENIED),
            Attack("import fcntl, os\nopen('f', 'w').close()\nfcntl.fcntl(os.open('f', os.O_RDONLY), 1024, 0)\n"
                   "print('opened')\n", "RE", _DENIED),
            Attack("import fcntl, os\nopen('f', 'w').close()\n"
                   "fcntl.ioctl(os.open('f', os.O_RDONLY), 0x40086602, bytes(8))\nprint('opened')\n", "RE", "ioctl"),
            Attack(system_call("206, 1, ctypes.byref(ctypes.c_long())"), "RE", "not implemented"),
            Attack(system_call("157, 4, 0, 0, 0, 0"), "RE", _DENIED),
            Attack(system_call("157, 62, 1, 0, 0, 0"), "RE", _DENIED),
            Attack("import fcntl\nfcntl.ioctl(open('f', 'w'), 2, bytes(4))\nprint('opened')\n", "RE", "ioctl"),
        ),
        python("import os, socket\na, b = socket.socketpair()\na.send(b'opened')\nos.sync()\n"
               "print(b.recv(9).decode())\n"),
    ),
    Entry(
        "memory-in-no-count", 36, "memory that no process shows as its own: dropped, left to a child, in small pieces",
        "shared memory counts as it is mapped, page tables too, and a small process in full", _SMALL,
        (
            Attack("import mmap, time\nm = mmap.mmap(-1, 256 << 20)\nfor k in range(0, 256 << 20, 1 << 20):\n"
                   "    m[k : k + (1 << 20)] = b'x' * (1 << 20)\n    m.madvise(mmap.MADV_DONTNEED, k, 1 << 20)\n"
                   "time.sleep(60)\n", "MLE", "memory", harmful=True),
            Attack("import mmap, os, time\nm = mmap.mmap(-1, 256 << 20)\nchild = os.fork()\nif child == 0:\n"
                   "    time.sleep(60)\nm.write(b'x' * (256 << 20))\nm.close()\ntime.sleep(60)\n",
                   "MLE", "memory", harmful=True),
            Attack(system_call("278, 1, 0, 0, 0"), "RE", "not implemented"),
            Attack(system_call("285, 1, 1, ctypes.c_long(0), ctypes.c_long(1 << 20)"), "RE", "not supported"),
        ),
        python("import mmap\nm = mmap.mmap(-1, 16 << 20)\nm.write(b'opened')\nm.madvise(mmap.MADV_WILLNEED)\n"
               "print(m[:6].decode())\n"),
    ),
    Entry(
        "many-small-processes", 36, "many processes that are each too small to be looked at",
        "what they hold together is counted in full, and what they share once", _MANY,
        (
            Attack("import os, time\nfor _ in range(8):\n    if os.fork() == 0:\n"
                   "        x = bytearray(os.urandom(20 << 20))\n        time.sleep(60)\ntime.sleep(60)\n",
                   "MLE", "memory", harmful=True),
        ),
        python("import os\nx = os.urandom(40 << 20)\nfor _ in range(8):\n    if os.fork() == 0:\n        os._exit(0)\n"
               "for _ in range(8):\n    os.wait()\nprint('opened')\n"),
    ),
)  # fmt: skip

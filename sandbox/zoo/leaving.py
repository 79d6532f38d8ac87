"""Programs that leave something behind for the next one, and the ways out of the jail."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from sandbox.core.nouns import Case, Limits
from sandbox.core.problem import Problem
from sandbox.zoo.exhibits import DOUBLE, FAST, OPENED, Attack, Entry, python, system_call

_FRESH: Final = "a fresh process and an empty work directory for each case; all processes dead before the next"
_DENIED: Final = "PermissionError|FileNotFoundError|OSError|Operation not permitted|Permission denied"
_TWICE: Final = Problem("twice", "stdio", (Case("1\n", "one"), Case("2\n", "opened")), limits=FAST)
"""The first case answers `one` and leaves something; the second prints `opened` only if it finds it."""
_HONEST_TWICE: Final = "print({'1': 'one', '2': 'opened'}[input()])\n"


def _pair(leave: str, find: str) -> str:
    """A program that leaves something in its first case and looks for it in the second."""
    first, second = ("\n".join("    " + line for line in part.splitlines()) for part in (leave, find))
    start = "import os, tempfile, time\nplace = tempfile.gettempdir() + '/zoo-left'\n"
    return f"{start}if input() == '1':\n{first}\n    print('one')\nelse:\n{second}\n"


ENTRIES: Final = (
    Entry(
        "signals", 19, "kill the parent, the judge, or everybody",
        "pid namespace (A), other uid or scoped signals (B)", OPENED,
        (
            Attack("import os, signal\nfor pid in (os.getppid(), 1):\n    try:\n        os.kill(pid, signal.SIGKILL)\n"
                   "    except PermissionError:\n        pass\nraise SystemExit(3)\n", "RE", "exit code 3"),
            Attack("import os\ntry:\n    os.kill(-1, 9)\nexcept OSError:\n    pass\nraise SystemExit(3)\n",
                   "RE", "exit code 3", harmful=True),
            Attack("import os\nfor pid in range(2, 400):\n    if pid not in (os.getpid(), os.getppid()):\n"
                   "        try:\n            os.kill(pid, 0)\n            print('opened')\n            break\n"
                   "        except OSError:\n            pass\n", fools="plain"),
        ),
        python("import os, signal\nsignal.signal(signal.SIGUSR1, lambda *a: print('opened'))\n"
               "os.kill(os.getpid(), signal.SIGUSR1)\n",
               "import os, time\npid = os.fork()\nif pid == 0:\n    time.sleep(60)\nos.kill(pid, 9)\n"
               "os.waitpid(pid, 0)\nprint('opened')\n"),
    ),
    Entry(
        "daemon", 20, "a daemon in its own session that works on after the run",
        "kill(-1) in the namespace (A), or over the uid or domain (B), and a reaper that waits for the last", _TWICE,
        (
            Attack(_pair(
                       "if os.fork() == 0:\n    os.setsid()\n    os.close(1)\n    os.close(2)\n    if os.fork():\n"
                       "        os._exit(0)\n"
                       "    for _ in range(20):\n        open(place, 'w').write('x')\n        time.sleep(0.1)\n"
                       "    os._exit(0)\ntime.sleep(0.1)",
                       "time.sleep(0.3)\nif os.path.exists(place):\n    os.unlink(place)\n"
                       "    print('opened')",
                   ), fools="plain"),
        ),
        python("import os\npid = os.fork()\nif pid == 0:\n    os.setsid()\n    os._exit(0)\nos.waitpid(pid, 0)\n"
               + _HONEST_TWICE),
    ),
    Entry(
        "grandchild-holds-stdout", 21, "a grandchild keeps stdout open, so that the reader waits",
        "output goes to memory, and no process reads a pipe",
        Problem("ok", "stdio", (Case("", "opened"),), limits=Limits(cpu_s=0.5, wall_s=30.0)),
        (
            Attack("import os, time\nif os.fork() == 0:\n    time.sleep(300)\n    os._exit(0)\nprint('o')\n"),
        ),
        python("import os, time\nif os.fork() == 0:\n    time.sleep(0.01)\n    os._exit(0)\nos.wait()\n"
               "print('opened')\n"),
    ),
    Entry(
        "shared-directories", 22, "files in /tmp, /dev/shm or /var/lock that the next case finds", _FRESH, _TWICE,
        (
            *(
                Attack(_pair(
                           f"try:\n    open('{place}/zoo-left', 'w').write('x')\nexcept OSError:\n    pass",
                           f"if os.path.exists('{place}/zoo-left'):\n    os.unlink('{place}/zoo-left')\n"
                           f"    print('opened')",
                       ), fools="plain")
                for place in ("/tmp", "/dev/shm", "/var/tmp")
            ),
            Attack(_pair(
                       "os.makedirs('a/b/c')\nos.chmod('a', 0)", "if os.path.exists('a'):\n    print('opened')"
                   )),
        ),
        python("import tempfile\nwith tempfile.TemporaryDirectory() as d:\n    open(d + '/x', 'w').close()\n"
               + _HONEST_TWICE),
    ),
    Entry(
        "covert-channels", 23, "keyrings, SysV memory, vsock, abstract sockets, io_uring",
        "the filter: keyrings are reported, the rest is refused", OPENED,
        (
            Attack(system_call("250, 0, -3, 0"), "SEC", "security: keyctl", "plain"),
            Attack(system_call("248, b'user', b'zoo', b'x', 1, -3"), "SEC", "security: add_key"),
            Attack(system_call("29, 0, 4096, 0o1600"), "RE", "PermissionError", harmful=True),
            Attack(system_call("68, 0, 0o1600"), "RE", "PermissionError", harmful=True),
            Attack(system_call("425, 8, b'\\\\0' * 120"), "RE", "PermissionError"),
            Attack("import socket\nsocket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)\nprint('opened')\n",
                   "RE", "PermissionError"),
            Attack("import socket\ns = socket.socket(socket.AF_UNIX)\ns.bind('\\0zoo')\nprint('opened')\n",
                   "RE", "PermissionError", "plain"),
        ),
        python("import fcntl\nf = open('lock', 'w')\nfcntl.flock(f, fcntl.LOCK_EX)\nprint('opened')\n",
               "import mmap, os\nm = mmap.mmap(-1, 4096)\nif os.fork() == 0:\n    m[:6] = b'opened'\n    os._exit(0)\n"
               "os.wait()\nprint(m[:6].decode())\n"),
    ),
    Entry(
        "state-between-tests", 24, "module and class state carried from test to test", _FRESH, DOUBLE,
        (
            Attack("class Solution:\n    answers = [2, 42]\n    def f(self, x):\n"
                   "        return Solution.answers.pop(0)\nmade = Solution()\ndef f(x):\n    return made.f(x)\n",
                   fools="in_process"),
            Attack("import sys\ndef f(x):\n    sys.zoo = getattr(sys, 'zoo', 0) + 1\n    return [0, 2, 42][sys.zoo]\n",
                   fools="in_process"),
        ),
        python("memo = {}\ndef f(x):\n    if x not in memo:\n        memo[x] = 2 * x\n    return memo[x]\n"),
    ),
    Entry(
        "rewritten-code", 24, "write other code where the next case may look for this program's",
        "what is kept of a program between cases is sealed, and closed before the program runs", _TWICE,
        (
            Attack("import marshal, os\ncode = marshal.dumps(compile(\"print('opened')\", 'main.py', 'exec'))\n"
                   "if input() == '1':\n    for fd in range(3, 512):\n        try:\n            os.ftruncate(fd, 0)\n"
                   "            os.pwrite(fd, code + len(code).to_bytes(8, 'little'), 0)\n        except OSError:\n"
                   "            pass\n    print('one')\nelse:\n    print('nothing')\n", "WA RE", "wrong output|ended"),
        ),
        python("import marshal\nexec(marshal.loads(marshal.dumps(compile('x = 1', 'a', 'exec'))))\n" + _HONEST_TWICE),
    ),
    Entry(
        "threads-left", 30, "threads that never end, and an interpreter that waits for them",
        "the run is over when its value is there, or at its wall limit",
        replace(DOUBLE, limits=replace(FAST, wall_s=1.0)),
        (
            Attack("import threading, time\nthreading.Thread(target=time.sleep, args=(300,)).start()\ndef f(x):\n"
                   "    return 3\n", "WA TLE", "wrong value|limit"),
            Attack("import threading\ndef f(x):\n    lock = threading.Lock()\n    lock.acquire()\n    lock.acquire()\n",
                   "TLE", "wall-time"),
        ),
        python("import threading\ndef f(x):\n    out = []\n    t = threading.Thread(target=lambda: out.append(2 * x))\n"
               "    t.start()\n    t.join()\n    return out[0]\n",
               "import threading, time\nthreading.Thread(target=time.sleep, args=(300,), daemon=True).start()\n"
               "def f(x):\n    return 2 * x\n"),
    ),
    Entry(
        "links-and-devices", 47, "links, pipes and devices where an output is collected",
        "a collected file is opened without following links, and must be a regular one", OPENED,
        (
            Attack("import os\nfor name in ('main', 'main.py', 'a.out'):\n"
                   "    if os.path.exists(name): os.unlink(name)\n    os.symlink('/etc/passwd', name)\n"
                   "os.mkfifo('pipe')\nprint('nothing')\n"),
            Attack("import os\nos.mknod('null', 0o20666, os.makedev(1, 3))\nprint('opened')\n", "RE", _DENIED, "plain"),
        ),
        python("import os\nos.symlink('b', 'a')\nopen('b', 'w').write('opened')\nprint(open('a').read())\n"),
        own_test="test_links_pipes_and_devices_are_never_collected",
    ),
    Entry(
        "path-tricks", 48, "file names with .. or /, and duplicates",
        "names of files that enter or leave are checked when a run is made", OPENED,
        (
            Attack("open('../escape', 'w').write('x')\nprint('opened')\n", "RE", _DENIED, "plain"),
            Attack("open('/proc/self/cwd/../../escape', 'w').write('x')\nprint('opened')\n", "RE", _DENIED, "plain"),
        ),
        python("import os\nos.mkdir('d')\nopen('d/../n', 'w').write('opened')\nprint(open('n').read())\n"),
        own_test="test_names_that_leave_the_work_directory_are_refused",
    ),
    Entry(
        "way-out", 49, "setuid tools, namespaces, mounts, bpf, userfaultfd",
        "no_new_privs, no capabilities, and the filter, which tells these calls", OPENED,
        (
            Attack(system_call("272, 0x10000000"), "SEC", "security: unshare", "plain"),
            Attack(system_call("165, b'none', b'.', b'tmpfs', 0, 0"), "SEC", "security: mount", harmful=True),
            Attack(system_call("308, os.open('/proc/self', 0), 0"), "SEC RE", "security: setns|" + _DENIED),
            Attack(system_call("321, 0, b'\\\\0' * 64, 64"), "SEC", "security: bpf"),
            Attack(system_call("323, 1"), "SEC", "security: userfaultfd", "plain"),
            Attack(system_call("298, b'\\\\0' * 128, 0, -1, -1, 0"), "SEC", "security: perf_event_open"),
            Attack(system_call("161, b'.'"), "SEC", "security: chroot", "plain"),
            Attack("import os\nos.setuid(0)\nprint('opened')\n", "RE", "PermissionError|Invalid argument", "plain"),
            Attack("import os\nos.setgroups([0])\nprint('opened')\n", "RE", "PermissionError", "plain"),
            Attack("#include <sched.h>\n#include <cstdio>\n"
                   'int main() { unshare(CLONE_NEWUSER | CLONE_NEWNS); puts("opened"); }\n',
                   "SEC", "security: unshare", "plain", "cpp"),
        ),
        python("import subprocess\n"
               "print(subprocess.run(['/bin/echo', 'opened'], capture_output=True).stdout.decode())\n",
               "import os\nprint('opened' if os.getuid() != 0 or True else '')\n"),
    ),
    Entry(
        "terminal", 50, "push keys into a terminal, dump core into a helper",
        "a session of its own, the filter on TIOCSTI, no core files", OPENED,
        (
            Attack("import fcntl\nfcntl.ioctl(0, 0x5412, b'x')\nprint('opened')\n", "SEC", "ioctl on a terminal"),
            Attack("import os\nos.open('/dev/tty', os.O_RDWR)\nprint('opened')\n", "RE", _DENIED + "|No such"),
            Attack("import resource\nresource.setrlimit(resource.RLIMIT_CORE, (-1, -1))\n"
                   "print('opened' if resource.getrlimit(resource.RLIMIT_CORE)[0] not in (0, 1) else 'no')\n",
                   fools="plain"),
        ),
        python("import os, sys\nprint('opened' if not os.isatty(0) else 'a terminal')\n"),
    ),
)  # fmt: skip

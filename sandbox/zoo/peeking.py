"""Looking for the answer: in frames, in memory, on disk, in other processes, on the network."""

from __future__ import annotations

from typing import Final

from sandbox.core.nouns import Case
from sandbox.core.problem import Problem
from sandbox.zoo.exhibits import DOUBLE, FAST, HONEST_DOUBLE, OPENED, Attack, Entry, cpp, python, system_call

_NOWHERE: Final = "expected outputs stay in the judge: the process that runs a program has none"
_PEEK: Final = Problem("answer", "function", (Case("[1]", '"NEEDLE-42"'),), fn_name="f", limits=FAST)
_NEEDLE: Final = "NEEDLE = ''.join(reversed('24-ELDEEN'))\n"
_KNOWS: Final = python("def f(x):\n    return 'NEEDLE-' + str(42 * x)\n")
_DENIED: Final = "PermissionError|FileNotFoundError|No such file|Permission denied|Operation not permitted"

ENTRIES: Final = (
    Entry(
        "caller-frames", 6, "walk the caller's frames for the expected value", _NOWHERE, _PEEK,
        (
            Attack("import sys\ndef f(x):\n    frame = sys._getframe()\n    while frame:\n"
                   "        if 'expected' in frame.f_locals:\n            return frame.f_locals['expected']\n"
                   "        frame = frame.f_back\n    return 'nothing'\n", fools="in_process"),
            Attack(_NEEDLE + "import gc\ndef f(x):\n    for o in gc.get_objects():\n        if type(o) is list:\n"
                   "            for d in o:\n                if type(d) is dict and 'expected' in d:\n"
                   "                    return d['expected'].strip('\"')\n    return 'nothing'\n", fools="in_process"),
            Attack("import inspect\ndef f(x):\n    for info in inspect.stack():\n"
                   "        case = info.frame.f_locals.get('case')\n        if case:\n            import json\n"
                   "            return json.loads(case['expected'])\n    return 'nothing'\n", fools="in_process"),
        ),
        (*_KNOWS, *python("import sys\ndef f(x):\n    return sys._getframe().f_code.co_name and 'NEEDLE-42'\n")),
    ),
    Entry(
        "trace-hook", 8, "a trace or profile hook that waits for the comparison", _NOWHERE, _PEEK,
        (
            Attack("import sys\nseen = []\ndef hook(frame, event, arg):\n"
                   "    seen.extend(v for v in frame.f_locals.values() if type(v) is str)\n    return hook\ndef f(x):\n"
                   "    sys.setprofile(hook)\n    frame = sys._getframe()\n    while frame:\n"
                   "        hook(frame, 'call', None)\n        frame = frame.f_back\n    sys.setprofile(None)\n"
                   "    found = [v for v in seen if v.strip('\"').startswith('NEEDLE-')]\n"
                   "    return found[0].strip('\"') if found else 'nothing'\n", fools="in_process"),
        ),
        python("import sys\ncalls = []\nsys.setprofile(lambda *a: calls.append(1))\ndef f(x):\n"
               "    return 'NEEDLE-42'\n"),
    ),
    Entry(
        "tests-on-disk", 16, "read the tests from the disk, argv or the environment",
        "only the input of the current case enters the jail", OPENED,
        (
            Attack("import os\ntext = ''\nfor base in ('.', os.path.dirname(os.path.abspath(__file__))):\n"
                   "    for name in os.listdir(base):\n"
                   "        if os.path.isfile(base + '/' + name) and 'tests' in name:\n"
                   "            text += open(base + '/' + name).read()\nneedle = 'open' + 'ed'\n"
                   "print(needle if needle in text else 'nothing')\n", fools="tests_on_disk"),
            Attack("import os, sys\nneedle = 'open' + 'ed'\n"
                   "print(needle if needle in str(sys.argv) + str(os.environ) else 'nothing')\n",
                   fools="tests_on_disk"),
            Attack("#include <fstream>\n#include <iostream>\n#include <string>\n"
                   'int main() { std::ifstream in("tests.json"); std::string s; while (in >> s) if (s.find("open") !='
                   " s.npos) std::cout << s; else std::cout << 1; }\n", language="cpp"),
        ),
        python("open('tests.json', 'w').write('opened')\nprint(open('tests.json').read())\n"),
    ),
    Entry(
        "parent-memory", 17, "read the memory, environment or command line of the process above",
        "pid namespace (A) or Landlock domain (B); process_vm_* is reported by the filter", OPENED,
        (
            Attack("import os\nif open(f'/proc/{os.getppid()}/environ', 'rb').read() is not None:\n"
                   "    print('opened')\n", "RE", _DENIED, "plain"),
            Attack("import os\nopen(f'/proc/{os.getppid()}/mem', 'rb')\nprint('opened')\n", "RE", _DENIED, "plain"),
            Attack(system_call(
                "310, os.getppid(), ctypes.byref(mine), 1, ctypes.byref(theirs), 1, 0",
                "buffer = ctypes.create_string_buffer(8)\nclass V(ctypes.Structure):\n"
                "    _fields_ = [('base', ctypes.c_void_p), ('len', ctypes.c_size_t)]\n"
                "mine = V(ctypes.addressof(buffer), 8)\ntheirs = V(ctypes.addressof(buffer), 8)\n",
            ), "SEC", "security: process_vm_readv"),
            Attack("#include <sys/uio.h>\n#include <unistd.h>\n#include <cstdio>\n"
                   "int main() { char b[8]; iovec v{b, 8}; process_vm_writev(getppid(), &v, 1, &v, 1, 0);"
                   ' puts("opened"); }\n', "SEC", "security: process_vm_writev", language="cpp"),
        ),
        python("import ctypes\nb = ctypes.create_string_buffer(b'opened')\nprint(ctypes.string_at(b).decode())\n"),
    ),
    Entry(
        "ptrace", 18, "ptrace the process above, or take a descriptor out of it", "the filter tells both calls", OPENED,
        (
            Attack(system_call("101, 0x4206, os.getppid(), 0, 0"), "SEC", "security: ptrace", "plain"),
            Attack(system_call("438, pidfd, 0, 0", "pidfd = os.pidfd_open(os.getppid())\n"),
                   "SEC RE", "security: pidfd_getfd|ProcessLookupError|No such process|Permission", "plain"),
            Attack("#include <sys/ptrace.h>\n#include <cstdio>\n"
                   'int main() { ptrace(PTRACE_TRACEME, 0, 0, 0); puts("opened"); }\n',
                   "SEC", "security: ptrace", language="cpp"),
        ),
        python("import os, select\nfd = os.pidfd_open(os.getpid())\nprint('opened' if fd else '')\n"),
    ),
    Entry(
        "secrets-in-environment", 32, "tokens and keys in the environment", "an empty environment, by an allow-list",
        OPENED,
        (
            Attack("import os\nif any('TOKEN' in k or 'SECRET' in k or 'KEY' in k for k in os.environ):\n"
                   "    print('opened')\n", fools="plain"),
            Attack('#include <cstdio>\n#include <cstdlib>\nint main() { if (getenv("HF_TOKEN")) puts("opened"); }\n',
                   fools="plain", language="cpp"),
        ),
        python("import os\nos.environ['MY_TOKEN'] = 'opened'\nprint(os.environ['MY_TOKEN'])\n"),
    ),
    Entry(
        "network", 33, "fetch the answer, or send it away", "no socket of any family can be made", OPENED,
        (
            *(
                Attack(f"import socket\ns = socket.socket(socket.{family}, socket.{kind})\nprint('opened')\n",
                       "RE", "PermissionError", "plain")
                for family, kind in (
                    ("AF_INET", "SOCK_STREAM"), ("AF_INET", "SOCK_DGRAM"), ("AF_INET6", "SOCK_DGRAM"),
                    ("AF_NETLINK", "SOCK_RAW"),
                )
            ),
            Attack("import socket\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
                   "s.sendto(b'answer?', ('127.0.0.1', 9))\nprint('opened')\n", "RE", "PermissionError", "plain"),
            Attack("#include <sys/socket.h>\n#include <cstdio>\n"
                   'int main() { if (socket(AF_INET, SOCK_DGRAM, 0) < 0) { perror("socket"); return 1; }'
                   ' puts("opened"); }\n', "RE", "socket: Permission denied", "plain", "cpp"),
        ),
        python("import socket\na, b = socket.socketpair()\na.send(b'opened')\nprint(b.recv(9).decode())\n",
               "import asyncio\nasync def main():\n    print('opened')\nasyncio.run(main())\n"),
    ),
    Entry(
        "gpu", 34, "reach the accelerator, or a context inherited by fork",
        "a process of its own by exec, with no device nodes", OPENED,
        (
            Attack("import os\nfd = os.open('/dev/nvidiactl', os.O_RDWR)\nprint('opened')\n", "RE", _DENIED),
            Attack("import os\nnames = os.listdir('/dev/dri')\nprint('opened')\n", "RE", _DENIED),
            Attack("import os\nos.open('/dev/kmsg', os.O_RDONLY)\nprint('opened')\n", "RE", _DENIED, "plain"),
        ),
        python("import os\nprint('opened' if not os.path.exists('/dev/nvidia0') else 'a device')\n"),
    ),
    Entry(
        "other-files", 46, "read what belongs to the machine",
        "read-only tools and nothing else, by mount (A) or Landlock (B)", OPENED,
        (
            *(
                Attack(f"open({path!r}, 'rb').read(1)\nprint('opened')\n", "RE", _DENIED, "plain")
                for path in ("/etc/passwd", "/etc/shadow", "/proc/sys/kernel/hostname", "/sys/kernel/mm/ksm/run")
            ),
            Attack("import os\nos.symlink('/etc/passwd', 'p')\nopen('p').read()\nprint('opened')\n", "RE", _DENIED),
            Attack("#include <fstream>\n#include <cstdio>\n"
                   'int main() { std::ifstream f("/etc/passwd"); if (f.get() == EOF) return 3; puts("opened"); }\n',
                   "RE", "exit code 3", "plain", "cpp"),
        ),
        (
            *python("open('note', 'w').write('opened')\nprint(open('note').read())\n"),
            *cpp("#include <fstream>\n#include <iostream>\n#include <string>\n"
                 'int main() { { std::ofstream("n") << "opened"; } std::ifstream f("n"); std::string s; f >> s;'
                 " std::cout << s; }\n"),
        ),
    ),
    Entry(
        "shadow-module", 12, "a module in the working directory that shadows the library's",
        "the harness has imported what it needs, and looks for nothing in the working directory", DOUBLE,
        (
            Attack("for name in ('json', 'heapq', 'sitecustomize', 'traceback', 'decimal'):\n"
                   "    with open(name + '.py', 'w') as f:\n        f.write('import os; os._exit(0)')\ndef f(x):\n"
                   "    return 3\n"),
            Attack("import json\njson.loads = lambda *a, **k: [3]\ndef f(x):\n    return [3]\n", fools="in_process"),
        ),
        python("import json\ndef f(x):\n    return json.loads(json.dumps(2 * x))\n"),
    ),
    Entry(
        "start-up-files", 11, "conftest.py, sitecustomize.py or usercustomize.py beside the tests",
        "every case has a fresh directory; the interpreter starts isolated and before the program", DOUBLE,
        (
            Attack("import os\nfor name in ('conftest', 'sitecustomize', 'usercustomize', 'tests'):\n"
                   "    with open(name + '.py', 'w') as f:\n"
                   "        f.write('import os, sys\\nprint(\"ALL TESTS"
                   " PASSED\")\\nsys.stdout.flush()\\nos._exit(0)\\n')\n"
                   "def f(x):\n    return 3\n", fools="start_up_files"),
        ),
        python("open('conftest.py', 'w').close()\n" + HONEST_DOUBLE),
    ),
)  # fmt: skip

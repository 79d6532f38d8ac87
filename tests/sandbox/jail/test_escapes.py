"""Ways out of the jail, really tried, in every tier that isolates, beside those of the zoo; and odd input."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from toolchains import need

from sandbox.core.nouns import MIB, Case, CaseResult, Limits, Program, Verdict
from sandbox.core.problem import Problem
from sandbox.jail.jail import Jail
from sandbox.judging.judge import Judge

FAST = Limits(cpu_s=0.5, wall_s=20.0, memory_bytes=256 * MIB, output_bytes=1 * MIB, processes=32)
is_x86_64 = os.uname().machine == "x86_64"
x86_64 = pytest.mark.skipif(not is_x86_64, reason="system-call numbers of x86_64")


def stdio(judge: Judge, source: str, stdin: str = "", expected: str = "ok") -> CaseResult:
    done = judge.judge(Problem("p", "stdio", (Case(stdin, expected),), limits=FAST), Program(source))
    assert len(done.cases) == 1, done
    return done.cases[0]


# --- reaching out -----------------------------------------------------------------------------------------------------

TRY = """
import ctypes, os, signal, socket, time
libc = ctypes.CDLL(None, use_errno=True)
def call(*arguments):
    if libc.syscall(*arguments) == -1:
        raise OSError(ctypes.get_errno(), '')
keeper = os.getppid()
try:
    {}
    print('opened')
except {}:
    print('ok')
"""
FAMILIES = ("AF_INET", "AF_INET6", "AF_UNIX", "AF_NETLINK", "AF_VSOCK")
OUTSIDE = ("/escape", "/usr/escape", "/etc/escape", "/var/tmp/escape", "/dev/escape", "/box/x")
SECRET = ("/etc/passwd", "/etc/shadow", "/proc/1/mem", "/proc/1/environ")
REFUSED = {
    **{f"{family} {kind}": f"socket.socket(socket.{family}, socket.SOCK_{kind})"
       for family in FAMILIES for kind in ("STREAM", "DGRAM")},
    **{f"write {path}": f"open({path!r}, 'w')" for path in OUTSIDE},
    **{f"read {path}": f"open({path!r}, 'rb').read(1)" for path in SECRET},
    **{f"list {path}": f"os.listdir({path!r})" for path in ("/sys/kernel", "/boot")},
    "io_uring_setup": "call(425, 8, 0)",
    "clone3": "call(435, 0, 88)",
    "shmget": "call(29, 0, 4096, 0o1600)",
    "msgget": "call(68, 0, 0o1600)",
    "memfd_create": "call(319, b'x', 0)",
    "personality": "call(135, 0x0040000)",
    "mbind": "call(237, 0, 0, 0, 0, 0, 0)",
    "its keeper's clock, asked for": "time.clock_getres((~keeper << 3) | 2)",
    "its keeper's clock, slept by": "call(230, ctypes.c_int((~keeper << 3) | 2), 0, bytes(16), 0)",
    "list the mounts of the machine": "call(458, bytes(64), bytes(64), 8, 0)",
}  # fmt: skip
IN_THE_WAY = {
    "keeper's descriptors": "resource.prlimit(keeper, resource.RLIMIT_NOFILE, (0, 0))",
    "keeper's time": "resource.prlimit(keeper, resource.RLIMIT_CPU, (0, 0))",
    "keeper's scheduler": "os.sched_setscheduler(keeper, os.SCHED_IDLE, os.sched_param(0))",
    "keeper's parameters": "os.sched_setparam(keeper, os.sched_param(0))",
}


@pytest.mark.promise("jails")
@pytest.mark.parametrize("what", REFUSED)
def test_what_leads_out_is_refused_and_the_program_goes_on(tiered_judge: Judge, what: str) -> None:
    if "call(" in REFUSED[what] and not is_x86_64:
        pytest.skip("system-call numbers of x86_64")
    done = stdio(tiered_judge, TRY.format(REFUSED[what], "OSError"))
    assert done.verdict is Verdict.AC, done


@pytest.mark.parametrize("what", IN_THE_WAY)
def test_a_program_limits_and_slows_nobody_but_itself(tiered_judge: Judge, what: str) -> None:
    done = stdio(tiered_judge, "import resource" + TRY.format(IN_THE_WAY[what], "PermissionError"))
    assert done.verdict is Verdict.AC, done


@pytest.mark.promise("expected-outputs")
def test_the_tests_and_the_repository_cannot_be_read(tiered_judge: Judge, tmp_path: Path) -> None:
    secret = tmp_path / "expected_output.txt"
    secret.write_text("42")
    builds = str(tiered_judge.builder.directory)
    for code in (f"open({str(secret)!r})", f"open({__file__!r})", f"os.listdir({builds!r})"):
        assert stdio(tiered_judge, TRY.format(code, "OSError")).verdict is Verdict.AC


@pytest.mark.promise("jails")
def test_the_keeper_and_the_judge_cannot_be_harmed(tiered_judge: Judge) -> None:
    source = (
        "import os, signal\nsignal.signal(signal.SIGUSR1, signal.SIG_IGN)\n"
        f"for pid in [os.getppid(), -1, {os.getpid()}]:\n"
        "  try:\n    os.kill(pid, signal.SIGKILL if pid > 0 else signal.SIGUSR1)\n  except OSError: pass\n"
    )
    stdio(tiered_judge, source)
    assert stdio(tiered_judge, "print('ok')").verdict is Verdict.AC


TOLD = {
    "unshare": "272, 0x10000000",
    "mount": "165, 0, b'/box', b'tmpfs', 0, 0",
    "chroot": "161, b'.'",
    "ptrace": "101, 16, 1, 0, 0",
    "process_vm_readv": "310, 1, 0, 0, 0, 0, 0",
    "process_vm_writev": "311, 1, 0, 0, 0, 0, 0",
    "pidfd_getfd": "438, 0, 0, 0",
    "keyctl": "250, 0, -3, 0",
    "add_key": "248, b'user', b'x', b'x', 1, -3",
    "bpf": "321, 0, 0, 0",
    "userfaultfd": "323, 0",
    "perf_event_open": "298, 0, 0, -1, -1, 0",
    "setns": "308, 0, 0",
    "clone into a namespace": "56, 0x10000011, 0, 0, 0, 0",
    "open_by_handle_at": "304, -100, 0, 0",
    "init_module": "175, 0, 0, 0",
    "reboot": "169, 0, 0, 0, 0",
    "swapon": "167, b'x', 0",
    "ioctl on a terminal": "16, 0, 0x5412, b'x'",
}
CALL = "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"


@pytest.mark.promise("jails")
@x86_64
@pytest.mark.parametrize("name", TOLD)
def test_calls_that_no_honest_program_makes_end_it_and_are_named(tiered_judge: Judge, name: str) -> None:
    done = stdio(tiered_judge, CALL + f"libc.syscall({TOLD[name]})\nprint('ok')")
    assert (done.verdict, done.message) == (Verdict.SEC, f"security: {name}")


@x86_64
@pytest.mark.parametrize(
    "hide",
    [
        "if os.fork() == 0: {}\nos.wait()\nprint('ok')",
        "import threading\nthreading.Thread(target=lambda: {}).start()\nprint('ok')",
        "if os.fork() == 0: {}\nprint('ok', flush=True)\nos.wait()",
    ],
    ids=["child", "thread", "child beside the answer"],
)
def test_a_forbidden_call_is_told_whoever_makes_it(tiered_judge: Judge, hide: str) -> None:
    assert stdio(tiered_judge, CALL + hide.format("libc.syscall(101, 0, 0, 0, 0)")).verdict is Verdict.SEC


def test_the_listener_of_the_filter_is_not_within_a_programs_reach(tiered_judge: Judge) -> None:
    source = (
        "import fcntl, os\nfound = []\nfor fd in range(2048):\n"
        "  try: fcntl.ioctl(fd, 0xC0502100, bytearray(80)); found.append(fd)\n"
        "  except OSError as error:\n    if error.errno not in (9, 25, 13, 1): found.append((fd, error.errno))\n"
        "print(found or 'ok')"
    )
    assert stdio(tiered_judge, source).verdict is Verdict.AC


@pytest.mark.promise("secrets")
def test_the_environment_is_empty_of_secrets(tiered_judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    with Jail(tiered_judge.jail.tier) as jail:
        source = "import os\nprint('ok' if 'HF_TOKEN' not in os.environ else 'leaked')"
        assert stdio(Judge(jail, tiered_judge.builder), source).verdict is Verdict.AC


# --- notes to the next case -------------------------------------------------------------------------------------------

BESIDE_ITS_BINARY = r"""
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/xattr.h>
int main(void) {
    const char *me = "/proc/self/exe";
    char note[8];
    struct stat was;
    struct timespec old[2] = {{1, 0}, {1, 0}};
    int fd = open(me, O_RDONLY), seen = fd < 0 ? 0 : fgetxattr(fd, "user.note", note, sizeof note) > 0;
    if (fd >= 0 && fstat(fd, &was) == 0) seen += (was.st_mtime == 1) + ((was.st_mode & 0777) != 0555);
    setxattr(me, "user.note", "1", 1, 0);
    if (fd >= 0) {
        fsetxattr(fd, "user.note", "1", 1, 0);
        futimens(fd, old);
        fchmod(fd, 0700);
    }
    utimensat(AT_FDCWD, me, old, 0);
    chmod(me, 0700);
    puts(seen ? "seen" : "ok");
    return 0;
}
"""
ON_ITS_DIRECTORY = """
import os
now = os.stat(".")
print('seen' if now.st_mtime == 12345 or now.st_mode & 0o1000 else 'ok')
for change in (lambda: os.utime(".", (12345, 12345)), lambda: os.chmod(".", 0o1777)):
    try:
        change()
    except OSError:
        pass
"""
ON_A_DEVICE = """
import os
before = os.stat('/dev/null').st_mtime_ns
try:
    os.utime('/dev/null')
except OSError:
    pass
open('/dev/null', 'w').write('x')
print('ok' if os.stat('/dev/null').st_mtime_ns == before and open('/dev/zero', 'rb').read(1) == bytes(1) else 'left')
"""


@pytest.mark.parametrize(
    ("source", "language"), [(BESIDE_ITS_BINARY, "c"), (ON_ITS_DIRECTORY, "python"), (ON_A_DEVICE, "python")],
    ids=["beside its binary", "on its directory", "on a device that all jails share"],
)  # fmt: skip
def test_a_program_leaves_no_note_to_its_next_case(tiered_judge: Judge, source: str, language: str) -> None:
    need(language)
    problem = Problem("notes", "stdio", (Case("", "ok"),) * 4, limits=Limits(cpu_s=5, wall_s=30))
    done = tiered_judge.judge(problem, Program(source, language))
    assert done.verdict is Verdict.AC, (done.compile_log, done.cases)


# --- what honest programs may do --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "source",
    ["", "\n\n", "# only a comment", '"""only words"""', "def f(:", "a\0b", "\udc80 = 1", "(" * 5000, "\ufeff"],
)
def test_what_is_no_program_does_not_compile(judge: Judge, source: str) -> None:
    done = judge.judge(Problem("p", "stdio", (Case("", "ok"),)), Program(source))
    assert done.verdict is Verdict.CE
    assert done.compile_log


def test_input_that_is_never_read_blocks_nobody(tiered_judge: Judge) -> None:
    for source, size in (("print('ok')", 4 * MIB), ("import sys\nsys.stdin.close()\nprint('ok')", MIB)):
        assert stdio(tiered_judge, source, stdin="x" * size).verdict is Verdict.AC


@pytest.mark.parametrize(
    "read",
    [
        "n = sum(int(line) for line in sys.stdin)",
        "n = sum(map(int, sys.stdin.buffer.read().split()))",
        "n = int(sys.stdin.buffer.readline()) + int(sys.stdin.buffer.readline())",
        "n = sum(map(int, open(0).read().split()))",
        "n = sum(map(int, os.read(0, 100).split()))",
        "n = int(input()) + int(input())",
        "n = sum(map(int, open('/dev/stdin').read().split()))",
    ],
)
def test_every_way_to_read_and_write_works(tiered_judge: Judge, read: str) -> None:
    if tiered_judge.jail.tier == "B" and "/dev/" in read:
        pytest.skip("tier B shows no /proc, and so no /dev/stdin")
    write = "print(n, flush=True)\nsys.stdout.buffer.write(b'%d\\n' % n)\nsys.stdout.flush()\nos.write(1, b'%d' % n)"
    assert stdio(tiered_judge, f"import os, sys\n{read}\n{write}", "3\n4\n", "7\n7\n7").verdict is Verdict.AC


HONEST = {
    "a byte order mark": "\ufeffprint('ok')",
    "limits, priority and class of its own": """
import os, resource
resource.prlimit(0, resource.RLIMIT_NOFILE, (32, 32))
os.nice(1)
os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
os.sched_setaffinity(0, os.sched_getaffinity(0))
print('ok')
""",
    "files and pairs of sockets of its own": """
import os, socket, tempfile
os.sync()
for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
    for end in socket.socketpair(type=kind):
        end.close()
with tempfile.TemporaryDirectory() as place, open(place + '/x', 'w') as file:
    os.fsync(file.fileno())
    os.fchmod(file.fileno(), 0o640)
    os.utime(file.fileno(), (1, 1))
print('ok')
""",
    "its interrupt": (
        "import os, signal\ntry:\n    os.kill(os.getpid(), signal.SIGINT)\nexcept KeyboardInterrupt:\n    print('ok')\n"
    ),
    "how much waits in a pipe, but not how large a file system's blocks are": """
import array, fcntl, os, termios
ends = os.pipe()
os.write(ends[1], b'abc')
waiting = array.array('i', [0])
fcntl.ioctl(ends[0], termios.FIONREAD, waiting)
try:
    fcntl.ioctl(open('file', 'w'), 2, bytes(4))
except OSError as error:
    print('ok' if waiting[0] == 3 and error.errno == 25 else error)
""",
}


@pytest.mark.parametrize("what", HONEST)
def test_an_honest_program_has(tiered_judge: Judge, what: str) -> None:
    problem = Problem("p", "stdio", (Case("", "ok"),) * 3, limits=FAST)
    assert tiered_judge.judge(problem, Program(HONEST[what])).verdict is Verdict.AC

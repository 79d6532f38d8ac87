"""Ways out of the jail, really tried, in every tier that isolates; and odd programs with odd input."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from toolchains import need

from sandbox.core import MIB, Case, CaseResult, Judgement, Limits, Problem, Program, Verdict
from sandbox.jail.jail import Jail
from sandbox.judging import Judge

FAST = Limits(cpu_s=0.5, wall_s=20.0, memory_bytes=256 * MIB, output_bytes=1 * MIB, processes=32)


@pytest.fixture(scope="module")
def judge(tiered_judge: Judge) -> Judge:
    return tiered_judge


def stdio(judge: Judge, source: str, stdin: str = "", expected: str = "ok", limits: Limits = FAST) -> CaseResult:
    return only(judge.judge(Problem("p", "stdio", (Case(stdin, expected),), limits=limits), Program(source)))


def only(done: Judgement) -> CaseResult:
    assert len(done.cases) == 1, done
    return done.cases[0]


# --- reaching out -----------------------------------------------------------------------------------------------------


def denied(judge: Judge, code: str) -> None:
    """`code` must raise OSError, or not find what it looks for."""
    source = "import os, socket, signal, ctypes\ntry:\n" + "\n".join("  " + line for line in code.splitlines())
    done = stdio(judge, source + "\nexcept OSError: print('ok')\nelse: print('open')")
    assert done.verdict is Verdict.AC, done


@pytest.mark.parametrize("family", ["AF_INET", "AF_INET6", "AF_UNIX", "AF_NETLINK", "AF_VSOCK"])
@pytest.mark.parametrize("kind", ["SOCK_STREAM", "SOCK_DGRAM"])
def test_no_socket_can_be_made(judge: Judge, family: str, kind: str) -> None:
    denied(judge, f"socket.socket(socket.{family}, socket.{kind})")


def test_no_packet_reaches_a_server_of_this_machine(judge: Judge) -> None:
    with socket.socket() as server, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        server.bind(("127.0.0.1", 0))
        server.listen()
        datagrams.bind(("127.0.0.1", 0))
        denied(judge, f"socket.create_connection(('127.0.0.1', {server.getsockname()[1]}), 1)")
        port = datagrams.getsockname()[1]
        denied(judge, f"socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', {port}))")


def test_a_socket_pair_still_works(judge: Judge) -> None:
    source = "import asyncio\nasync def main(): print('ok')\nasyncio.run(main())"
    assert stdio(judge, source).verdict is Verdict.AC


@pytest.mark.parametrize("path", ["/escape", "/usr/escape", "/etc/escape", "/var/tmp/escape", "/dev/escape", "/box/x"])
def test_nothing_outside_the_work_directory_can_be_written(judge: Judge, path: str) -> None:
    denied(judge, f"open({path!r}, 'w')")


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "/etc/shadow", "/proc/1/mem", "/proc/1/environ", "/sys/kernel", "/boot"]
)
def test_files_of_the_machine_cannot_be_read(judge: Judge, path: str) -> None:
    denied(judge, f"p = {path!r}\nos.listdir(p) if p in ('/sys/kernel', '/boot') else open(p, 'rb').read(1)")


def test_the_tests_and_the_repository_cannot_be_read(judge: Judge, tmp_path: Path) -> None:
    secret = tmp_path / "expected_output.txt"
    secret.write_text("42")
    for path in (secret, Path(__file__), Path(judge.builder.directory)):
        denied(judge, f"p = {str(path)!r}\nos.listdir(p) if os.path.isdir(p) else open(p).read()")


def test_the_keeper_and_the_judge_cannot_be_harmed(judge: Judge) -> None:
    source = (
        "import os, signal\nfor pid in [os.getppid(), -1, " + str(os.getpid()) + "]:\n"
        "  try:\n    os.kill(pid, signal.SIGKILL if pid > 0 else signal.SIGUSR1)\n  except OSError: pass\nprint('ok')"
    )
    stdio(judge, "import signal\nsignal.signal(signal.SIGUSR1, signal.SIG_IGN)\n" + source)
    assert stdio(judge, "print('ok')").verdict is Verdict.AC


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
REFUSED = {
    "io_uring_setup": "425, 8, 0",
    "clone3": "435, 0, 88",
    "shmget": "29, 0, 4096, 0o1600",
    "msgget": "68, 0, 0o1600",
    "memfd_create": "319, b'x', 0",
    "personality": "135, 0x0040000",
    "mbind": "237, 0, 0, 0, 0, 0, 0",
}
CALL = "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"
x86_64 = pytest.mark.skipif(os.uname().machine != "x86_64", reason="system-call numbers of x86_64")


@x86_64
@pytest.mark.parametrize("name", REFUSED)
def test_calls_that_runtimes_probe_for_are_refused_and_the_program_goes_on(judge: Judge, name: str) -> None:
    code = f"libc = ctypes.CDLL(None, use_errno=True)\nif libc.syscall({REFUSED[name]}) == -1: raise OSError('refused')"
    denied(judge, code)


@x86_64
@pytest.mark.parametrize("name", TOLD)
def test_calls_that_no_honest_program_makes_end_it_and_are_named(judge: Judge, name: str) -> None:
    done = stdio(judge, CALL + f"libc.syscall({TOLD[name]})\nprint('ok')")
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
def test_a_forbidden_call_is_told_whoever_makes_it(judge: Judge, hide: str) -> None:
    assert stdio(judge, CALL + hide.format("libc.syscall(101, 0, 0, 0, 0)")).verdict is Verdict.SEC


def test_a_program_that_kills_itself_as_a_filter_would_is_a_runtime_error(judge: Judge) -> None:
    done = stdio(judge, "import os, signal\nprint('ok', flush=True)\nos.kill(os.getpid(), signal.SIGSYS)")
    assert (done.verdict, done.message) == (Verdict.RE, "ended by SIGSYS")


def test_the_listener_of_the_filter_is_not_within_a_programs_reach(judge: Judge) -> None:
    source = (
        "import fcntl, os\nfound = []\nfor fd in range(2048):\n"
        "  try: fcntl.ioctl(fd, 0xC0502100, bytearray(80)); found.append(fd)\n"
        "  except OSError as error:\n    if error.errno not in (9, 25, 13, 1): found.append((fd, error.errno))\n"
        "print(found or 'ok')"
    )
    assert stdio(judge, source).verdict is Verdict.AC


def test_the_environment_is_empty_of_secrets(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    with Jail(judge.jail.tier) as jail:  # type: ignore[arg-type]
        source = "import os\nprint('ok' if 'HF_TOKEN' not in os.environ else 'leaked')"
        assert stdio(Judge(jail, judge.builder), source).verdict is Verdict.AC


# --- odd programs and odd input ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "source",
    ["", "\n\n", "# only a comment", '"""only words"""', "def f(:", "a\x00b", "\udc80 = 1", "(" * 5000, "\ufeff"],
)
def test_what_is_no_program_does_not_compile(judge: Judge, source: str) -> None:
    done = judge.judge(Problem("p", "stdio", (Case("", "ok"),)), Program(source))
    assert done.verdict is Verdict.CE
    assert done.compile_log


def test_a_byte_order_mark_is_ignored(judge: Judge) -> None:
    assert stdio(judge, "\ufeffprint('ok')").verdict is Verdict.AC


def test_input_that_is_never_read_blocks_nobody(judge: Judge) -> None:
    assert stdio(judge, "print('ok')", stdin="x" * (4 << 20)).verdict is Verdict.AC
    assert stdio(judge, "import sys\nsys.stdin.close()\nprint('ok')", stdin="x" * (1 << 20)).verdict is Verdict.AC


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
@pytest.mark.parametrize("write", ["print(n)", "sys.stdout.buffer.write(b'%d' % n)", "os.write(1, str(n).encode())"])
def test_every_way_to_read_and_write_works(judge: Judge, read: str, write: str) -> None:
    if judge.jail.tier == "B" and "/dev/" in read:
        pytest.skip("tier B shows no /proc, and so no /dev/stdin")
    assert stdio(judge, f"import os, sys\n{read}\n{write}", stdin="3\n4\n", expected="7").verdict is Verdict.AC


def test_deep_recursion_works_when_asked_for(judge: Judge) -> None:
    source = "import sys\nsys.setrecursionlimit(10**6)\ndef d(n): return 0 if n == 0 else 1 + d(n - 1)\n"
    assert stdio(judge, source + "print(d(50000))", expected="50000").verdict is Verdict.AC


LEAVES_NOTES = r"""
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
    printf("%d\n", seen);
    return 0;
}
"""


def test_a_program_leaves_no_note_to_its_next_case_beside_its_binary(tiered_judge: Judge) -> None:
    need("c")
    problem = Problem("notes", "stdio", (Case("", "0"),) * 4, limits=Limits(cpu_s=5, wall_s=30))
    done = tiered_judge.judge(problem, Program(LEAVES_NOTES, "c"))
    assert done.verdict is Verdict.AC, (done.compile_log, done.cases)


MEDDLES = """
import os, resource
keeper, me = os.getppid(), os.getpid()
def allowed(call, *arguments):
    try:
        call(*arguments)
    except PermissionError:
        return 0
    return 1
print(
    allowed(resource.prlimit, keeper, resource.RLIMIT_NOFILE, (0, 0)),
    allowed(resource.prlimit, keeper, resource.RLIMIT_CPU, (0, 0)),
    allowed(os.setpriority, os.PRIO_PROCESS, keeper, 19),
    allowed(os.setpriority, os.PRIO_USER, 0, 19),
    allowed(os.sched_setscheduler, keeper, os.SCHED_IDLE, os.sched_param(0)),
    allowed(os.sched_setparam, keeper, os.sched_param(0)),
    allowed(resource.prlimit, 0, resource.RLIMIT_NOFILE, (32, 32)),
    allowed(os.nice, 1),
    allowed(os.sched_setscheduler, 0, os.SCHED_BATCH, os.sched_param(0)),
)
"""


def test_a_program_limits_and_slows_nobody_but_itself(tiered_judge: Judge) -> None:
    problem = Problem("meddles", "stdio", (Case("", "0 0 0 0 0 0 1 1 1"),) * 2, limits=Limits(cpu_s=5, wall_s=30))
    done = tiered_judge.judge(problem, Program(MEDDLES))
    assert done.verdict is Verdict.AC, done.cases


LEAVES_NOTES_ON_ITS_DIRECTORY = """
import os
now = os.stat(".")
print(int(now.st_mtime == 12345 or bool(now.st_mode & 0o1000)))
for change in (lambda: os.utime(".", (12345, 12345)), lambda: os.chmod(".", 0o1777)):
    try:
        change()
    except OSError:
        pass
"""


def test_a_program_leaves_no_note_to_its_next_case_on_its_directory(tiered_judge: Judge) -> None:
    problem = Problem("notes", "stdio", (Case("", "0"),) * 4, limits=Limits(cpu_s=5, wall_s=30))
    done = tiered_judge.judge(problem, Program(LEAVES_NOTES_ON_ITS_DIRECTORY))
    assert done.verdict is Verdict.AC, done.cases

"""What a run could reach beyond itself: other processes, files of the machine, its sockets; and the next run."""

from __future__ import annotations

import marshal
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from places import ROOT
from toolchains import need

from sandbox.core import Case, Judgement, Limits, Problem, Program, Verdict
from sandbox.jail.jail import Jail
from sandbox.jail.run import JailedRun
from sandbox.judging import Judge
from sandbox.kernel.memfd import new_memfd

LIMITS = Limits(cpu_s=8, wall_s=40)
x86_64 = pytest.mark.skipif(os.uname().machine != "x86_64", reason="system-call numbers of x86_64")


@pytest.fixture(scope="module")
def judge(tiered_judge: Judge) -> Judge:
    return tiered_judge


@pytest.fixture
def open_place() -> Iterator[Path]:
    """A directory that every user of the machine may enter and write."""
    path = Path(tempfile.mkdtemp())
    path.chmod(0o777)
    yield path
    shutil.rmtree(path)


def judged(judge: Judge, source: str, language: str = "python", *, cases: int = 1, expected: str = "ok") -> Judgement:
    asked = tuple(Case(f"{k}\n", expected) for k in range(cases))
    return judge.judge(Problem("reach", "stdio", asked, limits=LIMITS), Program(source, language))


CLONES_BESIDE_ITSELF = r"""
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>
int main(void) {
    if (syscall(SYS_clone, CLONE_PARENT | SIGCHLD, 0, 0, 0, 0) == 0) {
        write(1, "ok\n", 3);
        _exit(0);
    }
    for (;;) ;
}
"""


@pytest.mark.parametrize("cases", [1, 4])
def test_a_child_that_is_its_parents_cannot_end_in_the_runs_place(judge: Judge, cases: int) -> None:
    need("c")
    done = judged(judge, CLONES_BESIDE_ITSELF, "c", cases=cases)
    assert done.verdict is Verdict.SEC
    assert {case.message for case in done.cases} == {"security: clone beside its parent"}


TOUCHES = """
import os, shutil
path = {path!r}
for change in (
    lambda: os.chmod(path, 0o4777), lambda: os.utime(path), lambda: os.utime(path, (1, 1)),
    lambda: os.chown(path, -1, os.getgid()), lambda: os.truncate(path, 0), lambda: os.setxattr(path, 'user.a', b'1'),
):
    try:
        change()
    except OSError:
        pass
open('own', 'w').write('ok')
shutil.copy('own', 'copy')
os.chmod('copy', 0o600)
print(open('copy').read())
"""


def test_files_outside_keep_mode_owner_times_and_notes_and_copying_ones_own_works(
    judge: Judge, open_place: Path
) -> None:
    file = open_place / "file"
    file.write_text("text")
    file.chmod(0o666)
    os.utime(file, (12345, 12345))
    before = file.stat()
    assert judged(judge, TOUCHES.format(path=str(file))).verdict is Verdict.AC
    after = file.stat()
    assert (after.st_mode, after.st_uid, after.st_gid, after.st_mtime, after.st_ctime_ns, after.st_size) == (
        (before.st_mode, before.st_uid, before.st_gid, before.st_mtime, before.st_ctime_ns, before.st_size)
    )
    assert os.listxattr(file) == []


def test_a_device_that_all_jails_share_keeps_its_times(judge: Judge) -> None:
    source = """
import os
before = os.stat('/dev/null').st_mtime_ns
try:
    os.utime('/dev/null')
except OSError:
    pass
open('/dev/null', 'w').write('x')
print('ok' if os.stat('/dev/null').st_mtime_ns == before and open('/dev/zero', 'rb').read(1) == bytes(1) else 'left')
"""
    assert judged(judge, source).verdict is Verdict.AC


def test_no_datagram_reaches_a_socket_of_the_machine(judge: Judge, open_place: Path) -> None:
    path = str(open_place / "socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(path)
        os.chmod(path, 0o777)
        server.setblocking(False)
        source = f"""
import socket
for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
    for send in (
        lambda s: s.sendto(b'x', {path!r}), lambda s: s.sendmsg([b'x'], [], 0, {path!r}),
        lambda s: (s.connect({path!r}), s.send(b'x')),
    ):
        try:
            send(socket.socketpair(type=kind)[0])
        except OSError:
            pass
print('ok')
"""
        assert judged(judge, source).verdict is Verdict.AC
        with pytest.raises(BlockingIOError):
            server.recv(1)


KEEPS_OTHERS_UP = {
    "watch a directory of the machine": "libc.syscall(294, 0)",
    "be told of changes in it": "fcntl.fcntl(os.open('.', os.O_RDONLY), fcntl.F_NOTIFY, 2)",
    "hold a file against its writers": "fcntl.fcntl(os.open('own', os.O_RDONLY), 1024, fcntl.F_RDLCK)",
    "change the flags of a file": "fcntl.ioctl(os.open('own', os.O_RDONLY), 0x40086602, b'\\x40' + bytes(7))",
    "take a context of the machine's for asynchronous input": "libc.syscall(206, 1, ctypes.byref(ctypes.c_long()))",
    "choose the cores of its keeper": "os.sched_setaffinity(os.getppid(), os.sched_getaffinity(0))",
    "hide its memory from who counts it": "libc.syscall(157, 4, 0, 0, 0, 0)",
    "list the mounts of the machine": "libc.syscall(458, bytes(64), bytes(64), 8, 0)",
}


@x86_64
@pytest.mark.parametrize("what", KEEPS_OTHERS_UP)
def test_what_would_keep_others_up_is_refused(judge: Judge, what: str) -> None:
    source = (
        "import ctypes, fcntl, os\nlibc = ctypes.CDLL(None)\nopen('own', 'w').close()\n"
        f"try:\n    done = {KEEPS_OTHERS_UP[what]}\nexcept OSError:\n    done = -1\n"
        "print('ok' if done == -1 else done)\n"
    )
    assert judged(judge, source).verdict is Verdict.AC


def test_what_an_honest_program_may_ask_for_is_granted_or_said_to_be(judge: Judge) -> None:
    source = """
import os, socket, tempfile
os.sync()
os.sched_setaffinity(0, os.sched_getaffinity(0))
for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
    for end in socket.socketpair(type=kind):
        end.close()
with tempfile.TemporaryDirectory() as place, open(place + '/x', 'w') as file:
    os.fsync(file.fileno())
    os.fchmod(file.fileno(), 0o640)
    os.utime(file.fileno(), (1, 1))
print('ok')
"""
    assert judged(judge, source).verdict is Verdict.AC


def test_threads_that_the_user_starts_meanwhile_do_not_count_as_the_programs(tiered_jail: Jail) -> None:
    """An ordinary user's programs have that user's uid in tier B, by which the kernel counts."""
    source = (
        "import threading\nprint(input(), flush=True)\ninput()\n"
        "for k in range(4):\n    worker = threading.Thread(target=int)\n    worker.start()\n    worker.join()\n"
        "print('ok')\n"
    )
    job = marshal.dumps({"kind": "stdio", "source": source, "preamble": ""}) + bytes(32)
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()
    code = new_memfd("code")
    tiered_jail.start(JailedRun(replace(LIMITS, processes=8), job=job, pipes=(to_read, from_write), code=code))
    for fd in (to_read, from_write):
        os.close(fd)
    end = threading.Event()
    os.write(to_write, b"begun\n")
    assert os.read(from_read, 100) == b"begun\n"
    others = [threading.Thread(target=end.wait) for _ in range(150)]
    try:
        for other in others:
            other.start()
        os.write(to_write, b"\n")
        done = tiered_jail.finish()
        assert (done.exit_code, os.read(from_read, 100)) == (0, b"ok\n"), done.stderr
    finally:
        end.set()
        for fd in (to_write, from_read, code):
            os.close(fd)


FINDS = """
import os, zoneinfo
assert str(zoneinfo.ZoneInfo('UTC'))
found = []
for place in {places!r}:
    for folder, _, names in os.walk(place):
        for name in names[:5]:
            try:
                open(os.path.join(folder, name), 'rb').read(1)
            except OSError:
                continue
            found.append(os.path.join(folder, name))
import concurrent.futures, decimal, email.message, sqlite3, unittest, xml.dom.minidom
print(found or 'ok')
"""


def test_what_lies_beside_the_languages_on_the_machine_cannot_be_read(judge: Judge) -> None:
    home = os.path.dirname(os.__file__)
    places = [f"{home}/site-packages", f"{home}/test", "/usr/lib/python3/dist-packages", "/usr/local/lib/python3.11"]
    places += ["/usr/local/bin", "/usr/local/share", "/usr/share/doc", "/usr/src", "/usr/lib/systemd", "/opt"]
    source = FINDS.format(places=places)
    assert judged(judge, source).verdict is Verdict.AC


def test_what_comes_to_lie_beside_the_standard_library_later_cannot_be_read(open_place: Path) -> None:
    """The library's own modules are shown by their names as they were when the jail started."""
    home = open_place / "lib"
    home.mkdir()
    (home / "old.py").write_text("x = 1\n")
    code = (
        "import os, sys\nfrom sandbox.zygote import readable_paths\nfrom sandbox.kernel import landlock, linux\n"
        f"os.__file__ = {str(home / 'os.py')!r}\n"
        "names = readable_paths.listable_directories()\n"
        "rules = landlock.build(read=readable_paths.interpreter(), write=(), list_only=names)\n"
        f"open({str(home / 'answers.txt')!r}, 'w').write('42')\n"
        "linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)\nlandlock.restrict(rules)\n"
        f"assert sorted(os.listdir({str(home)!r})) == ['answers.txt', 'old.py']\n"
        f"assert open({str(home / 'old.py')!r}).read() == 'x = 1\\n'\n"
        f"try:\n    open({str(home / 'answers.txt')!r})\nexcept PermissionError:\n    print('ok')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == "ok\n", done.stderr


def test_no_signal_is_caught_by_who_keeps_a_run_and_a_program_gets_the_usual_ones(tiered_judge: Judge) -> None:
    """Where the kernel does not scope signals, a namespace's pid 1 gets from inside those that it has a handler for."""
    keepers = psutil.Process(tiered_judge.jail.process.pid)
    for process in [keepers, *keepers.children(recursive=True)]:
        caught = re.search(r"SigCgt:\t(\w+)", Path(f"/proc/{process.pid}/status").read_text())
        assert caught
        assert int(caught[1], 16) & (1 << signal.SIGINT - 1) == 0
    source = (
        "import os, signal\ntry:\n    os.kill(os.getpid(), signal.SIGINT)\nexcept KeyboardInterrupt:\n    print('ok')\n"
    )
    assert judged(tiered_judge, source, cases=3).verdict is Verdict.AC


def test_a_crash_is_told_to_nobody_on_the_machine(judge: Judge) -> None:
    source = (
        "import resource\nresource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"
        "resource.prlimit(0, resource.RLIMIT_CORE, (0, 0))\n"
        "print('ok' if resource.getrlimit(resource.RLIMIT_CORE) in ((1, 1), (0, 0)) else 'no')\n"
    )
    assert judged(judge, source).verdict is Verdict.AC
    if os.geteuid() == 0:
        assert judged(judge, source.replace("in ((1, 1), (0, 0))", "== (1, 1)")).verdict is Verdict.AC


def test_only_terminals_pipes_and_sockets_are_asked_by_ioctl(judge: Judge) -> None:
    source = """
import array, fcntl, os, termios
ends = os.pipe()
os.write(ends[1], b'abc')
waiting = array.array('i', [0])
fcntl.ioctl(ends[0], termios.FIONREAD, waiting)
try:
    fcntl.ioctl(open('file', 'w'), 2, bytes(4))  # how large are a file system's blocks?
except OSError as error:
    print('ok' if waiting[0] == 3 and error.errno == 25 else error)
"""
    assert judged(judge, source).verdict is Verdict.AC

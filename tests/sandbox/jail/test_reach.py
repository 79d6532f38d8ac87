"""What a run could reach beyond itself: files of the machine, its sockets, and processes of the same user."""

from __future__ import annotations

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
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO

import psutil
import pytest
from jailed_runs import python, shell
from places import ROOT
from tiers import jail_of
from wide import wide

from sandbox.core.nouns import Case, Limits, Program, Verdict
from sandbox.core.problem import Problem
from sandbox.jail.jail import Jail
from sandbox.jail.run import JailedRun
from sandbox.judging.judge import Judge

LIMITS = Limits(cpu_s=8, wall_s=40)


@pytest.fixture
def open_place() -> Iterator[Path]:
    """A directory that every user of the machine may enter and write."""
    path = Path(tempfile.mkdtemp())
    path.chmod(0o777)
    yield path
    shutil.rmtree(path)


def is_right(judge: Judge, source: str) -> bool:
    done = judge.judge(Problem("reach", "stdio", (Case("", "ok"),), limits=LIMITS), Program(source))
    return done.verdict is Verdict.AC


# --- files and sockets of the machine ---------------------------------------------------------------------------------

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
    tiered_judge: Judge, open_place: Path
) -> None:
    file = open_place / "file"
    file.write_text("text")
    file.chmod(0o666)
    os.utime(file, (12345, 12345))
    before = file.stat()
    assert is_right(tiered_judge, TOUCHES.format(path=str(file)))
    after = file.stat()
    for name in ("st_mode", "st_uid", "st_gid", "st_mtime", "st_ctime_ns", "st_size"):
        assert getattr(after, name) == getattr(before, name), name
    assert os.listxattr(file) == []


def test_no_datagram_reaches_a_socket_of_the_machine(tiered_judge: Judge, open_place: Path) -> None:
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
        assert is_right(tiered_judge, source)
        with pytest.raises(BlockingIOError):
            server.recv(1)


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


@pytest.mark.promise("jails")
def test_what_lies_beside_the_languages_on_the_machine_cannot_be_read(tiered_judge: Judge) -> None:
    home = os.path.dirname(os.__file__)
    places = [f"{home}/site-packages", f"{home}/test", "/usr/lib/python3/dist-packages", "/usr/local/lib/python3.11"]
    places += ["/usr/local/bin", "/usr/local/share", "/usr/share/doc", "/usr/src", "/usr/lib/systemd", "/opt"]
    assert is_right(tiered_judge, FINDS.format(places=places))


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


def test_a_crash_is_told_to_nobody_on_the_machine(tiered_judge: Judge) -> None:
    limits = "((1, 1),)" if os.geteuid() == 0 else "((1, 1), (0, 0))"
    assert is_right(
        tiered_judge,
        "import resource\nresource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"
        "resource.prlimit(0, resource.RLIMIT_CORE, (0, 0))\n"
        f"print('ok' if resource.getrlimit(resource.RLIMIT_CORE) in {limits} else 'no')\n",
    )


# --- other processes --------------------------------------------------------------------------------------------------


def test_no_signal_is_caught_by_who_keeps_a_run(tiered_judge: Judge) -> None:
    """Where the kernel does not scope signals, a namespace's pid 1 gets from inside those that it has a handler for."""
    keepers = psutil.Process(tiered_judge.jail.process.pid)
    for process in [keepers, *keepers.children(recursive=True)]:
        caught = re.search(r"SigCgt:\t(\w+)", Path(f"/proc/{process.pid}/status").read_text())
        assert caught
        assert int(caught[1], 16) & (1 << signal.SIGINT - 1) == 0


@contextmanager
def neighbours(count: int) -> Iterator[None]:
    """Threads of this process, whose user is also the programs' in tier B without root: the kernel counts by user."""
    end = threading.Event()
    threads = [threading.Thread(target=end.wait) for _ in range(count)]
    for thread in threads:
        thread.start()
    yield
    end.set()
    for thread in threads:
        thread.join()


@contextmanager
def begun(jail: Jail, run: JailedRun) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """A run that has said that it has begun; its input and its output."""
    (to_read, to_write), (from_read, from_write) = os.pipe(), os.pipe()
    with open(to_write, "wb", 0) as go, open(from_read, "rb", 0) as said:
        jail.start(replace(run, pipes=(to_read, from_write)))
        for fd in (to_read, from_write):
            os.close(fd)
        assert said.readline() == b"begun\n"
        yield go, said


def test_threads_that_the_user_starts_meanwhile_do_not_count_as_the_programs(tiered_jail: Jail) -> None:
    run = python(
        "import threading\nprint('begun', flush=True)\ninput()\n"
        "for k in range(4):\n    worker = threading.Thread(target=int)\n    worker.start()\n    worker.join()\n"
        "print('ok')\n",
        Limits(cpu_s=8, wall_s=40, processes=8),
    )
    with begun(tiered_jail, run) as (go, said), neighbours(150):
        go.write(b"\n")
        done = tiered_jail.finish()
        assert (done.exit_code, said.readline()) == (0, b"ok\n"), done.stderr


FEW = Limits(cpu_s=5, wall_s=30, processes=16)
MANY = "i=0; while [ $i -lt 100 ]; do sleep 60 & i=$((i+1)); done"
best_tier = jail_of("A", wide("B"))


def test_a_run_gains_nothing_by_other_processes_of_its_user_that_end_meanwhile(best_tier: Jail) -> None:
    with ExitStack() as others:
        others.enter_context(neighbours(200))
        with begun(best_tier, shell(f"echo begun; read go; {MANY}; sleep 60", FEW)) as (go, _):
            others.close()
            go.write(b"\n")
            done = best_tier.finish()
    refused = done.exit_code == 2 and b"Cannot fork" in done.stderr
    assert refused or done.cause == "processes"


def test_more_processes_than_a_run_may_have_are_its_end_where_they_are_not_refused() -> None:
    with Jail("C") as jail:  # as root, nothing is refused there; else, little
        for script in (f"{MANY}; sleep 60", f"{MANY} & sleep 60", MANY):
            assert jail.run(shell(script, FEW)).cause == "processes"
        assert jail.run(shell("sleep 60 & sleep 60 & echo ok", FEW)).stdout == b"ok\n"

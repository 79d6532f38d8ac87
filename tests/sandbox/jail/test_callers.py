"""What a caller's process has (umask, limits, signals, descriptors, temp folder) changes no verdict.

Where something cannot be had, one line says what to do, and no program is blamed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT
from wide import wide

CALLER = """
import asyncio, dataclasses, os, resource, signal, sys, tempfile
from sandbox import Case, Limits, Pool, Problem, Program, SandboxError
from sandbox.build.builder import Builder
from sandbox.jail.jail import Jail
from sandbox.judging.judge import Judge
from sandbox.languages.table import LANGUAGES

tier, way, told = sys.argv[1:]
run = asyncio.run
{setting}

SOURCES = (
    ("python", "print(int(input()) + 1)"),
    ("python", "import multiprocessing\\ndef f(x): return x + 1\\nif __name__ == '__main__':\\n"
     "    with multiprocessing.get_context('spawn').Pool(1) as pool: print(*pool.map(f, [int(input())]))"),
    ("cpp", "#include <{header}>\\nint main() {{ int x; scanf(\\"%d\\", &x); printf(\\"%d\\", x + 1); }}"),
)
LIMITS = Limits(cpu_s=10, wall_s=60)
problem = Problem("p", "stdio", tuple(Case(str(x), str(x + 1)) for x in range(3)), limits=LIMITS)
programs = [Program(source, language) for language, source in SOURCES]

async def in_pool():
    async with Pool(1, isolation=tier) as pool:
        return [await pool.judge(problem, program) for program in programs]

def in_jail():
    LANGUAGES["cpp"] = dataclasses.replace(LANGUAGES["cpp"], header="cstdio")  # what is compiled ahead is short
    place = tempfile.mkdtemp()
    os.chmod(place, 0o711)
    builder = Builder(os.path.join(place, "built"))
    with Jail(tier, shared=builder.shared) as jail:
        return [Judge(jail, builder).judge(problem, program) for program in programs]

try:
    done = run(in_pool()) if way == "pool" else in_jail()
    answer = " ".join(each.verdict + each.compile_log for each in done)
except SandboxError as error:
    answer = f"{{type(error).__name__}}: {{error}}"
with open(told, "w") as file:
    file.write(answer)
"""
SETTINGS = {
    "umask 077": "os.umask(0o077)",
    "no descriptors 0 to 2": "for fd in range(3): os.close(fd)",
    "64 open files": "resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))",
    "umask 777": "os.umask(0o777)",
    "umask 0": "os.umask(0)",
    "no standard output": "os.close(1)",
    "small files": "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))",
    "little CPU": "resource.setrlimit(resource.RLIMIT_CPU, (2, resource.getrlimit(resource.RLIMIT_CPU)[1]))",
    "a small stack": "resource.setrlimit(resource.RLIMIT_STACK, (1 << 17, resource.RLIM_INFINITY))",
    "signals ignored": "for n in {*range(1, 32)} - {9, 17, 19}: signal.signal(n, signal.SIG_IGN)",
    "signals blocked": "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))",
    "children that nobody waits for": "signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
    "no environment": "os.environ.clear()",
    "no working directory": "os.chdir(tempfile.mkdtemp()); os.rmdir(os.getcwd())",
    "uvloop": "import uvloop; run = uvloop.run",
}  # fmt: skip


def answer(setting: str, tier: str, way: str, place: Path, *before: str) -> str:
    """What a caller gets in whose process `setting` was run first. `before`: a command that starts it."""
    told = place / "told"
    header = "bits/stdc++.h" if setting == SETTINGS["umask 077"] and way == "pool" else "cstdio"
    argv = [*before, sys.executable, "-c", CALLER.format(setting=setting, header=header), tier, way, str(told)]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "TMPDIR": str(place)}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    return told.read_text()


ROWS = [(name, tier, way) for name in SETTINGS for tier in "AB" for way in ("jail", "pool")]


@pytest.mark.parametrize(
    ("name", "tier", "way"), [*ROWS[:12:4], *(wide(*row) for row in ROWS if row not in ROWS[:12:4])]
)
def test_what_a_callers_process_has_changes_no_verdict(name: str, tier: str, way: str, tmp_path: Path) -> None:
    tmp_path.chmod(0o711)
    assert answer(SETTINGS[name], tier, way, tmp_path) == "AC AC AC"


FEW = "resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))"


@pytest.mark.parametrize("way", ["jail", "pool"])
def test_too_few_open_files_are_told_with_the_way_out(way: str, tmp_path: Path) -> None:
    said = answer(FEW, "A", way, tmp_path)
    if said != "AC AC AC":  # root may raise the limit, where it has the capability
        assert said.startswith("SandboxError: ")
        assert said.endswith(
            " cannot be started: at most 200 files may be open at once, and 256 are needed; "
            "raise the limit on open files (ulimit -n)"
        )


# what is mounted for a caller alone, and its answer or the end of it
PLACES = {
    "no /dev/shm": ("none /dev/shm -o ro", "AC AC AC"),
    "a temp folder with little room": ('none "$TMPDIR" -o size=64k', "AC AC AC"),
    "a full temp folder": ('none "$TMPDIR" -o nr_inodes=1', "; free space there, or set TMPDIR to another folder"),
    "a read-only temp folder": ('none "$TMPDIR" -o ro', "; set TMPDIR to a folder that can be written to"),
}


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts")
@pytest.mark.parametrize("name", PLACES)
def test_where_a_caller_cannot_write_it_is_told_what_to_do(name: str, tmp_path: Path) -> None:
    mount, ending = PLACES[name]
    temp = tmp_path / "temp"
    temp.mkdir(mode=0o711)
    mounted = f'export TMPDIR={temp}; mount -t tmpfs {mount} && exec "$@"'
    setting = "tempfile.tempdir = os.environ['TMPDIR']"  # which `tempfile` would replace, where it sees in time
    said = answer(setting, "A", "pool", tmp_path, "unshare", "-m", "sh", "-c", mounted, "sh")
    assert said.endswith(ending), said

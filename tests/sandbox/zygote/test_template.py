"""A program's later runs come from its template: each is still a fresh process that nothing of the others can reach."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from jailed_runs import python, shell
from tiers import jail_of
from toolchains import need
from wide import wide

from sandbox.build.builder import Builder
from sandbox.core.nouns import Case, Judgement, Limits, Program
from sandbox.core.problem import Problem
from sandbox.errors import Cancelled
from sandbox.jail.jail import Jail
from sandbox.jail.run import JailedRun
from sandbox.judging.judge import Judge
from sandbox.kernel.linux import new_memfd, seal_memfd
from sandbox.languages.table import LANGUAGES, find_language

jail = jail_of("A", wide("B"))

CASES = 6
LIMITS = Limits(cpu_s=2, wall_s=20)
ALL = "AC AC AC AC AC AC"
has_templates = pytest.mark.skipif(
    os.geteuid() != 0, reason="as an ordinary user a keeper has its programs' uid, forks each run itself and is counted"
)


@pytest.fixture
def judge(jail: Jail, tmp_path: Path) -> Judge:
    return Judge(jail, Builder(str(tmp_path)), stop_at_first_failure=False)


def judged(
    judge: Judge, source: str, language: str = "python", expected: str = "", limits: Limits = LIMITS
) -> Judgement:
    """Each case's input is its number, which is also the answer where no other is expected."""
    cases = tuple(Case(f"{k}\n", expected or f"{k}\n") for k in range(CASES))
    return judge.judge(Problem("series", "stdio", cases, limits=limits), Program(source, language))


def verdicts(done: Judgement) -> str:
    return " ".join(case.verdict.name for case in done.cases)


# --- what the runs of a program come to -------------------------------------------------------------------------------


def row(what: str, source: str, want: str = ALL, *, marks: Any = (), **how: Any) -> Any:
    return pytest.param(source, want, how, id=what, marks=marks)


SIGNALS = """
import os
for pid in range(1, 60000):
    if pid != os.getpid():
        try:
            os.kill(pid, {number})
        except OSError:
            continue
        print('reached', pid)
try:
    os.kill(-1, {number})
except OSError:
    pass
print(input())
"""
NATIVE = """#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>
int k;
%s
int main() { if (scanf("%%d", &k) != 1) return 1; %s; printf("%%d\\n", k); }
"""
CRIPPLES = """
#include <sys/resource.h>
void cripple() { struct rlimit none = {0, 0};
    if (getppid() != 1) prlimit(getppid(), RLIMIT_NOFILE, &none, 0); }
"""
REACHES = """
#include <dirent.h>
#include <errno.h>
#include <sys/syscall.h>
char path[64];
int opens(const char *what, int mode) {
    sprintf(path, "/proc/%d/%s", getppid(), what); return open(path, mode) >= 0; }
int lists() { sprintf(path, "/proc/%d/fd", getppid()); DIR *d = opendir(path); int n = 0;
    if (d) while (readdir(d)) n++; return n > 0; }
int reaches(int fd) { char c; sprintf(path, "/proc/%d/fd/%d", getppid(), fd);
    return open(path, O_RDWR) >= 0 || readlink(path, &c, 1) > 0; }
int any() { for (int fd = 0; fd < 1024; fd++) if (reaches(fd)) return 1; return 0; }
"""
WAYS = 'opens("mem", O_RDWR) + opens("mem", O_RDONLY) + opens("environ", O_RDONLY) + lists() + any()'
COUNTS = """
int count() { int n = 0; for (;;) { int p = fork(); if (p < 0) return n; if (!p) pause(); n++; } }
int opened() { int n = 0; for (int fd = 0; fd < 1024; fd++) n += fcntl(fd, F_GETFD) != -1; return n; }
"""
NINE = Limits(cpu_s=2, wall_s=20, processes=9)


@pytest.mark.parametrize(
    ("source", "want", "how"),
    [
        row("finds nothing that another left", """
import builtins, os, sys
seen = hasattr(builtins, 'mark') or 'mark' in os.environ or os.listdir('.') != ['main.py']
seen = seen or len(vars(sys.modules['__main__'])) > 13
builtins.mark = os.environ['mark'] = '1'
open('mark', 'w').close()
print('found' if seen else input())
"""),
        row("kills all that it can name", SIGNALS.format(number=int(signal.SIGKILL))),
        row("stops all that it can name", SIGNALS.format(number=int(signal.SIGSTOP)), marks=pytest.mark.wide),
        row("as many processes as the first", """
import os, signal
count = 0
try:
    while True:
        if os.fork() == 0:
            signal.pause()
        count += 1
except OSError:
    print(count)
""", expected="8", limits=NINE, marks=has_templates),
        row("its own session, and no descriptor but its streams", """
import os
def opened(fd):
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True
print(os.getsid(0) == os.getpid(), [fd for fd in range(1024) if opened(fd)])
""", expected="True [0, 1, 2, 3, 4]"),
        row("the same chance", """
import random
first = random.random()
random.seed(0)
print(first == random.random(), hash('a') % 7 >= 0)
""", expected="True True"),
        row("one makes a forbidden call",
            "import ctypes\nk = input()\nif k == '2':\n    ctypes.CDLL(None).unshare(0x10000000)\nprint(k)\n",
            "AC AC SEC AC AC AC"),
        row("native: one aborts, and none finds a file",
            NATIVE % ("", 'if (open("mark", O_CREAT | O_EXCL, 0600) < 0) return 1; if (k == 3) abort()'),
            "AC AC AC RE AC AC", language="cpp"),
        row("native: may kill its template and gains nothing",
            NATIVE % ("", 'if (k != 2) { printf("before"); fflush(stdout); } if (getppid() != 1) '
                          "kill(getppid(), SIGKILL); usleep(50000)"), "WA WA AC WA WA WA", language="cpp"),
        row("native: kills everybody", NATIVE % ("", "kill(-1, SIGKILL)"), language="cpp"),
        # What goes wrong in the template then is no fault of ours, and costs no more than a run without one.
        row("native: cripples its template", NATIVE % (CRIPPLES, "cripple()"), language="cpp"),
        # Whoever held its socket could tell the zygote how a run ended.
        row("native: finds no way into its template", NATIVE % (REACHES, f"k = k < 0 ? 0 : {WAYS}"), language="cpp",
            expected="0", marks=has_templates),
        row("native: as many processes and descriptors as the first",
            NATIVE % (COUNTS, "k = 1000 * (getsid(0) == getpid()) + 100 * opened() + count()"), language="cpp",
            expected="1308", limits=NINE, marks=has_templates),
    ],
)  # fmt: skip
def test_each_run_of_a_program(judge: Judge, source: str, want: str, how: dict[str, Any]) -> None:
    done = judged(judge, source, **how)
    assert verdicts(done) == want, done.cases


@pytest.mark.promise("leftovers")
def test_what_a_run_leaves_behind_is_ended_before_the_next(judge: Judge) -> None:
    done = judged(judge, "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(60)\nprint(input())\n")
    assert verdicts(done) == ALL
    assert sum(case.wall_s for case in done.cases) < 20


def test_a_run_that_breaks_a_limit_is_charged_alone(judge: Judge) -> None:
    source = "k = input()\nwhile k == '3':\n    pass\nwhile k == '4':\n    x = bytearray(1 << 30)\nprint(k)\n"
    done = judged(judge, source, limits=Limits(cpu_s=1, wall_s=20, memory_bytes=256 << 20))
    assert verdicts(done) == "AC AC AC TLE MLE AC"
    assert done.cases[3].cpu_s >= 1
    assert all(case.cpu_s < 0.5 for case in done.cases if case.index != 3)


def test_every_run_has_its_own_streams_whatever_else_is_sent_along(judge: Judge) -> None:
    """With files that a case brings, its run comes with a descriptor more."""
    source = "import os, sys\nprint(input(), os.path.exists('given'))\nprint(input(), file=sys.stderr)\n"
    cases = tuple(
        Case(f"{k}\nno output\n", f"{k} {bool(k % 2)}\n", files=(("given", "content"),) * (k % 2)) for k in range(CASES)
    )
    done = judge.judge(Problem("series", "stdio", cases, limits=LIMITS), Program(source))
    assert verdicts(done) == ALL, done.cases


@pytest.mark.parametrize("language", ["python", "cpp", *map(wide, LANGUAGES)])
def test_every_language_has_a_template(judge: Judge, language: str) -> None:
    need(language)
    cases = tuple(Case(f"{k} 4\n", f"{k + 4 if k != 3 else 0}\n") for k in range(5))
    source = find_language(language).samples.adds
    done = judge.judge(Problem("sums", "stdio", cases, limits=LIMITS), Program(source, language))
    assert verdicts(done) == "AC AC AC WA AC"


@has_templates
def test_a_native_program_that_stops_its_template_meets_the_wall_limit(tmp_path: Path) -> None:
    with Jail("A") as jail:
        judge = Judge(jail, Builder(str(tmp_path)), stop_at_first_failure=False)
        source = NATIVE % ("", "if (k == 2 && getppid() != 1) kill(getppid(), SIGSTOP)")
        done = judged(judge, source, "cpp", limits=Limits(cpu_s=1, wall_s=1))
    assert verdicts(done) == "AC AC TLE AC AC AC"


def test_what_a_native_run_leaves_behind_is_ended_and_charged(judge: Judge) -> None:
    helper = (
        "#include <time.h>\n"
        "void leave() { int ends[2]; char c; pipe(ends); if (fork() == 0) { setsid();\n"
        "    while (clock() < CLOCKS_PER_SEC / 10) ; write(ends[1], &c, 1); for (;;) ; } read(ends[0], &c, 1); }\n"
    )
    done = judged(judge, NATIVE % (helper, "leave()"), "cpp", limits=Limits(cpu_s=5, wall_s=60))
    assert verdicts(done) == ALL
    assert all(case.cpu_s > 0.05 for case in done.cases)


# --- the life of a template -------------------------------------------------------------------------------------------


def program(jail: Jail, source: str, runs: int, number: int = 7) -> Generator[JailedRun, None, None]:
    """The runs of one program, as a judge makes them."""
    code = new_memfd("code")
    try:
        for left in range(runs, 0, -1):
            yield python(source, LIMITS, code=code, series=(0, 0) if left == runs else (number, left))
            seal_memfd(code)
    finally:
        os.close(code)
        jail.forget()


def inside(jail: Jail) -> list[psutil.Process]:
    """What lives in the jail beside its zygote."""
    return psutil.Process(jail.process.pid).children(recursive=True)


def settled(jail: Jail) -> int:
    """How many live in it when it has read all that it was told: a run is answered after what was said before it."""
    jail.run(shell("true"))
    return len(inside(jail))


def test_when_the_program_is_done_with_its_template_is_gone(jail: Jail) -> None:
    before = settled(jail)
    for run in program(jail, "pass", 4):
        assert jail.run(run).exit_code == 0
    assert settled(jail) == before


def test_a_cancelled_run_leaves_no_template(jail: Jail) -> None:
    before = settled(jail)
    readable, other = os.pipe()
    os.close(other)
    runs = program(jail, "import time\ntime.sleep(0.1)", 4)
    for run in runs:
        jail.start(run)
        with suppress(Cancelled):
            jail.finish(cancel_fd=readable if run.series[1] == 2 else None)
    os.close(readable)
    runs.close()
    assert settled(jail) == before


@has_templates
def test_a_run_whose_template_is_killed_is_done_once_more_without_one(jail: Jail) -> None:
    with Jail(jail.tier) as other:
        before = {process.pid for process in inside(other)}
        runs = program(other, "print('x' * 10)", 5)
        other.run(next(runs))
        other.run(next(runs))
        template = next(process for process in inside(other) if process.pid not in before)
        template.kill()
        assert [other.run(run).stdout for run in runs] == [b"xxxxxxxxxx\n"] * 3


@has_templates
def test_with_the_zygote_dies_all_that_it_had(jail: Jail) -> None:
    with Jail(jail.tier) as other:
        runs = program(other, "pass", 5)
        for _ in range(2):
            other.run(next(runs))
        lived = inside(other)
        assert len(lived) >= 3
        psutil.Process(other.process.pid).kill()
        _, alive = psutil.wait_procs(lived, timeout=10)
        assert not alive
        runs.close()

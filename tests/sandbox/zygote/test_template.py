"""A program's later runs come from its template: each is still a fresh process that nothing of the others can reach."""

from __future__ import annotations

import marshal
import os
import signal
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from tiers import jail_of
from toolchains import need
from wide import wide

from sandbox.build import Builder
from sandbox.core import Case, Judgement, Limits, Problem, Program, Verdict
from sandbox.errors import Cancelled
from sandbox.jail.jail import Jail
from sandbox.jail.run import JailedRun
from sandbox.judging import Judge
from sandbox.kernel.memfd import new_memfd, seal_memfd
from sandbox.languages import LANGUAGES, find_language

tiered_jail = jail_of("A", wide("B"))

CASES = 6
LIMITS = Limits(cpu_s=2, wall_s=20)
REPORT = "print(input())\n"


@pytest.fixture(scope="module")
def jail(tiered_jail: Jail) -> Jail:
    return tiered_jail


@pytest.fixture
def judge(jail: Jail, tmp_path: Path) -> Judge:
    return Judge(jail, Builder(str(tmp_path)), stop_at_first_failure=False)


has_templates = pytest.mark.skipif(
    os.geteuid() != 0, reason="as an ordinary user a keeper has its programs' uid, forks each run itself and is counted"
)


def judged(
    judge: Judge, source: str, language: str = "python", expected: str = "", limits: Limits = LIMITS
) -> Judgement:
    cases = tuple(Case(f"{k}\n", expected or f"{k}\n") for k in range(CASES))
    return judge.judge(Problem("series", "stdio", cases, limits=limits), Program(source, language))


def verdicts(done: Judgement) -> str:
    return " ".join(case.verdict.name for case in done.cases)


def program(jail: Jail, source: str, runs: int, number: int = 7) -> Generator[JailedRun, None, None]:
    """The runs of one program, as a judge makes them."""
    code = new_memfd("code")
    job = marshal.dumps({"kind": "stdio", "preamble": "", "source": source})
    try:
        for left in range(runs, 0, -1):
            series = (0, 0) if left == runs else (number, left)
            yield JailedRun(LIMITS, b"", job=job + bytes(32), code=code, series=series)
            seal_memfd(code)
    finally:
        os.close(code)
        jail.forget()


def inside(jail: Jail) -> list[psutil.Process]:
    """What lives in the jail beside its zygote."""
    return psutil.Process(jail.process.pid).children(recursive=True)


def settled(jail: Jail) -> int:
    """How many live in it when it has read all that it was told: a run is answered after what was said before it."""
    jail.run(JailedRun(LIMITS, argv=("/bin/true",)))
    return len(inside(jail))


def test_no_run_finds_what_another_left(judge: Judge) -> None:
    source = (
        "import builtins, os, sys\n"
        "seen = hasattr(builtins, 'mark') or 'mark' in os.environ or os.listdir('.')\n"
        "seen = seen or len(vars(sys.modules['__main__'])) > 13\n"
        "builtins.mark = os.environ['mark'] = '1'\n"
        "open('mark', 'w').close()\n"
        "print('found' if seen else input())\n"
    )
    assert verdicts(judged(judge, source)) == " ".join(["AC"] * CASES)


@pytest.mark.parametrize("number", [signal.SIGKILL, wide(signal.SIGSTOP)])
def test_a_program_that_signals_all_it_can_name_reaches_no_run_but_its_own(judge: Judge, number: int) -> None:
    source = (
        "import os\n"
        "for pid in range(1, 60000):\n"
        "    if pid != os.getpid():\n"
        "        try:\n"
        f"            os.kill(pid, {number})\n"
        "        except OSError:\n"
        "            continue\n"
        "        print('reached', pid)\n"
        "try:\n"
        f"    os.kill(-1, {number})\n"
        "except OSError:\n"
        "    pass\n" + REPORT
    )
    assert verdicts(judged(judge, source)) == " ".join(["AC"] * CASES)


def test_what_a_run_leaves_behind_is_ended_before_the_next(judge: Judge) -> None:
    source = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(60)\n" + REPORT
    done = judged(judge, source)
    assert verdicts(done) == " ".join(["AC"] * CASES)
    assert sum(case.wall_s for case in done.cases) < 20


def test_a_run_that_breaks_a_limit_is_charged_alone(judge: Judge) -> None:
    source = "k = input()\nwhile k == '3':\n    pass\nwhile k == '4':\n    x = bytearray(1 << 30)\nprint(k)\n"
    done = judged(judge, source, limits=Limits(cpu_s=1, wall_s=20, memory_bytes=256 << 20))
    assert verdicts(done) == "AC AC AC TLE MLE AC"
    assert done.cases[3].cpu_s >= 1
    assert all(case.cpu_s < 0.5 for case in done.cases if case.index != 3)


@has_templates
def test_every_run_may_start_as_many_processes_as_the_first(judge: Judge) -> None:
    source = (
        "import os, signal\n"
        "count = 0\n"
        "try:\n"
        "    while True:\n"
        "        if os.fork() == 0:\n"
        "            signal.pause()\n"
        "        count += 1\n"
        "except OSError:\n"
        "    print(count)\n"
    )
    limits = Limits(cpu_s=2, wall_s=20, processes=9)
    assert verdicts(judged(judge, source, expected="8", limits=limits)) == " ".join(["AC"] * CASES)


def test_every_run_has_its_own_session_and_no_descriptor_but_its_streams(judge: Judge) -> None:
    source = (
        "import os\n"
        "def opened(fd):\n"
        "    try:\n"
        "        os.fstat(fd)\n"
        "    except OSError:\n"
        "        return False\n"
        "    return True\n"
        "print(os.getsid(0) == os.getpid(), [fd for fd in range(1024) if opened(fd)])\n"
    )
    assert verdicts(judged(judge, source, expected="True [0, 1, 2, 3, 4]")) == " ".join(["AC"] * CASES)


def test_every_run_has_its_own_streams_whatever_else_is_sent_along(judge: Judge) -> None:
    """With files that a case brings, its run comes with a descriptor more."""
    source = "import os, sys\nprint(input(), os.path.exists('given'))\nprint(input(), file=sys.stderr)\n"
    cases = tuple(
        Case(f"{k}\nno output\n", f"{k} {bool(k % 2)}\n", files=(("given", "content"),) * (k % 2)) for k in range(CASES)
    )
    done = judge.judge(Problem("series", "stdio", cases, limits=LIMITS), Program(source))
    assert verdicts(done) == " ".join(["AC"] * CASES), done.cases


def test_chance_is_the_same_in_every_run(judge: Judge) -> None:
    source = (
        "import random\nfirst = random.random()\nrandom.seed(0)\nprint(first == random.random(), hash('a') % 7 >= 0)\n"
    )
    assert verdicts(judged(judge, source, expected="True True")) == " ".join(["AC"] * CASES)


def test_a_native_program_has_a_template_too(judge: Judge) -> None:
    source = (
        "#include <cstdio>\n#include <cstdlib>\n#include <fcntl.h>\n"
        'int main() { int k; if (scanf("%d", &k) != 1 || open("mark", O_CREAT | O_EXCL, 0600) < 0) return 1;\n'
        'if (k == 3) abort(); printf("%d\\n", k); }\n'
    )
    done = judged(judge, source, "cpp")
    assert verdicts(done) == "AC AC AC RE AC AC"
    assert "SIGABRT" in done.cases[3].message


@pytest.mark.parametrize("language", ["python", "cpp", *map(wide, LANGUAGES)])
def test_every_language_has_a_template(judge: Judge, language: str) -> None:
    need(language)
    cases = tuple(Case(f"{k} 4\n", f"{k + 4 if k != 3 else 0}\n") for k in range(5))
    done = judge.judge(
        Problem("sums", "stdio", cases, limits=LIMITS), Program(find_language(language).samples.adds, language)
    )
    assert verdicts(done) == "AC AC AC WA AC"


def test_a_forbidden_call_ends_one_run(judge: Judge) -> None:
    source = "import ctypes\nk = input()\nif k == '2':\n    ctypes.CDLL(None).unshare(0x10000000)\nprint(k)\n"
    assert verdicts(judged(judge, source)) == "AC AC SEC AC AC AC"


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


NATIVE = """#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>
int k;
%s
int main() { if (scanf("%%d", &k) != 1) return 1; %s; printf("%%d\\n", k); }
"""


def test_a_native_program_may_kill_its_template_and_gains_nothing(judge: Judge) -> None:
    body = (
        'if (k != 2) { printf("before"); fflush(stdout); } if (getppid() != 1) kill(getppid(), SIGKILL); usleep(50000)'
    )
    done = judged(judge, NATIVE % ("", body), "cpp")
    assert verdicts(done) == "WA WA AC WA WA WA"
    done = judged(judge, NATIVE % ("", "kill(-1, SIGKILL)"), "cpp")
    assert verdicts(done) == " ".join(["AC"] * CASES)


def test_a_native_program_that_cripples_its_template_is_judged_all_the_same(judge: Judge) -> None:
    """What goes wrong in the template then is no fault of ours, and costs no more than a run without one."""
    helper = (
        "#include <sys/resource.h>\n"
        "void cripple() { struct rlimit none = {0, 0};\n"
        "    if (getppid() != 1) prlimit(getppid(), RLIMIT_NOFILE, &none, 0); }\n"
    )
    assert verdicts(judged(judge, NATIVE % (helper, "cripple()"), "cpp")) == " ".join(["AC"] * CASES)


@has_templates
def test_a_native_program_finds_no_way_into_its_template(judge: Judge) -> None:
    """Whoever held its socket could tell the zygote how a run ended."""
    helpers = (
        "#include <dirent.h>\n#include <errno.h>\n#include <sys/syscall.h>\n"
        "char path[64];\n"
        "int opens(const char *what, int mode) {\n"
        '    sprintf(path, "/proc/%d/%s", getppid(), what); return open(path, mode) >= 0; }\n'
        'int lists() { sprintf(path, "/proc/%d/fd", getppid()); DIR *d = opendir(path); int n = 0;\n'
        "    if (d) while (readdir(d)) n++; return n > 0; }\n"
        'int reaches(int fd) { char c; sprintf(path, "/proc/%d/fd/%d", getppid(), fd);\n'
        "    return open(path, O_RDWR) >= 0 || readlink(path, &c, 1) > 0; }\n"
        "int any() { for (int fd = 0; fd < 1024; fd++) if (reaches(fd)) return 1; return 0; }\n"
    )
    ways = ['opens("mem", O_RDWR)', 'opens("mem", O_RDONLY)', 'opens("environ", O_RDONLY)', "lists()", "any()"]
    source = NATIVE % (helpers, f"k = k < 0 ? 0 : {' + '.join(ways)}")
    assert verdicts(judged(judge, source, "cpp", expected="0")) == " ".join(["AC"] * CASES)


@has_templates
def test_a_native_program_that_stops_its_template_meets_the_wall_limit(tmp_path: Path) -> None:
    with Jail("A") as jail:
        judge = Judge(jail, Builder(str(tmp_path)), stop_at_first_failure=False)
        source = NATIVE % ("", "if (k == 2 && getppid() != 1) kill(getppid(), SIGSTOP)")
        done = judged(judge, source, "cpp", limits=Limits(cpu_s=1, wall_s=1))
    assert verdicts(done) == "AC AC TLE AC AC AC"


@has_templates
def test_every_native_run_may_start_as_many_processes_and_has_as_many_descriptors_as_the_first(judge: Judge) -> None:
    count = (
        "int count() { int n = 0; for (;;) { int p = fork(); if (p < 0) return n; if (!p) pause(); n++; } }\n"
        "int opened() { int n = 0; for (int fd = 0; fd < 1024; fd++) n += fcntl(fd, F_GETFD) != -1; return n; }\n"
    )
    source = NATIVE % (count, "k = 1000 * (getsid(0) == getpid()) + 100 * opened() + count()")
    limits = Limits(cpu_s=2, wall_s=20, processes=9)
    assert verdicts(judged(judge, source, "cpp", expected="1308", limits=limits)) == " ".join(["AC"] * CASES)


def test_what_a_native_run_leaves_behind_is_ended_and_charged(judge: Judge) -> None:
    helper = (
        "#include <time.h>\n"
        "void leave() { int ends[2]; char c; pipe(ends); if (fork() == 0) { setsid();\n"
        "    while (clock() < CLOCKS_PER_SEC / 10) ; write(ends[1], &c, 1); for (;;) ; } read(ends[0], &c, 1); }\n"
    )
    done = judged(judge, NATIVE % (helper, "leave()"), "cpp", limits=Limits(cpu_s=5, wall_s=60))
    assert verdicts(done) == " ".join(["AC"] * CASES)
    assert all(case.cpu_s > 0.05 for case in done.cases)


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


def test_a_verdict_does_not_depend_on_where_a_case_stands(judge: Judge) -> None:
    source = "k = int(input())\nx = [0] * (10 ** 5)\nprint(k if k % 2 else 'no')\n"
    done = judged(judge, source)
    assert [case.verdict for case in done.cases] == [Verdict.AC if k % 2 else Verdict.WA for k in range(CASES)]

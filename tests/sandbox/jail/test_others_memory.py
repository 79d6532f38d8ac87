"""Memory that others have used up, and a kill by somebody else, are no verdict: the run is made again."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import psutil
import pytest
from places import ROOT
from tiers import jail_of
from toolchains import need
from wide import wide

from sandbox.core.nouns import MIB, Case, Limits, Program, Verdict
from sandbox.core.problem import Problem
from sandbox.errors import Starved
from sandbox.jail.jail import Jail
from sandbox.jail.run import JailedRun
from sandbox.judging.judge import Judge
from sandbox.kernel import cgroup

tiered_jail = jail_of("A", wide("B"))

TAKES = "held = b'x' * (300 << 20)\nprint(3)"
CHILD = """
import os
child = os.fork()
if child == 0:
    held = b'x' * (300 << 20)
    os._exit(3)
print(os.waitstatus_to_exitcode(os.wait()[1]))
"""
SMALL = "held = b'x' * (20 << 20)\nprint(3)"
TWO_MILLION = "A(" * 7 + '"a"' + ")" * 7
COMPILER = f"#define A(x) x x x x x x x x\nchar *s = {TWO_MILLION};\nint main(void) {{ return !s; }}"


def judged_below(container: str, tier: str, programs: list[tuple[str, str]], *, grouped: bool) -> list[str]:
    """The verdict, or the type of the error, of each program, where a container of 200 MiB is around the judge."""
    code = f"""
        import sandbox
        limits = sandbox.Limits(cpu_s=20, wall_s=60, memory_bytes={512 * MIB})
        problem = sandbox.Problem("memory", "stdio", (sandbox.Case("", "3"),), limits=limits)
        for language, source in {programs!r}:
            try:
                print(sandbox.judge(problem, sandbox.Program(source, language), isolation={tier!r}).verdict)
            except sandbox.SandboxError as error:
                print(type(error).__name__)
    """
    hide = "true" if grouped else "umount -l /sys/fs/cgroup"  # a container that hands on no group
    script = f'echo $$ > {container}/cgroup.procs && {hide} && exec "$@"'
    command = ["unshare", "-m", "sh", "-c", script, "sh", sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a group around the judge")
@pytest.mark.parametrize("grouped", [True, False], ids=["with a group", "without"])
def test_a_container_without_memory_gives_no_verdict(tiered_jail: Jail, grouped: bool) -> None:
    need("c")
    layouts = [layout for layout in cgroup._layouts() if layout.version == 1]
    if not layouts:
        pytest.skip("no cgroup v1 here that we may make a group in")
    container = f"{layouts[0].folders[0]}/{tiered_jail.group}.container"
    os.mkdir(container)
    try:
        with open(f"{container}/memory.limit_in_bytes", "w", encoding="ascii") as file:
            file.write(str(200 * MIB))
        programs = [("python", SMALL), ("python", TAKES), ("python", CHILD), ("c", COMPILER)]
        found = judged_below(container, tiered_jail.tier, programs, grouped=grouped)
    finally:
        os.rmdir(container)
    assert found == ["AC", "Starved", "Starved", "Starved"]


def test_who_is_killed_by_somebody_else_runs_again(tiered_jail: Jail) -> None:
    tiered_jail.start(JailedRun(Limits(cpu_s=5, wall_s=60), argv=("/bin/sh", "-c", "sleep 1; echo done")))
    while not (found := [each for each in children(tiered_jail) if each.name() == "sleep"]):
        pass
    found[0].parent().kill()  # type: ignore[union-attr]
    done = tiered_jail.finish()
    assert (done.cause, done.signal, done.stdout) == (None, None, b"done\n")


def children(jail: Jail) -> list[psutil.Process]:
    return psutil.Process(jail.process.pid).children(recursive=True)


@pytest.mark.parametrize(
    ("source", "language"),
    [
        ("import os\nos.kill(os.getpid(), 9)", "python"),
        ("#include <signal.h>\n#include <unistd.h>\nint main(void) { kill(getpid(), SIGKILL); }", "c"),
    ],
)
def test_who_kills_itself_has_a_verdict(tiered_judge: Judge, source: str, language: str) -> None:
    need(language)
    done = tiered_judge.judge(Problem("kills", "stdio", (Case("", "3"),) * 2), Program(source, language))
    assert (done.verdict, done.cases[0].message) == (Verdict.RE, "ended by SIGKILL")


def test_without_a_group_a_kill_anywhere_is_a_doubt(
    tiered_jail: Jail, tiered_judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    kills = iter([1, 2, 2, 3, 3])
    monkeypatch.setattr(tiered_jail._tree, "_grouped", False)
    monkeypatch.setattr(tiered_jail._tree, "_oom_kills", 1)
    monkeypatch.setattr(cgroup, "machine_oom_kills", lambda: next(kills))
    problem = Problem("doubt", "stdio", (Case("", "3"),))
    assert tiered_judge.judge(problem, Program("print(4)")).verdict is Verdict.WA
    for source in ("print(4)", "exit(1)"):
        with pytest.raises(Starved):
            tiered_judge.judge(problem, Program(source))
        assert tiered_judge.judge(problem, Program(source)).verdict in (Verdict.WA, Verdict.RE)
    assert tiered_judge.judge(problem, Program("print(3)")).verdict is Verdict.AC

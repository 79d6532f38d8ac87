"""What a machine is too slow for is no statement about a program, a toolchain or an isolation."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from typing import Any

import pytest
from package_files import RIGHT, TIMED, Packages
from pooling import RIGHT as ADDS
from pooling import SUM, pooled
from toolchains import need

import sandbox
from sandbox import Judgement, Limits, Pool, Problem, Program, Verdict
from sandbox.doctor import doctor
from sandbox.errors import STARVED_MAX, Starved, WorkerDied
from sandbox.jail.jail import Jail
from sandbox.jail.run import RunResult
from sandbox.judging import control, verdicts
from sandbox.judging.judge import Judge
from sandbox.languages import toolchain
from sandbox.languages.table import LANGUAGES, find_language
from sandbox.pool.link import Link, TryFailed
from sandbox.zygote import zygote


@pytest.mark.parametrize("name", [name for name, each in LANGUAGES.items() if not each.warm])
def test_a_compiler_that_gets_no_core_is_tried_again_and_then_a_failure_of_the_sandbox(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    need(name)
    language, tried, judge = find_language(name), list[str](), Judge.judge
    slow = replace(language, compile_limits=replace(language.compile_limits, wall_s=0.001))
    monkeypatch.setitem(LANGUAGES, name, slow)

    def count(self: Judge, problem: Problem, program: Program) -> Judgement:
        tried.append(problem.id)
        return judge(self, problem, program)

    monkeypatch.setattr(Judge, "judge", count)
    with pytest.raises(Starved, match="a compiler used"):
        sandbox.judge(SUM, Program(language.samples.adds, name))
    assert tried == ["sum"] * STARVED_MAX


@pytest.mark.promise("limits")
@pooled(1)
async def test_a_starved_job_is_given_to_another_worker_and_accuses_nobody(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask, left = Link.ask, 1

    async def starve(link: Link, *given: Any) -> Any:
        nonlocal left
        left -= 1
        if left >= 0:
            raise TryFailed(Starved("no core"), handed=True)
        return await ask(link, *given)

    monkeypatch.setattr(Link, "ask", starve)
    assert (await pool.judge(SUM, ADDS)).verdict is Verdict.AC
    left = STARVED_MAX
    with pytest.raises(Starved, match="no core"):
        await pool.judge(SUM, Program("print(7)"))


def test_what_waits_for_a_starved_run_beside_it_has_not_exceeded_its_wall_limit() -> None:
    done = RunResult("wall", None, None, 0.1, 9.0, 0, 0, b"", b"", b"", None)
    with Jail() as jail:
        for cause, lost_s in (("wall", 1.0), (None, 8.0), ("cpu", 8.0)):
            jail.lost_s = lost_s
            verdicts.check_beside(replace(done, cause=cause), Limits(wall_s=9.0), jail)
        with pytest.raises(Starved):
            verdicts.check_beside(done, Limits(wall_s=9.0), jail)


@pytest.mark.parametrize("slow", [subprocess.TimeoutExpired("gcc", 20), subprocess.CompletedProcess("gcc", -9, "")])
def test_a_tool_that_does_not_answer_is_asked_again_and_is_not_missing(
    slow: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[Any] = []

    def answer(*argv: object, **options: object) -> Any:
        if isinstance(said := answers.pop(0), Exception):
            raise said
        return said

    monkeypatch.setattr(subprocess, "run", answer)
    argv = ("gcc", "-dumpfullversion", str(slow))
    answers[:] = [slow, slow]
    with pytest.raises(Starved, match="gcc -dumpfullversion"):
        toolchain._version("gcc", argv)
    answers[:] = [slow, subprocess.CompletedProcess(argv, 0, "12.2.0\n")]
    assert toolchain._version("gcc", argv) == "gcc 12.2.0"


def test_verify_and_doctor_try_a_jail_again_that_does_not_start_in_time(
    packages: Packages, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = 2

    def start(*given: Any, **options: Any) -> Jail:
        nonlocal slow
        slow -= 1
        if slow >= 0:
            raise WorkerDied("the jail's zygote does not answer") if slow else Starved("the proof took too long")
        return Jail(*given, **options)

    monkeypatch.setattr(control, "Jail", start)
    assert packages.verdicts({"problem.yaml": TIMED, **RIGHT}) == {"right.py": "AC"}
    slow = 2
    assert doctor._toolchain("B", find_language("python")).passed


def test_a_submission_for_which_the_machine_is_too_slow_leaves_the_others_their_verdicts(
    packages: Packages, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge = Judge.judge

    def starve(self: Judge, problem: Problem, program: Program) -> Judgement:
        if "slow" in program.source:
            raise Starved("no core")
        return judge(self, problem, program)

    monkeypatch.setattr(Judge, "judge", starve)
    files = {"problem.yaml": TIMED, **RIGHT, "submissions/accepted/slow.py": "slow = 1"}
    lines = packages.lines(files, 2)
    assert lines[-1] == "1 submissions judged, 0 skipped, 1 failed, 0 surprises"
    assert any("FAILED" in line and "no core" in line for line in lines)


def test_no_answer_of_what_doctor_tries_is_no_fault_of_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_PROBE_S", 0.0)
    with pytest.raises(Starved, match="did not answer"):
        doctor.examine()


@pytest.mark.parametrize("cause", ["wall", "starved"])
def test_a_proof_of_confinement_that_takes_too_long_disproves_nothing(
    cause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = object.__new__(zygote.RequestLoop)
    loop.setting = type("Setting", (), {"how": type("How", (), {"tier": "B"})})()
    reply = {"error": "", "cause": cause, "wall_s": 60.0}
    monkeypatch.setattr(zygote.RequestLoop, "run", lambda *given: (reply, []))
    with pytest.raises(TimeoutError, match="60 s"):
        loop.prove()

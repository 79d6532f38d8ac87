"""Tasks, trajectories and a stand-in pool for the tests of the verifier."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from overlap.config.fields import Config, VerifyConfig
from overlap.core import Prompt, Request, Scored, Trajectory, VersionSpan
from overlap.process import process_tree
from overlap.task import Task
from overlap.verify.verifier import PROBE, SandboxVerifier
from sandbox.core.nouns import Case, CaseResult, Judgement, Limits, Program, Verdict
from sandbox.core.problem import Problem

SOON_S = 30.0
ADD = Problem("add", "stdio", (Case("1 2", "3"), Case("4 5", "9")), limits=Limits(cpu_s=1.0))


def trajectory(text: str, sample: int = 0, finish: str = "stop", prefill: str = "") -> Trajectory:
    at = time.monotonic()
    request = Request(0, sample, Prompt("sum", (1,), prefill))
    return Trajectory(request, (5,), (-0.5,), text, finish, (VersionSpan(0, 0, 1),), at, at)  # type: ignore[arg-type]


def judgement(verdict: Verdict = Verdict.AC, problem: Problem = ADD) -> Judgement:
    case = CaseResult(0, verdict, 0.1, 0.1, 1)
    return Judgement(problem.id, verdict, (case,), 1, 1, False, "B", "python", "3.11", "", queue_s=0.25, run_s=0.5)


class Judged(Task):
    """Its answers are programs."""

    def prompts(self, tokenizer: Any, split: str) -> list[Prompt]:
        return []

    def program(self, prompt: Prompt, answer: str) -> tuple[Problem, Program] | None:
        return ADD, Program(answer)

    def reward(self, prompt: Prompt, answer: str, judgement: Judgement | None) -> Any:
        assert judgement is not None
        return float(judgement.verdict is Verdict.AC)


class Worked(Task):
    """Its reward is a function that runs in a worker; ``how`` is what it does."""

    def __init__(self, how: Callable[[str], Any]) -> None:
        self.how = how

    def prompts(self, tokenizer: Any, split: str) -> list[Prompt]:
        return []

    def reward(self, prompt: Prompt, answer: str, judgement: Judgement | None) -> Any:
        return self.how(answer)


def gone(pid: int) -> bool:
    """True also for a zombie: an orphan's new parent reaps it when it likes."""
    process = process_tree.identify(pid)
    return process is None or not process_tree.alive(process)


def hanging() -> subprocess.Popen[bytes]:
    """A process that does not end by itself."""
    return subprocess.Popen(["sleep", "600"])


Answer = Callable[[Program], Awaitable[Judgement]]


class StandIn:
    """A pool whose judgements are written by the test."""

    def __init__(self, answer: Answer) -> None:
        self.answer, self.opened, self.closed, self.cancelled = answer, 0, 0, 0
        self.children: tuple[int, ...] = ()

    async def __aenter__(self) -> StandIn:
        self.opened += 1
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self.closed += 1

    async def judge(self, problem: Problem, program: Program, *, turn: int = 0) -> Judgement:
        if problem is PROBE:
            return judgement()
        try:
            return await self.answer(program)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    def pids(self) -> tuple[int, ...]:
        return self.children


def config(**verify: Any) -> Config:
    return replace(Config(), verify=VerifyConfig(**verify))


def says(*outcomes: Verdict | Exception) -> Answer:
    """Give these outcomes one after the other, the last one for ever."""
    rest = list(outcomes)

    async def answer(program: Program) -> Judgement:
        outcome = rest.pop(0) if len(rest) > 1 else rest[0]
        if isinstance(outcome, Exception):
            raise outcome
        return judgement(outcome)

    return answer


@asynccontextmanager
async def opened(task: Task, answer: Answer | None = None, **verify: Any) -> AsyncIterator[SandboxVerifier]:
    pool = StandIn(answer) if answer else None
    verifier = SandboxVerifier(config(**verify), task, pool=(lambda: pool) if pool else None, judge_once=False)
    try:
        async with asyncio.timeout(100):
            yield verifier
    finally:
        await verifier.close()


def score(task: Task, *trajectories: Trajectory, answer: Answer | None = None, **verify: Any) -> list[Scored]:
    async def run() -> list[Scored]:
        async with opened(task, answer, **verify) as verifier:
            return [await verifier.score(t) for t in trajectories]

    return asyncio.run(run())

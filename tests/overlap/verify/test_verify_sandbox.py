"""The verifier on the real sandbox."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace

import pytest
from verifying import ADD, SOON_S, Judged, opened, trajectory

from overlap.core import Prompt, Scored
from overlap.core.errors import VerifierError
from overlap.process import process_tree
from sandbox.core.nouns import Case, Judgement, Limits, Program
from sandbox.core.problem import Problem

HONEST = "print(sum(map(int, input().split())))"
HOSTILE = [
    "while True: pass",
    "print(4)",
    "import os\nwhile True: os.fork()",
    "x = []\nwhile True: x.append(bytearray(1 << 24))",
    "while True: print('3' * 65536)",
    "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\nos.kill(-1, signal.SIGKILL)",
    "import sys\nsys.exit(0)",
    "import os\nos._exit(0)",
    "import threading\nthreading.Event().wait()",
    "def f(:",
]


class Hurried(Judged):
    """What is no honest program gets less time: it has none to earn a reward in anyway."""

    def program(self, prompt: Prompt, answer: str) -> tuple[Problem, Program] | None:
        limits = ADD.limits if answer == HONEST else Limits(cpu_s=0.2, wall_s=0.5)
        return replace(ADD, limits=limits), Program(answer)


@pytest.mark.promise("programs-faults")
def test_among_a_flood_of_hostile_programs_the_honest_ones_get_their_reward() -> None:
    async def run() -> tuple[list[Scored], tuple[process_tree.Pid, ...]]:
        async with opened(Hurried(), workers=2) as verifier:
            await verifier.start()
            assert verifier.tier in ("A", "B")
            programs = [p for hostile in HOSTILE for p in (HONEST, hostile)]
            scored = await asyncio.gather(*(verifier.score(trajectory(p, k)) for k, p in enumerate(programs)))
            below = [p for pid in verifier.pids() for p in (pid, *(d.pid for d in process_tree.list_descendants(pid)))]
            return scored, tuple(p for pid in below if (p := process_tree.identify(pid)))

    scored, processes = asyncio.run(run())
    assert [s.failure for s in scored] == [""] * len(scored)
    assert [s.reward for s in scored[::2]] == [1.0] * len(HOSTILE)
    assert [s.reward for s in scored[1::2]] == [0.0] * len(HOSTILE)
    assert processes
    assert process_tree.await_end(processes, SOON_S) == []


SIX = Problem("echo", "stdio", tuple(Case(str(n), str(n)) for n in range(6)), limits=Limits(cpu_s=1.0))


class Partly(Judged):
    """Its reward is the share of the cases that pass."""

    all_cases = True

    def program(self, prompt: Prompt, answer: str) -> tuple[Problem, Program] | None:
        return SIX, Program(f"n = int(input())\nprint(n if n not in {answer} else -1)")

    def reward(self, prompt: Prompt, answer: str, judgement: Judgement | None) -> float:
        assert judgement is not None
        return judgement.score


class Stopped(Partly):
    all_cases = False


async def test_a_task_that_rewards_the_share_of_cases_has_all_of_them_judged() -> None:
    failing = ["(1,)", "(0, 5)", "()", "(0, 1, 2, 3, 4, 5)"]
    async with opened(Partly(), workers=2) as verifier:
        scored = [await verifier.score(trajectory(text)) for text in failing]
    assert [s.reward for s in scored] == pytest.approx([5 / 6, 4 / 6, 1.0, 0.0])
    async with opened(Stopped(), workers=1) as verifier:
        assert (await verifier.score(trajectory("()"))).reward == 1.0
        with pytest.raises(
            VerifierError, match=r"Stopped.reward raised ValueError: .* 2 of 6 cases.* all_cases = True"
        ):
            await verifier.score(trajectory("(1,)"))


@pytest.mark.promise("kills")
async def test_a_killed_sandbox_loses_no_sample_and_makes_none_wrong() -> None:
    async with opened(Judged(), workers=2) as verifier:
        await verifier.start()
        slow = f"t = 0\nfor i in range(10**6): t += i\n{HONEST}"
        samples = [asyncio.create_task(verifier.score(trajectory(slow, k))) for k in range(12)]
        for _ in range(2):
            await asyncio.wait(samples, return_when=asyncio.FIRST_COMPLETED)
            async with asyncio.timeout(SOON_S):
                while not verifier.pids():  # noqa: ASYNC110 - between one supervisor and the next
                    await asyncio.sleep(0.01)
            (supervisor,) = verifier.pids()
            os.kill(supervisor, signal.SIGKILL)
            await asyncio.sleep(0)
        assert [(await s).reward for s in samples] == [1.0] * 12

"""Our rewards as other trainers call them: in their threads, loops and processes, with their arguments."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from places import ROOT
from serving import ServeCommand

from sandbox import Pool, Problem
from sandbox.errors import AccessDenied, SandboxError
from sandbox.rewards import code_reward, trl, verl
from sandbox.rewards.code_reward import CodeReward, Unjudged
from sandbox.zoo import catalogue, exhibits

RIGHT, WRONG, NONE = f"```python\n{exhibits.HONEST_SUM}```", "```python\nprint(0)\n```", "```text\nno program\n```"
TRUTH = json.dumps({"inputs": ["3 4\n", "20 22\n"], "outputs": ["7", "42"]})
PAID = [(RIGHT, 1.0), (WRONG, 0.0), (NONE, 0.0), (f"```python\n{exhibits.HONEST_SUM}<|im_end|>\n", 1.0)]


@pytest.fixture(scope="module", autouse=True)
def pool() -> Iterator[None]:
    """The pool of this process, which is closed with the module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SANDBOX_WORKERS", "1")
        patch.delenv("SANDBOX_URL", raising=False)
        yield
        code_reward.close_process_pool()


class FailingPool:
    """A pool whose sandbox fails."""

    def __init__(self, error: SandboxError) -> None:
        self._error = error

    async def judge(self, *_: object, **__: object) -> object:
        raise self._error


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_reward.process_pool(), "_pool", FailingPool(SandboxError("the worker was killed")))


@pytest.mark.promise("rewards-out")
def test_trl_gets_a_reward_per_completion_by_the_column_that_holds_tests() -> None:
    said: list[Any] = [[{"role": "assistant", "content": answer}] for answer, _ in PAID]
    prompts = [[{"role": "user", "content": "add"}]] * len(said)
    columns = {"prompts": prompts, "completion_ids": [[1]] * len(said), "ground_truth": [TRUTH] * len(said)}
    more = {"trainer_state": SimpleNamespace(global_step=3), "log_metric": print}
    assert trl.code_reward(said, **columns, **more) == [paid for _, paid in PAID]
    plain = [answer for answer, _ in PAID]
    assert trl.code_reward(plain, **{**columns, "prompts": ["add"] * len(said)}, **more) == [paid for _, paid in PAID]


@pytest.mark.promise("rewards-out")
def test_trl_gets_none_for_a_row_without_tests_and_for_our_own_fault(failing: None) -> None:
    rewards = trl.code_reward([RIGHT, RIGHT, NONE], tests=[None, json.loads(TRUTH), TRUTH], prompts=["a", "b", "c"])
    assert rewards == [None, None, 0.0]


def test_a_wrong_token_ends_the_run_instead_of_leaving_out_every_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_reward.process_pool(), "_pool", FailingPool(AccessDenied("the token is wrong")))
    with pytest.raises(AccessDenied, match="the token is wrong"):
        trl.code_reward([RIGHT], tests=[json.loads(TRUTH)])


def test_a_function_with_settings_can_be_pickled_and_pays_the_share_of_the_tests() -> None:
    made = pickle.loads(pickle.dumps(trl.TrlCodeReward(CodeReward(column="gold", share=True))))
    half = "```python\nprint(7)\n```"
    assert made.__name__ == "code_reward"
    assert made([half, RIGHT], gold=[TRUTH, TRUTH], answer=["x", "y"]) == [0.5, 1.0]
    assert pickle.loads(pickle.dumps(trl.code_reward)) is trl.code_reward


@pytest.mark.promise("rewards-out")
def test_verl_gets_a_score_in_a_thread_or_in_its_loop() -> None:
    async def later() -> list[Any]:
        return await asyncio.gather(*(verl.compute_code_score_async("taco", answer, TRUTH) for answer, _ in PAID))

    wanted = [{"score": paid, "acc": paid, "judged": 1.0} for _, paid in PAID]
    assert [verl.compute_code_score("taco", answer, TRUTH, {"index": 1}) for answer, _ in PAID] == wanted
    assert asyncio.run(later()) == wanted


@pytest.mark.promise("rewards-out")
def test_verl_gets_our_fault_as_an_exception_or_as_the_score_that_it_asks_for(failing: None) -> None:
    with pytest.raises(Unjudged, match="SandboxError: the worker was killed"):
        verl.compute_code_score("taco", RIGHT, TRUTH)
    assert verl.compute_code_score("taco", RIGHT, TRUTH, unjudged=-1.0) == {"score": -1.0, "acc": 0.0, "judged": 0.0}
    with pytest.raises(Unjudged, match=r"the data: problem 'problem': it has no tests: give a problem as JSON"):
        verl.compute_code_score("gsm8k", RIGHT, "42")


def called(answer: str) -> tuple[float, int]:
    return CodeReward()(answer, {"messages": [{"role": "user", "content": "add"}], "input_output": TRUTH}), os.getpid()


def test_a_trainers_own_process_gets_a_pool_of_its_own_which_leaves_nothing_behind() -> None:
    assert called(RIGHT) == (1.0, os.getpid())  # this process's pool is open when the other is forked
    with ProcessPoolExecutor(1) as executor:
        found = list(executor.map(called, [answer for answer, _ in PAID]))
    assert [paid for paid, _ in found] == [paid for _, paid in PAID]
    (child,) = {pid for _, pid in found}
    assert child != os.getpid()
    assert not os.path.exists(f"/proc/{child}")


@pytest.mark.promise("rewards-out")
@pytest.mark.parametrize("problem", [exhibits.SUM, exhibits.DOUBLE, exhibits.ASSERTS], ids=lambda problem: problem.kind)
def test_verdicts_are_those_of_the_local_pool(problem: Problem) -> None:
    samples = [sample for sample in catalogue.labelled_pairs() if sample.problem.kind == problem.kind]
    samples += [
        exhibits.LabelledProgram(
            "twin", problem, exhibits.python(exhibits.HONEST_DOUBLE)[0], right=problem is not exhibits.SUM
        )
    ]

    async def locally() -> list[float]:
        async with Pool(workers=1) as local:
            judged = [await local.judge(sample.problem, sample.program) for sample in samples]
        return [float(done.verdict == "AC") for done in judged]

    answers = [(f"```python\n{sample.program.source}\n```", sample.problem.to_json()) for sample in samples]
    assert CodeReward().rewards(answers) == asyncio.run(locally()) == [float(sample.right) for sample in samples]


SCRIPT = """
import threading
from sandbox.zoo import catalogue
from sandbox.rewards import code_reward; from sandbox.rewards.code_reward import CodeReward
assert threading.active_count() == 1
print(CodeReward().rewards([(ANSWER, TRUTH), ("```python\\nprint(0)\\n```", TRUTH)]))
print(code_reward.process_pool().pids()[0])
"""


def test_a_program_that_never_closes_the_pool_ends_quietly_with_all_of_its_processes() -> None:
    script = f"ANSWER, TRUTH = {RIGHT!r}, {TRUTH!r}\n{SCRIPT}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    rewards, pid = done.stdout.splitlines()
    assert rewards == "[1.0, 0.0]"
    assert not os.path.exists(f"/proc/{pid}")


def test_a_function_finds_the_imports_that_public_graders_put_in_front() -> None:
    answer = "```python\nclass Solution:\n    def f(self, n: List[int]) -> int:\n        return gcd(*n)\n```"
    assert CodeReward()(answer, {"fn_name": "f", "inputs": ["[4, 6]"], "outputs": ["2"]}) == 1.0


def test_servers_judge_as_the_pool_here_does(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    here = CodeReward().rewards([(answer, TRUTH) for answer, _ in PAID])
    code_reward.close_process_pool()
    with ServeCommand(tmp_path, "--workers", "1") as server:
        monkeypatch.setenv("SANDBOX_URL", f"http://127.0.0.1:{server.port}")
        there = CodeReward().rewards([(answer, TRUTH) for answer, _ in PAID])
        assert code_reward.process_pool().pids() == ()
        code_reward.close_process_pool()
    assert here == there == [paid for _, paid in PAID]


def test_the_environment_chooses_servers_workers_and_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDBOX_URL", "http://a:1, http://b:2")
    assert code_reward.pool_from_environment().urls == ("http://a:1", "http://b:2")  # type: ignore[union-attr]
    monkeypatch.setenv("SANDBOX_URL", "localhost:8080")
    with pytest.raises(ValueError, match="SANDBOX_URL: url='localhost:8080': must be like http://HOST:PORT"):
        code_reward.pool_from_environment()
    monkeypatch.setenv("SANDBOX_URL", "")
    monkeypatch.setenv("SANDBOX_WORKERS", "two")
    with pytest.raises(ValueError, match="SANDBOX_WORKERS='two': use a whole number"):
        code_reward.pool_from_environment()

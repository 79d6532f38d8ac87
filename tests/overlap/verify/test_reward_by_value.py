"""Tasks and reward functions of scripts, commands and notebooks, which go to the workers by value."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from places import ROOT
from verifying import SOON_S

from overlap.process import process_tree

HELPER = """
import struct
form = struct.Struct("i")  # a module that cannot be sent with what it holds

def distance(answer, length):
    return abs(len(answer) - length)
"""
SCRIPT = """
import asyncio, math, sys, time
from dataclasses import dataclass
import helper, overlap
from overlap.config.fields import Config
from overlap.core import Prompt, Request, Trajectory
from overlap.verify.verifier import SandboxVerifier
print("script runs", flush=True)

@dataclass
class Target:
    length: int

def closeness(answer, target):
    return math.exp(-helper.distance(answer, target.length))

class Length(overlap.Task):
    scale = 2.0
    def prompts(self, tokenizer, split):
        return [overlap.chat_prompt(tokenizer, "p", "Three letters, please.")]
    def reward(self, prompt, answer, judgement):
        if answer == "hang":
            print("hanging", flush=True)
            time.sleep(600)
        return self.scale * closeness(answer, prompt.data)

async def main():
    verifier = SandboxVerifier(Config(), Length())
    await verifier.start()
    request = Request(0, 0, Prompt("p", (1,), data=Target(3)))
    answers = [Trajectory(request, (), (), text, "stop", (), 0.0, 0.0) for text in ("abc", "hang")]
    scored = await verifier.score(answers[0])
    print("reward", scored.reward, *verifier.pids(), flush=True)
    if "wait" in sys.argv:
        await verifier.score(answers[1])
    await verifier.close()

asyncio.run(main())
"""


@pytest.fixture
def beside_helper(tmp_path: Path) -> dict[str, str]:
    """The environment of a user who keeps a module of his own beside the script."""
    (tmp_path / "helper.py").write_text(HELPER)
    return {**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}"}


@pytest.mark.promise("reward-workers")
@pytest.mark.parametrize("given", ["script.py", "-"])
def test_a_task_of_an_unguarded_script_or_of_stdin_works_and_runs_once(
    given: str, tmp_path: Path, beside_helper: dict[str, str]
) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, given if given == "-" else str(tmp_path / given)]
    result = subprocess.run(
        command, input=SCRIPT, capture_output=True, text=True, timeout=100, cwd=ROOT, env=beside_helper
    )
    assert result.stderr == ""
    assert [row.split()[:2] for row in result.stdout.splitlines()] == [["script", "runs"], ["reward", "2.0"]]


LAMBDA = """
import asyncio, re
from dataclasses import dataclass
import helper, overlap
from overlap.config.fields import Config
from overlap.core import Request, Trajectory
from overlap.verify.verifier import SandboxVerifier

@dataclass
class Word:
    text: str

counted = []
word = Word("blue")

def paying(much):
    def paid(said):
        counted.append(said)
        return much * bool(re.search(word.text, said)) + helper.distance(said, len(said)) + len(counted)

    return lambda completions, **columns: [*map(paid, completions)]

task = overlap.reward_task(paying(0.5), [{"prompt": "sky?"}], [{"prompt": "sky?"}])

async def main():
    (prompt,) = task.prompts(lambda text: {"input_ids": [1]}, "train")
    verifier = SandboxVerifier(Config(), task)
    await verifier.start()
    for text in ("it is blue", "red"):
        scored = await verifier.score(Trajectory(Request(0, 0, prompt), (), (), text, "stop", (), 0.0, 0.0))
        print(scored.reward, flush=True)
    await verifier.close()
    print(counted)
"""
PAID = "1.5\n2.0\n[]\n"
"""What is counted in the worker stays there."""


@pytest.mark.promise("reward-workers")
def test_a_lambda_in_a_closure_over_names_of_a_command_is_a_reward(beside_helper: dict[str, str]) -> None:
    command = [sys.executable, "-c", f"{LAMBDA}\nasyncio.run(main())"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=ROOT, env=beside_helper)
    assert (result.stderr, result.stdout) == ("", PAID)


def test_so_is_one_of_a_notebooks_cells(beside_helper: dict[str, str], tmp_path: Path) -> None:
    manager = pytest.importorskip("jupyter_client.manager", reason="needs jupyter_client: pip install ipykernel")
    kernel, client = manager.start_new_kernel(cwd=str(tmp_path), env=beside_helper)
    shown = ""

    def show(message: dict[str, Any]) -> None:
        nonlocal shown
        shown += str(message["content"].get("text") or message["content"].get("evalue") or "")

    try:
        for cell in (LAMBDA, "await main()"):
            client.execute_interactive(cell, output_hook=show, timeout=100, allow_stdin=False)
    finally:
        client.stop_channels()
        kernel.shutdown_kernel()
    assert shown == PAID


@pytest.mark.promise("nothing-left")
def test_workers_end_with_a_driver_that_is_killed(beside_helper: dict[str, str], tmp_path: Path) -> None:
    command, beside = [sys.executable, "-c", SCRIPT, "wait"], beside_helper | {"TMPDIR": str(tmp_path)}
    driver = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env=beside)
    assert driver.stdout
    driver.stdout.readline()
    worker = process_tree.identify(int(driver.stdout.readline().split()[2]))
    assert worker is not None
    assert driver.stdout.readline() == "hanging\n"
    below = process_tree.list_descendants(driver.pid)
    assert worker in below
    driver.kill()
    assert process_tree.await_end(below, SOON_S) == []
    driver.communicate()

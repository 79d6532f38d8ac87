"""The examples in Python of docs/training.md, line by line in a REPL at a terminal."""

from __future__ import annotations

import ast
import os
import pty
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from places import ROOT, SUPPORT

pytestmark = [pytest.mark.e2e, pytest.mark.wide, pytest.mark.timeout(900)]

SMOKE = "recipes/code_rl/configs/smoke.yaml"
STARTING = "starting engine, learner and verifier"
BEGIN = 'import overlap; endless = overlap.load_config("smoke.yaml", {"run.dir": "runs/third", "run.steps": 100000})'
INTERRUPTED = "overlap.train(endless)"
LEFT = 'import os, psutil; print("left", psutil.Process().children(), os.listdir(os.environ["TMPDIR"]))'
MOMENT_S = 300.0
"""A start takes half a minute, and many times that where others work; only a hanging run waits as long as this."""


@pytest.fixture
def examples(tmp_path: Path) -> list[str]:
    """The blocks of the page, for a tiny policy and task."""
    from tiny_policy import make_tiny_policy

    policy = make_tiny_policy(tmp_path / "tiny")
    tree = {
        "model": {"policy": str(policy), "dtype": "float32", "prompt_tokens": 64, "response_tokens": 12},
        "data": {"task": "toy:ToyTask"},
        "rollout": {"groups_per_step": 2, "samples_per_group": 4, "max_sequences": 8},
        "learn": {"micro_batch_tokens": 512, "truncated": "zero"},
        "run": {"steps": 2, "device": "cpu", "eval_samples": 1},
    }
    (tmp_path / "smoke.yaml").write_text(yaml.safe_dump(tree))
    text = (ROOT / "docs" / "training.md").read_text("utf-8")
    return [block.replace(SMOKE, "smoke.yaml") for block in re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)]


@pytest.fixture(autouse=True)
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder for temporary files of its own, with a short name: sockets go there."""
    with tempfile.TemporaryDirectory(prefix="py-") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        yield


class Terminal:
    """A Python that a person types into."""

    def __init__(self, folder: Path) -> None:
        self._fd, there = pty.openpty()
        environment = os.environ | {"PYTHONPATH": f"{ROOT}:{SUPPORT}", "TERM": "xterm", "PYTHON_BASIC_REPL": "1"}
        command = [sys.executable, "-q", "-i"]
        self.process = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=there, stdout=there, stderr=there, start_new_session=True
        )
        os.close(there)
        self.shown = ""
        self.wait_for(">>> ")

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def wait_for(self, text: str) -> str:
        """What is shown up to ``text``, and from the last one that was waited for."""
        until = time.monotonic() + MOMENT_S
        while text not in self.shown:
            assert time.monotonic() < until, self.shown
            self.shown += os.read(self._fd, 65536).decode(errors="replace").replace("\r\n", "\n")
        before, _, self.shown = self.shown.partition(text)
        return before

    def run(self, code: str) -> str:
        """Type the statements one after the other, as they stand; returns what is shown."""
        shown = ""
        for statement in ast.parse(code).body:
            lines = ast.unparse(statement).replace("\n\n", "\n")  # an empty line ends a block
            self.type(lines + "\n" + "\n" * isinstance(statement, ast.With | ast.ClassDef))
            shown += self.wait_for("\n>>> ")
        return shown

    def close(self) -> None:
        """End it, and all that it has started."""
        self.process.kill()
        self.process.wait()
        os.close(self._fd)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    terminal = Terminal(tmp_path)
    yield terminal
    terminal.close()


def test_the_examples_work_line_by_line_in_a_repl_after_ctrl_c_has_given_the_prompt_back(
    examples: list[str], terminal: Terminal
) -> None:
    terminal.run(BEGIN)
    terminal.type(INTERRUPTED + "\n")
    terminal.wait_for(STARTING)
    os.killpg(os.getpgid(terminal.process.pid), signal.SIGINT)
    assert terminal.wait_for("KeyboardInterrupt: 2\n>>> ").count("Traceback") == 1
    shown = "".join(map(terminal.run, examples))
    assert "Error" not in shown
    assert "policy-step-000001" in shown
    assert "<overlap.Run runs/second: preparing, step 0 of 2> 0" in shown
    assert terminal.run(LEFT).endswith("left [] []")
    terminal.type("exit()\n")
    assert terminal.process.wait(60) == 0

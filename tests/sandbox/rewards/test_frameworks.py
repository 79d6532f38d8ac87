"""The real packages of other trainers with our rewards, each as a program in an environment of its own."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from clients import installed
from places import ROOT, SUPPORT

from sandbox import Pool
from sandbox.zoo import catalogue

LIMIT_S = 280
pytestmark = pytest.mark.timeout(300)  # imports of trainers take long beside other work
SAMPLES = list(catalogue.labelled_pairs())


@pytest.fixture(scope="module")
def wanted() -> list[float]:
    """What the local pool makes of the answers, that are all right or wrong as they are labelled."""

    async def judged() -> list[float]:
        async with Pool(workers=1) as pool:
            done = [await pool.judge(sample.problem, sample.program) for sample in SAMPLES]
        return [float(one.verdict == "AC") for one in done]

    found = asyncio.run(judged())
    assert found == [float(sample.right) for sample in SAMPLES]
    return found


@pytest.fixture
def answers(tmp_path: Path) -> Path:
    """A file of answers with their tests; nobody can judge the last one."""
    rows = [
        {"answer": f"```python\n{sample.program.source}```", "truth": json.dumps(sample.problem.to_json())}
        for sample in SAMPLES
    ]
    path = tmp_path / "answers.json"
    path.write_text(json.dumps([*rows, {"answer": "```python\nprint(1)\n```", "truth": "42"}]))
    return path


def run(framework: str, script: str, *arguments: object) -> dict[str, Any]:
    """What the program says on its last line, run by the framework's own Python."""
    python = installed(framework) / "bin" / "python"
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "SANDBOX_WORKERS": "1"}
    argv = [str(python), str(SUPPORT / "frameworks" / f"{script}.py"), *map(str, arguments)]
    done = subprocess.run(argv, capture_output=True, text=True, env=environ, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.promise("rewards-out")
def test_trl_rewards_a_batch_and_takes_a_step_with_our_reward(
    wanted: list[float], answers: Path, tmp_path: Path
) -> None:
    from tiny_policy import make_tiny_policy

    found = run("trl", "trl_reward", make_tiny_policy(tmp_path / "tiny"), answers)
    assert [whole for whole, _ in found["rewards"]] == [*wanted, None]
    shares = [share for _, share in found["rewards"][:-1]]
    assert all((share == 1.0) == (whole == 1.0) for share, whole in zip(shares, wanted, strict=True))
    assert 0.5 in shares
    assert found["step"] == 0.0  # its answers are random bytes


@pytest.mark.parametrize("name", ["compute_code_score", "compute_code_score_async"])
def test_verls_reward_manager_gives_our_scores(wanted: list[float], answers: Path, name: str) -> None:
    found = run("verl", "verl_reward", answers, name)
    assert found["rewards"] == [*wanted, -7.0]
    assert found["judged"] == [1.0] * len(wanted) + [0.0]

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
from sandbox.zoo import pairs

LIMIT_S = 280
pytestmark = pytest.mark.timeout(300)  # imports of trainers take long beside other work
SAMPLES = list(pairs.labelled_pairs())
UNKNOWN = "it has no tests: give a problem as JSON"


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
    from overlap.policy.tiny import make_tiny_policy

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


def test_openrlhfs_executor_gets_our_rewards_and_none_for_what_could_not_be_judged(
    wanted: list[float], answers: Path
) -> None:
    found = run("openrlhf", "openrlhf_reward", answers)
    assert found["rewards"] == found["scores"] == [*wanted, None]


def test_verifiers_rolls_out_tasks_of_ours_and_knows_our_faults_by_their_type(
    wanted: list[float], answers: Path
) -> None:
    found = run("verifiers", "verifiers_reward", answers)
    assert found["rewards"] == [*wanted, None]
    assert found["errors"][:-1] == [""] * len(wanted)
    assert found["errors"][-1].startswith("SandboxError: the data: ")
    assert UNKNOWN in found["errors"][-1]


def test_inspect_evaluates_samples_and_runs_commands_in_our_jails(
    wanted: list[float], answers: Path, tmp_path: Path
) -> None:
    found = run("inspect-ai", "inspect_eval", answers, tmp_path / "logs")
    assert (found["status"], found["rewards"]) == ("success", [*wanted, None])
    assert UNKNOWN in found["errors"][-1]
    assert found["sandbox"] == {
        "python": [True, 0, "7\n"],
        "shell": [False, 3, ["b.txt", "link", "sum.py"]],
        "read": ["hi\n", "hi\n"],
        "given": "as given",
        "missing": 127,
        "errors": [
            "FileNotFoundError", "IsADirectoryError", "PermissionError", "SandboxTimeoutError",
            "SandboxUserUnsupportedError", "OutputLimitExceededError",
        ],
        "network": "PermissionError: [Errno 13] Permission denied",
        "still": "hi\n",
    }  # fmt: skip

"""The notebooks in order: one trains a policy, the other looks at the run."""

from __future__ import annotations

from pathlib import Path

import pytest

from notebooks import run_notebook

pytestmark = pytest.mark.e2e


@pytest.mark.promise("python")
def test_a_policy_is_trained_and_its_run_looked_at(tiny_policy: Path, tmp_path: Path) -> None:
    small = {
        "model.policy": str(tiny_policy), "model.dtype": "float32", "model.prompt_tokens": 1700,
        "model.response_tokens": 16, "run.steps": 1, "run.eval_samples": 1, "run.dir": "runs/first",
    }  # fmt: skip
    before = {"overlap.load_config(None, settings)": f"settings |= {small!r}"}
    said = run_notebook("train.ipynb", tmp_path, timeout_s=100, before=before)
    assert "right: 1.0 wrong: 0.0" in said
    assert "before 0.00, after 0.00" in said
    assert f"{tmp_path}/runs/first" in said
    before = {"overlap.load_run(RUN)": "RUN = 'runs/first'"}
    assert f"{tiny_policy} | finished" in run_notebook("look.ipynb", tmp_path, timeout_s=30, before=before)

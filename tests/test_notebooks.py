"""The notebooks hold no outputs, and the one that looks at a run does so with a made one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from notebooks import NOTEBOOKS, cells, run_notebook
from overlap.config.fields import Config

SAMPLE = {
    "schema": 3, "id": "g1s0", "split": "train", "step": 1, "group": 1, "sample": 0, "prompt_id": "double",
    "version": 0, "reward": 0.0, "parts": {}, "advantage": -0.5, "verdict": "WA", "failure": "", "dropped": "",
    "kept_as": ["mixed"],
    "weak": False, "passed": 0, "total": 1, "tokens": 7, "finish": "stop", "truncated": False, "turns": 1,
    "branches": 1,
    "versions": [[0, 0, 7]], "generate_s": 1.0, "queue_s": 0.0, "verify_s": 0.1, "node": "", "program_sha256": "ab",
    "prompt": "double?", "answer": "def double(n):\n    return n", "program": None, "kind": "function",
    "tests": [{"index": 0, "verdict": "WA", "input": "[4]", "expected": "8", "got": "4"}], "compile_log": "",
}  # fmt: skip
GROUP = {
    "split": "train", "step": 1, "group": 1, "prompt_id": "double", "samples": 2, "solved": 0, "failed": 0,
    "truncated": 0, "tokens": 14, "reward": 0.0, "reward_std": 0.0, "dropped": "equal rewards", "verdicts": {"WA": 2},
    "weak": 0, "programs": 1, "learned": False,
}  # fmt: skip
HELD_OUT = GROUP | {"split": "heldout", "group": -1, "prompt_id": "inc", "dropped": ""}


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.name)
def test_a_notebook_has_no_outputs_and_a_text_before_each_cell_of_code(path: Path) -> None:
    found = cells(path.name)
    code = [cell for cell in found if cell["cell_type"] == "code"]
    assert [(cell["outputs"], cell["execution_count"]) for cell in code] == [([], None)] * len(code)
    assert found[0]["cell_type"] == "markdown"
    assert path.stat().st_size < 20_000
    assert path.read_text("utf-8").endswith("}\n")


@pytest.mark.promise("python")
def test_a_run_is_looked_at(tmp_path: Path) -> None:
    import yaml

    from overlap.core.json_types import to_json_types

    (run := tmp_path / "runs" / "latest").mkdir(parents=True)
    (run / "config.yaml").write_text(yaml.safe_dump(to_json_types(Config().to_dict())))
    rows = [{"step": step, "reward/mean": step / 10, "learn/entropy": 0.5, "learn/grad_norm": 1.0} for step in (1, 2)]
    groups = [HELD_OUT | {"step": 0}, GROUP, HELD_OUT | {"step": 2, "solved": 1, "reward": 0.5}]
    for name, lines in (("metrics", rows), ("groups", groups), ("trajectories", [SAMPLE])):
        (run / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (run / "summary.json").write_text(json.dumps({"exit": "finished", "steps": 2, "warnings": ["entropy fell"]}))
    said = run_notebook("look.ipynb", tmp_path, timeout_s=60)
    for told in (
        "1 of 1 groups taught nothing",
        "step 1  double  reward 0.0  equal rewards",
        "1 samples were kept",
        "step 1, double: WA, 7 tokens",
        "'expected': '8', 'got': '4'",
        "after step 2: pass@1 0.500",
        "smollm2-135m-instruct | finished",
        "warning: entropy fell",
    ):
        assert told in said


def test_a_run_that_has_not_begun_to_learn_is_looked_at_too(tmp_path: Path) -> None:
    (run := tmp_path / "runs" / "latest").mkdir(parents=True)
    (run / "config.yaml").write_text("model:\n  policy: mine\n")
    said = run_notebook("look.ipynb", tmp_path, timeout_s=60)
    assert "0 samples were kept" in said
    assert "mine | goes on" in said

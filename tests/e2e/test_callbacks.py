"""A callback of a real run evaluates, saves, stops it while samples are in the engine; its samples are judged again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import overlap
from overlap.config.load import load_config
from overlap.record.json_lines import read_json_lines

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900), pytest.mark.wide]


class Hook(overlap.Callback):
    """Evaluates after the first step, saves after the second, and stops after the third."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int]] = []

    async def on_step(self, run: Any, event: Any) -> Any:
        self.told.append(("step", event.step))
        return {1: overlap.Evaluate, 2: overlap.Save, 3: overlap.Stop("enough")}.get(event.step)

    def on_evaluate(self, run: Any, event: Any) -> None:
        self.told.append(("evaluate", event.step))

    def on_save(self, run: Any, event: Any) -> None:
        self.told.append(("save", event.step))

    def on_run_end(self, run: Any, event: Any) -> None:
        self.told.append(("end", event.step))


def test_a_real_run_obeys_its_callback(tiny_policy: Path, tmp_path: Path) -> None:
    from toy import ToyTask

    fields = {
        "model.policy": str(tiny_policy), "model.dtype": "float32", "model.prompt_tokens": 64,
        "model.response_tokens": 32, "rollout.groups_per_step": 4, "rollout.samples_per_group": 6,
        "rollout.max_sequences": 24, "rollout.max_staleness": 1, "learn.micro_batch_tokens": 512,
        "learn.truncated": "zero", "run.steps": 1000, "run.dir": str(tmp_path / "run"), "run.eval_samples": 2,
        "run.device": "cpu", "run.samples": "all",
    }  # fmt: skip
    hook = Hook()
    summary = overlap.train(load_config(None, fields), ToyTask(), callbacks=[hook])
    assert summary["exit"] == "stopped by callback Hook.on_step: enough"
    assert hook.told == [
        ("evaluate", 0), ("step", 1), ("evaluate", 1), ("step", 2), ("save", 2),
        ("step", 3), ("evaluate", 3), ("end", 3),
    ]  # fmt: skip
    assert (summary["steps"], summary["policy"]["version"]) == (3, 3)
    assert (tmp_path / "run" / "checkpoints" / "step-000002" / "COMPLETE").exists()
    rows = read_json_lines(tmp_path / "run" / "metrics.jsonl")
    assert [row["step"] for row in rows if "eval/samples" in row] == [0, 1, 3]
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["callbacks"]["Hook"]["calls"] == 8
    judged_again(tmp_path)


def judged_again(folder: Path) -> None:
    """What the run has kept comes to the same by its own task, and to the opposite by the opposite one."""
    from toy import ToyTask

    class Opposite(ToyTask):
        def reward(self, prompt, answer, judgement):
            return 1.0 - super().reward(prompt, answer, judgement)

    run = folder / "run"
    cfg = load_config(run / "config.yaml")
    same = overlap.rollout(cfg, ToyTask(), answers=run).again
    assert (len(same.answers), same.changed) == (3 * 24, [])
    other = overlap.rollout(cfg, Opposite(), answers=run, out=folder / "again.jsonl").again
    assert len(other.changed) == len(other.answers)
    assert len(read_json_lines(folder / "again.jsonl")) == 1 + 3 * 24

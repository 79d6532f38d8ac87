"""Sources of samples: a run directory, or a file that ``overlap rollout --out`` has written."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from overlap.config.arguments import path_given
from overlap.core import reaches
from overlap.inspect.run_data import RunData, load_run
from overlap.inspect.sample_reason import ACCEPTED, dropped_words
from overlap.record.run_files import RunFile
from overlap.record.sample_file import GroupKey, SampleFile, SampleHead, group_key


class AnswersFile(RunData):
    """A file of answers without a run around it: it has samples alone."""

    def __init__(self, file: Path) -> None:
        super().__init__(file, ())
        self.samples = SampleFile(file)
        self._stored, self.groups, self.summary = {}, [], None

    @property
    def state(self) -> str:
        return "a file of answers"


def open_samples(run: str) -> RunData:
    """The run in directory ``run``, or the answers in file ``run``. Raises ConfigError where there is neither."""
    path = path_given("RUN", run, "runs/first")
    if os.path.isfile(path):  # False for a name that no file system takes
        folder = path.parent
        inside = path.name == RunFile.TRAJECTORIES.filename and RunFile.CONFIG.of(folder).exists()
        return load_run(folder) if inside else AnswersFile(path)
    return load_run(run)


def group_rows(run: RunData) -> list[dict[str, Any]]:
    """The rows of ``groups.jsonl``; of a run that has none, what its kept samples say."""
    return run.groups or groups_of(run.samples.heads())


def groups_of(heads: Iterable[SampleHead]) -> list[dict[str, Any]]:
    """Rows as in ``groups.jsonl``, made of samples."""
    found: dict[GroupKey, list[dict[str, Any]]] = {}
    for _, _, head in heads:
        found.setdefault(group_key(head), []).append(head)
    return [_group_row(samples) for samples in found.values()]


def _group_row(samples: list[dict[str, Any]]) -> dict[str, Any]:
    first = samples[0]
    rewards = [s["reward"] for s in samples if s["reward"] is not None]
    return {
        "split": first["split"],
        "step": first["step"],
        "group": first["group"],
        "prompt_id": first["prompt_id"],
        "samples": len(samples),
        "solved": sum(s["verdict"] == ACCEPTED if s["verdict"] else reaches(s["reward"] or 0.0, 1.0) for s in samples),
        "failed": len(samples) - len(rewards),
        "truncated": sum(s["truncated"] for s in samples),
        "tokens": sum(s["tokens"] for s in samples),
        "reward": sum(rewards) / len(rewards) if rewards else None,
        "reward_std": None,
        "dropped": first["dropped"],
        "verdicts": dict(Counter(s["verdict"] for s in samples if s["verdict"])),
        "weak": sum(s["weak"] for s in samples),
        "programs": len({s["program_sha256"] for s in samples if s["program_sha256"]}),
        "learned": first["split"] == "train" and not first["dropped"],
    }


def rewards_by_step(rows: Iterable[Mapping[str, Any]]) -> dict[int, float]:
    """The mean reward over the judged samples of these groups by step."""
    sums: dict[int, tuple[float, int]] = {}
    for row in rows:
        if row["reward"] is not None:
            total, judged = sums.get(row["step"], (0.0, 0))
            number = row["samples"] - row["failed"]
            sums[row["step"]] = total + row["reward"] * number, judged + number
    return {step: total / judged for step, (total, judged) in sums.items() if judged}


def trained_on(row: Mapping[str, Any]) -> str:
    """Return "yes" for a group that was trained on, else the reason why not, or "held-out"."""
    if row["split"] == "heldout":
        return "held-out"
    return "yes" if row["learned"] else dropped_words(row) or "no"

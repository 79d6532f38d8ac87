"""A made run for each warning, and healthy ones of three kinds: what ``run_warnings`` tells of each is known."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from made_run import made_run

Row = dict[str, Any]
Edit = Callable[[Path], None]


@dataclass(frozen=True)
class MadeHealth:
    """How a run is made (``made_run``) and changed, and the kinds of warnings that it deserves."""

    kinds: frozenset[str]
    shape: Mapping[str, Any] = field(default_factory=dict)
    edit: Edit | None = None

    def make(self, folder: Path) -> Path:
        """The run directory."""
        made_run(folder, **{"steps": 20, "problems": 16, "heldout": 16, **self.shape})
        if self.edit:
            self.edit(folder)
        return folder


def _lines(name: str, change: Callable[[int, Row], None]) -> Edit:
    """An edit of each row of a file of lines."""

    def edit(folder: Path) -> None:
        rows = [json.loads(line) for line in (folder / name).read_text("utf-8").splitlines()]
        for number, row in enumerate(rows):
            change(number, row)
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")

    return edit


def _heldout(step: int, share: float) -> Edit:
    """The evaluation after ``step`` solves this share of each problem's samples."""

    def change(_: int, row: Row) -> None:
        if row["split"] == "heldout" and row["step"] == step:
            row["solved"] = round(share * row["samples"])
            row["reward"] = row["solved"] / row["samples"]

    return _lines("groups.jsonl", change)


def _fell(folder: Path) -> None:
    _heldout(0, 1.0)(folder)
    _heldout(20, 0.25)(folder)


def _stood_still(folder: Path) -> None:
    _heldout(0, 0.5)(folder)
    _heldout(20, 0.5)(folder)


def _one_flip(folder: Path) -> None:
    """The second of two equal programs of a problem is out of time."""
    seen: set[tuple[str, str]] = set()

    def change(_: int, row: Row) -> None:
        key = (row["prompt_id"], row["program_sha256"])
        if row["verdict"] == "AC" and key in seen and len(flipped) < 1:
            row["verdict"] = "TLE"
            flipped.append(1)
        if row["verdict"] == "AC" and row["program_sha256"]:
            seen.add(key)

    flipped: list[int] = []
    _lines("trajectories.jsonl", change)(folder)


def _spikes(_: int, row: Row) -> None:
    if row["step"] in (7, 11) and "learn/grad_norm" in row:
        row["learn/grad_norm"] = 60.0 if row["step"] == 7 else None


def _one_program(number: int, row: Row) -> None:
    if row["split"] == "train" and row["step"] > 12:
        row["programs"] = 1


def _ill(*kinds: str, edit: Edit | None = None, **shape: Any) -> MadeHealth:
    return MadeHealth(frozenset(kinds), shape, edit)


CRITIC = ("learn.advantage=gae",)
FLAT: dict[str, Any] = {"solved": (0.55, 0.45)}
ILL: Mapping[str, MadeHealth] = {
    "learned_nothing": _ill("learned_nothing", solved=(0.0, 0.0)),
    "reward_fell": _ill("reward_fell", "heldout_fell", solved=(0.9, 0.1)),
    "heldout_fell": _ill("heldout_fell", edit=_fell, solved=(0.4, 0.45)),
    "reward_without_heldout": _ill("reward_without_heldout", edit=_stood_still, solved=(0.2, 0.85)),
    "no_signal": _ill("no_signal", solved=(0.03, 0.05)),
    "entropy_collapse": _ill("entropy_collapse", learn={"entropy": (0.9, 0.01)}, solved=(0.3, 0.6)),
    "entropy_growth": _ill("entropy_growth", learn={"entropy": (0.6, 5.0)}, **FLAT),
    "length_growth": _ill("length_growth", tokens=(40.0, 200.0), **FLAT),
    "truncated": _ill("truncated", truncated=(0.4, 0.4)),
    "clipping": _ill("clipping", learn={"clip_fraction": (0.1, 0.4)}),
    "kl_growth": _ill("kl_growth", learn={"kl": (0.01, 2.0)}),
    "gradient_spikes": _ill("gradient_spikes", edit=_lines("metrics.jsonl", _spikes)),
    "critic": _ill("critic", columns={"critic/explained_variance": (-0.6, -0.6)}, overrides=CRITIC),
    "parity": _ill("parity", parity=0.2),
    "lost_updates": _ill("lost_updates", columns={"sync/applied_share": (0.02, 0.06)}, **FLAT),
    "staleness": _ill("staleness", learn={"is_effective_fraction": (0.6, 0.2)}, staleness=4),
    "refused_requests": _ill(
        "refused_requests", turns=3, columns={"episode/refused": (20.0, 20.0), "episode/refused_route": (20.0, 20.0)}
    ),
    "verifier_failures": _ill("verifier_failures", failed=0.05),
    "exposed_reward": _ill("exposed_reward", columns={"time/exposed_reward_s": (6.0, 6.0)}),
    "flaky_problems": _ill("flaky_problems", edit=_one_flip, kept="all"),
    "weak_verdicts": _ill("weak_verdicts", weak=0.3),
    "duplicate_programs": _ill("duplicate_programs", "flaky_problems", duplicates=0.3, kept="all"),
    "few_programs": _ill(
        "few_programs", edit=_lines("groups.jsonl", _one_program), steps=30, groups=8, solved=(0.15, 0.25)
    ),
}
"""By the kind of its warning."""
HEALTHY_RUNS: Mapping[str, MadeHealth] = {
    "on-policy": _ill(steps=30, groups=8, samples=8, solved=(0.28, 0.87)),
    "PPO with a critic": _ill(
        steps=40, overrides=CRITIC, columns={"critic/explained_variance": (-0.1, 0.6)}, solved=(0.2, 0.7)
    ),
    "asynchronous": _ill(
        steps=60, groups=8, samples=8, staleness=1, solved=(0.3, 0.6), truncated=(0.2, 0.1),
        learn={"is_effective_fraction": (0.97, 0.9), "clip_fraction": (0.01, 0.04)},
    ),
    "episodes": _ill(turns=4, staleness=2, tokens=(60.0, 140.0), solved=(0.2, 0.6), failed=0.002),
    "solved": _ill(solved=(0.6, 1.0), learn={"entropy": (0.6, 0.03)}),
    "short": _ill(steps=3),
    "short in bfloat16": _ill(steps=7, columns={"sync/applied_share": (0.05, 0.35)}),
}  # fmt: skip
"""Of which nothing is told."""

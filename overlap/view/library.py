"""The samples of a run for many requests: found by place, filtered, sorted, searched; grows while the run goes on."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from overlap.analysis.run_data import RunData
from overlap.analysis.sample_file import SampleHead
from overlap.errors import ConfigError
from overlap.record.run_files import RunFile
from overlap.view.sample_filter import NO_VERDICT, SampleFilter
from overlap.view.search import rows_with
from overlap.view.source import groups_of, rewards_by_step

KEPT_ANSWERS = 8
"""Orders of the last requests, so that a page of one costs no sort."""
Place = tuple[int, int, int]
"""Step, group, sample."""
SORTS = ("step", "reward", "advantage", "tokens", "generate_s", "verify_s", "passed")
"""Figures by which samples are sorted."""


class SampleOrder(NamedTuple):
    """Which samples are listed, and by which figure they are sorted; "-" in front: the largest first."""

    only: SampleFilter
    text: str = ""
    sort: str = "-step"


class _State(NamedTuple):
    """What has been read, which does not change."""

    heads: tuple[SampleHead, ...]
    groups: tuple[dict[str, Any], ...]
    revision: str


class SampleLibrary:
    """Answers for ``overlap view``; its methods may be called by several threads."""

    def __init__(self, run: RunData) -> None:
        self.run = run
        self._lock = threading.Lock()
        self._stamps = ((-1, 0), (-1, 0))
        self._state = _State((), (), "")
        self._orders: dict[tuple[str, SampleOrder], list[SampleHead]] = {}
        self._places: tuple[str, dict[Place, SampleHead]] = ("", {})
        self._facts: dict[str, Any] = {}

    def state(self) -> _State:
        """All heads and groups, also those that came since the last call. Raises ConfigError."""
        groups_path = RunFile.GROUPS.of(self.run.path)
        with self._lock:
            stamps = (_stamp(self.run.samples.path), _stamp(groups_path))
            if stamps != self._stamps:
                heads = tuple(self.run.samples.heads())
                rows = RunData(self.run.path).groups if stamps[1][0] else groups_of(heads)
                revision = "-".join(f"{number:x}" for stamp in stamps for number in stamp)
                self._state, self._stamps = _State(heads, tuple(rows), revision), stamps
            return self._state

    def ordered(self, order: SampleOrder) -> list[SampleHead]:
        """The samples of a request. Raises ConfigError for an unknown sort."""
        state = self.state()
        known = (state.revision, order)
        with self._lock:
            if known in self._orders:
                return self._orders[known]
        found = order.only.of(state.heads)
        if order.text:
            found = rows_with(order.text, self.run.samples.path, found)
        found = _sorted(found, order.sort)
        with self._lock:
            while len(self._orders) >= KEPT_ANSWERS:
                self._orders.pop(next(iter(self._orders)))
            self._orders[known] = found
        return found

    def sample(self, place: Place) -> dict[str, Any]:
        """A whole row. Raises ConfigError where none of that place is kept."""
        state = self.state()
        with self._lock:
            if self._places[0] != state.revision:
                self._places = (state.revision, {_place(head.values): head for head in state.heads})
            head = self._places[1].get(place)
        if head is None:
            raise ConfigError("sample", "{} g{}s{}".format(*place), "is not among the kept samples")
        return self.run.samples.row(head)

    def group(self, step: int, group: int) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
        """The row of a group, and its kept samples, whole."""
        state = self.state()
        row = next((row for row in state.groups if row["step"] == step and row["group"] == group), None)
        heads = SampleFilter(step=step, group=group).of(state.heads)
        return row, [self.run.samples.row(head) for head in heads]

    def problem(self, name: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """The rows of a problem's groups, and the heads of its kept samples."""
        state = self.state()
        heads = SampleFilter(problem=name).of(state.heads)
        return [row for row in state.groups if row["prompt_id"] == name], [head.values for head in heads]

    def problems(self) -> list[dict[str, Any]]:
        """Each problem with its solved and judged samples by group, the hardest first."""
        found: dict[tuple[str, str], dict[str, Any]] = {}
        for row in self.state().groups:
            made = found.setdefault(
                (row["split"], row["prompt_id"]),
                {"split": row["split"], "prompt_id": row["prompt_id"], "samples": 0, "solved": 0, "course": []},
            )
            made["samples"] += row["samples"]
            made["solved"] += row["solved"]
            made["course"].append([row["step"], row["reward"]])
        return sorted(found.values(), key=lambda made: (made["solved"] / max(1, made["samples"]), made["prompt_id"]))

    def facts(self) -> dict[str, Any]:
        """What the page shows of the whole run."""
        state = self.state()
        if self._facts.get("revision") != state.revision:
            self._facts = self._facts_of(state)
        return {**self._facts, "live": self.run.live}

    def _facts_of(self, state: _State) -> dict[str, Any]:
        heads = [head.values for head in state.heads]
        steps = [row["step"] for row in state.groups]
        kept = Counter(reason for head in heads for reason in head["kept_as"])
        return {
            "name": str(self.run.path),
            "revision": state.revision,
            "samples": len(heads),
            "sampled": sum(row["samples"] for row in state.groups),
            "groups": len(state.groups),
            "problems": len({row["prompt_id"] for row in state.groups}),
            "first_step": min(steps, default=None),
            "last_step": max(steps, default=None),
            "splits": dict(Counter(head["split"] for head in heads)),
            "verdicts": dict(Counter(head["verdict"] or NO_VERDICT for head in heads).most_common()),
            "kept_as": dict(kept.most_common()),
            "failures": sum(bool(head["failure"]) for head in heads),
            "weak": sum(head["weak"] for head in heads),
            "dropped": dict(Counter(r["dropped"] for r in state.groups if r["dropped"]).most_common()),
            "course": {
                split: list(rewards_by_step(row for row in state.groups if row["split"] == split).items())
                for split in ("train", "heldout")
            },
        }


def _sorted(heads: list[SampleHead], sort: str) -> list[SampleHead]:
    name = sort.removeprefix("-")
    if name not in SORTS:
        raise ConfigError("sort", sort, f"use one of {', '.join(SORTS)}, with - in front for the largest first")
    if name == "step":  # the order of the file
        return heads[::-1] if sort.startswith("-") else heads
    known = [head for head in heads if head.values[name] is not None]
    known.sort(key=lambda head: head.values[name], reverse=sort.startswith("-"))
    return known + [head for head in heads if head.values[name] is None]


def _place(head: Mapping[str, Any]) -> Place:
    return head["step"], head["group"], head["sample"]


def _stamp(path: Path) -> tuple[int, int]:
    """Bytes of a file, and when it was written last, ns: a run that went back may have written as many bytes again."""
    try:
        found = path.stat()
    except OSError:
        return 0, 0
    return found.st_size, found.st_mtime_ns

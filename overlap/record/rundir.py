"""The run directory: everything that a run leaves for a person or a tool to look at.

    config.yaml         the resolved configuration, its history  trace.json     timeline for Perfetto
    metrics.jsonl       one row per step                         summary.json   figures of the whole run
    events/             the same rows for TensorBoard            picture.png    reward and time per step
    trajectories.jsonl  sampled answers with their verdicts      run.log        chatter of engine and libraries
    rollouts.jsonl      all samples, whole (run.keep_rollouts)   ctl            socket of ``overlap ctl``, while it runs
    nodes.jsonl         nodes that did worst (cluster.address)
    checkpoints/        what a resume needs (run.save_every)     policy/        final Hugging Face checkpoint
    engines/            chatter of each of several engines       policy-best/   the best evaluated one (run.eval_every)

Where the directory may lie is in ``place``. Once the run has begun, no failed write ends it: ``losses`` has what is
missing, and no half-written file or line is left.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from overlap.atomic import settle_path, write_atomic
from overlap.errors import ConfigError
from overlap.record import place
from overlap.record.events import Events
from overlap.record.files import Lines, plain, size_until
from overlap.record.losses import Losses
from overlap.record.node_metrics import nodes_line
from overlap.record.rollouts import ROLLOUTS, head, rollout_row

if TYPE_CHECKING:
    from overlap.core import Batch, Prompt, Scored, Trajectory
    from overlap.verify import ClusterFigures


class RunDir:
    """An open run directory. Its methods are quick but block on the disk; call them from one thread at a time."""

    def __init__(self, path: Path, lock: int, *, share: float = 0.1, seed: int = 0) -> None:
        """Use ``create`` or ``reopen``. ``lock`` is the descriptor that keeps other runs out; ``close`` closes it."""
        self.path = path
        self.config = path / "config.yaml"
        self.metrics = path / "metrics.jsonl"
        self.events = path / "events"
        self.trajectories = path / "trajectories.jsonl"
        self.rollouts = path / ROLLOUTS
        self.nodes = path / "nodes.jsonl"
        self.trace = path / "trace.json"
        self.summary = path / "summary.json"
        self.picture = path / "picture.png"
        self.log = path / "run.log"
        self.ctl = path / place.SOCKET
        self.checkpoints = path / "checkpoints"
        self.policy = path / "policy"
        self.best = path / "policy-best"
        self.losses = Losses()
        self._share, self._seed, self._lock = share, seed, lock
        self._rows = Lines(self.metrics, keep=True)
        self._samples = Lines(self.trajectories)
        self._kept = Lines(self.rollouts)
        self._nodes = Lines(self.nodes)
        self._events = Events(self.events)

    @classmethod
    def create(cls, template: str, cfg: Mapping[str, Any], *, share: float = 0.1) -> RunDir:
        """Make a new run directory; "{time}" in ``template`` becomes the start time.

        ``share`` (0 to 1) of a step's samples, at least one, goes into ``trajectories.jsonl``. Raises ConfigError
        when the place is taken or cannot be written, RunDirError when the disk is full.
        """
        if not 0 <= share <= 1:
            raise ConfigError("share", share, "give a number from 0 to 1")
        path, lock = place.claim(template)
        try:
            place.write_config(path, cfg, [_entry(0)])
        except BaseException:
            os.close(lock)
            raise
        return cls(path, lock, share=share, seed=cfg.get("run", {}).get("seed", 0))

    @classmethod
    def reopen(cls, path: Path, *, share: float = 0.1, seed: int = 0) -> RunDir:
        """Open the directory of an earlier run; nothing in it is touched until ``rewind``.

        Raises ConfigError where there is no run or another one writes.
        """
        if not (path / "config.yaml").is_file():
            raise ConfigError("run.dir", str(path), "holds no run to go on with: config.yaml is missing")
        return cls(path, place.take_lock(path, str(path)), share=share, seed=seed)

    def rewind(self, *, step: int, metrics: int, trajectories: int, rollouts: int = 0) -> None:
        """Cut off what came after a checkpoint: ``step``, ``offsets``, ``kept`` as they were then. Raises RunDirError.

        A kill in the moment in which a new policy took its place has left the former one under another name.
        """
        self.settle()
        with self.losses.spared("events"):
            self._events.close()
        self._events = Events(self.events, purge_from=step + 1)
        self._rows.rewind(metrics)
        self._samples.rewind(trajectories)
        self._kept.rewind(rollouts)
        self._nodes.rewind(size_until(self.nodes, step))

    def settle(self) -> None:
        """End what a kill, or a save that was cut off, has left of the policies. Raises RunDirError."""
        for policy in (self.policy, self.best):
            settle_path(policy)

    def remember(self, cfg: Mapping[str, Any], step: int, changes: Mapping[str, Any]) -> None:
        """Write into ``config.yaml`` that the run goes on after ``step`` with ``cfg``, and what of it is changed:
        field -> {was, is}. Raises ConfigError when its history cannot be read, RunDirError.
        """
        place.write_config(self.path, cfg, [*place.read_history(self.path), _entry(step, changes)])

    @property
    def offsets(self) -> tuple[int, int]:
        """Bytes in metrics.jsonl and trajectories.jsonl, for a checkpoint."""
        return self._rows.offset, self._samples.offset

    @property
    def kept(self) -> int:
        """Bytes in rollouts.jsonl, for a checkpoint."""
        return self._kept.offset

    def step(self, row: Mapping[str, Any]) -> None:
        """Write the row of a step (``row["step"]``) to metrics.jsonl and TensorBoard."""
        self.losses.step = int(row["step"])
        with self.losses.spared("metrics.jsonl"):
            self._rows.append(row)
            self.losses.made_good("metrics.jsonl")
        with self.losses.spared("events"):
            self._events.add(int(row["step"]), {name: value for name, value in row.items() if name != "step"})

    def nodes_of(self, step: int, figures: ClusterFigures) -> None:
        """Write what the nodes of a cluster did in a step to nodes.jsonl, those that did worst by name."""
        with self.losses.spared("nodes.jsonl"):
            self._nodes.append(nodes_line(step, figures))

    def sample(self, batch: Batch, decode: Callable[[Prompt], str] | None = None) -> None:
        """Write a share of the batch's samples, those of dropped groups too. ``decode`` gives a prompt's text."""
        groups = [(g, s) for g in (*batch.groups, *batch.dropped) for s in g.samples]
        if not groups or not self._share:
            return
        rng = random.Random(f"{self._seed}/{batch.step}")
        count = max(1, round(self._share * len(groups)))
        with self.losses.spared("trajectories.jsonl"):
            for index in sorted(rng.sample(range(len(groups)), count)):
                group, scored = groups[index]
                text = decode(group.prompt) if decode else ""
                dialog = dialog_of(scored.trajectory, decode) if decode else ""
                self._samples.append(trajectory_row(batch.step, scored, group.dropped, text, dialog))

    def keep(self, batch: Batch, data: str, at_s: float) -> None:
        """Write all samples of a batch to rollouts.jsonl, whole; ``data`` is the digest of the prompts, ``at_s`` when
        the batch was learned.
        """
        samples = sorted(batch.all_samples, key=lambda s: s.trajectory.request.place)
        with self.losses.spared(ROLLOUTS):
            if not self._kept.offset:
                self._kept.append(head(data))
            for scored in samples:
                self._kept.append(rollout_row(batch.step, scored, at_s))

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Write summary.json, and rows of metrics that could not be written before."""
        self._catch_up()
        with self.losses.spared("summary.json"):
            write_atomic(self.summary, json.dumps(plain(summary), indent=2, ensure_ascii=False) + "\n")

    def _catch_up(self) -> None:
        with self.losses.spared("metrics.jsonl"):
            if self._rows.catch_up():
                self.losses.made_good("metrics.jsonl")

    def close(self) -> None:
        """Close the files; safe to call twice."""
        self._catch_up()
        parts: dict[str, Lines | Events] = {
            "metrics.jsonl": self._rows,
            "trajectories.jsonl": self._samples,
            ROLLOUTS: self._kept,
            "nodes.jsonl": self._nodes,
            "events": self._events,
        }
        for name, part in parts.items():
            with self.losses.spared(name):
                part.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _entry(step: int, changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What the history keeps of a start: when, after which step, with which changes."""
    return {"at": time.strftime("%Y-%m-%d %H:%M:%S %z"), "step": step, "changes": dict(changes or {})}


def dialog_of(trajectory: Trajectory, decode: Callable[[Prompt], str]) -> str:
    """Of an episode, all that the policy saw and said on the branch of its answer; "" where rollouts have one turn."""
    if trajectory.used is None:
        return ""
    return decode(replace(trajectory.request.prompt, token_ids=(*trajectory.prompt_ids, *trajectory.token_ids)))


def trajectory_row(step: int, scored: Scored, dropped: str, prompt_text: str, dialog: str = "") -> dict[str, Any]:
    """One line of trajectories.jsonl: what was asked and answered, and how each test judged it. ``dialog`` as
    ``dialog_of`` gives it.
    """
    trajectory, judgement = scored.trajectory, scored.judgement
    return {
        "step": step,
        "id": scored.id,
        "prompt_id": trajectory.request.prompt.id,
        "prompt": prompt_text,
        "answer": trajectory.request.prompt.prefill + trajectory.text,
        "reward": scored.reward,
        "failure": scored.failure,
        "dropped": dropped,
        "verdict": str(judgement.verdict) if judgement else None,
        **({"node": judgement.node} if judgement and judgement.node else {}),
        "tests": _test_rows(judgement),
        "tokens": trajectory.sampled,
        **({"turns": trajectory.used.turns, "branches": len(trajectory.branches)} if trajectory.used else {}),
        **({"dialog": dialog} if dialog else {}),
        "finish": trajectory.finish,
        "versions": [[s.version, s.start, s.end] for s in trajectory.spans],
        "generate_s": trajectory.finished_s - trajectory.started_s,
        "verify_s": scored.finished_s - scored.started_s,
    }


def _test_rows(judgement: Any) -> list[dict[str, Any]]:
    if judgement is None:
        return []
    return [
        {"index": c.index, "verdict": str(c.verdict), "cpu_s": c.cpu_s, "message": c.message[:200]}
        for c in judgement.cases
    ]

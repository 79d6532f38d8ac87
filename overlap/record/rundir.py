"""The run directory: everything that a run leaves for a person or a tool to look at. ``run_files`` lists it.

``ownership`` decides where the directory may lie. Once the run has begun, no failed write ends it: ``failures`` has
what is missing, and no half-written file or line is left.
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
from overlap.json_types import to_json_types
from overlap.record import ownership
from overlap.record.checkpoint import RunState
from overlap.record.json_lines import JsonLines, file_size, size_until
from overlap.record.metrics import worst_nodes_line
from overlap.record.metrics_writers import METRICS_WRITERS, MetricsWriter
from overlap.record.rollouts import kept_sample_row, rollouts_header
from overlap.record.run_files import RunFile
from overlap.record.write_failures import WriteFailures

if TYPE_CHECKING:
    from overlap.core import Batch, ClusterFigures, Prompt, Scored, Trajectory


SHARE = 0.1
"""Share of a step's samples, at least one, that goes into trajectories.jsonl."""


class RunDir:
    """An open run directory. Its methods are quick but block on the disk; call them from one thread at a time."""

    def __init__(self, path: Path, lock: int, *, seed: int = 0) -> None:
        """Use ``create`` or ``reopen``. ``lock`` is the descriptor that keeps other runs out; ``close`` closes it."""
        self.path = path
        self.config = RunFile.CONFIG.of(path)
        self.metrics = RunFile.METRICS.of(path)
        self.events = RunFile.EVENTS.of(path)
        self.trajectories = RunFile.TRAJECTORIES.of(path)
        self.rollouts = RunFile.ROLLOUTS.of(path)
        self.nodes = RunFile.NODES.of(path)
        self.trace = RunFile.TRACE.of(path)
        self.summary = RunFile.SUMMARY.of(path)
        self.picture = RunFile.PICTURE.of(path)
        self.log = RunFile.LOG.of(path)
        self.ctl = RunFile.SOCKET.of(path)
        self.checkpoints = RunFile.CHECKPOINTS.of(path)
        self.policy = RunFile.POLICY.of(path)
        self.best = RunFile.BEST.of(path)
        self.failures = WriteFailures()
        self._seed, self._lock = seed, lock
        self._writers = [make(path) for make in METRICS_WRITERS]
        self._samples = JsonLines(self.trajectories)
        self._kept = JsonLines(self.rollouts)
        self._nodes = JsonLines(self.nodes)

    @classmethod
    def create(cls, template: str, cfg: Mapping[str, Any]) -> RunDir:
        """Make a new run directory; "{time}" in ``template`` becomes the start time.

        Raises ConfigError when the place is taken or cannot be written, RunDirError when the disk is full.
        """
        path, lock = ownership.claim_run_dir(template)
        try:
            ownership.write_config(path, cfg, [_entry(0)])
        except BaseException:
            os.close(lock)
            raise
        return cls(path, lock, seed=cfg.get("run", {}).get("seed", 0))

    @classmethod
    def reopen(cls, path: Path, *, seed: int = 0) -> RunDir:
        """Open the directory of an earlier run; nothing in it is touched until ``rewind``.

        Raises ConfigError where there is no run or another one writes.
        """
        ownership.find_run_file(str(path), RunFile.CONFIG, way_out="name the directory of a run")
        return cls(path, ownership.take_lock(path, str(path)), seed=seed)

    def rewind(self, state: RunState) -> None:
        """Cut off what came after a checkpoint. Raises RunDirError.

        Also repairs what a kill left while a policy was being replaced.
        """
        self.settle()
        for writer in self._writers:
            writer.rewind(state.step or -1)  # the evaluation before a first step is made again
        self._samples.rewind(state.trajectories_offset)
        self._kept.rewind(state.rollouts_offset)
        self._nodes.rewind(size_until(self.nodes, state.step))

    def settle(self) -> None:
        """Repair policies that a kill or an interrupted save left between two names. Raises RunDirError."""
        for policy in (self.policy, self.best):
            settle_path(policy)

    def remember(self, cfg: Mapping[str, Any], step: int, changes: Mapping[str, Any]) -> None:
        """Write into ``config.yaml`` that the run goes on after ``step`` with ``cfg``, and what of it is changed:
        field -> {was, is}. Raises ConfigError when its history cannot be read, RunDirError.
        """
        ownership.write_config(self.path, cfg, [*ownership.read_history(self.path), _entry(step, changes)])

    @property
    def offsets(self) -> dict[str, int]:
        """Bytes in the files of lines, as the fields of a RunState."""
        return {
            "metrics_offset": file_size(self.metrics),
            "trajectories_offset": file_size(self.trajectories),
            "rollouts_offset": file_size(self.rollouts),
        }

    def step(self, row: Mapping[str, Any]) -> None:
        """Give the row of a step (``row["step"]``) to all writers of metrics."""
        self.failures.step = int(row["step"])
        self._each_writer(lambda writer: writer.write(row))

    def _each_writer(self, act: Callable[[MetricsWriter], bool]) -> None:
        for writer in self._writers:
            with self.failures.tolerate_write_errors(writer.name):
                if act(writer):
                    self.failures.recovered(writer.name)

    def nodes_of(self, step: int, figures: ClusterFigures) -> None:
        """Write what the nodes of a cluster did in a step to nodes.jsonl, those that did worst by name."""
        with self.failures.tolerate_write_errors(RunFile.NODES):
            self._nodes.append(worst_nodes_line(step, figures))

    def sample(self, batch: Batch, decode: Callable[[Prompt], str]) -> None:
        """Write a share of the batch's samples, those of dropped groups too. ``decode`` gives a prompt's text."""
        samples = [(g, s) for g in (*batch.groups, *batch.dropped) for s in g.samples]
        count = min(len(samples), max(1, round(SHARE * len(samples))))
        with self.failures.tolerate_write_errors(RunFile.TRAJECTORIES):
            for index in sorted(random.Random(f"{self._seed}/{batch.step}").sample(range(len(samples)), count)):
                group, scored = samples[index]
                text, dialog = decode(group.prompt), dialog_of(scored.trajectory, decode)
                self._samples.append(trajectory_row(batch.step, scored, group.dropped, text, dialog))

    def keep(self, batch: Batch, data: str, at_s: float) -> None:
        """Write all samples of a batch to rollouts.jsonl, whole; ``data`` is the digest of the prompts, ``at_s`` when
        the batch was learned.
        """
        samples = sorted(batch.all_samples, key=lambda s: s.trajectory.request.place)
        with self.failures.tolerate_write_errors(RunFile.ROLLOUTS):
            if not file_size(self.rollouts):
                self._kept.append(rollouts_header(data))
            for scored in samples:
                self._kept.append(kept_sample_row(batch.step, scored, at_s))

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Write summary.json, and rows of metrics that could not be written before."""
        self._each_writer(lambda writer: writer.flush())
        with self.failures.tolerate_write_errors(RunFile.SUMMARY):
            write_atomic(self.summary, json.dumps(to_json_types(summary), indent=2, ensure_ascii=False) + "\n")

    def close(self) -> None:
        """Close the files; safe to call twice."""
        self._each_writer(lambda writer: writer.flush())
        parts: list[tuple[object, JsonLines | MetricsWriter]] = [(writer.name, writer) for writer in self._writers]
        parts += [(RunFile.TRAJECTORIES, self._samples), (RunFile.ROLLOUTS, self._kept), (RunFile.NODES, self._nodes)]
        for name, part in parts:
            with self.failures.tolerate_write_errors(name):
                part.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _entry(step: int, changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What the history keeps of a start: when, after which step, with which changes."""
    return {"at": time.strftime("%Y-%m-%d %H:%M:%S %z"), "step": step, "changes": dict(changes or {})}


def dialog_of(trajectory: Trajectory, decode: Callable[[Prompt], str]) -> str:
    """All that the policy saw and wrote on the branch of an episode's last answer; "" where rollouts have one turn."""
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
        "tests": [
            {"index": c.index, "verdict": str(c.verdict), "cpu_s": c.cpu_s, "message": c.message[:200]}
            for c in (judgement.cases if judgement else ())
        ],
        "tokens": trajectory.sampled,
        **({"turns": trajectory.used.turns, "branches": len(trajectory.branches)} if trajectory.used else {}),
        **({"dialog": dialog} if dialog else {}),
        "finish": trajectory.finish,
        "versions": [[s.version, s.start, s.end] for s in trajectory.spans],
        "generate_s": trajectory.finished_s - trajectory.started_s,
        "verify_s": scored.finished_s - scored.started_s,
    }

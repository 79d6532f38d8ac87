"""Learners with processes of their own, as a run has them, and what their steps led to.

The policy is a random one, wide enough for the device's kernels; batches are seeded. What steps led to is compared by
the log-probs of a probe, which every weight has a part in.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from _batches import random_batch
from tiny_policy import make_tiny_policy

from overlap.config.fields import Config, ModelConfig, RunConfig
from overlap.config.learn import LearnConfig
from overlap.config.rollout import RolloutConfig
from overlap.learner.learner import ProcessLearner
from overlap.placement.devices import devices_here

STEPS = 2
LR = 1e-4


@dataclass(frozen=True)
class Subject:
    """A random policy, and the shortest and longest prompts and responses of its batches, in tokens."""

    policy: Path
    vocab: int = 8192
    prompt: tuple[int, int] = (64, 512)
    response: tuple[int, int] = (32, 1024)

    def batch(self, version: int) -> Any:
        """Always the same for a version."""
        return random_batch(version, 4, 4, self.prompt, self.response, self.vocab)

    @property
    def probe(self) -> tuple[int, ...]:
        """Tokens of one sequence."""
        return tuple((7 * i * i + 3 * i + 1) % self.vocab for i in range(256))


@dataclass
class Found:
    """Log-probs of the probe after the steps and before the last, loss and norm of each step, MiB of the device at
    most (None: not known).
    """

    probe: list[float] = field(default_factory=list)
    before: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    peak_mib: int | None = None


os.environ.setdefault("TORCH_COMPILE_DISABLE", "1")  # each learner would compile its policy anew
Outcomes = dict[str, Found | BaseException]


def make_subject(path: Path, *, rehearses: bool) -> Subject:
    """In a rehearsal all is small."""
    if rehearses:
        return Subject(make_tiny_policy(path, vocab=512), 512, (8, 32), (4, 64))
    subject = Subject(path)
    make_tiny_policy(path, vocab=subject.vocab, layers=8, hidden=512)
    return subject


def config(device: str, *, dtype: str = "float32", lr: float = LR, **learn: Any) -> Config:
    """A learner of few steps, without an engine."""
    return Config(
        model=ModelConfig(dtype=dtype, prompt_tokens=512, response_tokens=1024),  # type: ignore[arg-type]
        rollout=RolloutConfig(temperature=0.8, max_staleness=0),
        learn=LearnConfig(lr=lr, micro_batch_tokens=4096, **learn),
        run=RunConfig(device=device),  # type: ignore[arg-type]
    )


def new_folder(path: Path) -> Path:
    """Make it."""
    path.mkdir()
    return path


async def take(
    subject: Subject,
    scratch: Path,
    cfg: Config,
    *,
    saved: Path | None = None,
    restored: Path | None = None,
    watched: bool = False,
) -> Found:
    """Take ``STEPS`` steps. With ``saved`` the state is written there before one step more, with ``restored`` it is
    read from there, and that one step is taken. Of a device that it has alone the memory is ``watched``.
    """
    found = Found()
    learner = ProcessLearner(cfg, subject.policy, new_folder(scratch), log=scratch / "log", total_updates=STEPS + 1)
    with _Peak(watched and cfg.run.device == "cuda") as peak:
        try:
            await learner.start()
            if restored is not None:
                await learner.restore(restored)
            for version in range(STEPS if restored else 0, STEPS if saved is None and restored is None else STEPS + 1):
                if saved is not None and version == STEPS:
                    await learner.save(saved, kind="state")
                found.before = await learner.logprobs(subject.probe)
                metrics = (await learner.step(subject.batch(version))).metrics
                found.losses.append(metrics["loss"])
                found.norms.append(metrics["grad_norm"])
                await learner.sleep()
            found.probe = await learner.logprobs(subject.probe)
        finally:
            await learner.close()
    found.peak_mib = peak.mib
    return found


def run_all(runs: Mapping[str, Callable[[], Coroutine[Any, Any, Found]]], *, beside: bool) -> Outcomes:
    """What each run found or raised. ``beside``: all at a time, else one after the other."""

    async def wait() -> Outcomes:
        if beside:
            found = await asyncio.gather(*(run() for run in runs.values()), return_exceptions=True)
            return dict(zip(runs, found, strict=True))
        return {name: (await asyncio.gather(run(), return_exceptions=True))[0] for name, run in runs.items()}

    return asyncio.run(wait())


def one(outcomes: Outcomes, name: str) -> Found:
    """Raises what the run has raised."""
    found = outcomes[name]
    if isinstance(found, BaseException):
        raise found
    return found


def gap(found: list[float], wanted: list[float], *, largest: bool) -> float:
    """Largest or mean difference, nats."""
    gaps = [abs(a - b) for a, b in zip(found, wanted, strict=True)]
    return max(gaps) if largest else sum(gaps) / len(gaps)


class _Peak:
    """MiB of the first visible device in use at most while it is open; it must belong to nobody else."""

    def __init__(self, looks: bool) -> None:
        self.mib: int | None = None
        self._ends = threading.Event()
        self._watch = threading.Thread(target=self._look, daemon=True) if looks else None

    def __enter__(self) -> _Peak:
        if self._watch is not None:
            self._watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        if self._watch is not None:
            self._watch.join(10.0)

    def _look(self) -> None:
        device = devices_here("cuda").names[0]
        query = ["nvidia-smi", f"--id={device}", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
        while not self._ends.wait(0.1):
            try:
                used = int(subprocess.run(query, capture_output=True, text=True, timeout=10, check=True).stdout)
            except (OSError, subprocess.SubprocessError, ValueError):
                return
            self.mib = max(self.mib or 0, used)

"""A session whose components are the fakes: a whole run without an engine, a learner or a sandbox."""

from __future__ import annotations

import asyncio
import io
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, cast

import pytest
from fake_parts import FakeGenerator, FakeLearner, FakeVerifier, fake_prompts

from overlap.config.fields import Config
from overlap.config.load import load_config
from overlap.core import Batch, Request, StepReport, Trajectory, Used
from overlap.generate.engines import Engines
from overlap.hooks.checks import check_callbacks, named_trackers
from overlap.placement.seats import Placement, place_here
from overlap.process.atomic import write_atomic
from overlap.record.json_lines import read_json_lines
from overlap.record.logs import Console
from overlap.record.resume import BEGINNING, Resumed, reopen
from overlap.record.rundir import RunDir
from overlap.run.control import RunControl
from overlap.run.restarts import reason_of
from overlap.run.run_inputs import RunInputs, RunSetup
from overlap.run.session import TrainingSession


class _Alive:
    """What a session needs of a part beside its work: pids, and to be told of its death."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.dead: asyncio.Future[None] | None = None

    def pids(self) -> tuple[int, ...]:
        return ()

    async def wait_dead(self) -> None:
        self.dead = asyncio.get_running_loop().create_future()
        await self.dead

    def die(self, error: Exception) -> None:
        assert self.dead is not None
        self.dead.set_exception(error)


class Generator(_Alive, FakeGenerator):
    pass


class Episodic(Generator):
    """Its samples are episodes: half of them have forks, behind the request's prompt, a part of it or more than it."""

    async def generate(self, request: Request) -> Trajectory:
        made, rng = await super().generate(request), random.Random(f"{request.id}/{request.prompt.id}")
        prompt, count = tuple(request.prompt.token_ids), len(made.token_ids)
        before = [prompt, prompt[:1], (*prompt, *made.token_ids), (*prompt, 99, 98)]
        forks = (replace(made, prompt_ids=rng.choice(before), text="") for _ in range(rng.choice((0, 0, 1, 3))))
        mask = rng.choice((b"", bytes(count - 1) + b"\1"))
        used = Used(4, 2 * count, 30, 16, 0, 0, out_of_time=rng.random() < 0.2)
        return replace(made, mask=mask, turns=2, forks=tuple(forks), used=used)


class Verifier(_Alive, FakeVerifier):
    pass


class Learner(_Alive, FakeLearner):
    """``on_step`` is called with each batch after it was learned; ``on_save`` before a save, and may raise or wait."""

    on_step: Callable[[Batch], object] = staticmethod(lambda batch: None)
    on_save: Callable[[str], Any] = staticmethod(lambda kind: None)

    async def step(self, batch: Batch) -> StepReport:
        report = await super().step(batch)
        self.on_step(batch)
        return report

    async def save(self, path: Path, *, kind: Literal["policy", "state"]) -> int:
        waits = self.on_save(kind)
        if waits is not None:
            await waits
        return await super().save(path, kind=kind)


class _NoProcesses:
    def watch_pid(self, pid: int) -> None:
        raise AssertionError("fakes have no processes")


class Tokenizer:
    def decode(self, ids: list[int]) -> str:
        return " ".join(map(str, ids))


class Stage:
    """Components, a run directory and a console that a test can look at, and the session among them. The picture is
    not drawn: that takes a second.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, *overrides: str) -> None:
        small = ["rollout.groups_per_step=2", "rollout.samples_per_group=4", "run.eval_samples=0", "run.steps=5"]
        self.cfg: Config = load_config(None, [*small, f"run.dir={folder / 'run'}", *overrides])
        self.policy = folder / "policy"
        self.policy.mkdir(parents=True, exist_ok=True)
        self.generator, self.verifier, self.learner = Generator(), Verifier(), Learner()
        monkeypatch.setattr("overlap.generate.client.EngineClient", lambda *a, **k: self.generator)
        monkeypatch.setattr(
            "overlap.generate.engines.Engines", partial(Engines, policy=None)
        )  # one that dies stays dead
        monkeypatch.setattr("overlap.verify.verifier.SandboxVerifier", lambda *a, **k: self.verifier)
        monkeypatch.setattr("overlap.learner.learner.ProcessLearner", lambda *a, **k: self.learner)
        monkeypatch.setattr("overlap.run.session.write_picture", lambda rows, path, **_: write_atomic(path, b"drawn"))
        self.shown = io.StringIO()
        self._folder = folder

    def reopened(self, **options: bool) -> tuple[RunDir, Resumed]:
        """The run directory, to go on in, and where the run stands."""
        return reopen(self.cfg, "digest", fits=lambda folder: None, **options)

    def session(
        self,
        run: RunDir | None = None,
        resumed: Resumed = BEGINNING,
        callbacks: Sequence[Any] = (),
        heldout: int = 0,
        placement: Placement | None = None,
    ) -> TrainingSession:
        prompts, apart = tuple(fake_prompts(8)), tuple(fake_prompts(8 + heldout)[8:])
        task: Any = None
        reaper: Any = _NoProcesses()
        prepared = RunInputs(self.cfg, task, self.policy, Tokenizer(), prompts, apart)
        run = run if run is not None else RunDir.create(self.cfg.run.dir, self.cfg.to_dict())
        console = Console(self.shown)
        placed, control = placement or place_here(self.cfg), RunControl()
        setup = RunSetup(prepared, placed, run, self._folder, console, reaper, control, data="digest")
        return TrainingSession(setup, resumed, check_callbacks(callbacks), named_trackers(self.cfg))


def assert_one_run(run: RunDir) -> None:
    """Rows, trace and samples of five steps are those of one run, whatever it went through."""
    assert [row["step"] for row in read_json_lines(run.metrics)] == [1, 2, 3, 4, 5]
    learned = [e for e in json.loads(run.trace.read_text()) if e.get("cat") == "learn"]
    assert [e["name"] for e in learned] == [f"step {k}" for k in range(1, 6)]
    assert all(a["ts"] + a["dur"] <= b["ts"] for a, b in pairwise(learned))
    samples = [(row["step"], row["id"]) for row in read_json_lines(run.trajectories)]
    assert len(samples) == len(set(samples)) > 0
    groups = [(row["step"], row["group"]) for row in read_json_lines(run.groups) if row["split"] == "train"]
    assert groups == [(step, group) for step in range(1, 6) for group in (2 * step - 2, 2 * step - 1)]


def interrupt() -> None:
    """Do to the session that ``play`` plays what Ctrl-C does."""
    next(t for t in asyncio.all_tasks() if "within_a_minute" in repr(t)).cancel()


def play(session: TrainingSession) -> dict[str, Any]:
    """Run a session to its end, as ``train`` does; returns the summary. Raises what it raised."""

    async def within_a_minute() -> None:
        async with asyncio.timeout(60):
            await session()

    try:
        asyncio.run(within_a_minute())
    except BaseException as error:
        session.reason = reason_of(error)
        session.tell_end(session.summarize(1.0), error)
        raise
    else:
        figures = session.summarize(1.0)
        session.tell_end(figures, None)
        return cast(dict[str, Any], figures)
    finally:
        session.run.close()

"""A run that was cut and goes on is the run that it would have been: the same batches, and nothing made twice."""

from __future__ import annotations

import asyncio
import errno
import json
import math
import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from fake_parts import fake_prompts
from journal import essence
from sessions import Episodic, Generator, Learner, Stage, Verifier, play
from wide import wide

from overlap.core import Batch, Request, Scored, StepReport, Trajectory
from overlap.pipeline.prompts import PromptStream
from overlap.record.checkpoint import complete_checkpoints, path_of
from overlap.record.json_lines import read_json_lines
from overlap.record.kept_samples import save_carryover
from overlap.run.session import TrainingSession
from overlap.run.step_log import StepLog

STEPS = 6


def jitter(rng: random.Random) -> float:
    return rng.random() * 0.004


class Calm:
    """Knows whether a sample is anywhere on its way."""

    def __init__(self) -> None:
        self._busy, self.there = 0, asyncio.Event()

    @contextmanager
    def disturbed(self) -> Iterator[None]:
        self._busy += 1
        self.there.clear()
        try:
            yield
        finally:
            self._busy -= 1
            if not self._busy:
                self.there.set()


class Asked(Episodic):
    """Remembers the samples that were asked for."""

    def __init__(self, calm: Calm, **options: Any) -> None:
        super().__init__(seed=3, seconds=jitter, truncated=0.1, **options)
        self.asked: list[str] = []
        self._calm = calm

    async def generate(self, request: Request) -> Trajectory:
        self.asked.append(request.id)
        with self._calm.disturbed():
            return await super().generate(request)


class Judge(Verifier):
    def __init__(self, calm: Calm) -> None:
        super().__init__(seed=3, seconds=jitter, solved=0.3, failed=0.05, workers=8)
        self._calm = calm

    async def score(self, trajectory: Trajectory) -> Scored:
        with self._calm.disturbed():
            return await super().score(trajectory)


class Patient(Learner):
    """Learns when all samples have ended that are admitted: the next steps are complete when this one is."""

    def __init__(self, calm: Calm) -> None:
        super().__init__()
        self._calm = calm

    async def step(self, batch: Batch) -> StepReport:
        await self._calm.there.wait()
        return await super().step(batch)


def staged(folder: Path, monkeypatch: pytest.MonkeyPatch, *overrides: str) -> Stage:
    often = ("run.save_every=1", "run.keep_last=100", f"run.steps={STEPS}", "rollout.max_sequences=16")
    made = Stage(folder, monkeypatch, *often, *overrides)
    calm = Calm()
    made.generator, made.verifier, made.learner = Asked(calm, slots=16), Judge(calm), Patient(calm)
    monkeypatch.setattr(
        "overlap.pipeline.lookahead.Lookahead.leases", made.cfg.leases
    )  # all that there are, whatever it costs
    return made


def played(session: TrainingSession) -> list[Any]:
    """Batches that the learner was given."""

    play(session)
    return [essence(batch) for batch in session.attempt.parts.learner.batches]  # type: ignore[attr-defined]


def cut_after(step: int, folder: Path, monkeypatch: pytest.MonkeyPatch, *overrides: str) -> Stage:
    """The stage for the run in "whole" to go on where a kill -9 has left it between two checkpoints: with all rows, and
    the checkpoints until ``step``.
    """
    run = folder / str(step) / "run"
    shutil.copytree(folder / "whole" / "run", run)
    for path in complete_checkpoints(run / "checkpoints"):
        if path > path_of(run / "checkpoints", step):
            shutil.rmtree(path)
    return staged(run.parent, monkeypatch, *overrides)


@pytest.mark.promise("resume")
@pytest.mark.parametrize(
    ("staleness", "refill"), [(0, 0), (2, 2), *(wide(s, r) for s in range(5) for r in (0, 2) if s != r)]
)
def test_the_batches_are_those_of_the_unbroken_run_for_every_staleness_and_step_of_the_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, staleness: int, refill: int
) -> None:
    overrides = f"rollout.max_staleness={staleness}", f"rollout.refill_groups={refill}"
    whole = staged(tmp_path / "whole", monkeypatch, *overrides)
    unbroken = played(whole.session())
    carried = 0
    for cut in range(1, STEPS):
        again = cut_after(cut, tmp_path, monkeypatch, *overrides)
        run, resumed = again.reopened()
        assert resumed.state.step == cut
        known = {scored.id for scored in resumed.carried.scored(_prompts(again).at, 0.0)}
        assert played(again.session(run, resumed)) == [batch for batch in unbroken if batch[0] > cut]
        asked = again.generator.asked  # type: ignore[attr-defined]
        assert len(set(asked)) == len(asked)
        assert not known.intersection(asked), "a result that was there was made again"
        assert [row["step"] for row in read_json_lines(run.metrics)] == list(range(1, STEPS + 1))
        carried += len(known)
    assert carried or not staleness, "nothing was there that could be carried"


@pytest.mark.parametrize("staleness", [0, 2])
def test_a_run_that_was_cut_leaves_out_the_prompts_that_the_unbroken_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, staleness: int
) -> None:
    overrides = f"rollout.max_staleness={staleness}", "data.drop_solved=0.25", f"run.steps={STEPS + 2}"
    unbroken = played(staged(tmp_path / "whole", monkeypatch, *overrides).session())
    plain = played(staged(tmp_path / "plain", monkeypatch, overrides[0], overrides[2]).session())
    assert unbroken != plain
    rows = read_json_lines(tmp_path / "whole" / "run" / "metrics.jsonl")
    for cut in range(1, len(rows)):
        again = cut_after(cut, tmp_path, monkeypatch, *overrides)
        run, resumed = again.reopened()
        assert len(resumed.state.solved) == rows[cut - 1]["rollout/prompts_solved"]
        assert played(again.session(run, resumed)) == [batch for batch in unbroken if batch[0] > cut]


def _prompts(stage: Stage) -> PromptStream:
    return PromptStream(fake_prompts(8), stage.cfg.run.seed)


Make = Callable[..., Stage]


@pytest.fixture
def stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """A run at staleness 2 that was cut after step 3."""
    asked = "rollout.max_staleness=2"
    played(staged(tmp_path / "whole", monkeypatch, asked).session())
    folder = Path(cut_after(3, tmp_path, monkeypatch, asked).cfg.run.dir).parent
    return lambda *overrides: staged(folder, monkeypatch, asked, *overrides)


def test_a_run_that_is_cut_again_at_once_still_has_what_was_carried(stale: Make) -> None:
    """What waits to be admitted again is in the next checkpoint, too."""
    made = stale("run.steps=4")
    run, resumed = made.reopened()
    before = {s.id for s in resumed.carried.scored(_prompts(made).at, 0.0)}
    batches = played(made.session(run, resumed))
    again = stale()
    run, resumed = again.reopened()
    run.close()
    assert resumed.state.step == 4
    taken = {s[0] for group in (*batches[-1][2], *batches[-1][3]) for s in group[2]}
    assert before - taken <= {s.id for s in resumed.carried.scored(_prompts(again).at, 0.0)}


def test_what_another_session_made_spoils_no_figure_and_no_span(stale: Make) -> None:
    made = stale()
    run, resumed = made.reopened()
    assert len(resumed.carried)
    played(made.session(run, resumed))
    rows = read_json_lines(run.metrics)
    for row in rows[3:]:
        assert 0 <= row["time/generate_s"] < 10
        assert 0 <= row["time/reward_s"] < 10
        assert row["verify/queue_s_mean"] >= 0
        assert all(value is None or math.isfinite(value) for value in row.values())
    spans = [e for e in json.loads(run.trace.read_text()) if e["ph"] == "X"]
    for a, b in pairwise(sorted(spans, key=lambda e: (e["tid"], e["ts"]))):
        assert a["tid"] != b["tid"] or a["ts"] + a["dur"] <= b["ts"] + 0.2, (a, b)


def test_another_runs_results_are_made_again_and_the_user_is_told(stale: Make) -> None:
    made = stale("rollout.max_staleness=0")
    run, resumed = made.reopened(with_changes=True)
    assert (len(resumed.carried), resumed.given_up > 0) == (0, True)
    assert len(played(made.session(run, resumed))) == STEPS - 3
    assert f"{resumed.given_up} samples of the checkpoint are made again" in made.shown.getvalue()


def test_generation_goes_on_while_a_checkpoint_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Stage(tmp_path, monkeypatch, "run.save_every=1", "run.steps=2")
    saving, generated = asyncio.Event(), asyncio.Event()

    class Telling(Generator):
        async def generate(self, request: Request) -> Trajectory:
            if self.version:
                await saving.wait()
                generated.set()
            return await super().generate(request)

    def on_save(kind: str) -> Any:
        saving.set()
        return generated.wait() if kind == "state" else None

    made.generator, made.learner.on_save = Telling(), on_save
    assert len(played(made.session())) == 2


@pytest.mark.promise("by-products")
def test_a_full_disk_costs_the_checkpoint_alone_and_the_user_reads_when_there_is_one_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Full while the results of step 2 are written, with those of other steps underway."""
    made = staged(tmp_path, monkeypatch, "rollout.max_staleness=2")
    session = made.session()
    write = os.fsync

    def full(fd: int) -> None:
        if "step-000002/.carried.jsonl" in os.readlink(f"/proc/self/fd/{fd}"):
            raise OSError(errno.ENOSPC, "No space left on device")
        write(fd)

    monkeypatch.setattr(os, "fsync", full)
    assert len(played(session)) == STEPS
    assert [path.name for path in complete_checkpoints(session.run.checkpoints)] == [
        f"step-00000{k}" for k in (1, 3, 4, 5, 6)
    ]
    said = made.shown.getvalue()
    assert said.count("checkpoints is not being written: No space left on device; the run goes on without it") == 1
    assert said.count("checkpoints is written again") == 1
    assert session.summarize(1.0)["not_written"] == []


def test_a_checkpoint_that_is_asked_for_again_is_never_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of the same step is brought up to date where it stands: a kill at any moment leaves it whole."""
    made = staged(tmp_path, monkeypatch, "rollout.max_staleness=2")
    session = made.session()
    seen: list[tuple[str, ...]] = []

    def noting(folder: Path, *args: Any) -> None:
        seen.append(tuple(path.name for path in complete_checkpoints(session.run.checkpoints)))
        save_carryover(folder, *args)

    monkeypatch.setattr("overlap.run.step_log.save_carryover", noting)
    on_step = StepLog.on_step

    async def twice(log: StepLog, result: Any) -> None:
        await on_step(log, result)
        await log.checkpoint(result.carried)

    monkeypatch.setattr(StepLog, "on_step", twice)
    played(session)
    steps = [f"step-00000{k}" for k in range(1, STEPS + 1)]
    assert seen == [tuple(steps[:k]) for step in range(STEPS) for k in (step, step + 1)]

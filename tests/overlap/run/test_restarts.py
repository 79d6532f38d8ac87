"""A run whose learner died goes back to its newest checkpoint by itself, so often as it may, and says so."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from journal import essence
from sessions import Generator, Learner, Stage, Verifier, assert_one_run, interrupt, play

from overlap.core import Batch, WeightUpdate
from overlap.core.errors import EngineError, LearnerDiedError, LearnerError, StageError, StoppedError
from overlap.record.progress import final_table
from overlap.run import restarts
from overlap.run.session import TrainingSession

Deaths = Callable[[int, Batch], bool]


class Troupe:
    """Components that are made anew for each attempt, as the real ones are; learners die as told."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, dies: Deaths, *overrides: str) -> None:
        self.stage = Stage(folder, monkeypatch, "run.save_every=2", "rollout.max_staleness=1", *overrides)
        self.learners: list[Learner] = []
        self.engines: list[Generator] = []
        self._dies = dies
        monkeypatch.setattr("overlap.generate.client.EngineClient", self._engine)
        monkeypatch.setattr("overlap.verify.verifier.SandboxVerifier", lambda *a, **k: Verifier(seed=1))
        monkeypatch.setattr("overlap.learner.learner.ProcessLearner", self._learner)
        monkeypatch.setattr(restarts, "PAUSE_S", 0.001)

    def _engine(self, *args: Any, **kwargs: Any) -> Generator:
        self.engines.append(Generator(seed=1))
        return self.engines[-1]

    def _learner(self, *args: Any, **kwargs: Any) -> Learner:
        learner, number = Learner(), len(self.learners)
        learner.on_step = lambda batch: self._die(learner) if self._dies(number, batch) else None
        self.learners.append(learner)
        return learner

    def _die(self, learner: Learner) -> None:
        error = LearnerDiedError("learner rank 0 was killed by SIGKILL")
        learner.die(error)
        raise error

    def play(self) -> tuple[TrainingSession, dict[str, Any]]:
        session = self.stage.session()
        return session, play(session)

    @property
    def shown(self) -> list[str]:
        return [line for line in self.stage.shown.getvalue().splitlines() if "learner" in line or "checkpoint" in line]


@pytest.fixture
def troupe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Troupe]:
    return lambda dies, *overrides: Troupe(tmp_path, monkeypatch, dies, *overrides)


def nobody(number: int, batch: Batch) -> bool:
    return False


def once_at(step: int) -> Deaths:
    return lambda number, batch: number == 0 and batch.step == step


@pytest.mark.promise("kills")
def test_the_run_goes_on_from_its_newest_checkpoint_as_if_nothing_had_happened(
    troupe: Callable[..., Troupe], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Troupe(tmp_path / "whole", monkeypatch, nobody)
    whole.play()
    made = troupe(once_at(4))
    session, figures = made.play()
    assert (figures["exit"], figures["steps"], figures["policy"]["version"]) == ("finished", 5, 5)
    batches = [essence(b) for b in (*made.learners[0].batches[:2], *made.learners[1].batches)]
    assert batches == [essence(b) for b in whole.learners[0].batches]
    assert_one_run(session.run)
    assert all(part._closed.is_set() for part in (*made.learners, *made.engines))
    assert "policy" not in {p.name for p in tmp_path.glob(".policy*")}


def test_the_user_reads_one_line_and_finds_it_again_at_the_end(troupe: Callable[..., Troupe]) -> None:
    made = troupe(once_at(3))
    _, figures = made.play()
    line = "learner rank 0 was killed by SIGKILL; the run goes back to checkpoint step-000002 (restart 1 of 2)"
    assert [told for told in made.shown if "killed" in told] == [f"{line} in 0.001 s"]
    assert figures["restarts"] == [line]
    assert f"went back           {line}" in final_table(figures)


def test_a_run_that_would_lose_steps_ends(troupe: Callable[..., Troupe]) -> None:
    made = troupe(once_at(3), "run.save_every=0")
    with pytest.raises(StageError, match="killed by SIGKILL"):
        made.play()
    said = ["there is no checkpoint that the run could go back to (run.save_every=N makes them)"]
    assert [line for line in made.shown if "go back" in line or "goes back" in line] == said
    assert len(made.learners) == 1


def test_restarts_are_bounded_and_wait_longer_each_time(troupe: Callable[..., Troupe]) -> None:
    made = troupe(lambda number, batch: batch.step == 4)
    with pytest.raises(StageError, match="killed by SIGKILL"):
        made.play()
    assert len(made.learners) == 3
    assert [line.rsplit(" in ")[-1] for line in made.shown if "goes back to" in line] == ["0.001 s", "0.002 s"]
    assert made.shown[-1].startswith("the learner died again after 2 restarts")


def test_a_learner_that_dies_as_it_starts_again_counts_too_and_one_that_never_started_ends_the_run(
    troupe: Callable[..., Troupe], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = troupe(once_at(3))

    async def start(self: Learner) -> None:
        if made.learners.index(self) == dies:
            raise LearnerDiedError("no memory")

    monkeypatch.setattr(Learner, "start", start)
    dies = 0
    with pytest.raises(LearnerDiedError, match="no memory"):
        made.play()
    assert len(made.learners) == 1
    made.learners, dies = [], 1
    _, figures = made.play()
    assert figures["exit"] == "finished"
    causes = ["learner rank 0 was killed by SIGKILL", "no memory"]
    assert [line.split(";")[0] for line in figures["restarts"]] == causes


@pytest.mark.parametrize("error", [LearnerError("the loss is nan: lower learn.lr"), EngineError("dead")])
def test_what_another_attempt_would_not_mend_ends_the_run(troupe: Callable[..., Troupe], error: Exception) -> None:
    made = troupe(once_at(3))

    def refuse(learner: Learner) -> None:
        raise error

    made._die = refuse  # type: ignore[method-assign]
    with pytest.raises(StageError):
        made.play()
    assert len(made.learners) == 1


def test_the_death_counts_also_where_the_engine_is_the_first_to_fail_of_it(
    troupe: Callable[..., Troupe], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = troupe(nobody)
    load = Generator.load

    async def fails(self: Generator, update: WeightUpdate) -> None:
        if update.version == 3 and len(made.learners) == 1:
            made.learners[0].die(LearnerDiedError("learner rank 0 was killed by SIGKILL"))
            raise EngineError("the learner hung up in the middle of a load")
        await load(self, update)

    monkeypatch.setattr(Generator, "load", fails)
    _, figures = made.play()
    assert figures["exit"] == "finished"
    assert figures["restarts"][0].startswith("learner rank 0 was killed by SIGKILL; the run goes back")


def test_a_run_that_goes_back_says_so_and_does_what_it_was_asked_meanwhile(
    troupe: Callable[..., Troupe], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, seen = troupe(once_at(3)), list[Any]()
    session = made.stage.session()
    back = session.restarts.go_back

    async def watched(death: LearnerDiedError) -> Any:
        seen.append(session.control.status()["state"])
        session.control.pause()
        session.control.save()
        return await back(death)

    async def start(self: Learner) -> None:
        seen.append(session.control.status())

    monkeypatch.setattr(session.restarts, "go_back", watched)
    monkeypatch.setattr(Learner, "start", start)
    save = session._on_save

    async def saved_and_resumed(carried: Any) -> None:
        seen.append((session.control.state, session.step))
        await save(carried)
        session.control.resume()

    monkeypatch.setattr(session, "_on_save", saved_and_resumed)
    figures = play(session)
    assert (figures["exit"], figures["steps"]) == ("finished", 5)
    first, state, again, at = seen
    assert (first["state"], first["step"], first["restarts"]) == ("starting", 0, 0)
    assert state == "restarting: 1 of 2"
    assert (again["state"], again["step"], again["restarts"]) == ("restarting: 1 of 2", 2, 1)
    assert (again["paused"], again["saving"], again["checkpoint"]) == (True, True, "step-000002")
    assert "generating" not in again  # nothing of the attempt that ended
    assert at == ("pausing", 2)


@pytest.mark.parametrize(("by", "error"), [("stop", StoppedError), ("ctrl-c", asyncio.CancelledError)])
def test_a_run_that_is_ended_while_it_goes_back_ends_at_once_and_names_the_checkpoint(
    troupe: Callable[..., Troupe], monkeypatch: pytest.MonkeyPatch, by: str, error: type[BaseException]
) -> None:
    made = troupe(once_at(3))
    monkeypatch.setattr(restarts, "PAUSE_S", 3600.0)
    session = made.stage.session()
    session.restarts._report_line = lambda line: session.control.stop() if by == "stop" else interrupt()
    with pytest.raises(error) as caught:
        play(session)
    if by == "stop":
        assert str(caught.value).endswith("while it went back to a checkpoint: --resume goes on from there")
    assert len(made.learners) == 1
    summary = json.loads(session.run.summary.read_text())
    assert summary["exit"] == ("stopped" if by == "stop" else "interrupted")
    assert summary["policy"]["checkpoint"].endswith("step-000002")

"""A run keeps what it learned however it ends, and no file that cannot be written costs it a step."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sessions import Episodic, Stage, Verifier, interrupt, play

from overlap.core import WeightUpdate
from overlap.core.errors import EngineError, LearnerError, RunDirError, StageError
from overlap.inspect.curves import write_picture
from overlap.process.atomic import partial_path
from overlap.record.json_lines import read_json_lines
from overlap.record.ownership import check_run_dir_free
from overlap.record.progress import final_table
from overlap.run import save_policy as keeping
from overlap.run.session import TrainingSession

Make = Callable[..., Stage]


def cancel_at(step: int) -> Callable[[Any], None]:
    """Interrupts while ``step`` is being learned."""
    return lambda batch: interrupt() if batch.step == step else None


def cut_off(stage: Make) -> Stage:
    """The stage for a run to go on from step 2: it was cut off while it took step 4."""
    made = stage("run.save_every=2")
    made.learner.on_step = cancel_at(4)
    with pytest.raises(asyncio.CancelledError):
        play(made.session())
    return stage("run.save_every=2")


def written(session: TrainingSession) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads(session.run.summary.read_text())
    return summary


@pytest.mark.promise("trains")
def test_a_finished_run_has_its_policy_its_rows_its_picture_and_its_figures(
    stage: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = stage().session()
    monkeypatch.setattr("overlap.run.session.write_picture", write_picture)
    figures = play(session)
    assert figures["exit"] == "finished"
    assert [row["step"] for row in read_json_lines(session.run.metrics)] == [1, 2, 3, 4, 5]
    assert figures["policy"] == {"path": str(session.run.policy), "version": 5}
    assert (session.run.policy / "policy").read_text() == "5\n"
    assert session.run.picture.read_bytes().startswith(b"\x89PNG")
    assert written(session)["not_written"] == []


@pytest.mark.parametrize(("truncated", "warnings"), [("mask", 1), ("zero", 0)])
def test_a_run_that_learns_from_the_fast_episodes_alone_says_so_once(
    stage: Make, truncated: str, warnings: int
) -> None:
    made = stage(f"learn.truncated={truncated}")
    made.generator = Episodic(seed=3)
    session = made.session()
    play(session)
    rows = read_json_lines(session.run.metrics)
    late = [row["episode/out_of_time"] for row in rows]
    assert sum(count > 0 for count in late) > 1
    told = [line for line in made.shown.getvalue().splitlines() if "selects for short episodes" in line]
    assert len(told) == warnings
    first = next(row for row in rows if row["episode/out_of_time"])
    says = f"step {first['step']}: {first['episode/out_of_time']} of 8 episodes ran out of episode.timeout_s=600 and"
    assert all(says in line for line in told)


def test_a_run_whose_prompts_are_all_solved_ends_in_order_and_says_so(stage: Make) -> None:
    made = stage("data.drop_solved=0.9", "run.steps=50", "run.save_every=1")
    made.verifier = Verifier(solved=1.0)
    session = made.session()
    figures = play(session)
    assert figures["exit"] == "all prompts solved"
    assert figures["prompts"] == {"train": 8, "heldout": 0, "solved": 8}
    lines = [line for line in made.shown.getvalue().splitlines() if "drop_solved" in line]
    assert lines[-1] == "the run ends here: the next epoch would leave out 8 of 8 prompts, solved at " + (
        "data.drop_solved=0.9 or more"
    )
    assert sum("the run ends here" in line for line in lines) == 1
    rows = read_json_lines(session.run.metrics)
    assert 4 <= len(rows) < 10
    assert rows[-1]["rollout/prompts_solved"] == 8
    assert (session.run.policy / "policy").is_file()
    assert play(made.session(*made.reopened()))["exit"] == "all prompts solved"


@pytest.mark.promise("interrupts")
def test_an_interrupted_run_keeps_what_it_learned_and_says_where(stage: Make) -> None:
    made = stage()
    made.learner.on_step = cancel_at(4)
    session = made.session()
    with pytest.raises(asyncio.CancelledError):
        play(session)
    assert written(session)["exit"] == "interrupted"
    assert written(session)["policy"] == {"path": str(session.run.policy), "version": 4}
    assert (session.run.policy / "policy").is_file()
    assert f"{session.run.policy} (version 4)" in final_table(session.summarize(1.0))
    assert "saving the policy (at most 30 s; Ctrl-C skips it)" in made.shown.getvalue()


def test_a_run_whose_engine_died_keeps_what_it_learned(stage: Make) -> None:
    made = stage()
    made.learner.on_step = lambda batch: made.generator.die(EngineError("killed")) if batch.step == 3 else None
    load = made.generator.load

    async def stuck(update: WeightUpdate) -> None:
        await (asyncio.Event().wait() if update.version == 3 else load(update))

    made.generator.load = stuck  # type: ignore[method-assign]
    session = made.session()
    with pytest.raises(EngineError, match="killed"):
        play(session)
    assert session.policy_saver.outcome["version"] == 3
    assert (session.run.policy / "policy").is_file()


def test_the_figures_say_how_long_generation_stood_still_for_dead_engines(
    stage: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = stage()

    def dies_once(makes: list[Callable[[], Any]], *, on_recovered: Callable[[float], None], **_: Any) -> Any:
        made.learner.on_step = lambda batch: on_recovered(21.5) if batch.step == 2 else None
        return makes[0]()

    monkeypatch.setattr("overlap.generate.engines.Engines", dies_once)
    session = made.session()
    assert play(session)["engine_outages_s"] == [21.5]
    assert written(session)["engine_outages_s"] == [21.5]


def test_a_run_whose_learner_died_says_so_and_names_the_newest_checkpoint(stage: Make) -> None:
    made = stage("run.save_every=2")

    def dies(batch: Any) -> None:
        if batch.step == 3:
            made.learner.on_save = _raising(LearnerError("rank 0 was killed"))
            raise LearnerError("rank 0 was killed")

    made.learner.on_step = dies
    session = made.session()
    with pytest.raises(StageError, match="rank 0 was killed"):
        play(session)
    policy, table = written(session)["policy"], final_table(session.summarize(1.0))
    assert policy["failure"] == "rank 0 was killed"
    assert policy["checkpoint"].endswith("checkpoints/step-000002")
    assert "not saved: rank 0 was killed; the newest checkpoint is" in table
    assert f"overlap export {session.run.path}" in table


def _raising(error: Exception) -> Any:
    def on_save(kind: str) -> None:
        raise error

    return on_save


@pytest.mark.promise("interrupts")
@pytest.mark.parametrize(("skipped", "why"), [(False, "it took more than 0 s"), (True, "skipped")])
def test_saving_the_policy_of_an_interrupted_run_has_an_end_and_a_second_ctrl_c_skips_it(
    stage: Make, monkeypatch: pytest.MonkeyPatch, skipped: bool, why: str
) -> None:
    if not skipped:
        monkeypatch.setattr(keeping, "KEEP_S", 0.01)
    made = stage()
    session = made.session()

    def hangs(kind: str) -> Any:
        if skipped:
            asyncio.get_running_loop().call_soon(session.policy_saver.skip)
        return asyncio.Event().wait()

    made.learner.on_step, made.learner.on_save = cancel_at(2), hangs
    assert not session.policy_saver.skip()
    with pytest.raises(asyncio.CancelledError):
        play(session)
    assert session.policy_saver.outcome == {"failure": why}
    assert not session.policy_saver.skip()


def test_what_a_save_that_was_cut_off_has_left_is_removed(stage: Make) -> None:
    made = stage()
    session = made.session()

    def torn(kind: str) -> None:
        for place in (session.run.policy, partial_path(session.run.best)):
            partial_path(place).mkdir()
        raise LearnerError("killed while writing")

    made.learner.on_step, made.learner.on_save = cancel_at(2), torn
    with pytest.raises(asyncio.CancelledError):
        play(session)
    assert not list(session.run.path.glob(".policy*"))


def test_a_start_that_fails_leaves_its_directory_free(stage: Make) -> None:
    made = stage()

    async def fails() -> None:
        raise EngineError("no engine today")

    made.generator.start = fails  # type: ignore[method-assign]
    session = made.session()
    with pytest.raises(EngineError):
        play(session)
    assert not session.run.summary.exists()
    assert session.policy_saver.outcome == {}
    check_run_dir_free(session.run.path, "run")
    assert play(stage().session())["exit"] == "finished"


@pytest.mark.promise("by-products")
def test_no_file_that_cannot_be_written_costs_a_step(stage: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full after step 1: metrics, groups, samples, trace, checkpoints, summary and picture fail."""
    made = stage("run.save_every=1")
    session = made.session()
    real_write = os.write

    def full(real: Callable[..., int]) -> Callable[..., int]:
        def write(fd: int, *args: Any) -> int:
            if str(session.run.path) in os.readlink(f"/proc/self/fd/{fd}"):
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(fd, *args)

        return write

    def fill(batch: Any) -> None:
        if batch.step == 2:
            monkeypatch.setattr(os, "write", full(real_write))
            monkeypatch.setattr(os, "fsync", full(lambda fd: 0))
            made.learner.on_save = lambda kind: _raising(RunDirError("disk full"))(kind) if kind == "state" else None

    made.learner.on_step = fill
    figures = play(session)
    assert (figures["exit"], figures["steps"]) == ("finished", 5)
    at_once, at_the_end = (
        "metrics.jsonl trajectories.jsonl groups.jsonl trace.json checkpoints",
        "summary.json picture.png report.html",
    )
    lost = {line.split(" ")[0] for line in figures["not_written"]}
    assert lost == {*at_once.split(), *at_the_end.split()}
    assert all(made.shown.getvalue().count(f"{name} is not being written") == 1 for name in at_once.split())
    assert all(name in final_table(figures).partition("not written")[2] for name in lost)
    assert [p.name for p in session.run.checkpoints.iterdir()] == ["step-000001"]
    assert json.loads(session.run.trace.read_text() + "]")  # Perfetto does without it
    assert [row["step"] for row in read_json_lines(session.run.metrics)] == [1]


@pytest.mark.promise("by-products")
def test_the_summary_is_there_also_when_the_picture_fails(stage: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any, **kwargs: Any) -> None:
        raise RunDirError("cannot write picture.png") from OSError(errno.ENOSPC, "No space left on device")

    session = stage().session()
    monkeypatch.setattr("overlap.run.session.write_picture", full)
    play(session)
    assert written(session)["not_written"] == ["picture.png (No space left on device; 1 time from step 5 on)"]


def test_a_policy_that_cannot_be_saved_at_the_end_is_the_runs_error(stage: Make) -> None:
    made = stage("run.save_every=2")
    made.learner.on_save = lambda kind: _raising(RunDirError("disk full"))(kind) if kind == "policy" else None
    session = made.session()
    with pytest.raises(RunDirError, match="disk full"):
        play(session)
    assert written(session)["policy"]["checkpoint"].endswith("step-000004")


@pytest.mark.promise("by-products")
def test_a_policy_for_which_the_disk_has_no_room_is_saved_on_another_one_and_told(
    stage: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, saves = stage(), list[str]()

    def on_save(kind: str) -> None:
        saves.append(kind)
        if len(saves) == 1:
            raise RunDirError("disk full")

    made.learner.on_save = on_save
    monkeypatch.setattr("overlap.run.save_policy.other_places", lambda run, size: [tmp_path / "other"])
    (tmp_path / "other").mkdir()
    session = made.session()
    play(session)
    policy = written(session)["policy"]
    assert Path(policy["path"]).parent == tmp_path / "other"
    assert Path(policy["path"]).is_dir()
    assert (policy["instead"], policy["version"], saves) == ("disk full", 5, ["policy", "policy"])
    assert f"{policy['path']} (version 5); not in the run directory: disk full" in final_table(written(session))
    said = made.shown.getvalue()
    assert said.count(f"the policy is saved in {policy['path']}, since {session.run.policy} cannot be written") == 1


def test_a_resumed_run_that_ends_before_it_takes_a_step_names_the_checkpoint_that_has_its_policy(stage: Make) -> None:
    again = cut_off(stage)
    session = again.session(*again.reopened())

    async def stopped(batch: Any) -> Any:
        session.control.stop()
        await asyncio.Event().wait()

    again.learner.step = stopped
    figures = play(session)
    assert (figures["exit"], figures["steps"]) == ("stopped", 2)
    policy = figures["policy"]
    assert policy["failure"] == "no step was taken since the run was resumed"
    assert policy["checkpoint"].endswith("step-000002")

"""TensorBoard reads the rows of a run, and texts beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sessions import Stage, play
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary.writer import event_file_writer
from tensorboard.summary.writer.event_file_writer import AtomicCounter

from overlap.config.load import load_config
from overlap.core import Batch
from overlap.hooks.callback import CallbackRun, RunStarted, StepTaken
from overlap.hooks.services import TensorBoard


def step(number: int, value: float) -> StepTaken:
    return StepTaken(number, {"reward/mean": value}, Batch(number, number - 1, ()))


def run_in(folder: Path) -> CallbackRun:
    return CallbackRun(folder, load_config(None, []), None, lambda prompt: "")


def read(folder: Path) -> Any:
    return EventAccumulator(str(folder / "events")).Reload()


def scalars(folder: Path) -> list[tuple[int, float]]:
    return [(e.step, round(e.value, 2)) for e in read(folder).Scalars("reward/mean")]


@pytest.mark.promise("trackers")
def test_configuration_rows_samples_and_outcome_of_a_run_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Stage(tmp_path, monkeypatch, "run.steps=2").session()
    assert play(session)["not_written"] == []
    there = read(session.run.path)
    assert [event.step for event in there.Scalars("reward/mean")] == [1, 2]
    texts = {tag: there.Tensors(tag)[0].tensor_proto.string_val[0].decode() for tag in there.Tags()["tensors"]}
    assert set(texts) == {f"{name}/text_summary" for name in ("config", "samples/train", "outcome")}
    assert '"steps": 2' in texts["config/text_summary"]
    assert '    "exit": "finished"' in texts["outcome/text_summary"]
    assert '"answer": ' in texts["samples/train/text_summary"]


@pytest.mark.parametrize("restarted", [True, False])
def test_what_came_after_the_checkpoint_is_forgotten(
    tmp_path: Path, restarted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_file_writer, "_global_uid", AtomicCounter(0))  # files of one second are read by its order
    board, run = TensorBoard(), run_in(tmp_path)
    board.on_run_start(run, RunStarted(0, resumed=False))
    for number in (1, 2, 3):
        board.on_step(run, step(number, 0.1 * number))
    board = TensorBoard() if restarted else board
    board.on_run_start(run, RunStarted(2, resumed=True))
    board.on_step(run, step(3, 0.9))
    assert scalars(tmp_path) == [(1, 0.1), (2, 0.2), (3, 0.9)]

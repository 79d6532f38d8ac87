"""TensorBoard reads the rows of a run, and texts beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.compat.proto.event_pb2 import Event

from overlap.trackers.tensorboard_events import TensorBoardEvents
from overlap.trackers.tracker import TrackedRun


def begun(folder: Path, step: int = 0) -> TensorBoardEvents:
    made = TensorBoardEvents()
    made.start(TrackedRun("id", "run", "p", str(folder), str(folder), {"learn": {"lr": 0.5}}, step, resumed=step > 0))
    return made


def scalars(folder: Path, name: str) -> list[tuple[int, float]]:
    read = EventAccumulator(str(folder / "events")).Reload()
    return [(e.step, round(e.value, 2)) for e in read.Scalars(name)]


def texts(folder: Path, name: str) -> list[tuple[int, str]]:
    read = EventAccumulator(str(folder / "events")).Reload()
    return [(e.step, e.tensor_proto.string_val[0].decode()) for e in read.Tensors(name)]


@pytest.mark.promise("trackers")
def test_rows_are_scalars(tmp_path: Path) -> None:
    board = begun(tmp_path)
    board.row({"step": 1, "reward/mean": 0.25})
    board.row({"step": 2, "reward/mean": 0.5})
    (file,) = (tmp_path / "events").iterdir()
    events = [Event.FromString(raw) for raw in RawEventFileLoader(str(file)).Load()]
    assert events[0].file_version == "brain.Event:2"
    found = [(e.step, [(v.tag, v.simple_value) for v in e.summary.value]) for e in events[1:]]
    assert [row for row in found if row[1][0][0] == "reward/mean"] == [
        (1, [("reward/mean", 0.25)]),
        (2, [("reward/mean", 0.5)]),
    ]
    board.end("finished", {})


def test_configuration_samples_and_outcome_are_texts(tmp_path: Path) -> None:
    board = begun(tmp_path)
    board.row({"step": 1, "reward/mean": 0.25})
    board.samples("heldout", 1, [{"answer": "é\n"}])
    board.end("finished", {"after/value": 0.5})
    ((_, config),) = texts(tmp_path, "config")
    assert '    "lr": 0.5' in config
    ((step, sample),) = texts(tmp_path, "samples/heldout")
    assert (step, r"\u00e9\n" in sample) == (1, True)
    ((_, outcome),) = texts(tmp_path, "outcome")
    assert '"after/value": 0.5' in outcome


@pytest.mark.parametrize("restarted", [True, False])
def test_what_came_after_the_checkpoint_is_forgotten(
    tmp_path: Path, restarted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    board: Any = begun(tmp_path)
    for step in (1, 2, 3):
        board.row({"step": step, "reward/mean": 0.1 * step})
    if restarted:
        later = "events.out.tfevents.9999999999.overlap.1"
        monkeypatch.setattr(TensorBoardEvents, "_file_name", staticmethod(lambda: later))
        board = begun(tmp_path, step=2)
    else:
        board.rewind(2)
    board.row({"step": 3, "reward/mean": 0.9})
    board.end("finished", {})
    assert scalars(tmp_path, "reward/mean") == [(1, 0.1), (2, 0.2), (3, 0.9)]

"""A tracker in a thread: calls arrive in order, and nothing that it does reaches whoever feeds it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from overlap.trackers import feed
from overlap.trackers.feed import TrackerFeed
from overlap.trackers.tracker import TrackedRun, TrackerRefused

RUN = TrackedRun("id", "run", "project", "/nowhere", "/nowhere/trackers", {})
SOON = 10.0


class Stub:
    """``act`` is called with each method's name and first argument."""

    def __init__(self, act: Callable[[str, Any], Any] = lambda name, given: None) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.act = act

    def __getattr__(self, name: str) -> Any:
        if name in ("start", "row", "samples", "rewind", "end"):
            return lambda *args: (self.act(name, args[0]), self.calls.append((name, args[0])))
        raise AttributeError(name)


def fed(stub: Any, *rows: int) -> TrackerFeed:
    made = TrackerFeed("stub", lambda: stub, RUN)
    for row in rows:
        made.put("row", row)
    return made


def closed(made: TrackerFeed) -> list[str]:
    made.close(time.monotonic() + SOON)
    return made.take_losses()


def test_calls_arrive_in_order_behind_the_start() -> None:
    stub = Stub()
    assert closed(fed(stub, 1, 2, 3)) == []
    assert stub.calls == [("start", RUN), ("row", 1), ("row", 2), ("row", 3)]


def test_a_call_that_raises_is_lost_and_the_next_one_is_not() -> None:
    def act(name: str, given: Any) -> None:
        if given == 2:
            raise ValueError("no such\nmetric")

    stub = Stub(act)
    assert closed(fed(stub, 1, 2, 3)) == ["ValueError: no such metric"]
    assert stub.calls[1:] == [("row", 1), ("row", 3)]


def test_a_tracker_that_is_refused_loses_everything_and_says_why() -> None:
    def act(name: str, given: Any) -> None:
        raise TrackerRefused("no login")

    made = fed(Stub(act))
    made.put("begin")
    assert made.started.wait(SOON)
    assert made.refused == "no login"
    made.put("row", 1)
    assert closed(made) == ["no login"]


def test_a_tracker_that_cannot_be_reached_is_tried_again_and_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "RETRY_S", 0.01)
    tries, arrived = iter((ConnectionError("down"), ConnectionError("down"), None)), threading.Event()

    def act(name: str, given: Any) -> None:
        error = next(tries) if name == "start" else None
        if error:
            raise error
        if given == 2:
            arrived.set()

    stub = Stub(act)
    made = fed(stub, 1, 2)
    assert arrived.wait(SOON)
    assert made.started.is_set()
    assert made.waiting == ""
    assert closed(made) == []
    assert stub.calls == [("start", RUN), ("row", 1), ("row", 2)]


def test_one_that_is_never_reached_loses_what_waited_with_the_reason() -> None:
    def act(name: str, given: Any) -> None:
        raise ConnectionError("down")

    made = fed(Stub(act), 1, 2)
    assert made.started.wait(SOON)
    assert closed(made) == ["down"] * 2


def test_a_full_queue_drops_and_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "QUEUE", 3)
    inside, go = threading.Event(), threading.Event()

    def act(name: str, given: Any) -> None:
        inside.set()
        assert go.wait(SOON)

    stub = Stub(act)
    made = TrackerFeed("stub", lambda: stub, RUN)
    made.put("row", 0)
    assert inside.wait(SOON)
    for row in range(1, 8):
        made.put("row", row)
    go.set()
    assert closed(made) == ["it has not taken 3 calls before"] * 4
    assert stub.calls[1:] == [("row", 0), ("row", 1), ("row", 2), ("row", 3)]


def test_one_that_hangs_is_left_behind_at_the_deadline_and_what_waits_is_counted() -> None:
    go, inside = threading.Event(), threading.Event()

    def act(name: str, given: Any) -> None:
        if name == "row":
            inside.set()
            go.wait(60)

    made = fed(Stub(act), 1, 2, 3)
    assert inside.wait(SOON)
    made.close(time.monotonic())
    lost = made.take_losses()
    go.set()
    assert lost == ["it did not finish in time"] * 3


@pytest.mark.parametrize("deaths", [1, 9])
def test_one_that_broke_off_is_started_again_a_few_times(deaths: int) -> None:
    made: list[Stub] = []

    def make() -> Any:
        number = len(made) + 1

        def act(name: str, given: Any) -> None:
            if name == "row" and number <= deaths:
                raise feed.TrackerGone("its process has ended (3)")

        made.append(Stub(act))
        return made[-1]

    one = TrackerFeed("stub", make, RUN)
    for row in range(6):
        one.put("row", row)
    lost = closed(one)
    starts = feed.RESTARTS + 1
    assert len(made) == (2 if deaths == 1 else starts)
    gone = ["its process has ended (3)"] * min(deaths, starts)
    assert lost == gone + ([] if deaths == 1 else ["it broke off too often"] * (6 - starts))

"""Callbacks of whole runs on the fakes: what they are told, what they may ask for, and what becomes of their faults."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sessions import Stage, assert_one_run, interrupt, play

from overlap import Callback, Evaluate, Save, Stop
from overlap.core.errors import CallbackError, EngineError
from overlap.hooks import thread as callback_thread
from overlap.record.json_lines import read_json_lines

Make = Callable[..., Stage]


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    return lambda *overrides: Stage(tmp_path, monkeypatch, *overrides)


class Told(Callback):
    """Notes all that it is told."""

    def __init__(self) -> None:
        self.events: list[tuple[str, int]] = []
        self.last: dict[str, Any] = {}
        self.threads: set[int] = set()

    def _note(self, name: str, event: Any) -> None:
        self.events.append((name, event.step))
        self.last[name] = event
        self.threads.add(threading.get_ident())

    def on_run_start(self, run, event):
        self.run = run
        self._note("start", event)

    def on_step(self, run, event):
        self._note("step", event)

    def on_evaluate(self, run, event):
        self._note("evaluate", event)

    def on_save(self, run, event):
        self._note("save", event)

    def on_exception(self, run, event):
        self._note("exception", event)

    def on_run_end(self, run, event):
        self._note("end", event)


class On:
    """Calls a function at one method, and is no subclass of anything."""

    def __init__(self, method: str, act: Callable[..., Any]) -> None:
        setattr(self, method, act)


def at(step: int, returned: Any) -> Callable[..., Any]:
    return lambda run, event: returned if event.step == step else None


def names(told: Told) -> list[str]:
    return [name for name, _ in told.events]


@pytest.mark.promise("callbacks")
def test_a_callback_is_told_of_the_whole_run_in_one_thread_that_is_not_the_runs(stage: Make) -> None:
    told = Told()
    made = stage("run.save_every=2", "run.eval_samples=1", "run.eval_every=2", "run.steps=4")
    session = made.session(callbacks=[told], heldout=2)
    figures = play(session)
    assert told.events == [
        ("start", 0), ("evaluate", 0), ("step", 1), ("evaluate", 2), ("step", 2), ("save", 2),
        ("step", 3), ("evaluate", 4), ("step", 4), ("save", 4), ("end", 4),
    ]  # fmt: skip
    assert len(told.threads) == 1
    assert threading.get_ident() not in told.threads
    assert (told.run.path, told.run.cfg) == (session.run.path, made.cfg)
    assert told.run.text_of(session.setup.inputs.train[0]) == "3 4 5 6 7"
    rows = [row for row in read_json_lines(session.run.metrics) if "reward/mean" in row]
    assert told.last["step"].row["reward/mean"] == rows[-1]["reward/mean"]
    assert len(told.last["step"].batch.all_samples) == 8
    assert told.last["evaluate"].figures["samples"] == len(told.last["evaluate"].samples) == 2
    assert told.last["evaluate"].row["eval/samples"] == 2
    assert told.last["save"].path == session.run.checkpoints / "step-000004"
    assert (told.last["end"].exit, told.last["end"].summary["steps"]) == ("finished", 4)
    assert figures["callbacks"]["Told"]["calls"] == len(told.events)
    assert json.loads(session.run.summary.read_text())["callbacks"]["Told"]["calls"] == len(told.events)


def test_methods_may_be_async_and_share_one_event_loop(stage: Make) -> None:
    loops, queue = set[int](), list[asyncio.Queue[int]]()

    async def start(run: Any, event: Any) -> None:
        queue.append(asyncio.Queue())
        loops.add(id(asyncio.get_running_loop()))

    async def step(run: Any, event: Any) -> Any:
        await queue[0].put(event.step)
        await asyncio.sleep(0)
        loops.add(id(asyncio.get_running_loop()))
        return Stop if await queue[0].get() == 3 else None

    hook = On("on_run_start", start)
    hook.on_step = step  # type: ignore[attr-defined]
    assert play(stage().session(callbacks=[hook]))["steps"] == 3
    assert len(loops) == 1


@pytest.mark.promise("callbacks")
@pytest.mark.parametrize("asked", [Stop, Stop("far enough"), [Stop("far enough"), Save]])
def test_stop_ends_a_run_in_order_after_the_step(stage: Make, asked: Any) -> None:
    told, made = Told(), stage("run.eval_samples=1", "run.steps=50", "rollout.max_staleness=2")
    session = made.session(callbacks=[told, On("on_step", at(2, asked))], heldout=2)
    figures = play(session)
    assert figures["exit"] == "stopped by callback On.on_step" + (": far enough" if asked is not Stop else "")
    assert (figures["steps"], figures["policy"]) == (2, {"path": str(session.run.policy), "version": 2})
    assert figures["heldout_reward" if "heldout_reward" in figures else "pass_at_1"]["after"]["step"] == 2
    assert (session.run.checkpoints / "step-000002").is_dir() == isinstance(asked, list)
    assert names(told)[-2:] == ["evaluate", "end"]


@pytest.mark.promise("callbacks")
def test_save_writes_a_checkpoint_that_the_run_goes_on_from(stage: Make) -> None:
    told = Told()
    made = stage()
    made.learner.on_step = lambda batch: interrupt() if batch.step == 4 else None
    with pytest.raises(asyncio.CancelledError):
        play(made.session(callbacks=[told, On("on_step", at(2, Save))]))
    assert ("save", 2) in told.events
    assert names(told)[-1] == "end"
    assert "exception" not in names(told)
    again, more = stage(), Told()
    run, resumed = again.reopened()
    assert resumed.state.step == 2
    assert play(again.session(run, resumed, callbacks=[more]))["exit"] == "finished"
    assert more.events[0] == ("start", 2)
    assert more.last["start"].resumed
    assert_one_run(run)


def test_a_save_that_a_save_asks_for_is_the_same_one(stage: Make) -> None:
    session = stage("run.save_every=5").session(callbacks=[On("on_save", lambda run, event: [Save, Evaluate])])
    assert play(session)["exit"] == "finished"


def test_evaluate_measures_the_policy_of_the_step_and_has_a_row_of_its_own(stage: Make) -> None:
    told, made = Told(), stage("run.eval_samples=2")
    session = made.session(callbacks=[told, On("on_step", at(3, Evaluate))], heldout=2)
    figures = play(session)
    assert [event for event in told.events if event[0] == "evaluate"] == [
        ("evaluate", 0), ("evaluate", 3), ("evaluate", 5),
    ]  # fmt: skip
    rows = read_json_lines(session.run.metrics)
    assert [row["step"] for row in rows if "eval/samples" in row] == [0, 3, 5]
    measured = figures.get("heldout_reward") or figures["pass_at_1"]
    assert [point["step"] for point in measured["during"]] == [3]
    drawn = [event["name"] for event in json.loads(session.run.trace.read_text()) if event.get("cat") == "evaluate"]
    assert drawn == ["after step 3"]


def test_evaluate_without_held_out_prompts_is_told_once(stage: Make) -> None:
    made = stage()
    play(made.session(callbacks=[On("on_step", lambda run, event: Evaluate)]))
    line = "Evaluate of On.on_step has no effect: run.eval_samples is 0"
    assert made.shown.getvalue().count(line) == 1


def failing(run: Any, event: Any) -> None:
    raise ZeroDivisionError("no luck")


@pytest.mark.promise("callbacks")
@pytest.mark.parametrize(("method", "steps"), [("on_run_start", 0), ("on_step", 1), ("on_save", 2), ("on_evaluate", 2)])
def test_a_callback_that_fails_ends_the_run_in_order_and_is_named_with_its_line(
    stage: Make, method: str, steps: int
) -> None:
    told = Told()
    made = stage("run.save_every=2", "run.eval_samples=1", "run.eval_every=2")
    act = failing if method != "on_evaluate" else lambda run, event: failing(run, event) if event.step else None
    session = made.session(callbacks=[told, On(method, act)], heldout=2)
    with pytest.raises(CallbackError) as raised:
        play(session)
    where = f", after step {steps}" if steps else ", before the first step"
    assert str(raised.value).startswith(f"callback On.{method} raised ZeroDivisionError: no luck (")
    assert "test_callbacks.py:" in str(raised.value)
    assert str(raised.value).endswith(where)
    assert raised.value.exit_code == 1
    assert names(told)[-2:] == ["exception", "end"]
    assert told.last["exception"].error is raised.value
    if steps:
        assert json.loads(session.run.summary.read_text())["policy"]["version"] == steps


def test_a_checkpoint_that_is_due_is_written_although_a_callback_failed_at_the_step(stage: Make) -> None:
    session = stage("run.save_every=1").session(callbacks=[On("on_step", failing)])
    with pytest.raises(CallbackError):
        play(session)
    assert (session.run.checkpoints / "step-000001").is_dir()


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        (3, "it returned 3: return Stop, Save, Evaluate, a list of them, or None"),
        ([Stop, "stop"], "it returned 'stop': return Stop"),
    ],
)
def test_what_a_callback_must_not_return_is_its_fault(stage: Make, returned: Any, says: str) -> None:
    made = stage("run.stall_s=20")
    with pytest.raises(CallbackError, match=f"callback On.on_step: .*{says}.*, after step 1"):
        play(made.session(callbacks=[On("on_step", lambda run, event: returned)]))


def test_an_error_of_the_run_is_told_and_one_at_the_end_does_not_hide_it(stage: Make) -> None:
    told, made = Told(), stage()
    made.learner.on_step = lambda batch: made.generator.die(EngineError("killed")) if batch.step == 3 else None
    load = made.generator.load

    async def stuck(update: Any) -> None:
        await (asyncio.Event().wait() if update.version == 3 else load(update))

    made.generator.load = stuck  # type: ignore[method-assign]
    hooks = [On("on_exception", failing), On("on_run_end", failing), told]
    with pytest.raises(EngineError, match="killed"):
        play(made.session(callbacks=hooks))
    shown = made.shown.getvalue()
    assert "callback On#1.on_exception raised ZeroDivisionError" in shown
    assert "callback On#2.on_run_end raised ZeroDivisionError" in shown


def test_a_callback_that_fails_at_the_end_is_the_error_of_a_run_that_has_none(stage: Make) -> None:
    session = stage().session(callbacks=[On("on_run_end", failing)])
    with pytest.raises(CallbackError, match=r"On\.on_run_end raised"):
        play(session)
    assert json.loads(session.run.summary.read_text())["exit"] == "finished"


def test_the_cost_of_a_slow_callback_is_measured_and_told_once(stage: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 10_000, 3))
    monkeypatch.setattr(callback_thread, "monotonic", lambda: float(next(clock)))
    made = stage()
    figures = play(made.session(callbacks=[On("on_step", lambda run, event: None)]))
    assert figures["callbacks"] == {"On": {"calls": 5, "seconds": 15.0}}
    line = "callback On.on_step took 3.0 s, after step 1: no step is learned meanwhile"
    assert made.shown.getvalue().count(line) == made.shown.getvalue().count("On.on_step took") == 1


def test_a_callback_that_never_returns_ends_the_run_and_is_left_behind(
    stage: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callback_thread, "END_S", 0.01)
    free, told, made = threading.Event(), Told(), stage("run.stall_s=0.2")
    try:
        with pytest.raises(CallbackError, match=r"callback On.on_step has not returned within run.stall_s=0.2 s"):
            play(made.session(callbacks=[On("on_step", lambda run, event: free.wait(60)), told]))
    finally:
        free.set()
    assert "callback On.on_step has not returned: on_run_end is given up" in made.shown.getvalue()


def test_a_callback_may_command_the_run_from_its_thread(stage: Make) -> None:
    def step(run: Any, event: Any) -> None:
        if event.step == 2:
            assert run.control.status()["step"] == 2
            run.control.save()
            run.control.drain()

    session = stage("run.steps=50").session(callbacks=[On("on_step", step)])
    assert play(session)["exit"] == "drained"
    assert (session.run.checkpoints / "step-000002").is_dir()


@pytest.mark.parametrize("exits", [False, True])
def test_a_child_that_a_callback_forks_and_lets_return_does_not_stay(stage: Make, exits: bool) -> None:
    children = []

    def fork(run: Any, event: Any) -> None:
        if event.step == 1:
            children.append(os.fork())
            if exits and not children[0]:
                raise SystemExit(0)

    play(stage().session(callbacks=[On("on_step", fork)]))
    ended = os.pidfd_open(children[0])
    try:
        assert select.select([ended], [], [], 10)[0]
    finally:
        os.close(ended)
        os.kill(children[0], signal.SIGKILL)
        os.waitpid(children[0], 0)

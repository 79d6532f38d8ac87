"""A run does what its owner asks, in every moment of its life, or says why it does not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from sessions import Learner, Stage, play

from overlap.core.errors import OverlapError, StoppedError
from overlap.record.checkpoint import complete_checkpoints
from overlap.record.json_lines import read_json_lines
from overlap.run import control as module
from overlap.run.control import COMMANDS, RunControl
from overlap.run.control_socket import ask, listening

Make = Callable[..., Stage]


def beside(work: Callable[[], Any]) -> Future[Any]:
    """Do ``work`` in a thread of its own."""
    return ThreadPoolExecutor(1).submit(work)


def until(control: RunControl, state: str) -> dict[str, Any]:
    """The first status that has this state, and no save underway."""
    while (status := control.status())["state"] != state or status["saving"]:
        assert status["state"] not in ("ending", "ended"), f"{state} never came"
    return status


def at_step(made: Stage, step: int, act: Callable[[], Any]) -> None:
    """Call ``act`` in the run's own loop when ``step`` was learned."""
    made.learner.on_step = lambda batch: act() if batch.step == step else None


@pytest.mark.promise("ctl")
def test_a_run_is_paused_saved_and_resumed_over_its_socket(stage: Make) -> None:
    made, begun = stage("run.steps=40"), threading.Event()
    session = made.session()
    run = str(session.run.path)

    def work() -> dict[str, Any]:
        assert begun.wait(60)
        assert ask(run, "pause")["done"].startswith("pausing")
        ask(run, "save")
        status = until(session.control, "paused")
        ask(run, "resume")
        return status

    asked = beside(work)
    at_step(made, 2, begun.set)
    with listening(session.control, session.run.ctl):
        figures = play(session)
    status = asked.result()
    assert status["paused"]
    assert 2 <= status["step"] < 40
    assert status["checkpoint"] == complete_checkpoints(session.run.checkpoints)[0].name == f"step-{status['step']:06d}"
    assert (status["generating"], status["verifying"]) == (0, 0)
    assert figures["exit"] == "finished"
    assert [row["step"] for row in read_json_lines(session.run.metrics)] == list(range(1, 41))
    assert not session.run.ctl.exists()


@pytest.mark.promise("ctl")
def test_a_drained_run_ends_early_in_order(stage: Make) -> None:
    made = stage("run.steps=5000", "rollout.max_staleness=1")
    session = made.session()
    at_step(made, 3, session.control.drain)
    figures = play(session)
    rows = read_json_lines(session.run.metrics)
    assert figures["exit"] == "drained"
    assert [row["step"] for row in rows] == [*range(1, figures["steps"] + 1)]
    assert 3 <= figures["policy"]["version"] == rows[-1]["version"] < 5000


@pytest.mark.promise("ctl")
def test_a_stopped_run_keeps_its_policy(stage: Make) -> None:
    made = stage("run.steps=5000")
    session = made.session()
    at_step(made, 3, session.control.stop)
    figures = play(session)
    assert figures["exit"] == "stopped"
    assert figures["policy"]["version"] >= 3
    assert session.run.policy.is_dir()


class Gate:
    """Holds up the start of a learner until it is opened, from any thread."""

    def __init__(self, learner: Learner) -> None:
        self._open, self._reached, self._start = asyncio.Event(), threading.Event(), learner.start
        learner.start = self._wait  # type: ignore[method-assign]

    async def _wait(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._reached.set()
        await self._open.wait()
        await self._start()

    def open(self) -> None:
        assert self._reached.wait(60)
        self._loop.call_soon_threadsafe(self._open.set)


def test_a_run_that_starts_says_so_and_pauses_before_its_first_step(stage: Make) -> None:
    made = stage()
    session, gate = made.session(), Gate(made.learner)
    control = session.control

    def work() -> tuple[dict[str, Any], dict[str, Any]]:
        starting = until(control, "starting")
        control.pause()
        control.save()
        gate.open()
        paused = until(control, "paused")
        control.resume()
        return starting, paused

    asked = beside(work)
    figures = play(session)
    starting, paused = asked.result()
    assert "generating" not in starting
    assert (paused["step"], paused["submitted"], paused["checkpoint"]) == (0, 0, "step-000000")
    assert (figures["exit"], figures["steps"]) == ("finished", 5)


@pytest.mark.parametrize("begun", [False, True])
def test_a_run_that_is_stopped_before_its_first_step_says_so_and_does_not_wait_for_its_start(
    stage: Make, begun: bool
) -> None:
    """Before the parts are started, and while they start."""
    made, started = stage(), []
    session = made.session()

    async def start() -> None:
        started.append(1)
        session.control.stop()
        await asyncio.Event().wait()

    made.learner.start = start  # type: ignore[method-assign]
    if not begun:
        session.control.stop()
    with pytest.raises(StoppedError, match="stopped before its first step"):
        play(session)
    assert (session.reason, bool(started)) == ("stopped", begun)


def test_a_run_behind_its_last_step_takes_no_command_but_stop(stage: Make) -> None:
    made = stage()
    session = made.session()
    control, said = session.control, list[Any]()

    def on_save(kind: str) -> None:
        said.append(control.status()["state"])
        for command in (control.pause, control.save, control.drain, control.resume):
            with pytest.raises(OverlapError) as refused:
                command()
            said.append(str(refused.value))

    made.learner.on_save = on_save
    play(session)
    assert said[0] == "finishing"
    assert said[1:] == [
        f"{command} comes too late: the run is finishing" for command in ("pause", "save", "drain", "resume")
    ]
    assert control.status()["state"] == "ending"


KEPT = {
    "pause": "the run is starting: it will pause once it has started, before it takes a step",
    "resume": "nothing to do: the run is starting",
    "drain": "the run is starting: it will end once it has started, without taking a step",
    "save": "the run is starting: it will save once it has started, before it takes a step",
    "stop": "the run is starting: it will stop",
}
DONE = {
    "pause": "pausing: samples in flight are finished, and no further step is learned",
    "resume": "nothing to do: the run is running",
    "drain": "draining: no further prompts are admitted; the run ends when all complete steps are learned",
    "save": "saving between two steps",
    "stop": "stopping: the policy is saved",
}


def answer(control: RunControl, command: object) -> dict[str, Any]:
    try:
        return control.request(command)
    except OverlapError as error:
        return {"error": str(error)}


@pytest.mark.parametrize("command", [c for c in COMMANDS if c != "status"])
def test_each_command_has_an_answer_in_each_phase(command: str) -> None:
    for phase, wanted in (("starting", KEPT), ("running", DONE)):
        control = RunControl()
        control.enter(phase)  # type: ignore[arg-type]
        assert answer(control, command) == {"done": wanted[command]}
    for phase, told in (("ending", "is ending"), ("ended", "has ended")):
        control = RunControl()
        control.enter(phase)  # type: ignore[arg-type]
        late = {"done": f"nothing to do: the run {told}"}
        assert answer(control, command) == (
            late if command == "stop" else {"error": f"{command} comes too late: the run {told}"}
        )


@pytest.mark.parametrize(
    ("commands", "state", "said"),
    [
        (("pause", "pause"), "pausing", {"done": "nothing to do: the run is pausing"}),
        (("pause", "resume"), "running", {"done": "resumed"}),
        (("drain", "drain"), "draining", {"done": "nothing to do: the run is draining"}),
        (("pause", "drain"), "draining", {"done": DONE["drain"]}),
        (("drain", "pause"), "pausing", {"done": DONE["pause"]}),
        (("drain", "pause", "resume"), "draining", {"done": "resumed"}),
        (("stop", "stop"), "stopping", {"done": "nothing to do: the run is stopping"}),
        (("stop", "save"), "stopping", {"error": "save comes too late: the run is stopping"}),
        (
            ("drain", "resume"),
            "draining",
            {"error": "resume comes too late: the run is draining, and ends when all complete steps are learned"},
        ),
    ],
)
def test_commands_follow_each_other(commands: tuple[str, ...], state: str, said: dict[str, str]) -> None:
    control = RunControl()
    control.enter("running")
    for command in commands:
        last = answer(control, command)
    assert (control.state, last) == (state, said)


async def test_a_command_that_the_loop_does_not_come_to_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER_S", 0.01)

    control = RunControl()
    async with control.attached(dict, lambda carried: asyncio.sleep(0), print):
        asked = beside(control.pause)
        with pytest.raises(OverlapError, match=r"too busy to obey 'pause' within 0.01 s and has dropped it"):
            asked.result(60)  # the loop stands still until then
        await asyncio.sleep(0)
    assert not control.loop_control.paused

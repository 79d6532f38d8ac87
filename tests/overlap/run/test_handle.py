"""``overlap.start`` hands out a run that goes on; what ``train`` returns or raises comes when it is waited for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from places import ROOT

import overlap
from overlap.config.load import load_config
from overlap.core.errors import ConfigError, OverlapError
from overlap.run import handle
from overlap.run.control import RunControl

CFG = load_config(None, [])
Train = Callable[..., dict[str, Any]]
Program = Callable[[str], subprocess.Popen[str]]


@pytest.fixture
def train(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Train], None]]:
    """Puts something in the place of ``train``; no run outlives the test."""
    yield lambda real: monkeypatch.setattr(handle, "run_training", real)
    assert {run for run in handle._RUNS if not run.done} == set()
    handle._RUNS.clear()


def until_stopped(cfg: Any, task: Any, *, control: RunControl, **_: Any) -> dict[str, Any]:
    while not control.stopped:
        threading.Event().wait(0.001)
    return {"exit": "stopped"}


def failing(error: BaseException, when: Train = lambda *_, **__: {}) -> Train:
    def train(*args: Any, **options: Any) -> dict[str, Any]:
        when(*args, **options)
        raise error

    return train


def test_a_run_is_waited_for_and_gives_its_summary(train: Any) -> None:
    go = threading.Event()

    def goes_on(cfg: Any, task: Any, **options: Any) -> dict[str, Any]:
        assert go.wait(60)
        return {"exit": "finished", "resume": options["resume"]}

    train(goes_on)
    with overlap.start(CFG, resume=True) as run:
        assert not run.done
        assert run.status()["state"] == "preparing"
        with pytest.raises(TimeoutError, match="has not ended within"):
            run.wait(0.001)
        go.set()
        assert run.wait(60) == run.wait() == run.wait(float("inf")) == {"exit": "finished", "resume": True}
        assert run.done
    assert (run.status()["state"], run.status()["exit"]) == ("ended", "finished")
    run.stop()
    with pytest.raises(OverlapError, match="save comes too late: the run has ended"):
        run.save()


@pytest.mark.promise("python")
def test_an_error_of_the_run_is_raised_to_the_one_who_waits_each_time_or_else_when_the_block_is_left(
    train: Any,
) -> None:
    train(failing(ConfigError("run.dir", "x", "is taken")))
    with overlap.start(CFG) as run:
        for _ in range(2):
            with pytest.raises(ConfigError, match="is taken"):
                run.wait(60)
    assert run.status()["exit"] == "error: run.dir='x': is taken"
    with pytest.raises(ConfigError, match="is taken"), overlap.start(CFG) as run:
        assert run._ended.exception(60)
    with pytest.raises(ZeroDivisionError), overlap.start(CFG):  # the block's own error is not hidden
        raise ZeroDivisionError


def test_a_block_that_ends_waits_for_the_run_and_one_left_by_an_exception_stops_it(
    train: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, wait = threading.Event(), handle.Run.wait
    monkeypatch.setattr(handle.Run, "wait", lambda run: (left.set(), wait(run))[1])
    train(lambda *_, **__: left.wait(60) and {"exit": "finished"})
    with overlap.start(CFG) as run:
        pass
    monkeypatch.undo()
    assert run.wait(0) == {"exit": "finished"}
    train(until_stopped)
    with pytest.raises(ZeroDivisionError), overlap.start(CFG) as run:
        raise ZeroDivisionError
    assert run.wait(0) == {"exit": "stopped"}


def test_a_ctrl_c_that_comes_as_the_waiting_begins_is_noticed_a_little_later(
    train: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(until_stopped)
    run, waits, real = overlap.start(CFG), list[float](), handle.wait

    def wait(futures: Any, timeout: float) -> Any:
        waits.append(timeout)
        if len(waits) == 2:
            raise KeyboardInterrupt  # what the interpreter does when it has come back from the first
        return real(futures, timeout) if len(waits) > 1 else None

    monkeypatch.setattr(handle, "wait", wait)
    with pytest.raises(KeyboardInterrupt):
        run.wait()
    assert max(waits) <= handle.LOOK_S
    assert run.done
    assert run.wait() == {"exit": "stopped"}


HEAD = """
import asyncio, signal, sys, threading
import overlap
from overlap.run import handle
from overlap.config.load import load_config

signal.signal(signal.SIGINT, signal.default_int_handler)
ended = threading.Event()

def train(cfg, task, *, control, **_):
    assert ended.wait(60)
    print("up", flush=True)
    asyncio.run(asyncio.to_thread(wait, control))
    print("stopped" if control.stopped else "finished", flush=True)
    return {"exit": "finished"}

def wait(control):
    pass

def wait_for_stop(control):
    while not control.stopped:
        threading.Event().wait(0.001)

handle.run_training = train
cfg = load_config(None, ["run.dir=runs/first"])
"""
ENDS = "\noutlive, handle.Run._outlive = handle.Run._outlive, lambda run: (ended.set(), outlive(run))"


@pytest.fixture
def program() -> Iterator[Program]:
    """Begins programs, which do not outlive the test."""
    begun: list[subprocess.Popen[str]] = []

    def begin(code: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", HEAD + code]
        here = os.environ | {"PYTHONPATH": str(ROOT)}
        pipe = subprocess.PIPE
        begun.append(subprocess.Popen(command, env=here, stdout=pipe, stderr=pipe, text=True))
        return begun[-1]

    yield begin
    for process in begun:
        with process:
            process.kill()


def test_a_program_does_not_end_before_a_run_that_it_began_and_left(program: Program) -> None:
    done = program("overlap.start(cfg)" + ENDS)
    assert done.communicate(timeout=60) == ("up\nfinished\n", "")
    assert done.returncode == 0


def test_a_run_that_failed_and_that_nobody_asked_about_is_told_at_the_end(program: Program) -> None:
    code = "def train(*_, **__):\n    raise overlap.ConfigError('run.dir', 'x', 'is\\ntaken')\n"
    code += "handle.run_training = train\n"
    assert program(code + "overlap.start(cfg)").communicate(timeout=60) == (
        "",
        "overlap: the run in runs/first failed: ConfigError: run.dir='x': is taken\n",
    )
    waited = "run = overlap.start(cfg)\ntry:\n    run.wait()\nexcept overlap.ConfigError:\n    print('told')"
    assert program(code + waited).communicate(timeout=60) == ("told\n", "")


@pytest.mark.parametrize("error", ["ZeroDivisionError", "KeyboardInterrupt"])
def test_a_program_that_ends_by_an_exception_stops_its_run_first(program: Program, error: str) -> None:
    done = program(f"wait = wait_for_stop\nended.set()\nrun = overlap.start(cfg)\nraise {error}")
    out, err = done.communicate(timeout=60)
    assert out == "up\nstopped\n"
    assert err.strip().endswith(error)


def test_ctrl_c_in_the_moment_of_the_start_leaves_no_run_behind(program: Program) -> None:
    code = """
def interrupted(self):
    start(self)
    raise KeyboardInterrupt
start, threading.Thread.start = threading.Thread.start, interrupted
try:
    overlap.start(cfg)
except KeyboardInterrupt:
    threading.Thread.start, wait = start, wait_for_stop
    ended.set()
"""
    assert program(code).communicate(timeout=60) == ("up\nstopped\n", "")


@pytest.mark.promise("interrupts")
@pytest.mark.parametrize(
    ("code", "codes"),
    [
        ("overlap.start(cfg)" + ENDS, (0,)),
        ("ended.set()\noverlap.start(cfg).wait()", (130, -signal.SIGINT)),
        (
            "async def main():\n    ended.set()\n    with overlap.start(cfg) as run:\n"
            "        await asyncio.to_thread(run.wait)\nasyncio.run(main())",
            (130, -signal.SIGINT),
        ),
    ],
)
def test_ctrl_c_ends_a_run_in_order_wherever_the_program_waits_for_it(
    program: Program, code: str, codes: tuple[int, ...]
) -> None:
    done = program("wait = wait_for_stop\n" + code)
    assert done.stdout
    assert done.stdout.readline() == "up\n"
    done.send_signal(signal.SIGINT)
    out, err = done.communicate(timeout=60)
    assert out == "stopped\n"
    assert "ignored" not in err
    assert done.returncode in codes

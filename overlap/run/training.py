"""``train(cfg)``: check everything, open a run directory, train, leave nothing behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from overlap.config import Config
from overlap.core import Task
from overlap.errors import ConfigError
from overlap.prepare import RunInputs, asked_for, check_place, plan_lines, prepare, seat
from overlap.process import Interrupts, handle_interrupts, run_to_end, scratch_directory
from overlap.record import Console, Rollouts, RunDir, quiet
from overlap.run.control import RunControl
from overlap.run.control_socket import listening
from overlap.run.session import Session

_ONE = threading.Lock()


def train(
    cfg: Config,
    task: Task | None = None,
    *,
    resume: bool = False,
    with_changes: bool = False,
    control: RunControl | None = None,
    rollouts: str = "",
) -> dict[str, Any]:
    """Train a policy; returns the summary that is also in ``summary.json``.

    Args:
        cfg: the run, see :class:`~overlap.config.fields.Config`.
        task: what is learned; default: the class that ``cfg.data.task`` names.
        resume: go on with the run in ``cfg.run.dir`` from its newest checkpoint.
        with_changes: also where ``cfg`` makes it another run than it was; ``config.yaml`` keeps what was changed.
        control: a hand on the run; ``overlap.start`` gives its own.
        rollouts: a run directory (or file) whose kept samples are learned from; no engine and no verifier is started.

    Raises:
        ConfigError: bad input; nothing was started and nothing written.
        OverlapError: the run ended early; the message says where and why, and the run directory has what there is.
        KeyboardInterrupt: Ctrl-C, SIGTERM or SIGHUP (its number is in ``args``); everything was closed first. A second
            one kills.

    May be called from a script, a notebook (inside its running event loop) or a thread; it blocks until the run has
    ended. Signals go to the main thread: a run in another one is not ended by Ctrl-C there.
    """
    began, control = time.monotonic(), control or RunControl()
    control.raise_if_stopped()
    check_place(cfg, resume=resume)
    with alone(cfg), handle_interrupts() as interrupts, scratch_directory() as (scratch, reaper):
        inputs = prepare(cfg, task, scratch)
        placed = seat(cfg, engine=not rollouts)
        kept = open_rollouts(inputs, rollouts, resume=resume) if rollouts else None
        asked = asked_for(inputs, kept)
        memory = placed.check(asked)
        control.raise_if_stopped()
        run, session_args = open_run(inputs, resume=resume, with_changes=with_changes)
        with ExitStack() as stack:
            stack.callback(run.close)
            console = stack.enter_context(quiet(run.log))
            control.enter("starting")
            with run.failures.tolerate_write_errors("ctl (overlap ctl cannot reach this run)"):
                stack.enter_context(listening(control, run.ctl))
                reaper.watch_file(run.ctl)
            session = Session(
                inputs,
                placed.placement,
                run,
                scratch,
                console,
                reaper,
                control=control,
                rollouts=kept,
                **session_args,
            )
            announce(console, run, plan_lines(inputs, asked, placed.seating(cfg), memory, kept) + placed.lines())
            return _conduct(session, interrupts, console, began)


@contextmanager
def alone(cfg: Config) -> Iterator[None]:
    """Refuse a second run of this process while one goes on: they would share its output and its signals."""
    if not _ONE.acquire(blocking=False):
        way_out = "another run goes on in this process: wait for it, or begin this one in a process of its own"
        raise ConfigError("run.dir", cfg.run.dir, way_out)
    try:
        yield
    finally:
        _ONE.release()


def _conduct(session: Session, interrupts: Interrupts, console: Console, began: float) -> dict[str, Any]:
    try:
        run_to_end(session, interrupts, session.policy_saver.skip)
    except BaseException as error:
        session.ended_by(error)
        try:
            _conclude(session, console, began)
        except Exception as second:  # whatever it is: the first error is the one to tell
            console.note(f"the run could not be summed up: {type(second).__name__}: {second}")
        raise
    return _conclude(session, console, began)


def _conclude(session: Session, console: Console, began: float) -> dict[str, Any]:
    from overlap.record import final_table

    figures = session.summarize(time.monotonic() - began)
    if session.taken:
        console.print(final_table(figures))
    return figures


def open_run(inputs: RunInputs, *, resume: bool, with_changes: bool = False) -> tuple[RunDir, dict[str, Any]]:
    """Make the run directory, or open the one to be resumed; returns it with what a Session needs to know."""
    from overlap.record import data_digest, reopen

    cfg = inputs.cfg
    data = data_digest(inputs.train) if resume or cfg.run.save_every or cfg.run.keep_rollouts else ""
    if not resume:
        return RunDir.create(cfg.run.dir, cfg.to_dict()), {"data": data}
    run, resumed = reopen(cfg, data, with_changes=with_changes, fits=partial(_fits, cfg))
    return run, {"data": data, "resumed": resumed}


def check_resume(inputs: RunInputs, *, with_changes: bool = False) -> None:
    """Refuse what ``open_run`` would refuse of a run that goes on, and change nothing. Raises ConfigError."""
    from overlap.record import check_reopen, data_digest

    cfg = inputs.cfg
    check_reopen(cfg, data_digest(inputs.train), with_changes=with_changes, fits=partial(_fits, cfg))


def _fits(cfg: Config, checkpoint: Path) -> None:
    from overlap.learner import read_state
    from overlap.record import LEARNER

    read_state(checkpoint / LEARNER, cfg)


def open_rollouts(inputs: RunInputs, where: str, *, resume: bool = False) -> Rollouts:
    """The kept samples that a run shall learn from. Raises ConfigError where it could not."""
    from overlap.record import data_digest
    from overlap.replay import check_rollouts, rollouts_in

    if resume:
        raise ConfigError("--from-rollouts", where, "begins a new run: leave --resume out")
    rollouts = Rollouts.load(rollouts_in(where)[0])
    check_rollouts(rollouts, inputs.cfg, data_digest(inputs.train), inputs.train)
    return rollouts


def announce(console: Console, run: RunDir, lines: Sequence[tuple[str, str]]) -> None:
    """Say what is about to happen, by the ``lines`` of its plan."""
    from overlap.record import banner

    where = [("run directory", str(run.path)), ("log", str(run.log))]
    banner(console, "overlap train", [*lines, *where])

"""``train(cfg)``: check the input, open a run directory, train, and leave no process or file behind."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from overlap.config.fields import Config
from overlap.config.rules import check_config_given, path_given
from overlap.core import Task
from overlap.core.errors import ConfigError
from overlap.hooks.checks import check_callbacks, named_callbacks, named_trackers
from overlap.process.interrupts import Interrupts, handle_interrupts
from overlap.process.scratch import run_to_end, scratch_directory
from overlap.record.checkpoint import LEARNER
from overlap.record.closing import closing_lines
from overlap.record.kept_samples import KeptSamples
from overlap.record.logs import Console, OpenConsole, guest, quiet
from overlap.record.progress import banner, final_table
from overlap.record.resume import BEGINNING, Resumed, check_reopen, data_digest, reopen
from overlap.record.run_summary import RunSummary
from overlap.record.rundir import RunDir
from overlap.run.control import RunControl
from overlap.run.control_socket import listening
from overlap.run.disk import disk_need
from overlap.run.plan import memory_inputs, plan_lines
from overlap.run.restarts import reason_of
from overlap.run.run_inputs import RunInputs, RunSetup, check_place, prepare
from overlap.run.seating import seat
from overlap.run.session import TrainingSession

_ONE = threading.Lock()


def train(
    cfg: Config,
    task: Task | None = None,
    *,
    resume: bool = False,
    with_changes: bool = False,
    rollouts: str | Path = "",
    callbacks: Sequence[Any] = (),
) -> RunSummary:
    """Train a policy; returns the summary that is also in ``summary.json``.

    The plan, the progress and the figures of the run are printed on stderr. What else this process prints or logs
    stays where it goes; the run's processes, and what libraries log for the run, go to ``run.log``.

    Args:
        cfg: the run, see :class:`~overlap.config.fields.Config`.
        task: what is learned; default: the class that ``cfg.data.task`` names.
        resume: continue the run in ``cfg.run.dir`` from its newest checkpoint.
        with_changes: resume even if ``cfg`` makes it a different run; ``config.yaml`` records what changed.
        rollouts: a run directory (or file) whose kept samples are learned from; no engine and no verifier is started.
        callbacks: objects with some of the methods of :class:`overlap.Callback`; called one after the other, in a
            thread of their own.

    Raises:
        ConfigError: bad input; nothing was started and nothing written.
        OverlapError: the run ended early; the message says where and why, and the run directory has what was learned.
        KeyboardInterrupt: Ctrl-C, SIGTERM or SIGHUP (its number is in ``args``), after everything was closed. A second
            signal skips the save of the policy or ends this process, unless it is an interactive one.

    May be called from a script, a notebook (inside its running event loop) or a thread; it blocks until the run has
    ended. Signals go to the main thread: a run in another one is not ended by Ctrl-C there.
    """
    check_run_given(cfg, resume)
    kept = str(path_given("rollouts", rollouts, "runs/first")) if rollouts else ""
    output = partial(guest, stream=sys.stderr)
    hooked = check_callbacks(callbacks)
    return run_training(
        cfg, task, resume=resume, with_changes=with_changes, rollouts=kept, output=output, callbacks=hooked
    )


def check_run_given(cfg: object, resume: object) -> None:
    """Raise ConfigError where the arguments of a run are of another type."""
    check_config_given(cfg)
    if not isinstance(resume, bool):
        raise ConfigError("resume", resume, "use True for the run in cfg.run.dir, or False")


def run_training(
    cfg: Config,
    task: Task | None = None,
    *,
    resume: bool = False,
    with_changes: bool = False,
    rollouts: str = "",
    control: RunControl | None = None,
    output: OpenConsole = quiet,
    callbacks: Sequence[Any] = (),
) -> RunSummary:
    """As ``train``. ``control`` takes commands for the run; ``output`` says where it prints, and whether the whole
    output of this process is the run's (``quiet``, for commands). ``callbacks``: as ``check_callbacks`` returned them.
    """
    began, control = time.monotonic(), control or RunControl()
    control.expect(cfg.run.dir, cfg.run.steps)
    control.raise_if_stopped()
    check_place(cfg, resume=resume)
    named, trackers = named_callbacks(cfg), named_trackers(cfg)
    with only_run_here(cfg), handle_interrupts() as interrupts, scratch_directory() as (scratch, reaper):
        inputs = prepare(cfg, task, scratch, output)
        placed = seat(cfg, engine=not rollouts)
        kept = open_rollouts(inputs, rollouts, resume=resume) if rollouts else None
        asked = memory_inputs(inputs, kept)
        memory = placed.check(asked)
        disk_need(asked, len(inputs.heldout)).check(cfg.run.dir)
        control.raise_if_stopped()
        run, resumed, data = open_run(inputs, resume=resume, with_changes=with_changes)
        with ExitStack() as stack:
            stack.callback(run.close)
            console = stack.enter_context(output(run.log))
            control.expect(str(run.path), cfg.run.steps, resumed)
            control.enter("starting")
            with run.failures.tolerate_write_errors("ctl (overlap ctl cannot reach this run)"):
                stack.enter_context(listening(control, run.ctl))
                reaper.watch_file(run.ctl)
            plan = plan_lines(inputs, asked, placed.seats, memory, kept) + placed.lines()
            plan += [("goes on", resumed.line)] if resumed.line else []
            banner(console, "overlap train", [*plan, ("run directory", str(run.path)), ("log", str(run.log))])
            setup = RunSetup(inputs, placed.counted(asked), run, scratch, console, reaper, control, data, kept)
            session = TrainingSession(setup, resumed, [*callbacks, *named], trackers)
            return _run_session(session, interrupts, console, began)


@contextmanager
def only_run_here(cfg: Config) -> Iterator[None]:
    """Refuse a second run in this process: two would share its output and its signals. Raises ConfigError."""
    if not _ONE.acquire(blocking=False):
        way_out = "another run is in progress in this process: wait for it, or start this one in another process"
        raise ConfigError("run.dir", cfg.run.dir, way_out)
    try:
        yield
    finally:
        _ONE.release()


def _run_session(session: TrainingSession, interrupts: Interrupts, console: Console, began: float) -> RunSummary:
    try:
        run_to_end(session, interrupts, session.policy_saver.skip)
    except BaseException as error:
        session.reason = reason_of(error)
        try:
            _conclude(session, console, began, error)
        except Exception as second:  # whatever it is: the first error is the one to raise
            console.note(f"the summary of the run could not be written: {type(second).__name__}: {second}")
        raise
    return _conclude(session, console, began)


def _conclude(
    session: TrainingSession, console: Console, began: float, error: BaseException | None = None
) -> RunSummary:
    figures = session.summarize(time.monotonic() - began)
    try:
        session.tell_end(figures, error)
    finally:
        if session.taken:
            newest, steps = session.restarts.newest_checkpoint or "", session.setup.inputs.cfg.run.steps
            console.print(final_table(figures))
            console.print("\n".join(closing_lines(figures, steps=steps, checkpoint=newest)))
    return figures


def open_run(inputs: RunInputs, *, resume: bool, with_changes: bool = False) -> tuple[RunDir, Resumed, str]:
    """Make the run directory, or open the one to be resumed. Returns it, the point at which the run begins, and the
    digest of its prompts.
    """
    cfg = inputs.cfg
    data = data_digest(inputs.train) if resume or cfg.run.save_every or cfg.run.samples == "all" else ""
    if not resume:
        return RunDir.create(cfg.run.dir, cfg.to_dict()), BEGINNING, data
    return *reopen(cfg, data, with_changes=with_changes, fits=partial(_fits, cfg)), data


def check_resume(inputs: RunInputs, *, with_changes: bool = False) -> None:
    """Raise the ConfigError that ``open_run`` would raise for a resumed run; change nothing."""
    cfg = inputs.cfg
    check_reopen(cfg, data_digest(inputs.train), with_changes=with_changes, fits=partial(_fits, cfg))


def _fits(cfg: Config, checkpoint: Path) -> None:
    from overlap.learner.saved_state import read_state

    read_state(checkpoint / LEARNER, cfg)


def open_rollouts(inputs: RunInputs, where: str, *, resume: bool = False) -> KeptSamples:
    """Return the kept samples to learn from. Raises ConfigError where this run cannot."""
    from overlap.run.kept_rollouts import check_rollouts, rollouts_in

    if resume:
        raise ConfigError("--from-rollouts", where, "starts a new run: leave --resume out")
    rollouts = KeptSamples.load(rollouts_in(where)[0])
    check_rollouts(rollouts, inputs.cfg, data_digest(inputs.train), inputs.train)
    return rollouts

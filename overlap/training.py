"""``train(cfg)``: check everything, open a run directory, train, leave nothing behind."""

from __future__ import annotations

import asyncio
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from overlap.config import Config
from overlap.core import Task
from overlap.errors import ConfigError, OverlapError, RunDirError
from overlap.evaluation import recall
from overlap.pipeline import check_intake, take_in
from overlap.prepared import Prepared
from overlap.process import Interrupts, Warden, interruptible, run_name
from overlap.record import Console, RunDir, quiet
from overlap.session import Session


def train(cfg: Config, task: Task | None = None, *, resume: bool = False, with_changes: bool = False) -> dict[str, Any]:
    """Train a policy; returns the summary that is also in ``summary.json``.

    Args:
        cfg: the run, see :class:`~overlap.config.fields.Config`.
        task: what is learned; default: the class that ``cfg.data.task`` names.
        resume: go on with the run in ``cfg.run.dir`` from its newest checkpoint.
        with_changes: also where ``cfg`` makes it another run than it was; ``config.yaml`` keeps what was changed.

    Raises:
        ConfigError: bad input; nothing was started and nothing written.
        OverlapError: the run ended early; the message says where and why, and the run directory has what there is.
        KeyboardInterrupt: Ctrl-C, SIGTERM or SIGHUP (its number is in ``args``); everything was closed first. A second
            one kills.

    May be called from a script, a thread or a notebook; it blocks until the run has ended.
    """
    began = time.monotonic()
    check_place(cfg, resume=resume)
    with interruptible() as interrupts, scratch_directory() as (scratch, warden):
        prepared = prepare(cfg, task, scratch)
        run, session_args = open_run(prepared, resume=resume, with_changes=with_changes)
        with ExitStack() as stack:
            stack.callback(run.close)
            console = stack.enter_context(quiet(run.log))
            session = Session(prepared, run, scratch, console, warden, **session_args)
            announce(console, prepared, run)
            return _conduct(session, interrupts, console, began)


def _conduct(session: Session, interrupts: Interrupts, console: Console, began: float) -> dict[str, Any]:
    try:
        run_to_end(session, interrupts, session.keeper.skip)
    except BaseException as error:
        session.reason = f"error: {error}" if isinstance(error, OverlapError) else session.reason
        with suppress(RunDirError):  # the first error is the one to tell
            _conclude(session, console, began)
        raise
    return _conclude(session, console, began)


def _conclude(session: Session, console: Console, began: float) -> dict[str, Any]:
    from overlap.record import final_table

    figures = session.summarize(time.monotonic() - began)
    if session.taken:
        console.print(final_table(figures))
    return figures


def prepare(cfg: Config, task: Task | None, scratch: Path) -> Prepared:
    """Load policy, tokenizer and prompts. Raises ConfigError, also where too many rows of the data cannot be used."""
    from overlap.policy import resolve_policy
    from overlap.task import check_task, load_task

    with quiet(scratch / "prepare.log"):
        check_device(cfg)
        policy = resolve_policy(cfg.model.policy)
        tokenizer = load_tokenizer(policy)
        task = load_task(cfg.data.task, cfg) if task is None else check_task(task, type(task).__name__)
        intakes = {
            split: take_in(task.prompts(tokenizer, split), cfg.model.prompt_tokens) for split in ("train", "heldout")
        }
    check_intake(intakes, cfg.data.max_bad_share, cfg.data.train)
    train, heldout = intakes["train"].prompts, intakes["heldout"].prompts
    if cfg.run.eval_every and not heldout:
        way_out = "there are no held-out prompts: name problems in data.heldout, or use run.eval_every=0"
        raise ConfigError("run.eval_every", cfg.run.eval_every, way_out)
    return Prepared(cfg, task, policy, tokenizer, train, heldout, intakes, recall(checked_file(), task, train))


def checked_file() -> Path:
    """Where ``overlap check-data`` keeps which references were accepted."""
    from overlap.policy import policies_dir

    return policies_dir().parent / "checked.json"


def check_device(cfg: Config) -> None:
    """Raise ConfigError where ``run.device`` asks for a GPU that is not there."""
    if cfg.run.device == "cuda":
        import torch  # only here: it takes a second

        if not torch.cuda.is_available():
            built = "this torch is built without CUDA" if torch.version.cuda is None else "torch finds no GPU"
            raise ConfigError("run.device", "cuda", f"{built}: use auto or cpu, or install for a GPU")


def load_tokenizer(policy: Path) -> Any:
    """The policy's tokenizer. Raises ConfigError."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(policy)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(
            "model.policy", str(policy), f"has no tokenizer that transformers loads ({reason})"
        ) from error


def check_place(cfg: Config, *, resume: bool) -> None:
    """Refuse a run directory that this run may not have, before anything is loaded. Raises ConfigError."""
    from overlap.record import check_free, resolve, stored_config

    if resume:
        stored_config(cfg.run.dir)
    else:
        check_free(resolve(cfg.run.dir), cfg.run.dir)


def open_run(prepared: Prepared, *, resume: bool, with_changes: bool = False) -> tuple[RunDir, dict[str, Any]]:
    """Make the run directory, or open the one to be resumed; returns it with what a Session needs to know."""
    from overlap.learner import read_state
    from overlap.record import LEARNER, data_digest, reopen

    cfg = prepared.cfg
    data = data_digest(prepared.train) if resume or cfg.run.save_every else ""
    if not resume:
        return RunDir.create(cfg.run.dir, cfg.to_dict()), {"data": data}

    def fits(checkpoint: Path) -> None:
        read_state(checkpoint / LEARNER, cfg)

    run, resumed = reopen(cfg, data, with_changes=with_changes, fits=fits)
    return run, {"data": data, "resumed": resumed}


def announce(console: Console, prepared: Prepared, run: RunDir) -> None:
    """Say what is about to happen."""
    from overlap.plan import plan
    from overlap.record import banner

    banner(console, "overlap train", [*plan(prepared), ("run directory", str(run.path)), ("log", str(run.log))])


@contextmanager
def scratch_directory() -> Iterator[tuple[Path, Warden]]:
    """A private directory for what the run's processes leave, and the warden that removes it in any event."""
    path = Path(tempfile.gettempdir()).absolute() / f"ovl-{secrets.token_hex(4)}"
    with Warden(run_name(path)) as warden:
        warden.watch_path(path)  # before it is there: a signal may come at any time
        path.mkdir(0o700)
        try:
            yield path, warden
        finally:
            shutil.rmtree(path, ignore_errors=True)


def run_to_end(
    session: Callable[[], Awaitable[None]], interrupts: Interrupts, again: Callable[[], bool] | None = None
) -> None:
    """Run a coroutine function from wherever we are called: a plain program, a thread, or inside a running loop.
    ``again``: see ``Interrupts.run``.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        asyncio.run(interrupts.run(session, again))
        return
    failure: list[BaseException] = []

    def target() -> None:
        try:
            asyncio.run(interrupts.run(session, again))
        except BaseException as error:  # handed to the caller's thread below
            failure.append(error)

    thread = threading.Thread(target=target, name="overlap-train")
    thread.start()
    thread.join()
    if failure:
        raise failure[0]

"""The trackers that ``run.trackers`` names by one word: TensorBoard, and W&B and trackio, which share an interface."""

from __future__ import annotations

import json
import os
import secrets
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from overlap.core.errors import ConfigError
from overlap.hooks.callback import CallbackRun, Evaluated, RunEnded, RunStarted, StepTaken
from overlap.hooks.trackers import END_S, sample_rows, split_shown
from overlap.process.atomic import write_atomic
from overlap.record.run_files import RunFile
from overlap.record.run_summary import RunExit

PROJECT = "overlap-rl"


class TensorBoard:
    """Writes ``events/`` in the run directory: rows as scalars; configuration, samples and outcome as texts."""

    _writer: Any = None
    _purge: int | None = None

    def on_run_start(self, run: CallbackRun, event: RunStarted) -> None:
        self._close()
        self._purge = event.step + 1 if event.step else None  # rows of later steps are void
        self._text(run, "config", event.step, run.cfg.to_dict())

    def on_step(self, run: CallbackRun, event: StepTaken | Evaluated) -> None:
        for name, value in event.row.items():
            self._open(run).add_scalar(name, value, event.step)
        self._text(run, f"samples/{split_shown(event)}", event.step, sample_rows(run, event))

    on_evaluate = on_step

    def on_run_end(self, run: CallbackRun, event: RunEnded) -> None:
        self._text(run, "outcome", event.step, {**event.summary, "exit": event.exit})
        self._close()

    def _text(self, run: CallbackRun, tag: str, step: int, value: Any) -> None:
        writer = self._open(run)
        if value:
            lines = json.dumps(value, indent=1, default=str).splitlines()
            writer.add_text(tag, "\n".join(f"    {line}" for line in lines), step)
        writer.flush()

    def _open(self, run: CallbackRun) -> Any:
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(RunFile.EVENTS.of(run.path)), purge_step=self._purge)
        return self._writer

    def _close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()


class Wandb:
    """W&B, set up by its own login and variables (WANDB_MODE, ...); its files are below ``RUN/trackers``."""

    package = "wandb"

    def __init__(self) -> None:
        if find_spec(self.package) is None:
            way_out = f"needs a package that is not installed: pip install {self.package}"
            raise ConfigError("run.trackers", self.package, way_out)
        self._module: Any = import_module(self.package)
        self._run: Any = None
        self._check()

    def _check(self) -> None:
        own_run, mode = self._module.run is not None, os.environ.get("WANDB_MODE", "online")
        if not own_run and mode == "online" and not self._module.login(prompt=False, verify=False):
            raise ConfigError("run.trackers", "wandb", "no login: use `wandb login` or WANDB_MODE=offline")

    def on_run_start(self, run: CallbackRun, event: RunStarted) -> None:
        self._open(run)

    def on_step(self, run: CallbackRun, event: StepTaken | Evaluated) -> None:
        shown = dict(event.row)
        if rows := sample_rows(run, event):
            table = self._module.Table(columns=list(rows[0]), data=[list(row.values()) for row in rows])
            shown[f"samples/{split_shown(event)}"] = table
        self._open(run).log(shown, step=event.step)

    on_evaluate = on_step

    def on_run_end(self, run: CallbackRun, event: RunEnded) -> None:
        self._open(run).finish(exit_code=0 if RunExit.of(event.exit).in_order else 1)

    def _open(self, run: CallbackRun) -> Any:
        """Begin the curve, or go on with it; tried again at the next event where it fails."""
        if self._run is None:
            files = RunFile.TRACKERS.of(run.path)
            id, project = _run_id(files), os.environ.get(f"{self.package.upper()}_PROJECT") or PROJECT
            own = {"name": f"{run.path.name}-{id}", "config": run.cfg.to_dict(), **self._own_arguments(files, id)}
            self._run = self._module.init(project=project, resume="allow", **own)
        return self._run

    def _own_arguments(self, files: Path, id: str) -> dict[str, Any]:
        less_s = END_S * 0.8  # after that time the interpreter can exit, too
        within = {"init_timeout": less_s, "finish_timeout": less_s}
        settings = self._module.Settings(console="off", silent=True, reinit="create_new", **within)
        return {"id": id, "dir": os.environ.get("WANDB_DIR") or str(files), "settings": settings}


class Trackio(Wandb):
    """trackio: kept on this machine, or in the Space that TRACKIO_SPACE_ID names; it has the interface of W&B."""

    package = "trackio"

    def _check(self) -> None:
        """Do nothing: it needs no login on this machine."""

    def on_run_end(self, run: CallbackRun, event: RunEnded) -> None:
        self._open(run).finish()

    def _own_arguments(self, files: Path, id: str) -> dict[str, Any]:
        return {}


def _run_id(files: Path) -> str:
    """The id that a run has at its trackers, the same whenever it is resumed."""
    kept = files / "run.json"
    if kept.exists():
        return str(json.loads(kept.read_text(encoding="utf-8"))["id"])
    made = secrets.token_hex(4)
    files.mkdir(exist_ok=True)
    write_atomic(kept, json.dumps({"id": made}) + "\n")
    return made

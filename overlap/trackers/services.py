"""Services that show the curves of many runs: W&B, trackio, MLflow, SwanLab. Each is used in a process of its own.

Where they send to, and as whom, is set as these packages have it: by their own environment variables and logins.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from overlap.record.run_exit import RunExit
from overlap.trackers.tracker import TrackedRun, TrackerRefused


def _columns(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    names = ["step", *(rows[0] if rows else ())]
    return names, [[row.get(name) for name in names] for row in rows]


def _flat(tree: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


class MlflowNames:
    """Names as MLflow takes them, one for each of ours: one letter that it refuses would cost the whole row."""

    LONGEST = 250

    def __init__(self) -> None:
        self._known = dict[str, str]()

    def __call__(self, name: str) -> str:
        if name not in self._known:
            signs = re.sub(r"[^/\w.\- :]", "_", name.replace("@", "_at_"))
            # There they may be paths of files, which must be normal.
            parts = re.sub(r"/+", "/", signs)[: self.LONGEST].strip("/").split("/")
            made = re.sub(r"^\.\.", "__", "/".join("_" if part in ("", ".", "..") else part for part in parts))
            taken, tries = set(self._known.values()), itertools.count(2)
            self._known[name] = made
            while self._known[name] in taken:
                self._known[name] = f"{made[: self.LONGEST - 9]}_{next(tries)}"
        return self._known[name]


class WandbRun:
    """W&B. Files of the run are below its directory; WANDB_PROJECT, WANDB_MODE and the like are obeyed."""

    def start(self, run: TrackedRun) -> None:
        import wandb

        try:
            self._run = wandb.init(
                project=os.environ.get("WANDB_PROJECT") or run.project,
                name=run.name,
                id=run.id,
                resume="allow",
                config=dict(run.config),
                dir=os.environ.get("WANDB_DIR") or run.files,
                settings=wandb.Settings(console="off", silent=True),
            )
        except wandb.errors.UsageError as error:  # no login
            raise TrackerRefused(str(error)) from error
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def row(self, row: Mapping[str, Any]) -> None:
        self._run.log(dict(row))

    def samples(self, split: str, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        import wandb

        names, data = _columns([{**row, "step": step} for row in rows])
        self._run.log({f"samples/{split}": wandb.Table(columns=names, data=data), "step": step})

    def rewind(self, step: int) -> None:
        """Steps that are taken again stand in the curve twice; the later one is the run's."""

    def end(self, exit: str, figures: Mapping[str, Any]) -> None:
        import wandb

        self._run.summary.update(dict(figures))
        self._run.finish(exit_code=0 if RunExit.of(exit).in_order else 1)
        wandb.teardown()  # its service removes its socket then


class TrackioRun:
    """trackio: kept on this machine, or in a Space that TRACKIO_SPACE_ID names."""

    def start(self, run: TrackedRun) -> None:
        import trackio

        self._trackio = trackio
        trackio.init(
            project=os.environ.get("TRACKIO_PROJECT") or run.project,
            name=f"{run.name}-{run.id[:6]}",
            config=dict(_flat(run.config)),
            space_id=os.environ.get("TRACKIO_SPACE_ID") or None,
            resume="allow",
        )

    def row(self, row: Mapping[str, Any]) -> None:
        self._trackio.log({name: value for name, value in row.items() if name != "step"}, step=int(row["step"]))

    def samples(self, split: str, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        names, data = _columns([{**row, "step": step} for row in rows])
        table = self._trackio.Table(columns=names, data=data)
        self._trackio.log({f"samples/{split}": table}, step=step)

    def rewind(self, step: int) -> None:
        """Steps that are taken again stand in the curve twice; the later one is the run's."""

    def end(self, exit: str, figures: Mapping[str, Any]) -> None:
        self._trackio.finish()


class MlflowRun:
    """MLflow, at MLFLOW_TRACKING_URI; the experiment is MLFLOW_EXPERIMENT_NAME."""

    TAG = "overlap.id"

    def __init__(self) -> None:
        self._names = MlflowNames()

    def start(self, run: TrackedRun) -> None:
        from mlflow import MlflowClient

        self._client = MlflowClient()
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or run.project
        found = self._client.get_experiment_by_name(name)
        experiment = found.experiment_id if found else self._client.create_experiment(name)
        known = self._client.search_runs([experiment], f"tags.`{self.TAG}` = '{run.id}'")
        if known:
            self._id = known[0].info.run_id
            self._client.update_run(self._id, status="RUNNING")
        else:
            self._id = self._client.create_run(experiment, run_name=run.name, tags={self.TAG: run.id}).info.run_id
            self._params(run.config)

    def _params(self, config: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        names = MlflowNames()
        params = [Param(names(name), str(value)[:6000]) for name, value in _flat(config)]
        for begin in range(0, len(params), 100):  # as many as a call may have
            self._client.log_batch(self._id, params=params[begin : begin + 100])

    def row(self, row: Mapping[str, Any]) -> None:
        from mlflow.entities import Metric

        step, now = int(row["step"]), int(time.time() * 1000)
        values = ((self._names(name), float(value)) for name, value in row.items() if name != "step")
        metrics = [Metric(name, value, now, step) for name, value in values]
        for begin in range(0, len(metrics), 1000):  # as many as a call may have
            self._client.log_batch(self._id, metrics=metrics[begin : begin + 1000])

    def samples(self, split: str, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        names, data = _columns([{**row, "step": step} for row in rows])
        self._client.log_dict(self._id, {"columns": names, "data": data}, f"samples/{split}-{step:06d}.json")

    def rewind(self, step: int) -> None:
        """Steps that are taken again stand in the curve twice; the later one is the run's."""

    def end(self, exit: str, figures: Mapping[str, Any]) -> None:
        for name, value in figures.items():
            self._client.set_tag(self._id, f"end.{name}", str(value)[:5000])
        self._client.set_terminated(self._id, "FINISHED" if RunExit.of(exit).in_order else "FAILED")


class SwanlabRun:
    """SwanLab. Files of the run are below its directory; SWANLAB_MODE and the like are obeyed."""

    def start(self, run: TrackedRun) -> None:
        import swanlab

        self._swanlab = swanlab
        files = Path(os.environ.get("SWANLAB_LOG_DIR") or Path(run.files) / "swanlog")
        files.mkdir(parents=True, exist_ok=True)
        try:
            swanlab.init(
                project=os.environ.get("SWANLAB_PROJ_NAME") or run.project,
                experiment_name=run.name,
                config=dict(run.config),
                logdir=str(files),
                mode=os.environ.get("SWANLAB_MODE") or None,
                id=f"{run.id:0<21}",
                resume="allow",
            )
        except RuntimeError as error:
            if "login" in str(error):  # SwanLab has no error of its own for that
                raise TrackerRefused(f"{error} Use `swanlab login`, or SWANLAB_MODE=offline") from error
            raise

    def row(self, row: Mapping[str, Any]) -> None:
        self._swanlab.log({name: value for name, value in row.items() if name != "step"}, step=int(row["step"]))

    def samples(self, split: str, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        texts = [self._swanlab.Text(json.dumps(dict(row), indent=1, ensure_ascii=False)) for row in rows]
        self._swanlab.log({f"samples/{split}": texts}, step=step)

    def rewind(self, step: int) -> None:
        """Of steps that are taken again, SwanLab keeps the first."""

    def end(self, exit: str, figures: Mapping[str, Any]) -> None:
        self._swanlab.finish()

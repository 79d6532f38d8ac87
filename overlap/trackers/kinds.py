"""The trackers that there are, and whether their packages are here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec

from overlap.config.fields import Config
from overlap.errors import ConfigError, raise_all

FIELD = "run.trackers"


@dataclass(frozen=True, slots=True)
class TrackerKind:
    """A tracker: the class that speaks to it ("module:Class"), and the package that it needs."""

    path: str
    package: str
    """As it is imported and as pip calls it."""
    child: bool = True
    """Whether the package runs in a process of its own: it starts threads and processes, and changes streams, signals
    and hooks of the process that imports it."""


KINDS: Mapping[str, TrackerKind] = {
    "tensorboard": TrackerKind("overlap.trackers.tensorboard_events:TensorBoardEvents", "tensorboard", child=False),
    "wandb": TrackerKind("overlap.trackers.services:WandbRun", "wandb"),
    "trackio": TrackerKind("overlap.trackers.services:TrackioRun", "trackio"),
    "mlflow": TrackerKind("overlap.trackers.services:MlflowRun", "mlflow"),
    "swanlab": TrackerKind("overlap.trackers.services:SwanlabRun", "swanlab"),
}


def check_trackers(cfg: Config) -> None:
    """Raise one ConfigError for all trackers whose package is not installed."""
    raise_all([error for name in cfg.run.trackers if (error := _missing(name)) is not None])


def _missing(name: str) -> ConfigError | None:
    package = KINDS[name].package
    if find_spec(package) is not None:
        return None
    return ConfigError(FIELD, name, f"needs a package that is not installed: pip install {package}")

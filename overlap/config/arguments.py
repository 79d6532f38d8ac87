"""Arguments of a public function from a caller in Python: of the right type, or one ConfigError names the argument."""

from __future__ import annotations

import os
from pathlib import Path

from overlap.core.errors import ConfigError


def check_config_given(cfg: object) -> None:
    """Raise ConfigError for anything but a Config, with the call that makes one of it."""
    from overlap.config.fields import Config  # all fields with their checks: a path needs none of them

    if isinstance(cfg, Config):
        return
    source = os.fspath(cfg) if isinstance(cfg, os.PathLike) else cfg
    made = f"overlap.load_config({source!r})" if isinstance(source, str | dict) and source else "overlap.load_config()"
    raise ConfigError("cfg", cfg, f"give a Config, as {made} returns it")


def path_given(name: str, value: object, example: str) -> Path:
    """The path that argument ``name`` got, ``~`` expanded. Raises ConfigError with an ``example``."""
    path = os.fspath(value) if isinstance(value, str | os.PathLike) else ""
    if not isinstance(path, str) or not path:
        raise ConfigError(name, value, f"give a path, as in {example!r}")
    return Path(os.path.expanduser(path))


def check_count_given(name: str, value: object, otherwise: str) -> None:
    """Raise ConfigError unless argument ``name`` is None, which means ``otherwise``, or a whole number above 0."""
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise ConfigError(name, value, f"use a whole number, 1 or more, or None for {otherwise}")

"""``overlap init DIR``: a task of one's own with its problems, its configuration and its test, ready to be trained."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from pathlib import Path

from overlap.config.arguments import path_given
from overlap.errors import ConfigError, error_reason

STARTER = Path(__file__).with_name("starter")
"""The files that a new folder gets."""
_FIELD = "DIR"


def init_command(args: argparse.Namespace) -> Iterator[str]:
    """Write the folder; yield what is in it, and the next commands."""
    folder = path_given(_FIELD, args.folder, "my-task")
    made = copy_starter(folder)
    inside = shlex.quote(f"./{folder}" if str(folder).startswith("-") else str(folder))
    yield f"{folder}: {', '.join(made)}"
    yield f"its test:  cd {inside} && python -m pytest -q test_my_task.py"
    yield f"training:  cd {inside} && overlap train --config config.yaml"


def copy_starter(folder: Path) -> list[str]:
    """Write the starter files into a new or empty folder; returns their names. Raises ConfigError for a folder that has
    anything in it, and where it cannot be written; nothing is left there then.
    """
    names = sorted(path.name for path in STARTER.iterdir() if path.is_file())
    try:
        if folder.exists() and not folder.is_dir():
            raise ConfigError(_FIELD, str(folder), "is a file: name a new folder")
        if folder.is_dir() and any(folder.iterdir()):
            raise ConfigError(_FIELD, str(folder), "is not empty, and nothing is overwritten: name a new folder")
        new = not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise _unwritable(folder, error) from error
    try:
        for name in names:
            write_new(folder / name, (STARTER / name).read_text(encoding="utf-8"))
    except OSError as error:
        _remove(folder, names, new)
        raise _unwritable(folder, error) from error
    return names


def write_new(path: Path, text: str) -> None:
    """Write a file that is not there yet."""
    with path.open("x", encoding="utf-8") as file:
        file.write(text)


def _unwritable(folder: Path, error: Exception) -> ConfigError:
    return ConfigError(_FIELD, str(folder), f"cannot be written ({error_reason(error)}): name a folder elsewhere")


def _remove(folder: Path, names: list[str], new: bool) -> None:
    """Take back what was written before a file could not be."""
    for name in names:
        (folder / name).unlink(missing_ok=True)
    if new:
        folder.rmdir()

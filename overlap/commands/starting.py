"""``overlap init DIR``: a task of one's own with its problems, its configuration and its test, ready to be trained."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from pathlib import Path

from overlap.config.rules import path_given
from overlap.core.errors import ConfigError, refusing

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
    anything in it, and where it cannot be written.
    """
    names = sorted(path.name for path in STARTER.iterdir() if path.is_file())
    with refusing(_FIELD, str(folder), "cannot be written", "name a folder elsewhere", (OSError, ValueError)):
        if folder.is_dir() and any(folder.iterdir()):
            raise ConfigError(_FIELD, str(folder), "is not empty, and nothing is overwritten: name a new folder")
        folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            with (folder / name).open("x", encoding="utf-8") as file:
                file.write((STARTER / name).read_text(encoding="utf-8"))
    return names

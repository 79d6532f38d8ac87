"""Directories that a run may write into: new, empty, or its own. All other files stay untouched.

free     it does not exist, is empty, or holds what a start left that ended before its first step
a run's  it holds a run: only ``--resume`` goes on with it
else     refused, before anything is written
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from overlap.config.load import HISTORY
from overlap.core.errors import ConfigError, refusing
from overlap.core.json_types import to_json_types
from overlap.process.atomic import guarded, is_stdout, remove_path, write_atomic
from overlap.record.run_files import RunFile, is_partial_run_file, is_run_file

HEADER = "# Written by overlap train: the configuration of the run in this directory, and its history.\n"
_SECRET = re.compile(
    r"(?i)((?:api[_-]?key|access[_-]?key|token|secret|password|passwd)['\"]?\s*[=: ]\s*)(?:'[^']*'|\"[^\"]*\"|\S+)"
)
_GLANCE_S = 0.05
"""``has_owner`` holds a lock for a moment, at most as long as this."""


def resolve(template: str, field: str = "run.dir") -> Path:
    """The absolute path of a run directory; "{time}" becomes the time. Raises ConfigError of ``field``."""
    if not template.strip():
        raise ConfigError(field, template, "names no directory; write for instance runs/first")
    name = template.replace("{time}", time.strftime("%Y%m%d-%H%M%S"))
    if unknown := re.search(r"\{\w*\}", name):
        raise ConfigError(field, template, f"{unknown.group()} has no meaning here; only {{time}} is replaced")
    with refusing(field, template, "is no usable path", "name another directory", (OSError, RuntimeError, ValueError)):
        path = Path(name).expanduser().absolute()
        str(path).encode("utf-8")
        with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            path.lstat()  # raises for a name that no file system takes
    return path


def check_run_dir_free(path: Path, template: str) -> None:
    """Raise ConfigError unless a new run may have ``path``. Writes nothing."""
    with refusing("run.dir", template, "cannot be read", "name another directory"):
        if path.is_symlink():
            raise ConfigError("run.dir", template, f"{path} is a link; name the directory itself, or a new one")
        names = sorted(os.listdir(path)) if path.exists() else []
        if holds_run(path):
            way_out = (
                f"{path} already holds a run; go on with it by --resume, name another directory, or put {{time}} in"
            )
            raise ConfigError("run.dir", template, way_out)
        foreign = _foreign(path, names)
    if foreign:
        shown = ", ".join(foreign[:3]) + (", ..." if len(foreign) > 3 else "")
        raise ConfigError("run.dir", template, f"{path} holds files that are no run's ({shown}); name a new directory")
    nearest = next(there for there in (path, *path.parents) if os.path.lexists(there))
    if not (nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)):
        raise ConfigError("run.dir", template, f"{nearest} cannot be written; name another directory")


def holds_run(path: Path) -> bool:
    """True when a run in this directory came to a step, or ended: something that a person would miss."""
    return any(file.shows_a_run(path) for file in RunFile)


def find_run_file(run: str, file: RunFile, *, field: str = "run.dir", way_out: str) -> Path:
    """The path of ``file`` in the run directory that a person named. Raises ConfigError of ``field``, with
    ``way_out`` where the file is missing.
    """
    path = file.of(resolve(run, field))
    with refusing(field, run, "cannot be read", "name a run directory of yours"):
        there = path.exists()
    if not there:
        near = near_runs(path.parent)
        raise ConfigError(field, run, f"{path} is missing: {f'did you mean {near[0]}?' if near else way_out}")
    return path


def near_runs(path: Path) -> list[str]:
    """Run directories beside ``path``, which is none, or in ``runs`` there, whose names are like its own, the nearest
    first.
    """
    if path.exists():
        return []
    beside: dict[str, Path] = {}
    for folder in (path.parent / "runs", path.parent):
        with suppress(OSError):
            beside.update({other.name: other for other in folder.iterdir() if RunFile.CONFIG.of(other).exists()})
    return [str(beside[name]) for name in get_close_matches(path.name, sorted(beside), n=3, cutoff=0.5)]


def _foreign(path: Path, names: list[str]) -> list[str]:
    """Names in a directory without a run that no start of a run has made."""
    others = [name for name in names if not is_run_file(name)]
    if others or not names:
        return others
    config = RunFile.CONFIG.of(path)
    marked = config.is_file() and HEADER.encode() in config.read_bytes()
    kept = [name for name in names if not is_partial_run_file(name)]
    log = RunFile.LOG
    untouched = kept == [log.filename] and log.of(path).stat().st_size == 0  # the start ended within moments
    return [] if marked or untouched else names


def claim_run_dir(template: str) -> tuple[Path, int]:
    """Make the directory, or take the one that a failed start left, for this run; returns it with its lock."""
    path = resolve(template)
    check_run_dir_free(path, template)
    with ExitStack() as undo:
        lock = take_lock(path, template, make=True)
        undo.callback(os.close, lock)
        check_run_dir_free(path, template)  # another run may have come between
        _sweep(path)
        undo.pop_all()
    return path, lock


def take_lock(path: Path, template: str, *, make: bool = False) -> int:
    """Keep other runs out of the directory. The kernel frees the lock when the run is gone, however it ended."""
    with refusing("run.dir", template, "cannot be written", "name another place"):
        if make:
            path.mkdir(parents=True, exist_ok=True)
        lock = os.open(RunFile.LOG.of(path), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        if _locks(lock, fcntl.LOCK_EX):
            return lock
    os.close(lock)
    way_out = f"another run is writing there; wait for its end, `overlap ctl {path} stop`, or name another place"
    raise ConfigError("run.dir", template, f"{path}: {way_out}")


def _locks(fd: int, mode: int) -> bool:
    for wait_s in (_GLANCE_S, 0.0):
        try:
            fcntl.flock(fd, mode | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            time.sleep(wait_s)
    return False


def has_owner(path: Path) -> bool:
    """True when a run goes on in this directory, by its lock. Raises OSError where it cannot be read."""
    with suppress(FileNotFoundError), RunFile.LOG.of(path).open("rb") as log:
        return not _locks(log.fileno(), fcntl.LOCK_SH)
    return False


def stored_summary(path: Path) -> Any:
    """Content of ``summary.json`` of the run in a directory; None for a run that has not ended in order, or that was
    resumed since. Raises OSError, ValueError.
    """
    summary = RunFile.SUMMARY.of(path)
    with suppress(FileNotFoundError):
        if summary.stat().st_mtime_ns >= RunFile.CONFIG.of(path).stat().st_mtime_ns:
            return json.loads(summary.read_text(encoding="utf-8"))
    return None


def how_it_ended(path: Path) -> str:
    """The end of the run in a directory, for a person; for a run that no process is going on with."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        figures = stored_summary(path)
        return f"it has ended ({figures['exit']}, {figures['steps']} steps)"
    return "it ended before it could say how; --resume goes on from a checkpoint"


def _sweep(path: Path) -> None:
    """Remove what a start left that ended before its first step."""
    with guarded(path):
        os.truncate(RunFile.LOG.of(path), 0)
        for file in RunFile:
            for stale in path.glob(file.swept) if file.swept else ():
                remove_path(stale)
        for name in filter(is_partial_run_file, os.listdir(path)):
            remove_path(path / name)


def check_out(out: Path, *, field: str = "--out", ours: str = "", folder: bool = False) -> None:
    """Raise ConfigError unless a command may make ``out``, a file or a ``folder``; called before the minutes of work.

    What is there already is not written over, unless it is a file that is empty or whose first line contains ``ours``,
    the mark of what the same command wrote before. Of what can be written to standard output: ``OutFile``.
    """
    kind = "folder" if folder else "file"
    why, there = "", False
    with refusing(field, str(out), "cannot be used", f"name another {kind}", (OSError, ValueError)):
        with suppress(FileNotFoundError, NotADirectoryError):
            there = out.lstat() is not None  # raises for a name that no file system takes
        if is_stdout(out):
            why = f"is standard output, and this command writes a {kind}: name one"
        elif not (out.parent.is_dir() and os.access(out.parent, os.W_OK | os.X_OK)):
            why = f"its directory cannot be written, or does not exist: make it, or name another {kind}"
        elif there and (folder or not (out.is_file() and _may_replace(out, ours))):
            why = f"exists already; name another {kind}, or remove it first"
    if why:
        raise ConfigError(field, str(out), why)


def _may_replace(out: Path, ours: str) -> bool:
    with out.open("rb") as file:
        first = file.readline(1 << 20).decode("utf-8", "replace")
    return not first or bool(ours and ours in first)


def history_entry(step: int, changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Entry of the history for a start: when, after which step, by which command, with which changes."""
    return {
        "at": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "step": step,
        "command": command_line(),
        "changes": dict(changes or {}),
    }


def command_line() -> str:
    """The words of ``overlap ...`` as a shell takes them, without secrets; of another program its name alone."""
    program = Path(sys.argv[0] or "python")
    if program.parts[-2:] not in (("bin", "overlap"), ("overlap", "cli.py")):
        return program.name
    return shlex.join(["overlap", *map(masked, sys.argv[1:])])


def masked(text: str) -> str:
    """``text`` with the values of passwords and tokens left out: ``--api-key ***``."""
    return _SECRET.sub(r"\1***", text)


def write_config(path: Path, cfg: Mapping[str, Any], history: list[dict[str, Any]]) -> None:
    """Write ``config.yaml``: the sections as ``overlap train --config`` reads them, then what was started when.

    Without a history, the folder is no run's, and has no mark by which a new run takes it for a failed start's and
    clears it. Raises RunDirError.
    """
    head, tree = (HEADER, {**cfg, HISTORY: history}) if history else ("", cfg)
    text = yaml.safe_dump(to_json_types(tree), sort_keys=False, allow_unicode=True)
    write_atomic(RunFile.CONFIG.of(path), head + text)


def read_history(path: Path) -> list[dict[str, Any]]:
    """The history in a run's ``config.yaml``. Raises ConfigError when that cannot be read."""
    errors = OSError, UnicodeDecodeError, yaml.YAMLError
    with refusing("run.dir", str(path), "its config.yaml cannot be read", "mend it", errors):
        tree = yaml.safe_load(RunFile.CONFIG.of(path).read_text(encoding="utf-8"))
    found = tree.get(HISTORY) if isinstance(tree, dict) else None
    return [dict(entry) for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []

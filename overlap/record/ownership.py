"""Directories that a run may write into: new, empty, or its own. All other files stay untouched.

free     it does not exist, is empty, or holds what a start left that ended before its first step
a run's  it holds a run: only ``--resume`` goes on with it
else     refused, before anything is written
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from overlap.config.yaml_file import HISTORY
from overlap.core.errors import ConfigError, error_reason
from overlap.core.json_types import to_json_types
from overlap.process.atomic import guarded, is_stdout, remove_path, write_atomic
from overlap.record.run_files import RunFile, is_partial_run_file, is_run_file

HEADER = "# Written by overlap train: the configuration of the run in this directory, and its history.\n"
_GLANCE_S = 0.05
"""``has_owner`` holds a lock for a moment, at most as long as this."""


def resolve(template: str, field: str = "run.dir") -> Path:
    """The absolute path of a run directory; "{time}" becomes the time. Raises ConfigError of ``field``."""
    if not template.strip():
        raise ConfigError(field, template, "names no directory; write for instance runs/first")
    name = template.replace("{time}", time.strftime("%Y%m%d-%H%M%S"))
    if unknown := re.search(r"\{\w*\}", name):
        raise ConfigError(field, template, f"{unknown.group()} has no meaning here; only {{time}} is replaced")
    try:
        path = Path(name).expanduser().absolute()
        str(path).encode("utf-8")
        path.lstat()  # raises for a name that no file system takes
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return path
    except (OSError, RuntimeError, ValueError) as exc:
        raise ConfigError(field, template, f"is no usable path ({error_reason(exc)}); name another directory") from exc
    return path


def check_run_dir_free(path: Path, template: str) -> None:
    """Raise ConfigError unless a new run may have ``path``. Writes nothing."""
    try:
        if path.is_symlink():
            raise ConfigError("run.dir", template, f"{path} is a link; name the directory itself, or a new one")
        names = sorted(os.listdir(path))
    except FileNotFoundError:
        names = []
    except OSError as exc:
        raise ConfigError("run.dir", template, f"cannot be read ({error_reason(exc)}); name another directory") from exc
    if holds_run(path):
        way_out = f"{path} already holds a run; go on with it by --resume, name another directory, or put {{time}} in"
        raise ConfigError("run.dir", template, way_out)
    if foreign := _foreign(path, names):
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
    try:
        there = path.exists()
    except OSError as exc:
        raise ConfigError(field, run, f"cannot be read ({exc.strerror}); name a run directory of yours") from exc
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
    lock = take_lock(path, template, make=True)
    try:
        check_run_dir_free(path, template)  # another run may have come between
        _sweep(path)
    except BaseException:
        os.close(lock)
        raise
    return path, lock


def take_lock(path: Path, template: str, *, make: bool = False) -> int:
    """Keep other runs out of the directory. The kernel frees the lock when the run is gone, however it ended."""
    try:
        if make:
            path.mkdir(parents=True, exist_ok=True)
        lock = os.open(RunFile.LOG.of(path), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    except OSError as exc:
        if exc.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            with guarded(path):
                raise
        raise ConfigError("run.dir", template, f"cannot be written ({error_reason(exc)}); name another place") from exc
    try:
        _lock(lock)
    except OSError as exc:
        os.close(lock)
        why = f"cannot be locked ({error_reason(exc)}); name another place"
        if isinstance(exc, BlockingIOError):
            why = f"another run is writing there; wait for its end, `overlap ctl {path} stop`, or name another place"
        raise ConfigError("run.dir", template, f"{path}: {why}") from exc
    return lock


def _lock(fd: int) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        time.sleep(_GLANCE_S)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def has_owner(path: Path) -> bool:
    """True when a run goes on in this directory, by its lock. Raises OSError where it cannot be read."""
    try:
        log = os.open(RunFile.LOG.of(path), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(log, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(log)
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
    why = ""
    try:
        if is_stdout(out):
            why = f"is standard output, and this command writes a {kind}: name one"
        elif not (out.parent.is_dir() and os.access(out.parent, os.W_OK | os.X_OK)):
            why = f"its directory cannot be written, or does not exist: make it, or name another {kind}"
        elif _is_there(out) and (folder or not (out.is_file() and _may_replace(out, ours))):
            why = f"exists already; name another {kind}, or remove it first"
    except (OSError, ValueError) as exc:
        raise ConfigError(field, str(out), f"cannot be used ({exc}); name another {kind}") from exc
    if why:
        raise ConfigError(field, str(out), why)


def _is_there(path: Path) -> bool:
    """Raises OSError, ValueError for a name that no file system takes."""
    with suppress(FileNotFoundError, NotADirectoryError):
        return path.lstat() is not None
    return False


def _may_replace(out: Path, ours: str) -> bool:
    with out.open("rb") as file:
        first = file.readline(1 << 20).decode("utf-8", "replace")
    return not first or bool(ours and ours in first)


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
    file = RunFile.CONFIG.of(path)
    try:
        tree = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as exc:
        raise ConfigError(
            "run.dir", str(path), f"its config.yaml cannot be read ({error_reason(exc)}); mend it"
        ) from exc
    found = tree.get(HISTORY) if isinstance(tree, dict) else None
    return [dict(entry) for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []

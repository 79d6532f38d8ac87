"""Where a run may write: in a directory that is new, empty, or its own. Nothing of anybody else's is touched.

free   it does not exist, is empty, or holds what a start of ours left that never came to a step
ours   it holds a run: only ``--resume`` goes on with it
else   refused, before anything is written
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
from pathlib import Path
from typing import Any

import yaml

from overlap.atomic import guarded, is_hidden_name, remove_path, write_atomic
from overlap.config import HISTORY
from overlap.errors import ConfigError
from overlap.record.files import plain

HEADER = "# Written by overlap train: the configuration of the run in this directory, and its history.\n"
SOCKET = "ctl"
FILES = (
    "config.yaml", "metrics.jsonl", "events", "trajectories.jsonl", "trace.json", "summary.json", "picture.png",
    "run.log", "engines", "rollouts.jsonl", "nodes.jsonl", "checkpoints", "policy", "policy-best", SOCKET,
)  # fmt: skip
"""What a run makes in its directory, besides hidden files that it is writing."""
_GLANCE_S = 0.05
"""``has_owner`` holds a lock for a moment, at most as long as this."""
_EVIDENCE = ("metrics.jsonl", "trajectories.jsonl", "summary.json", "picture.png")


def resolve(template: str) -> Path:
    """The absolute path that ``run.dir`` names; "{time}" becomes the time. Raises ConfigError; writes nothing."""
    if not template.strip():
        raise ConfigError("run.dir", template, "names no directory; write for instance run.dir=runs/first")
    name = template.replace("{time}", time.strftime("%Y%m%d-%H%M%S"))
    if unknown := re.search(r"\{\w*\}", name):
        raise ConfigError("run.dir", template, f"{unknown.group()} has no meaning here; only {{time}} is replaced")
    try:
        path = Path(name).expanduser().absolute()
        str(path).encode("utf-8")
        with suppress(FileNotFoundError, NotADirectoryError):
            path.lstat()  # raises for a name that no file system takes
    except PermissionError:
        return path
    except (OSError, RuntimeError, ValueError) as exc:
        raise ConfigError("run.dir", template, f"is no usable path ({_reason(exc)}); name another directory") from exc
    return path


def check_free(path: Path, template: str) -> None:
    """Raise ConfigError unless a new run may have ``path``. Writes nothing."""
    try:
        if path.is_symlink():
            raise ConfigError("run.dir", template, f"{path} is a link; name the directory itself, or a new one")
        names = sorted(os.listdir(path))
    except FileNotFoundError:
        _check_parent(path.parent, template)
        return
    except NotADirectoryError as exc:
        raise ConfigError("run.dir", template, f"{path} is a file or below one; name another directory") from exc
    except OSError as exc:
        raise ConfigError("run.dir", template, f"cannot be read ({_reason(exc)}); name another directory") from exc
    if holds_run(path):
        way_out = f"{path} already holds a run; go on with it by --resume, name another directory, or put {{time}} in"
        raise ConfigError("run.dir", template, way_out)
    if foreign := _foreign(path, names):
        shown = ", ".join(foreign[:3]) + (", ..." if len(foreign) > 3 else "")
        raise ConfigError("run.dir", template, f"{path} holds files that are no run's ({shown}); name a new directory")
    _check_access(path, template)


def _check_parent(parent: Path, template: str) -> None:
    while not os.path.lexists(parent):
        parent = parent.parent
    if not parent.is_dir():
        raise ConfigError("run.dir", template, f"{parent} is no directory; name another one")
    _check_access(parent, template)


def _check_access(path: Path, template: str) -> None:
    if not os.access(path, os.W_OK | os.X_OK):
        raise ConfigError("run.dir", template, f"{path} cannot be written; name another directory")


def holds_run(path: Path) -> bool:
    """A run in this directory has come to a step, or ended: something that a person would miss."""
    if any((path / name).exists() and (path / name).stat().st_size > 0 for name in _EVIDENCE):
        return True
    saved = (path / "policy", path / "policy-best", *(path / "checkpoints").glob("step-*"))
    return any(os.path.lexists(p) for p in saved)


def _foreign(path: Path, names: list[str]) -> list[str]:
    """Names in a directory without a run that a start of ours has not made."""
    others = [name for name in names if name not in FILES and not _temporary(name)]
    if others or not names:
        return others
    marked = HEADER.encode() in _head(path / "config.yaml")
    kept = [name for name in names if not _temporary(name)]
    untouched = kept == ["run.log"] and (path / "run.log").stat().st_size == 0  # the start ended within moments
    return [] if marked or untouched else names


def _temporary(name: str) -> bool:
    return any(is_hidden_name(name, file) for file in FILES)


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(4096)
    except OSError:
        return b""


def claim(template: str) -> tuple[Path, int]:
    """Make the directory, or take the one that a failed start left, for this run; returns it with its lock."""
    path = resolve(template)
    check_free(path, template)
    lock = take_lock(path, template, make=True)
    try:
        check_free(path, template)  # another run may have come between
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
        lock = os.open(path / "run.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    except OSError as exc:
        if exc.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            with guarded(path):
                raise
        raise ConfigError("run.dir", template, f"cannot be written ({_reason(exc)}); name another place") from exc
    try:
        _lock(lock)
    except OSError as exc:
        os.close(lock)
        reason = "another run is writing there" if isinstance(exc, BlockingIOError) else _reason(exc)
        raise ConfigError("run.dir", template, f"{path} cannot be locked ({reason}); name another place") from exc
    return lock


def _lock(fd: int) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        time.sleep(_GLANCE_S)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def has_owner(path: Path) -> bool:
    """Whether a run goes on in this directory, as its lock tells. Raises OSError where it cannot be read."""
    try:
        log = os.open(path / "run.log", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(log, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(log)
    return False


def how_it_ended(path: Path) -> str:
    """What the directory of a run that does not go on tells of its end, for a person."""
    summary = path / "summary.json"
    try:
        told = json.loads(summary.read_text(encoding="utf-8"))
        if summary.stat().st_mtime_ns >= (path / "config.yaml").stat().st_mtime_ns:  # else it is of an earlier session
            return f"it has ended ({told['exit']}, {told['steps']} steps)"
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return "it ended before it could say how; --resume goes on from a checkpoint"


def _sweep(path: Path) -> None:
    """Remove what a start left that never came to a step."""
    with guarded(path):
        os.truncate(path / "run.log", 0)
        for name in ("metrics.jsonl", "trajectories.jsonl", "rollouts.jsonl", "nodes.jsonl", "trace.json"):
            (path / name).unlink(missing_ok=True)
        for stale in (path / "events").glob("events.out.tfevents.*"):
            stale.unlink()
        remove_path(path / "engines")
        for name in filter(_temporary, os.listdir(path)):
            remove_path(path / name)


def write_config(path: Path, cfg: Mapping[str, Any], history: list[dict[str, Any]]) -> None:
    """Write ``config.yaml``: the sections as ``overlap train --config`` reads them, then what was started when."""
    tree = plain({**cfg, HISTORY: history})
    write_atomic(path / "config.yaml", HEADER + yaml.safe_dump(tree, sort_keys=False, allow_unicode=True))


def read_history(path: Path) -> list[dict[str, Any]]:
    """The history in a run's ``config.yaml``. Raises ConfigError when that cannot be read."""
    file = path / "config.yaml"
    try:
        tree = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as exc:
        raise ConfigError("run.dir", str(path), f"its config.yaml cannot be read ({_reason(exc)}); mend it") from exc
    found = tree.get(HISTORY) if isinstance(tree, dict) else None
    return [dict(entry) for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []


def _reason(exc: BaseException) -> str:
    text = getattr(exc, "strerror", None) or str(exc)
    return " ".join(str(text).split())[:200]

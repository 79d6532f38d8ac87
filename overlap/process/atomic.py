"""Files and folders that appear whole or not at all, also in the place of others. Every failed write is a RunDirError.

    partial_path ──▶ fill it ──▶ sync ──▶ replace: what was there steps aside, comes back if the rename fails, goes

A kill at any moment leaves the new one or the former one, under its own name or, between two renames of a folder, under
a hidden one: the owner of the place calls ``settle_path`` when it comes back to it.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from overlap.core.errors import RunDirError

_NUMBERS = itertools.count(1)
_HIDDEN = r"((\.\d+-\d+\.partial)+|\.former)"


@contextmanager
def guarded(path: Path) -> Iterator[None]:
    """Turn an OSError about ``path`` into a one-line RunDirError."""
    try:
        yield
    except OSError as exc:
        if isinstance(exc, RunDirError):
            raise
        reason = exc.strerror or str(exc)
        way_out = "free disk space or choose another place"
        raise RunDirError(f"cannot write {path}: {reason}; {way_out}") from exc


def descriptor_of(path: object) -> int | None:
    """The open descriptor that a name for an output means, as ``-``, ``/dev/stderr`` and ``/dev/fd/3`` do, or None."""
    name = {"-": "1", "/dev/stdout": "1", "/dev/stderr": "2"}.get(str(path), str(path))
    number = name.removeprefix("/dev/fd/").removeprefix("/proc/self/fd/")
    return int(number) if number != str(path) and re.fullmatch("[0-9]{1,6}", number) else None


def is_stdout(path: object) -> bool:
    """True when a name for an output means standard output."""
    return descriptor_of(path) == 1


def write_atomic(path: Path, data: str | bytes) -> None:
    """Write a whole file: it appears complete, on disk, or not at all. Raises RunDirError, also where ``path`` exists
    and is no regular file: a device would be gone. A link stays, and its target is written.

    A lone surrogate, as the name of a file or a program's output may have, is written as JSON escapes it.
    """
    with guarded(path):
        if path.exists() and not path.is_file():
            raise RunDirError(f"cannot write {path}: it is no regular file; name another place")
        path = path.resolve() if path.is_symlink() else path
    partial = partial_path(path)
    try:
        with guarded(path):
            with open(partial, "wb") as out:
                out.write(data.encode("utf-8", "backslashreplace") if isinstance(data, str) else data)
                out.flush()
                os.fsync(out.fileno())
            os.replace(partial, path)
    finally:
        remove_path(partial)


@contextmanager
def made_whole(path: Path) -> Iterator[Path]:
    """Yield a path at which to make ``path``, which does not exist yet: it gets its name at the end of the block, or
    is removed where the block raises. Raises RunDirError.
    """
    partial = partial_path(path.absolute())
    try:
        yield partial
        with guarded(path):
            os.rename(partial, path)
    finally:
        remove_path(partial)


def partial_path(path: Path) -> Path:
    """Return the path at which to make ``path``: a hidden name beside it, another one for each call."""
    return path.with_name(f".{path.name.removeprefix('.')}.{os.getpid()}-{next(_NUMBERS)}.partial")


def former_path(path: Path) -> Path:
    """Return the place of the former ``path`` between the two renames of ``replace``."""
    return path.with_name(f".{path.name.removeprefix('.')}.former")


def is_hidden_name(name: str, of: str) -> bool:
    """True when ``name`` is one that ``partial_path`` or ``former_path`` gives to a file or folder called ``of``."""
    return re.fullmatch(rf"\.{re.escape(of.removeprefix('.'))}{_HIDDEN}", name) is not None


def sync(path: Path) -> None:
    """Bring a folder, with all below it, to the disk. Raises RunDirError."""
    with guarded(path):
        for each in (*path.rglob("*"), path):
            if each.is_file() or each.is_dir():
                fsync(each)


def fsync(path: Path) -> None:
    """Bring a file, or the names in a folder, to the disk. Raises OSError."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def replace(new: Path, path: Path) -> None:
    """Rename ``new`` to ``path``, beside it; what was there goes. Raises RunDirError: ``path`` is what it was then."""
    former = former_path(path)
    with guarded(path):
        remove_path(former)
        with ExitStack() as undo:
            if new.is_dir() and os.path.lexists(path):
                os.rename(path, former)
                undo.callback(os.rename, former, path)
            os.replace(new, path)
            undo.pop_all()
    with suppress(OSError):  # it has its name, on a file system too that cannot bring a folder to the disk
        fsync(path.parent)
    remove_path(former)


def settle_path(path: Path) -> None:
    """End what a kill cut short: the former ``path`` comes back if there is none, and nothing hidden of it is left.

    For the owner of the place: what another process or thread is making there goes too. Raises RunDirError.
    """
    former = former_path(path)
    with guarded(path):
        if os.path.lexists(former) and not os.path.lexists(path):
            os.rename(former, path)
        names = os.listdir(path.parent) if path.parent.is_dir() else []
    for name in names:
        if is_hidden_name(name, path.name):
            remove_path(path.with_name(name))


def remove_path(path: Path) -> None:
    """Remove a file, link or tree as far as it can be. Raises nothing."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()

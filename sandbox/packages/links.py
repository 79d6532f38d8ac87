"""Symbolic links of a package. One that leads out of it is never followed: what it shows is not the author's.

root ── os.walk ─▶ links that leave ─▶ refused where something is read that judging depends on, else noted and left out
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path

from sandbox.errors import InvalidProblem


def check_links(root: Path) -> None:
    """Raises InvalidProblem for a link in `root` that leads out of it; hidden files are passed over."""
    for path in _links(root):
        if not _hidden(path.relative_to(root)) and not _stays(path, root):
            raise InvalidProblem(f"{_leaves(path)}, which is not below {root}")


def leaving_links(root: Path, notes: list[str]) -> frozenset[Path]:
    """Return all links that lead out of a package, and note those that lie where nothing is read.

    Raises InvalidProblem where a link to a directory may lead to such a link by another path.
    """
    found = list(_links(root))
    leaving = [path for path in found if not _stays(path, root)]
    for path in found if leaving else []:
        if path not in leaving and path.is_dir() and not _hidden(path.relative_to(root)):
            raise InvalidProblem(f"{_leaves(leaving[0])}, which is not below {root}; {path} may lead there")
    for path in leaving:
        inside = path.relative_to(root)
        depth = {"submissions": 2, "input_validators": 1, "input_validator": 1, "input_format_validators": 1}
        told = len(inside.parts) > depth.get(inside.parts[0], len(inside.parts))  # where the program is not run
        if not _hidden(inside) and not told:
            notes.append(f"{inside} is a symbolic link out of the package ({os.readlink(path)!r}), and not followed")
    return frozenset(leaving)


def check_followed(path: Path, leaving: Collection[Path]) -> None:
    """Raises InvalidProblem if a link that leads out of the package is `path`, or lies in it or above it."""
    for link in leaving:
        if link.is_relative_to(path) or path.is_relative_to(link):
            raise InvalidProblem(f"{_leaves(link)}, which is not in the package; put the file itself there")


def _links(root: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(root):
        yield from (path for path in (Path(folder, name) for name in sorted((*folders, *files))) if path.is_symlink())


def _stays(path: Path, root: Path) -> bool:
    try:
        return path.resolve().is_relative_to(root.resolve())
    except (OSError, RuntimeError):  # a cycle of links
        return False


def _hidden(inside: Path) -> bool:
    return any(part[0] in ".-" for part in inside.parts)


def _leaves(path: Path) -> str:
    return f"{path}: is a symbolic link to {os.readlink(path)!r}"

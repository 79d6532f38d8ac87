"""Imports of Python programs from a directory that is closed to their uid.

A descriptor of such a directory is opened while that is possible, and everything is imported through it, which needs no
permission for its path and no capability. Landlock decides what may be read there.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Sequence
from typing import Final

from sandbox.kernel import uids

_LOWEST: Final = 1024  # above what a program may open, and closes with all others


class Library:
    """`lowest`: the first of its descriptors; a program keeps those from there on."""

    def __init__(self, prefixes: Sequence[str] = (), packages: Sequence[str] = ()) -> None:
        """Import from an interpreter and packages, from now on, in the way that programs can."""
        closed = [path for path in _import_roots(prefixes, packages) if not uids.may_enter(path)]
        self._places = dict.fromkeys(closed, "")
        self.lowest = _LOWEST
        if not closed:
            return
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        if most != resource.RLIM_INFINITY:
            self.lowest = min(_LOWEST, most - len(closed))
        resource.setrlimit(resource.RLIMIT_NOFILE, (self.lowest + len(closed), most))
        for target, path in enumerate(closed, self.lowest):
            fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            os.dup2(fd, target, inheritable=False)
            os.close(fd)
            self._places[path] = f"/proc/self/fd/{target}"
        for paths in (sys.path, *_packages()):
            paths[:] = map(self.at, paths)
        sys.path_importer_cache.clear()

    def at(self, path: str) -> str:
        """Return the path by which to reach `path`."""
        for closed, place in self._places.items():
            if f"{path}/".startswith(f"{closed}/"):
                return place + path[len(closed) :]
        return path


def _import_roots(prefixes: Sequence[str], packages: Sequence[str]) -> list[str]:
    """Return directories of the path that are in `prefixes` or hold packages; none that is in another one."""
    own = tuple(f"{prefix}/" for prefix in prefixes)
    found: list[str] = []
    for home in sorted({*(path for path in sys.path if path.startswith(own)), *map(os.path.dirname, packages)}):
        if os.path.isdir(home) and not any(home.startswith(f"{outer}/") for outer in found):
            found.append(home)
    return found


def _packages() -> list[list[str]]:
    """Return the paths at which the imported packages have their modules."""
    paths = (getattr(module, "__path__", None) for module in list(sys.modules.values()))
    return [path for path in paths if isinstance(path, list)]

"""Names of files that a client puts into a program's work directory, or asks for."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable

from sandbox.core.checks import check_files
from sandbox.errors import InvalidProblem
from sandbox.serve.bodies import Refused


def names_inside(where: str, names: Iterable[str]) -> list[str]:
    """Names of files that are written into the work directory. Raises Refused where two are one file or a name leads
    outside, InvalidProblem for what no file can be called.
    """
    found: dict[str, str] = {}
    for name in names:
        inside = name_inside(where, name)
        if inside in found:
            raise Refused(400, f"{where}: {found[inside]!r} and {name!r}: are the same file; give it once")
        found[inside] = name
    check_files("run", tuple((name, "") for name in found), InvalidProblem)
    return list(found)


def name_inside(where: str, name: str) -> str:
    """A name in the work directory, where the program runs. Raises Refused for a path outside."""
    inside = posixpath.normpath(name)
    if inside.partition("/")[0] in ("", ".", ".."):
        raise Refused(422, f"{where}: {name!r}: must be a path relative to the directory in which the program runs")
    return inside

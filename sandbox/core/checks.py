"""Checks of single fields, for data types that are constructed or read from JSON. Each error names the field."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Any, Final

from sandbox.errors import InvalidProblem, SandboxError, WrongType

FILES_MAX: Final = 1000
NAME_MAX: Final = 1024
"""Bytes, folders included: with the directory of a jail before it, far from the 4,096 of the kernel."""
NAMES_BYTES_MAX: Final = 24 << 10
"""Size as JSON: everything about a run is one message to its jail."""
_UNUSABLE: Final = re.compile("[\0\ud800-\udfff]")


def check_texts(where: str, noun: object, *names: str, form: str = "text") -> None:
    """Check that these fields are texts. Raises WrongType."""
    for name in names:
        value = getattr(noun, name)
        if not isinstance(value, str):
            raise wrong_type(where, name, value, form)


def wrong_type(where: str, name: str, value: object, form: str) -> WrongType:
    """The error for an argument that has not the expected form."""
    return WrongType(f"{where}: {name}={quoted(value)}: must be {form}, not {type(value).__name__}")


def quoted(value: object) -> str:
    """Return the value as a message quotes it."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of more than 4,300 digits
        return f"of type {type(value).__name__}"
    return text if len(text) <= 200 else text[:200] + "..."


def check_pairs(where: str, files: object) -> tuple[tuple[str, str], ...]:
    """Return the files. Raises WrongType unless they are pairs of names and texts."""
    pairs = files if isinstance(files, tuple) else (files,)
    if not all(isinstance(pair, tuple) and len(pair) == 2 and all(isinstance(x, str) for x in pair) for pair in pairs):
        raise wrong_type(where, "files", files, 'pairs of a name and a text, as (("main.py", "print(1)"),)')
    return pairs


def check_files(where: str, files: object, error: type[SandboxError]) -> None:
    """Check names and texts of files; every name must be below the directory."""
    names = [name for name, _ in check_pairs(where, files)]
    if len(names) > FILES_MAX or len(json.dumps(names)) > NAMES_BYTES_MAX:
        raise error(f"{where}: files: more than {FILES_MAX}, or names of more than {NAMES_BYTES_MAX} bytes as JSON")
    for name in names:
        if not _is_below(name):
            raise error(f"{where}: files: {quoted(name)} is no name below a directory; use one like 'lib/util.py'")
    folders = {name[:at] for name in names for at, letter in enumerate(name) if letter == "/"}
    if double := min(folders.intersection(names), default=None):
        raise error(f"{where}: files: {double!r} is there twice, as a file and as a folder")
    if len(set(names)) < len(names):
        double = next(name for name in names if names.count(name) > 1)
        raise error(f"{where}: files: {double!r} is there twice")
    if len(names) + len(folders) > FILES_MAX:
        raise error(f"{where}: files: more than {FILES_MAX} with their folders")


def _is_below(name: str) -> bool:
    data = name.encode("utf-8", "surrogatepass")
    return (
        len(data) <= NAME_MAX
        and not _UNUSABLE.search(name)
        and not any(part in (b"", b".", b"..") or len(part) > 255 for part in data.split(b"/"))
    )


def check_keys(where: str, data: Any, known: Collection[str], required: Collection[str]) -> None:
    """Check for a JSON object with all `required` keys and no others than `known`."""
    if not isinstance(data, dict):
        raise InvalidProblem(f"{where}: must be a JSON object, not {type(data).__name__}")
    if unknown := sorted(set(data) - set(known)):
        raise InvalidProblem(f"{where}: unknown key {quoted(unknown[0])}; known keys: {', '.join(sorted(known))}")
    if missing := sorted(set(required) - set(data)):
        raise InvalidProblem(f"{where}: key {missing[0]!r} is missing")


def printable(text: str, keep: str = "") -> str:
    r"""`text` with all but printable characters and those of `keep` escaped: no line, colour or cursor of its own.

    The result can be encoded: a lone surrogate becomes `\udcff`.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text)


def encode_text(text: str) -> bytes:
    """Return the text as bytes, including bytes that were not UTF-8."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")

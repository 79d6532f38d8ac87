"""Files of a package: bytes of files within it, and YAML maps whose keys are asked for one by one.

load_yaml(path, root, notes) ──▶ Keys ── words("type"), number("memory", 2048), ... ──▶ done(): notes on the rest
"""

from __future__ import annotations

import math
import os
import reprlib
import shlex
from collections import Counter
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from sandbox.core.nouns import MIB
from sandbox.errors import InvalidProblem, ToolchainMissing

_NUMBER_MAX: Final = 1e6
_NOTHING: Final[tuple[object, ...]] = (None, "", "~", "null", [], {})


def read_within(path: Path, root: Path, most: float = math.inf) -> bytes:
    """Content of a file of the package at `root`. Raises InvalidProblem for a link out of it, OSError."""
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root)):
        raise InvalidProblem(f"{path}: is a symbolic link out of the package; put the file itself there")
    if not path.is_file():
        raise InvalidProblem(f"{path}: is no file")
    if path.stat().st_size > most:
        raise InvalidProblem(f"{path}: exceeds {most:g} bytes, alone or with the files beside it")
    return path.read_bytes()


def load_yaml(path: Path, root: Path, notes: list[str]) -> Keys:
    """The map in a YAML file. Raises InvalidProblem, ToolchainMissing without PyYAML, OSError."""
    if find_spec("yaml") is None:
        raise ToolchainMissing("packages are described in YAML: install PyYAML (pip install pyyaml)")
    import yaml

    class Loader(yaml.BaseLoader):
        """Keeps scalars as they are written (an argument 007 is not 7), and refuses a key that is there twice."""

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
            if twice := [name for name, count in Counter(names).items() if count > 1]:
                raise yaml.YAMLError(f"key {twice[0]!r} is there twice; keep one")
            return super().construct_mapping(node, deep)

    text = read_within(path, root, MIB)
    try:
        data = yaml.load(text.decode("utf-8-sig"), Loader)
    except (yaml.YAMLError, RecursionError, UnicodeDecodeError) as error:
        raise InvalidProblem(f"{path}: is not YAML: {' '.join(str(error).split())[:300]}") from error
    return Keys(str(path), {} if data in _NOTHING else data, notes)


class Keys:
    """Keys of one map, each asked for by name. Methods raise InvalidProblem with file, key and value."""

    def __init__(self, where: str, data: object, notes: list[str]) -> None:
        if not isinstance(data, dict):
            raise InvalidProblem(f"{where}: {reprlib.repr(data)[:100]}: must be a map of names to values")
        self.where, self.notes = where, notes
        self.left = {str(key): value for key, value in data.items() if value not in _NOTHING}
        self._asked: set[str] = set()

    def wrong(self, name: str, value: object, must: str) -> InvalidProblem:
        return InvalidProblem(f"{self.where}: {name}: {reprlib.repr(value)[:100]}: must be {must}")

    def _take(self, name: str, default: Any) -> Any:
        self._asked.add(name)
        return self.left.pop(name, default)

    def words(self, name: str) -> tuple[str, ...]:
        """A list of texts, or one text of several words as a shell splits it."""
        value = self._take(name, "")
        try:
            found = shlex.split(value) if isinstance(value, str) else value
        except ValueError:
            raise self.wrong(name, value, "words with closed quotes") from None
        if not isinstance(found, list) or not all(isinstance(word, str) for word in found):
            raise self.wrong(name, value, "a text or a list of texts")
        return tuple(found)

    def number(self, name: str, default: float, low: float = 1) -> float:
        value = self._take(name, default)
        try:
            found = float(value)
        except (TypeError, ValueError):
            found = math.nan
        if not low <= found <= _NUMBER_MAX:
            raise self.wrong(name, value, f"a number from {low:g} to {_NUMBER_MAX:g}")
        return found

    def inner(self, name: str) -> Keys:
        """The map under a key; empty without the key."""
        return Keys(f"{self.where}: {name}", self._take(name, {}), self.notes)

    def done(self, *refused: str) -> None:
        """Note the keys that were not asked for, in one line; refuse some, and one that looks like one that was."""
        for name in self.left:
            if name in refused and self.left[name] != "false":
                raise InvalidProblem(f"{self.where}: {name} is not supported, and verdicts depend on it")
            if near := get_close_matches(name[:40].lower(), self._asked, 1, 0.9):
                raise InvalidProblem(f"{self.where}: unknown key {name[:40]!r}; did you mean {near[0]!r}?")
        if self.left:
            names = ", ".join(sorted(name[:40] for name in self.left))
            self.notes.append(f"{os.path.basename(self.where)}: not read: {names[:500]}")

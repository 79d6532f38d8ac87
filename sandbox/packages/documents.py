"""YAML files of a package: every key is requested by name, and what is not requested is noted.

    load_yaml(path, notes) ──▶ Keys ── text("name"), number("time_limit"), ... ──▶ values ── done() ──▶ notes on the
    rest; InvalidProblem for one that looks like a key that judging depends on

A key that is there twice counts once: refused where its two values differ and judging depends on it, noted elsewhere.
PyYAML is imported here only, when a package is read.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Collection, Iterator
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

from sandbox.errors import InvalidProblem, ToolchainMissing

DOCUMENT_BYTES_MAX = 1 << 20
NUMBER_MAX = 1e15
"""Upper bound of any number: above all limits, with finite products."""
UNKNOWN_MAX = 20
"""Unknown keys of one map that are noted by name."""
_KEY_CHARS_MAX = 40
_Default = TypeVar("_Default")


def load_yaml(path: Path, notes: list[str]) -> Keys:
    """The map in a YAML file; empty where the file is. Raises InvalidProblem, ToolchainMissing, OSError."""
    return Keys(str(path), _parse(path), notes)


class _Map(dict[Any, Any]):
    """A map as YAML has it."""

    twice: dict[str, bool]
    """Keys that are there more than once: whether their values differ. The last one is in the map."""


class _Whole(int):
    """A number that is, as a text, what its author wrote: an argument 007 is not 7, and 0.00001 not 1e-05."""

    written = ""

    def __str__(self) -> str:
        return self.written


class _Real(float):
    written = ""
    __str__ = _Whole.__str__


def quoted_briefly(value: object) -> str:
    """A value as a message quotes it: in short, for a few aliases of YAML make a value of billions of items."""
    if isinstance(value, int) and value.bit_length() > 1000:
        return f"a number of {value.bit_length()} bits"
    short = reprlib.Repr()
    short.maxlevel, short.maxstring, short.maxother = 1, 100, 100
    return short.repr(value)


def _parse(path: Path) -> dict[Any, Any]:
    try:
        import yaml
    except ImportError as error:
        raise ToolchainMissing("packages are described in YAML: install PyYAML (pip install pyyaml)") from error

    class Loader(yaml.SafeLoader):
        def construct_map(self, node: yaml.MappingNode) -> Iterator[_Map]:
            found = _Map()
            yield found  # an alias within it may stand for it
            found.twice = _twice(node)
            found.update(self.construct_mapping(node))

        def construct_yaml_int(self, node: yaml.ScalarNode) -> _Whole:
            number = _Whole(super().construct_yaml_int(node))
            number.written = node.value
            return number

        def construct_yaml_float(self, node: yaml.ScalarNode) -> _Real:
            number = _Real(super().construct_yaml_float(node))
            number.written = node.value
            return number

    def _twice(node: yaml.MappingNode) -> dict[str, bool]:
        first: dict[str, yaml.Node] = {}
        found: dict[str, bool] = {}
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode) and (former := first.setdefault(key.value, value)) is not value:
                scalars = isinstance(former, yaml.ScalarNode) and isinstance(value, yaml.ScalarNode)
                same = scalars and (former.tag, former.value) == (value.tag, value.value)
                found[key.value] = found.get(key.value, False) or not same
        return found

    Loader.add_constructor("tag:yaml.org,2002:map", Loader.construct_map)
    Loader.add_constructor("tag:yaml.org,2002:int", Loader.construct_yaml_int)
    Loader.add_constructor("tag:yaml.org,2002:float", Loader.construct_yaml_float)
    if path.stat().st_size > DOCUMENT_BYTES_MAX:
        raise InvalidProblem(f"{path}: is longer than {DOCUMENT_BYTES_MAX} bytes")
    try:
        data = yaml.load(path.read_text("utf-8-sig"), Loader)  # a SafeLoader
    except (yaml.YAMLError, RecursionError, ValueError, AttributeError, LookupError) as error:
        # PyYAML answers a tag that does not fit its value (!!bool maybe, !!int "") with what happens to go wrong in it
        raise InvalidProblem(f"{path}: is not YAML: {' '.join(str(error).split())[:300]}") from error
    if data is None:
        return _Map()
    if not isinstance(data, dict):
        raise InvalidProblem(f"{path}: must be a map of names to values")
    return data


class Keys:
    """The keys of one map, each requested once. All methods raise InvalidProblem that names file, key and value."""

    def __init__(self, where: str, data: dict[Any, Any], notes: list[str] | None = None) -> None:
        self.where = where
        self.left = {key if isinstance(key, str) else quoted_briefly(key): value for key, value in data.items()}
        self.notes = [] if notes is None else notes
        """Where what has no effect is told; shared with the maps below."""
        self._given = frozenset(self.left)
        self._twice = dict(getattr(data, "twice", {}))
        self._asked: dict[str, bool] = {}
        """Names, and whether judging depends on them."""

    def take(self, name: str, default: Any = None) -> Any:
        self._asked[name] = True
        if self._twice.get(name):
            raise InvalidProblem(f"{self.where}: key {quoted_briefly(name)} is there twice, with two values; keep one")
        self._note_twice(name)
        found = self.left.pop(name, None)
        return default if found is None else found

    def note(self, text: str) -> None:
        self.notes.append(f"{self.where}: {text}")

    def _note_twice(self, name: str) -> None:
        if self._twice.pop(name, None) is not None:
            self.note(f"key {quoted_briefly(name)} is there twice, and the last one counts")

    def has(self, name: str) -> bool:
        self._asked[name] = True
        return self.left.get(name) is not None

    def wrong(self, name: str, value: object, must: str) -> InvalidProblem:
        return InvalidProblem(f"{self.where}: {name}: {quoted_briefly(value)}: must be {must}")

    def text(self, name: str, default: str = "") -> str:
        value = self.take(name, default)
        return self._as_text(name, value, "a text")

    def _as_text(self, name: str, value: object, must: str) -> str:
        with suppress(ValueError):  # an integer of more than 4,300 digits
            if value is not None and not isinstance(value, bool | dict | list):
                return str(value)
        raise self.wrong(name, value, must)

    def choice(self, name: str, default: str, known: Collection[str]) -> str:
        value = self.text(name, default)
        if value not in known:
            raise self.wrong(name, value, f"one of {', '.join(known)}")
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        value = self.take(name, default)
        if not isinstance(value, bool):
            raise self.wrong(name, value, "true or false")
        return value

    def number(self, name: str, default: _Default, *, low: float = -NUMBER_MAX) -> float | _Default:
        value = self.take(name)
        return default if value is None else self.as_number(name, value, low=low, high=NUMBER_MAX)

    def as_number(self, name: str, value: object, *, low: float = -math.inf, high: float = math.inf) -> float:
        try:
            if isinstance(value, bool) or not isinstance(value, int | float | str):
                raise ValueError
            found = float(value)
        except (ValueError, OverflowError):
            raise self.wrong(name, value, "a number") from None
        if not low <= found <= high:
            raise self.wrong(
                name, value, f"a number from {low:g} to {high:g}" if high < math.inf else f"a number from {low:g} up"
            )
        return found

    def whole(self, name: str, default: _Default, *, low: int = 1) -> int | _Default:
        value = self.number(name, None, low=low)
        if value is not None and value != int(value):
            raise self.wrong(name, value, "a whole number")
        return default if value is None else int(value)

    def texts(self, name: str, default: tuple[str, ...] = (), *, single: bool = False) -> tuple[str, ...]:
        """A list of texts; with `single`, one text is a list of one."""
        value = self.take(name)
        if value is None:
            return default
        if single and isinstance(value, str):
            return (value,)
        if not isinstance(value, list):
            raise self.wrong(name, value, "a list of texts")
        return tuple(self._as_text(name, item, "a list of texts") for item in value)

    def inner(self, name: str) -> Keys:
        """The map under a key; empty where there is none."""
        value = self.take(name, {})
        if not isinstance(value, dict):
            raise self.wrong(name, value, "a map of names to values")
        return Keys(f"{self.where}: {name}", value, self.notes)

    def refuse(self, *names: str, why: str) -> None:
        """Known keys that are not supported, and that judging depends on."""
        for name in names:
            if self.left.get(name) is not None:
                raise InvalidProblem(f"{self.where}: {name} is not supported: {why}")

    def skip(self, *names: str) -> None:
        """Known keys that say nothing about judging."""
        for name in names:
            self._asked[name] = False
            self._note_twice(name)
            self.left.pop(name, None)

    def without_effect(self, *names: str, why: str) -> None:
        """Known keys that say nothing about the judging of this package: each that is there is noted."""
        for name in names:
            if self.left.get(name) is not None:
                self.note(f"{name} has no effect: {why}")
        self.skip(*names)

    def done(self) -> None:
        """Note the keys that nobody requested."""
        free = {name for name, counts in self._asked.items() if counts and name not in self._given}
        unknown = sorted(self.left)
        for name in unknown[:UNKNOWN_MAX]:
            if near := get_close_matches(name.lower()[:_KEY_CHARS_MAX], free, 1, 0.8):
                raise InvalidProblem(f"{self.where}: unknown key {quoted_briefly(name)}; did you mean {near[0]!r}?")
            self.note(f"unknown key {quoted_briefly(name)}, and not looked at")
        if len(unknown) > UNKNOWN_MAX:
            self.note(f"{len(unknown) - UNKNOWN_MAX} more unknown keys")
        self.left.clear()

"""What the installed vLLM takes, read in its source: an import of vLLM takes 19 s, and a driver needs none of it. What
cannot be read refuses nothing: the engine is the judge then.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, NamedTuple

_ARGUMENTS = ("vllm.engine.arg_utils", "AsyncEngineArgs")
_MAPPINGS = {"speculative_config": ("vllm.config.speculative", "SpeculativeConfig")}
"""Options whose annotation is no more than a mapping → the class that vLLM makes of it."""
_TYPES = {"bool": bool, "int": int, "float": float, "str": str, "dict": dict, "list": list, "set": list, "tuple": list}
_PLAIN = (bool, int, float, str, type(None))
_NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "a string", dict: "a mapping"}


class SourceStatement(NamedTuple):
    """A statement of vLLM's source, and the module that it stands in."""

    node: ast.stmt
    module: str


class Kind(NamedTuple):
    """What an annotation allows: values by name, types, and classes with fields. ``open``: more than can be read."""

    choices: tuple[Any, ...] = ()
    types: tuple[type, ...] = ()
    classes: tuple[SourceStatement, ...] = ()
    open: bool = False

    def fits(self, value: Any, *, below: bool) -> bool:
        """Whether a plain value is allowed, as far as can be read. ``below`` an option vLLM's validators may make what
        they want of another value than its class.
        """
        given = (value, value.upper()) if isinstance(value, str) else (value,)  # an enumeration's members in any case
        known = any(type(one) is type(choice) and one == choice for one in given for choice in self.choices)
        mapping = bool(self.classes) and (below or isinstance(value, Mapping))
        return known or mapping or self.open or any(_is(value, wanted) for wanted in self.types)

    @property
    def names(self) -> list[str]:
        """The values that are listed."""
        return [str(choice) for choice in self.choices if choice is not None]

    def __str__(self) -> str:
        told = [f"one of {', '.join(self.names)}"] if self.names else []
        told += [_NAMES.get(one, "a list") for one in self.types] + ["a mapping"] * bool(self.classes)
        return " or ".join(dict.fromkeys(told)) or "a value that YAML can write"


class VllmSource:
    """The source of the installed vLLM; empty where there is none."""

    def __init__(self) -> None:
        spec = PathFinder.find_spec("vllm")
        self._folders = [Path(folder) for folder in (spec and spec.submodule_search_locations) or ()]
        self._fields: dict[tuple[str, ...], dict[str, Kind]] = {}

    def options(self, path: Sequence[str] = ()) -> Mapping[str, Kind]:
        """Names in an option that is a mapping, those of ``AsyncEngineArgs`` by default; none where it has none, or
        they are not known.
        """
        key = tuple(path)
        if key not in self._fields:
            self._fields[key] = self._options(key)
        return self._fields[key]

    def _options(self, path: tuple[str, ...]) -> dict[str, Kind]:
        if named := _ARGUMENTS if not path else _MAPPINGS.get(".".join(path)):
            found = self._find(*named)
            return self._fields_of(found) if found else {}
        kind = self.options(path[:-1]).get(path[-1], Kind())
        return self._fields_of(kind.classes[0]) if len(kind.classes) == 1 else {}

    def table(self, module: str, variable: str) -> tuple[str, ...]:
        """The keys of a table that is written out; none where there is no such table."""
        found = self._find(module, variable)
        table = getattr(found.node, "value", None) if found else None
        keys = table.keys if isinstance(table, ast.Dict) else []
        return tuple(str(key.value) for key in keys if isinstance(key, ast.Constant))

    def _fields_of(self, found: SourceStatement) -> dict[str, Kind]:
        """Of a class and of those that it is made from, by name; private ones left out."""
        fields = dict[str, Kind]()
        if isinstance(found.node, ast.ClassDef):
            for base in found.node.bases:
                fields |= self._fields_of(above) if (above := self._find(found.module, ast.unparse(base))) else {}
            for statement in found.node.body:
                match statement:
                    case ast.AnnAssign(target=ast.Name(id=name), annotation=kind) if not name.startswith("_"):
                        fields[name] = self._kind(kind, found.module)
        return fields

    def _kind(self, node: ast.expr, module: str) -> Kind:
        """What an annotation allows."""
        match node:
            case ast.Constant(value=None):
                return Kind((None,))
            case ast.Constant(value=str() as quoted):
                return self._kind(ast.parse(quoted, mode="eval").body, module)
            case ast.BinOp(left=left, right=right):
                return _either(self._kind(left, module), self._kind(right, module))
            case ast.Subscript(value=ast.Name(id="Literal"), slice=inner):
                parts = inner.elts if isinstance(inner, ast.Tuple) else [inner]
                return _either(
                    *(Kind((p.value,)) if isinstance(p, ast.Constant) else self._kind(p, module) for p in parts)
                )
            case ast.Name(id=name) | ast.Subscript(value=ast.Name(id=name)) if name in _TYPES:
                return Kind(types=(_TYPES[name],))
            case ast.Subscript(value=ast.Name(id="type")):
                return Kind()  # a class, which no file of values can hold
            case ast.Name(id=name):
                return self._named(name, module)
        return Kind(open=True)

    def _named(self, name: str, module: str) -> Kind:
        """What a name in an annotation allows: an enumeration's members, a class, or what it stands for."""
        match found := self._find(module, name):
            case SourceStatement(node=ast.ClassDef(bases=bases, body=body)) if any(
                "Enum" in ast.unparse(base) for base in bases
            ):
                members = [one for one in body if isinstance(one, ast.Assign)]
                if any("IntEnum" in ast.unparse(base) for base in bases):
                    return Kind(tuple(one.value.value for one in members if isinstance(one.value, ast.Constant)))
                return Kind(tuple(ast.unparse(one.targets[0]) for one in members))
            case SourceStatement(node=ast.ClassDef()):
                return Kind(classes=(found,))
            case SourceStatement(node=ast.Assign(value=value), module=there):
                return self._kind(value, there)
        return Kind(open=True)

    def _find(self, module: str, name: str) -> SourceStatement | None:
        """The statement that makes ``name`` in a module, there or where it is imported from."""
        made: ast.stmt | None = None
        for node in self._statements(module):
            match node:
                case ast.ClassDef(name=found) if found == name:
                    made = node
                case ast.Assign(targets=[ast.Name(id=found)]) | ast.AnnAssign(target=ast.Name(id=found)):
                    made = made or node if found == name else made
                case ast.ImportFrom(module=str() as origin, level=0, names=names) if origin.startswith("vllm"):
                    for alias in names:
                        if (alias.asname or alias.name) == name:
                            return self._find(origin, alias.name)
        return SourceStatement(made, module) if made is not None else None

    def _statements(self, module: str) -> Iterator[ast.stmt]:
        """Of a module, those under a condition (``TYPE_CHECKING``) too."""
        for node in self._body(module):
            yield from node.body if isinstance(node, ast.If) else (node,)

    def _body(self, module: str) -> Sequence[ast.stmt]:
        for folder in self._folders:
            path = folder.joinpath(*module.split(".")[1:])
            for file in (path.with_suffix(".py"), path / "__init__.py"):
                if (tree := _parsed(file)) is not None:
                    return tree.body
        return ()


@cache
def _parsed(file: Path) -> ast.Module | None:
    """A file of vLLM, read once in a process; None where there is none that can be read."""
    try:
        return ast.parse(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError):
        return None


def is_plain(value: Any) -> bool:
    """Whether ``config.yaml`` can hold it; it has no number that is none (NaN), nor an infinite one."""
    if isinstance(value, Mapping):
        return all(isinstance(key, str | int) and is_plain(below) for key, below in value.items())
    if isinstance(value, list | tuple):
        return all(map(is_plain, value))
    return isinstance(value, _PLAIN) and (not isinstance(value, float) or math.isfinite(value))


def _either(*kinds: Kind) -> Kind:
    """What one of them allows."""
    choices, types, classes, more = zip(*kinds, strict=True)
    return Kind(sum(choices, ()), sum(types, ()), sum(classes, ()), any(more))


def _is(value: Any, wanted: type) -> bool:
    if wanted in (int, float):
        return isinstance(value, int if wanted is int else (int, float)) and not isinstance(value, bool)
    return isinstance(value, list | tuple if wanted is list else wanted)

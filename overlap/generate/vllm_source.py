"""What the installed vLLM can be given, read in its source: the import of vLLM takes 19 s, and a driver needs none of
it. What cannot be read refuses nothing: the engine is the judge then.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, NamedTuple

_ARGUMENTS = ("vllm.engine.arg_utils", "AsyncEngineArgs")
_MAPPINGS = {"speculative_config": ("vllm.config.speculative", "SpeculativeConfig")}
"""Options whose annotation is no more than a mapping → the class that vLLM makes of it."""
_TYPES = {"bool": bool, "int": int, "float": float, "str": str, "dict": dict, "list": list, "set": list, "tuple": list}
_NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "a string", dict: "a mapping"}
_PLAIN = (bool, int, float, str, type(None))


class Found(NamedTuple):
    """A statement of vLLM's source, and the module that it stands in."""

    node: ast.stmt
    module: str


class Kind(NamedTuple):
    """What an annotation allows: values by name, types, and classes with fields. ``open``: more than can be read."""

    choices: tuple[Any, ...] = ()
    types: tuple[type, ...] = ()
    classes: tuple[Found, ...] = ()
    open: bool = False

    def __or__(self, other: Kind) -> Kind:
        both = (self.choices + other.choices, self.types + other.types, self.classes + other.classes)
        return Kind(*both, self.open or other.open)


class VllmFields:
    """The fields of ``AsyncEngineArgs``, and of the classes that some of them are. None where there is no vLLM."""

    def below(self, path: Sequence[str]) -> Mapping[str, Kind]:
        """The fields of the option ``path``, by name; none where it has none, or they are not known."""
        if not path:
            return _fields(*_ARGUMENTS)
        if (named := _MAPPINGS.get(".".join(path))) is not None:
            return _fields(*named)
        kind = self._kind(path)
        found = [_fields_of(one) for one in kind.classes] if kind else []
        return found[0] if len(found) == 1 else {}

    def fits(self, path: Sequence[str], value: Any) -> bool:
        """Whether the option may have this value, as far as can be read."""
        if not _plain(value):
            return False
        kind = self._kind(path)
        if kind is None:
            return True
        given = (value, value.upper()) if isinstance(value, str) else (value,)  # members of enumerations in any case
        known = any(type(one) is type(choice) and one == choice for one in given for choice in kind.choices)
        if known or any(_is(value, wanted) for wanted in kind.types):
            return True
        if kind.classes and (isinstance(value, Mapping) or len(path) > 1):
            return True  # what vLLM makes of it below an option is for its own validators
        return kind.open

    def described(self, path: Sequence[str]) -> str:
        """What the option may be, for a person."""
        kind = self._kind(path) or Kind(open=True)
        choices = [str(choice) for choice in kind.choices if choice is not None]
        told = [f"one of {', '.join(choices)}"] if choices else []
        told += [_NAMES.get(one, "a list") for one in kind.types]
        told += ["a mapping"] if kind.classes and dict not in kind.types else []
        return " or ".join(dict.fromkeys(told)) or "a plain value"

    def _kind(self, path: Sequence[str]) -> Kind | None:
        return self.below(path[:-1]).get(path[-1])


def online_quantizations() -> frozenset[str]:
    """Methods that quantize plain weights while they are loaded; empty where they are not known."""
    found = _find("vllm.config.quantization", "_ONLINE_SHORTHANDS")
    table = getattr(found.node, "value", None) if found else None
    return frozenset((*table_keys(table), "online")) if isinstance(table, ast.Dict) else frozenset()


def table_keys(table: ast.Dict) -> tuple[str, ...]:
    """The keys of a table that is written out."""
    return tuple(str(key.value) for key in table.keys if isinstance(key, ast.Constant))


def listed(module: str, variable: str) -> tuple[str, ...]:
    """The keys of a table in vLLM's source; none where there is no such table."""
    found = _find(module, variable)
    table = getattr(found.node, "value", None) if found else None
    return table_keys(table) if isinstance(table, ast.Dict) else ()


def _is(value: Any, wanted: type) -> bool:
    if wanted is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if wanted is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, wanted)


def _plain(value: Any) -> bool:
    """Whether YAML can write it."""
    if isinstance(value, Mapping):
        return all(isinstance(key, str | int) and _plain(below) for key, below in value.items())
    return all(map(_plain, value)) if isinstance(value, list | tuple) else isinstance(value, _PLAIN)


@cache
def _fields(module: str, name: str) -> Mapping[str, Kind]:
    found = _find(module, name)
    return _fields_of(found) if found else {}


def _fields_of(found: Found) -> Mapping[str, Kind]:
    """Of a class and of those that it is made from, by name; private ones left out."""
    assert isinstance(found.node, ast.ClassDef)
    fields = dict[str, Kind]()
    for base in found.node.bases:
        above = _find(found.module, ast.unparse(base))
        fields |= _fields_of(above) if above and isinstance(above.node, ast.ClassDef) else {}
    for statement in found.node.body:
        match statement:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=kind) if not name.startswith("_"):
                fields[name] = _kind(kind, found.module)
    return fields


def _kind(node: ast.expr, module: str) -> Kind:
    """What an annotation allows."""
    match node:
        case ast.Constant(value=None):
            return Kind(choices=(None,))
        case ast.Constant(value=str() as quoted):
            return _kind(ast.parse(quoted, mode="eval").body, module)
        case ast.BinOp(left=left, right=right):
            return _kind(left, module) | _kind(right, module)
        case ast.Subscript(value=ast.Name(id="Literal"), slice=inner):
            parts = inner.elts if isinstance(inner, ast.Tuple) else [inner]
            found = [Kind((p.value,)) if isinstance(p, ast.Constant) else _kind(p, module) for p in parts]
            return _any(found)
        case ast.Subscript(value=ast.Name(id="Annotated" | "SkipValidation"), slice=inner):
            return _kind(inner.elts[0] if isinstance(inner, ast.Tuple) else inner, module)
        case ast.Subscript(value=ast.Name(id=name)):
            return Kind(types=(_TYPES[name],)) if name in _TYPES else Kind(open=name != "type")
        case ast.Name(id=name) if name in _TYPES:
            return Kind(types=(_TYPES[name],))
        case ast.Name(id=name):
            return _named(name, module)
    return Kind(open=True)


def _named(name: str, module: str) -> Kind:
    """What a name in an annotation allows: an enumeration's members, a class with fields, or what it stands for."""
    found = _find(module, name)
    match found:
        case Found(node=ast.ClassDef() as node) if any("Enum" in ast.unparse(base) for base in node.bases):
            members = [s for s in node.body if isinstance(s, ast.Assign)]
            names = [t.id for s in members for t in s.targets if isinstance(t, ast.Name) and not t.id.startswith("_")]
            numbers = [s.value.value for s in members if isinstance(s.value, ast.Constant)]
            return Kind(tuple(numbers if any("IntEnum" in ast.unparse(base) for base in node.bases) else names))
        case Found(node=ast.ClassDef()):
            return Kind(classes=(found,))
        case Found(node=ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value), module=there):
            return _kind(value, there)
    return Kind(open=True)


def _any(kinds: Sequence[Kind]) -> Kind:
    both = Kind()
    for kind in kinds:
        both |= kind
    return both


@cache
def _find(module: str, name: str) -> Found | None:
    """The statement that makes ``name`` in a module, there or where it is imported from."""
    made: ast.stmt | None = None
    for node in _statements(module):
        match node:
            case ast.ClassDef(name=found) if found == name:
                made = node
            case ast.Assign(targets=[ast.Name(id=found)]) | ast.AnnAssign(target=ast.Name(id=found)) if found == name:
                made = made or node
            case ast.ImportFrom(module=str() as origin, level=0, names=names):
                for alias in names:
                    if (alias.asname or alias.name) == name and origin.startswith("vllm"):
                        return _find(origin, alias.name)
    return Found(made, module) if made is not None else None


def _statements(module: str) -> Iterator[ast.stmt]:
    """Of a module, those under a condition (``TYPE_CHECKING``) too."""
    tree = _tree(module)
    for node in tree.body if tree else ():
        yield node
        if isinstance(node, ast.If):
            yield from node.body


@cache
def _tree(module: str) -> ast.Module | None:
    spec = PathFinder.find_spec("vllm")
    for folder in (spec and spec.submodule_search_locations) or ():
        path = Path(folder, *module.split(".")[1:])
        for file in (path.with_suffix(".py"), path / "__init__.py"):
            try:
                return ast.parse(file.read_text(encoding="utf-8"))
            except (OSError, ValueError, SyntaxError):
                continue
    return None

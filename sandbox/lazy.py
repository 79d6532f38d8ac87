"""Packages whose names are imported on first use (PEP 562)."""

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

_ONLY_AST = 0x400  # ast.PyCF_ONLY_AST; importing `ast` takes longer than all of this


def names(package: str) -> Callable[[str], object]:
    """Return the ``__getattr__`` of a package whose file imports its names below ``if TYPE_CHECKING:``: a name is
    imported from there when it is first used. A name from the package itself is a module of it.
    """
    homes: dict[str, str] = {}

    def find(name: str) -> object:
        if not homes:
            homes.update(_homes(package))
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if homes[name] == package:
            return import_module(f"{package}.{name}")
        return getattr(import_module(homes[name]), name)

    return find


def _homes(package: str) -> dict[str, str]:
    """The names that the package's file imports for type checkers, and the module of each."""
    loader: Any = sys.modules[package].__loader__
    tree: Any = compile(loader.get_source(package), package, "exec", _ONLY_AST)
    block = next(node for node in tree.body if type(node).__name__ == "If")
    return {alias.name: node.module for node in block.body for alias in node.names}

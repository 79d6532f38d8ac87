"""Packages whose names are imported on first use (PEP 562)."""

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any


def names(package: str) -> Callable[[str], object]:
    """Return the ``__getattr__`` of a package whose file imports its names below ``if TYPE_CHECKING:``: a name is
    imported from there when it is first used. A name that is not in there is a module of that package.
    """
    homes = _homes(package)  # now: a jail does not show the file

    def find(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if homes[name] != package and hasattr(home := import_module(homes[name]), name):
            return getattr(home, name)
        return import_module(f"{homes[name]}.{name}")

    return find


def _homes(package: str) -> dict[str, str]:
    """The names that the package's file imports for type checkers, and the module of each.

    The block is read as text: a parser is slower, and leaves types in the heap that judged programs find.
    """
    loader: Any = sys.modules[package].__loader__
    block = loader.get_source(package).partition("if TYPE_CHECKING:")[2].partition("\nelse:")[0]
    imports = (line.partition(" import ") for line in block.replace("(", " ").replace(")", " ").split("from ")[1:])
    return {name: module for module, _, found in imports for name in found.replace(",", " ").split()}

"""Packages whose names are imported on first use (PEP 562)."""

from collections.abc import Callable, Mapping
from importlib import import_module


def names(package: str, files: Mapping[str, tuple[str, ...]]) -> Callable[[str], object]:
    """Return a module's ``__getattr__``: ``files`` maps a file of the package, or a neighbouring ``.package``, to its
    names, and "" to modules of the package.
    """
    homes = {name: f".{file}" for file, found in files.items() for name in found}

    def find(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if homes[name] == ".":
            return import_module(f".{name}", package)
        return getattr(import_module(homes[name], package), name)

    return find

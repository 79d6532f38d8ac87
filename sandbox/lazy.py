"""Doors whose names are imported when they are asked for (PEP 562)."""

from collections.abc import Callable, Mapping
from importlib import import_module


def names(room: str, files: Mapping[str, tuple[str, ...]]) -> Callable[[str], object]:
    """A module's ``__getattr__``: ``files`` says which names come from which file, or from which ``.room`` beside."""
    homes = {name: f".{file}" for file, found in files.items() for name in found}

    def find(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {room!r} has no attribute {name!r}")
        return getattr(import_module(homes[name], room), name)

    return find

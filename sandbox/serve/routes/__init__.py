"""One module or package per format: `own` and those of other projects, by their names. `shared` is what they share.

Each has `routes(service) -> list[Route]`, and `OPENAPI`, the `paths` that it adds to /openapi.json. It may have `FULL`:
by path, a status that its clients ask again for where others get 503 for a full queue.
"""

from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType

__all__ = ["route_modules"]


def route_modules() -> Iterator[ModuleType]:
    """The formats, by name; `sandbox.serve.app` mounts the routes of each."""
    for found in iter_modules(__path__):
        if found.name != "shared":
            yield import_module(f"{__name__}.{found.name}")

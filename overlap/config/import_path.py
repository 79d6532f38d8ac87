"""Objects that a user names by an import path: "module:name" is imported, and checked before it is used."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from overlap.core.errors import ConfigError, OverlapError, near_or_all, one_line
from overlap.core.user_code import misfit


def import_named(field: str, path: str, *, kind: str, example: str) -> Any:
    """The callable that ``path`` names; modules are also looked for in the working directory. ``kind`` is what the
    message calls it ("class"). Raises ConfigError for ``field``.
    """
    name, _, attribute = path.partition(":")
    if not name or not attribute:
        raise ConfigError(field, path, f'must be "module:name", for instance {example}')
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        module = importlib.import_module(name)
    except Exception as error:  # whatever the user's module raises
        if isinstance(error, OverlapError):
            raise
        reason = f"importing {name} raised {type(error).__name__}: {one_line(error)}"
        raise ConfigError(field, path, f"{reason}; name a module that Python finds and can import") from error
    found = getattr(module, attribute, None)
    if not callable(found):
        known = [k for k, v in vars(module).items() if isinstance(v, type) or (kind != "class" and callable(v))]
        hint = near_or_all(attribute, known, f"define it, or name one of {', '.join(known[:5]) or 'another'}")
        raise ConfigError(field, path, f"module {name} has no {kind} {attribute}; {hint}")
    return found


def import_function(field: str, path: str, like: type) -> Any:
    """The function that ``path`` names, which can be called as the Protocol ``like`` is. Raises ConfigError for
    ``field``.
    """
    found = import_named(field, path, kind="function", example="my_module:my_function")
    wanted = list(inspect.signature(like.__call__).parameters)[1:]
    if why := misfit(found, wanted):
        name = path.partition(":")[2]
        way_out = f"cannot be called with {len(wanted)} arguments ({why}): write `def {name}({', '.join(wanted)})`"
        raise ConfigError(field, path, f"{way_out}, see {like.__module__}.{like.__name__}")
    return found


@contextmanager
def trying(field: str, path: str, like: type) -> Iterator[None]:
    """Raise what a function of the user's raised, or what is wrong with its result, as a ConfigError for ``field``."""
    try:
        yield
    except Exception as error:
        fault = f"cannot be used ({type(error).__name__}: {one_line(error)})"
        raise ConfigError(field, path, f"{fault}; mend it, see {like.__module__}.{like.__name__}") from error

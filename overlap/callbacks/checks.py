"""Refuses what is no callback, before anything is started."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from overlap.callbacks.base import Callback
from overlap.callbacks.events import METHODS
from overlap.callbacks.trainer_callback import TrainerCallbackAdapter, is_trainer_callback
from overlap.config.import_path import import_named
from overlap.core import described_error, line_of, shortened
from overlap.errors import ConfigError, near_or_all, raise_all

FIELD = "run.callbacks"


def named_callbacks(paths: Sequence[str]) -> list[Any]:
    """The callbacks that ``run.callbacks`` names, each made without arguments. Raises ConfigError."""
    return [_made(path) for path in paths]


def _made(path: str) -> Any:
    found = import_named(FIELD, path, kind="class", example="my_callbacks:MyCallback")
    try:
        return found()
    except (Exception, SystemExit) as error:  # whatever the user's class raises
        way_out = f"cannot be made without arguments: it {described_error(error)}"
        raise ConfigError(FIELD, path, way_out) from error


def check_callbacks(callbacks: object) -> tuple[Any, ...]:
    """The callbacks as the run calls them: one of transformers in its adapter. Raises one ConfigError for all that is
    wrong: no list, no callback, misspelt methods, methods that cannot be called with (run, event).
    """
    if not isinstance(callbacks, Sequence) or isinstance(callbacks, str):
        raise ConfigError("callbacks", callbacks, "give a list of callbacks, as in callbacks=[MyCallback()]")
    adapted = [TrainerCallbackAdapter(each) if is_trainer_callback(each) else each for each in callbacks]
    raise_all([error for each in adapted for error in _faults(each)])
    return tuple(adapted)


def _faults(callback: Any) -> list[ConfigError]:
    if isinstance(callback, type):
        return [ConfigError("callbacks", callback, f"is a class: give an object of it, {callback.__name__}()")]
    kind = type(callback).__qualname__
    given = [name for name in dir(callback) if name.startswith("on_")]
    found = [_misspelt(kind, name) for name in given if name not in METHODS]
    known = [name for name in given if name in METHODS]
    if not known and not found:
        way_out = f"is no callback: give it one of {', '.join(METHODS)}, or derive it from overlap.Callback"
        return [ConfigError("callbacks", shortened(callback), way_out)]
    return [*found, *(error for name in known if (error := _misfit(callback, name)) is not None)]


def _misspelt(kind: str, name: str) -> ConfigError:
    hint = near_or_all(name, METHODS, "there are {}")
    return ConfigError("callbacks", f"{kind}.{name}", f"is called by nobody; {hint}")


def _misfit(callback: Any, name: str) -> ConfigError | None:
    """Why a method cannot be called as it will be; None where it can."""
    method, kind = getattr(callback, name), f"{type(callback).__qualname__}.{name}"
    wanted = f"write `def {name}(self, run, event)`"
    if not callable(method):
        return ConfigError("callbacks", kind, f"is no method, but {shortened(method)}: {wanted}")
    if getattr(type(callback), name, None) is getattr(Callback, name):
        return None
    try:
        inspect.signature(method).bind(None, None)
    except TypeError as error:
        where = line_of(method)
        place = f" ({where})" if where else ""
        return ConfigError("callbacks", kind, f"cannot be called with run and event: {error}{place}; {wanted}")
    except ValueError:  # written in C, without a signature
        return None
    return None

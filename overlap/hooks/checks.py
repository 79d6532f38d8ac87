"""Makes the callbacks and trackers that a configuration names, and refuses what is none before anything is started."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from overlap.config.fields import TRACKERS, Config
from overlap.config.import_path import import_named
from overlap.core import described_error, line_of, shortened
from overlap.core.errors import ConfigError, OverlapError, near_or_all, raise_all
from overlap.core.user_code import misfit
from overlap.hooks.callback import METHODS, Callback


def named_callbacks(cfg: Config) -> tuple[Any, ...]:
    """Make the callbacks that ``run.callbacks`` names. Raises ConfigError."""
    field = "run.callbacks"
    return check_callbacks([_made(field, path, path) for path in cfg.run.callbacks], field)


def named_trackers(cfg: Config) -> dict[str, Any]:
    """Make the trackers that ``run.trackers`` names. Raises ConfigError, also for a package that is not installed."""
    field = "run.trackers"
    made = {name: _made(field, name, TRACKERS.get(name, name)) for name in cfg.run.trackers}
    check_callbacks(list(made.values()), field)
    return made


def _made(field: str, name: str, path: str) -> Any:
    try:
        return import_named(field, path, kind="class", example="my_module:MyClass")()
    except (Exception, SystemExit) as error:  # whatever the user's class raises
        if isinstance(error, OverlapError):
            raise
        way_out = f"cannot be made without arguments: it {described_error(error)}"
        raise ConfigError(field, name, way_out) from error


def check_callbacks(callbacks: object, field: str = "callbacks") -> tuple[Any, ...]:
    """Return the callbacks. Raises one ConfigError for all that is wrong: no list, no callback, misspelt methods,
    methods that cannot be called with (run, event).
    """
    if not isinstance(callbacks, Sequence) or isinstance(callbacks, str):
        raise ConfigError(field, callbacks, "give a list of callbacks, as in callbacks=[MyCallback()]")
    raise_all([ConfigError(field, what, way_out) for each in callbacks for what, way_out in _faults(each)])
    return tuple(callbacks)


def _faults(callback: Any) -> list[tuple[object, str]]:
    """Find what is wrong with a callback, and the way out of each."""
    if isinstance(callback, type):
        return [(callback, f"is a class: give an object of it, {callback.__name__}()")]
    kind = type(callback).__qualname__
    given = [name for name in dir(callback) if name.startswith("on_")]
    if not given:
        way_out = f"is no callback: give it one of {', '.join(METHODS)}, or derive it from overlap.Callback"
        return [(shortened(callback), way_out)]
    faults = {name: _misfit(callback, name) for name in given}
    return [(f"{kind}.{name}", fault) for name, fault in faults.items() if fault]


def _misfit(callback: Any, name: str) -> str:
    """Say why a method cannot be called as it will be; "" where it can."""
    if name not in METHODS:
        return f"is not an event; {near_or_all(name, METHODS, 'there are {}')}"
    method, wanted = getattr(callback, name), f"write `def {name}(self, run, event)`"
    if not callable(method):
        return f"is no method, but {shortened(method)}: {wanted}"
    if getattr(type(callback), name, None) is getattr(Callback, name):
        return ""
    if not (why := misfit(method, ("run", "event"))):
        return ""
    where = line_of(method)
    place = f" ({where})" if where else ""
    return f"cannot be called with run and event: {why}{place}; {wanted}"

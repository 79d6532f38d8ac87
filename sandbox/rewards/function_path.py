"""A function that a user names: ``module:function``, or ``file.py:function``."""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

from sandbox.rewards.styles import StyleError


def named_function(target: str) -> Any:
    """Return the object of ``target``: "module:name" or "path/to/file.py:name", also "name.of.member". A file's folder
    is not searched for the modules that it imports. Raises StyleError, and what the module raises when imported.
    """
    where, colon, name = target.rpartition(":")
    if not colon or not where or not name:
        raise StyleError("must be module:function or file.py:function")
    found: Any = _file_module(where) if where.endswith(".py") else _module(where)
    for part in name.split("."):
        known = [name for name, value in vars(found).items() if callable(value)] if hasattr(found, "__dict__") else []
        if not hasattr(found, part):
            near = difflib.get_close_matches(part, known, 1)
            raise StyleError(f"{where} has no function {part}{f'; did you mean {near[0]}?' if near else ''}")
        found = getattr(found, part)
    if not callable(found):
        raise StyleError(f"{name} is not a function")
    return found


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # of something that the module imports
        raise StyleError(
            f"there is no module {error.name} in {os.getcwd()} or on Python's path; file.py:function names a file"
        ) from error


def _file_module(path: str) -> Any:
    """The module in a file, which is run once per process."""
    full = os.path.realpath(Path(path).expanduser())
    if not os.path.isfile(full):
        raise StyleError(f"there is no file {full}")
    name = f"reward_file_{hashlib.sha256(full.encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, full)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module

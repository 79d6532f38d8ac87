"""A function that a user names: ``module:function``, or ``file.py:function``."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any


def named_function(target: str) -> Any:
    """What ``target`` names: "module:name" or "path/to/file.py:name", also "name.of.member". A file's own folder is not
    searched for the modules that it imports. Raises ValueError, TypeError, AttributeError, OSError, and what the module
    raises when it is imported.
    """
    where, colon, name = target.rpartition(":")
    if not colon or not where or not name:
        raise ValueError("must be module:function or file.py:function")
    found: Any = _file_module(where) if where.endswith(".py") else importlib.import_module(where)
    for part in name.split("."):
        found = getattr(found, part)
    if not callable(found):
        raise TypeError(f"{name} is not a function")
    return found


def _file_module(path: str) -> Any:
    """The module in a file, which is run once per process."""
    full = os.path.realpath(Path(path).expanduser())
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

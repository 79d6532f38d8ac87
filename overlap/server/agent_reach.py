"""Paths of the machine that an isolated agent program may read: those of its command, and those of ``episode.jail``.

python /my/agent.py --task x   ─▶  the interpreter's directories, /my/agent.py
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Iterator

from overlap.core.errors import ConfigError
from overlap.process.run_environment import child_environment

_PYTHON_S = 20.0
_SYSTEM = ("/", "/usr", "/usr/local")
_SHEBANG = re.compile(rb"#!\s*(/\S+)(?:\s+(\S+))?")
_ASK = """
import glob, json, sys
homes = sys.prefix, sys.base_prefix
own = [path for path in homes if path not in ("/", "/usr", "/usr/local")]
found = [path for path in sys.path if path.startswith(tuple(home + "/lib" for home in homes))]  # no .pth leads out
print(json.dumps([*own, *found, *glob.glob(sys.base_prefix + "/lib/libpython*")]))
"""


def readable_paths(command: str, readable: Iterable[str]) -> tuple[str, ...]:
    """Paths that exist, each with what it leads to. Raises ConfigError for one of ``readable`` that cannot be shown."""
    found: dict[str, None] = {}
    for path in readable:
        _check(path)
        found |= dict.fromkeys((os.path.normpath(path), os.path.realpath(path)))
    for path in _named(command):
        for one in (path, *_interpreters(path)):
            found |= dict.fromkeys((os.path.normpath(one), os.path.realpath(one)))
            found |= dict.fromkeys(_directories_of_python(one))
    return tuple(found)


def _check(path: str) -> None:
    if not os.path.isabs(path) or os.path.realpath(path) in _SYSTEM:
        way_out = "name files and directories by their whole paths, and no more than the program needs"
        raise ConfigError("episode.jail.readable", path, way_out)
    if not os.path.exists(path):
        raise ConfigError("episode.jail.readable", path, "there is no such file or directory")


def check_open_to_others(paths: Iterable[str]) -> None:
    """Raise ConfigError where root's isolated programs, which are another user's, may not read one of these."""
    if os.geteuid() != 0:
        return
    for path in paths:
        needed = 0o005 if os.path.isdir(path) else 0o004
        if os.path.exists(path) and os.stat(path).st_mode & needed != needed:
            way_out = f"an isolated program of root is another user, who may not read it: chmod -R o+rX {path}"
            raise ConfigError("episode.jail.readable", path, way_out)


def _named(command: str) -> Iterator[str]:
    """Files that the words of a command name: by their whole path, or the program on the PATH."""
    try:
        words = shlex.split(command, comments=True)
    except ValueError:  # a shell reads more than this does
        return
    path = child_environment()["PATH"]
    for word in words:
        if os.path.isabs(word) and os.path.isfile(word):
            yield word
        elif "/" not in word and (program := shutil.which(word, path=path)):
            yield program


def _interpreters(path: str) -> Iterator[str]:
    """Yield the programs that read a script, as its first line names them."""
    try:
        with open(path, "rb") as file:
            line = file.readline(256)
    except OSError:
        return
    if found := _SHEBANG.match(line):
        first, second = (os.fsdecode(part or b"") for part in found.groups())
        program = shutil.which(second, path=child_environment()["PATH"]) if first.endswith("/env") else first
        if program:
            yield program


def _directories_of_python(path: str) -> list[str]:
    """Return the directories that a Python imports from by default; none for another program. An editable install is
    elsewhere, and is readable only where ``episode.jail`` names it.
    """
    if not re.fullmatch(r"python[\d.]*", os.path.basename(path)) or not os.access(path, os.X_OK):
        return []
    try:
        asked = [path, "-P", "-s", "-c", _ASK]
        done = subprocess.run(
            asked, env=child_environment(), stdin=subprocess.DEVNULL, capture_output=True, timeout=_PYTHON_S, check=True
        )
        found = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return []
    return [one for one in found if os.path.exists(one) and one not in _SYSTEM]

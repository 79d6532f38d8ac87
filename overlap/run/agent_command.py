"""``episode.command`` before a run begins: whether a shell reads it, and finds what it names.

It will run in a directory of its own, of which only ``Task.files`` knows: files of this directory are not there.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Collection, Iterator
from typing import Any

from overlap.config.fields import Config
from overlap.core import Prompt
from overlap.core.errors import ConfigError, one_line
from overlap.process.run_environment import child_environment

FIELD = "episode.command"
_SHELL_S = 20.0
_SHELLS = frozenset("$`\\*?[](){}<>|&;!#~\n")
"""With one of these a word is more than itself."""


def check_agent(cfg: Config, task: Any, prompt: Prompt, tokenizer: Any) -> None:
    """Raise ConfigError where ``episode.command`` cannot be run, as far as its words tell. ``prompt`` is any one."""
    command = cfg.episode.command
    if not command:
        if (jail := cfg.episode.jail) is not None:
            way_out = "is for an agent program (episode.command): give one, or leave it out"
            raise ConfigError("episode.jail", jail, way_out)
        return
    if not command.strip():
        raise ConfigError(FIELD, command, 'it is blank: name a program, or use ""')
    if told := _asked("-n", "-c", command):
        raise ConfigError(FIELD, command, f"a shell cannot read it ({told})")
    words = [word for word in _words(command) if not _SHELLS.intersection(word)]
    here = [word for word in words if not os.path.isabs(word) and os.path.isfile(word)]
    first = _program(command)
    brought: Collection[str] = ()
    if here or ("/" in first and not os.path.isabs(first)):
        brought = {os.path.normpath(name) for name in _files(task, prompt, tokenizer)}
    for word in here:
        if os.path.normpath(word) not in brought:
            way_out = f"it runs in a directory of its own, where {word} is not: write {os.path.abspath(word)}"
            raise ConfigError(FIELD, command, way_out)
    if first and os.path.normpath(first) not in brought:
        _check_program(command, first)
    from overlap.server.harness_jail import check_space  # imports a web server

    check_space(cfg)


def _check_program(command: str, first: str) -> None:
    if "/" not in first:
        if _asked("-c", 'command -v -- "$1" > /dev/null || echo missing >&2', "sh", first):
            raise ConfigError(FIELD, command, f"there is no program {first} on the PATH: name it by its whole path")
    elif not os.path.isfile(first):
        raise ConfigError(FIELD, command, f"there is no file {first}: name the program by its whole path")
    elif not os.access(first, os.X_OK):
        way_out = f"{first} may not be executed: chmod +x it, or name the program that reads it in front"
        raise ConfigError(FIELD, command, way_out)


def _asked(*arguments: str) -> str:
    """Return the errors of a shell with these arguments, on one line."""
    found = subprocess.run(
        ["/bin/sh", *arguments],
        env=child_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=_SHELL_S,
        check=False,
    )
    return one_line(found.stderr.decode(errors="replace"))


def _words(command: str) -> Iterator[str]:
    try:
        yield from shlex.split(command, comments=True)
    except ValueError:  # a shell reads more than this does
        return


def _program(command: str) -> str:
    """The word that names what is run; "" where only a shell can find it."""
    for word in _words(command):
        name, equals, _ = word.partition("=")
        if not (equals and name.isidentifier()):
            return "" if _SHELLS.intersection(word) else word
    return ""


def _files(task: Any, prompt: Prompt, tokenizer: Any) -> Collection[str]:
    """The names that the task brings into the program's directory."""
    try:
        return list(task.files(prompt, tokenizer.decode(list(prompt.token_ids))))
    except Exception as error:  # the user's code can raise anything
        kind = type(task).__qualname__
        way_out = f"raised {type(error).__name__}: {error}, for prompt {prompt.id!r}"
        raise ConfigError("data.task", f"{kind}.files", way_out) from error

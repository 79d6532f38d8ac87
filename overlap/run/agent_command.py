"""``episode.command`` before a run begins: whether a shell reads it, and finds what it names.

It will run in a directory of its own, of which only ``Task.files`` knows: files of this directory are not there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Collection
from typing import Any

from overlap.config.fields import Config
from overlap.core import Prompt
from overlap.core.errors import ConfigError, one_line
from overlap.process.run_environment import child_environment, command_words
from overlap.task import user_code

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
    words = command_words(command)
    here = [word for word in words if not os.path.isabs(word) and os.path.isfile(word)]
    first = next((word for word in words if not word.partition("=")[0].isidentifier() or "=" not in word), "")
    brought: Collection[str] = ()
    if here or ("/" in first and not os.path.isabs(first)):
        with user_code(f"{type(task).__qualname__}.files"):
            text = tokenizer.decode(list(prompt.token_ids))
            brought = {os.path.normpath(name) for name in task.files(prompt, text)}
    for word in here:
        if os.path.normpath(word) not in brought:
            way_out = f"it runs in a directory of its own, where {word} is not: write {os.path.abspath(word)}"
            raise ConfigError(FIELD, command, way_out)
    known = not first or _SHELLS.intersection(first) or os.path.normpath(first) in brought
    if not known and not _may_run(first):
        way_out = f"there is no program {first} that may be executed: name it by its whole path, and chmod +x it"
        raise ConfigError(FIELD, command, way_out)
    from overlap.server.harness_jail import check_space  # imports a web server

    check_space(cfg)


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


def _may_run(program: str) -> bool:
    if "/" in program:
        return shutil.which(program) is not None
    return not _asked("-c", 'command -v -- "$1" > /dev/null || echo missing >&2', "sh", program)

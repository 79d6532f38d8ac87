"""Files laid out in a fresh jail, compiled where their language is, and run once: the command is the language's."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from sandbox.build.builder import Builder
from sandbox.core.nouns import Isolation, Limits, Program
from sandbox.errors import SandboxError
from sandbox.jail.jail import Jail
from sandbox.judging.prepared import PreparedProgram
from sandbox.languages.layout import CompileError
from sandbox.languages.table import find_language
from sandbox.session.output import SHOWN_BYTES, Finished, shorten


def as_program(files: Mapping[str, str], language: str, entry: str) -> Program:
    """Return the program. Raises ValueError where the files cannot be in one directory, or for an unknown language."""
    if not files:
        raise ValueError("files: there are none, so nothing can be run")
    try:
        find_language(language)
        return Program(files=tuple(files.items()), language=language, entry=entry)
    except SandboxError as error:  # the caller's mistake, not a failure of the sandbox
        raise ValueError(str(error)) from error


class FilesRun:
    """One run, for one thread; `cancel` may come from any."""

    def __init__(self, isolation: Isolation, limits: Limits, packages: Any) -> None:
        self._isolation, self._limits, self._packages = isolation, limits, packages
        self._cancel = os.eventfd(0, os.EFD_CLOEXEC)

    def call(self, directory: str, program: Program, arguments: Sequence[str], stdin: str) -> Finished:
        """`directory`: where compiled programs are kept. Raises SandboxError: Cancelled after `cancel`."""
        start = time.monotonic()
        builder = Builder(directory)
        with Jail(self._isolation, packages=self._packages, shared=builder.shared) as jail:
            try:
                with PreparedProgram(jail, builder, program, cancel_fd=self._cancel) as prepared:
                    text = stdin.encode("utf-8", "surrogatepass")
                    done, _ = prepared.run(self._limits, text, arguments=tuple(arguments))
            except CompileError as error:
                log = shorten(str(error).encode(errors="replace"), SHOWN_BYTES)
                return Finished("", log, None, None, "it does not compile", time.monotonic() - start)
        return Finished.of(done, SHOWN_BYTES)

    def cancel(self) -> None:
        """The run raises Cancelled."""
        os.eventfd_write(self._cancel, 1)

    def end(self) -> None:
        os.close(self._cancel)

"""A program made ready to run: checked, compiled once where its language is, then run as often as there are cases.

The same for the program that is judged, for a checker and for an interactor. What it raises is told apart by type:
CompileError is the fault of whoever wrote the source, SandboxError is ours.
"""

from __future__ import annotations

import hmac
import json
import os
from collections.abc import Sequence
from typing import Any, Final

from sandbox import values
from sandbox.build import Builder
from sandbox.core import SOURCE_BYTES_MAX, Limits, Program
from sandbox.jail import Jail, Run, RunResult, make_memfd
from sandbox.languages import find

_NONCE_BYTES: Final = 32

Frame = dict[str, Any]
Files = tuple[tuple[str, bytes], ...]


class CompileError(Exception):
    """The program does not compile; the text is the log."""


class Prepared:
    """Use as a context manager."""

    def __init__(
        self, jail: Jail, builder: Builder, program: Program, *, preamble: str = "", cancel_fd: int | None = None
    ) -> None:
        self.jail, self.builder, self.cancel_fd = jail, builder, cancel_fd
        self.language = find(program.language)
        self.source = program.source
        self.preamble = preamble
        self.binary = -1
        self.log = ""

    def __enter__(self) -> Prepared:
        """Raises CompileError, SandboxError."""
        if len(self.source) > SOURCE_BYTES_MAX:
            raise CompileError(f"the source is longer than {SOURCE_BYTES_MAX} characters")
        if self.language.compile:
            source = f"{self.preamble}\n{self.source}" if self.preamble else self.source
            build = self.builder.build(self.jail, self.language, source, cancel_fd=self.cancel_fd)
            self.log = build.log
            if build.path is None:
                raise CompileError(build.log)
            self.binary = make_memfd("program", build.path.read_bytes(), seal=True)
        return self

    def __exit__(self, *_: object) -> None:
        if self.binary >= 0:
            os.close(self.binary)

    def run(
        self,
        limits: Limits,
        stdin: bytes = b"",
        *,
        job: Frame | None = None,
        arguments: Sequence[str] = (),
        files: Files = (),
        pipes: tuple[int, int] | None = None,
        cancel_fd: int | None = None,
    ) -> tuple[RunResult, Frame | None]:
        """Run it in a fresh process, and read what its harness wrote. Raises CompileError, SandboxError.

        job: what the Python harness does besides running the source. pipes: descriptors for stdin and stdout, instead
        of `stdin` and of collecting the output. cancel_fd: instead of that of the whole program.
        """
        nonce = os.urandom(_NONCE_BYTES)
        if self.binary >= 0:
            argv = (f"./{self.language.artifact}", *arguments)
            run = Run(limits, stdin, argv=argv, program=self.binary, files=files, pipes=pipes)
        else:
            run = Run(limits, stdin, job=self._job(job or {}, arguments) + nonce, files=files, pipes=pipes)
        done = self.jail.run(run, cancel_fd=self.cancel_fd if cancel_fd is None else cancel_fd)
        frame = _frame(done, nonce)
        if frame and frame.get("stage") == "compile":
            raise CompileError(str(frame.get("error")))
        return done, frame

    def _job(self, job: Frame, arguments: Sequence[str]) -> bytes:
        plain = {"kind": "stdio", "fn_name": None, "args": None, "steps": (), "argv": arguments}
        return json.dumps({**plain, "source": self.source, "preamble": self.preamble, **job}).encode()


def _frame(done: RunResult, nonce: bytes) -> Frame | None:
    """What the harness wrote, if it carries this run's nonce and can be read."""
    if not hmac.compare_digest(done.result[:_NONCE_BYTES], nonce):
        return None
    try:
        data = values.loads(done.result[_NONCE_BYTES:])
    except ValueError:
        return None
    return data if isinstance(data, dict) else None

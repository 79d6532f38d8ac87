"""A program that is checked and compiled once, and then run once per case.

Used for the judged program, checkers and interactors. The type of an exception tells who is at fault: CompileError is
the author of the source, SandboxError is the sandbox.
"""

from __future__ import annotations

import hmac
import itertools
import json
import marshal
import os
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from sandbox.build import units
from sandbox.build.builder import Builder
from sandbox.compare import values
from sandbox.core.checks import encode_text
from sandbox.core.nouns import SOURCE_BYTES_MAX, Case, Limits, Program
from sandbox.core.problem import Problem
from sandbox.jail.jail import Jail
from sandbox.jail.run import JailedRun, RunResult
from sandbox.kernel.linux import new_memfd, seal_memfd
from sandbox.languages.layout import CompileError, ProgramLayout, lay_out
from sandbox.languages.table import find_language

_ALONE: Final = Problem("", "stdio", (Case("", "-"),))  # of a checker or an interactor: a plain program

_numbers: Final = itertools.count(1)
Files = tuple[tuple[str, bytes], ...]
Frame = dict[str, Any]
"""ok: bool; error, stage, kind, lost: text; values: a list, as sandbox.compare.values encodes them, if there is one."""

NONCE_BYTES: Final = 32
_FRAME_TEXT_MAX: Final = 4000
_DIGITS_MAX: Final = 4300
_TEXTS: Final = ("error", "stage", "kind", "lost")


class PreparedProgram:
    """Use as a context manager."""

    layout: ProgramLayout

    def __init__(
        self,
        jail: Jail,
        builder: Builder,
        program: Program,
        problem: Problem = _ALONE,
        *,
        decides: bool = False,
        cancel_fd: int | None = None,
    ) -> None:
        """`decides`: it is a checker or an interactor, whose chance is a secret."""
        self.jail, self.builder, self.cancel_fd = jail, builder, cancel_fd
        self.language = find_language(program.language)
        self.program = program
        self.problem, self.decides = problem, decides
        self.unit: units.Unit | None = None
        self.artefact = b""
        self.code = -1
        self.log = ""
        self.number = next(_numbers)
        self.in_series = False
        self._nonces: deque[bytes] = deque()

    def __enter__(self) -> PreparedProgram:
        """Raises CompileError, SandboxError."""
        if len(self.program.source) + sum(len(text) for _, text in self.program.files) > SOURCE_BYTES_MAX:
            raise CompileError(f"the source is longer than {SOURCE_BYTES_MAX} characters")
        self.layout = lay_out(self.language, self.program)
        if self.language.warm:
            self.code = new_memfd("code")
        elif self.problem.kind != "assert":
            self.build(self.problem.cases[0])
        return self

    def build(self, case: Case) -> None:
        """Compile the program, an assert problem's together with the test of the case. No run may be in progress."""
        self.unit = units.compose(self.language, self.problem, self.layout, case, decides=self.decides)
        build = self.builder.build(self.jail, self.unit, cancel_fd=self.cancel_fd)
        self.log = build.log
        if build.artefact is None:
            raise CompileError(build.log, build.cause)
        self.artefact = build.artefact

    def __exit__(self, *_: object) -> None:
        try:
            self.drop()
            if self.in_series:
                self.jail.forget()
        finally:
            if self.code >= 0:
                os.close(self.code)

    def run(self, limits: Limits, stdin: bytes = b"", **how: Any) -> tuple[RunResult, Frame | None]:
        """Run in a fresh process, and read what the harness wrote. Raises CompileError, SandboxError."""
        cancel_fd = how.pop("cancel_fd", None)
        self.start(limits, stdin, **how)
        return self.finish(cancel_fd=cancel_fd)

    def start_case(
        self, limits: Limits, case: Case, *, job: Frame | None = None, left: int = 0, hold: bool = False
    ) -> None:
        """Queue a run on a stdio case's input, with its arguments and files; see `start`."""
        how: dict[str, Any] = {"arguments": case.arguments, "files": encode_files(case.files)}
        self.start(limits, encode_text(case.input), **how, job=job, left=left, hold=hold)

    def start(
        self,
        limits: Limits,
        stdin: bytes = b"",
        *,
        job: Frame | None = None,
        arguments: Sequence[str] = (),
        files: Files = (),
        pipes: tuple[int, int] | None = None,
        left: int = 0,
        gather: str | None = None,
        fetch: tuple[str, ...] = (),
        shown_bytes: int | None = None,
        hold: bool = False,
    ) -> None:
        """Queue a run; `finish` returns the results in order.

        job: further input of the harness. pipes: descriptors for stdin and stdout, instead of `stdin` and a collected
        output. left: expected number of further runs. gather: a directory to create, whose files are brought back.
        hold: further runs are queued before this one is finished. fetch, shown_bytes: as in JailedRun.
        Raises SandboxError.
        """
        nonce = os.urandom(NONCE_BYTES)
        self.in_series |= left > 0
        if self.unit is None:
            data = self._job(job or {}, arguments)
            source = None if job and job.get("kind") == "ask" else self._place_of_source(data, files)
            run = JailedRun(limits, stdin, job=data + nonce, code=self.code, source=source)
        else:
            run = units.start_unit(self.unit, limits, stdin, self.artefact, units.job(self.problem, job or {}) + nonce)
            run = replace(run, argv=(*run.argv, *arguments))
        placed = _over(encode_files(self.layout.files), run.files, files)
        series = (self.number, left)
        if shown_bytes is not None:
            run = replace(run, shown_bytes=shown_bytes)
        self.jail.start(replace(run, files=placed, pipes=pipes, series=series, gather=gather, fetch=fetch, hold=hold))
        self._nonces.append(nonce)

    def finish(self, *, cancel_fd: int | None = None) -> tuple[RunResult, Frame | None]:
        """Return the result of the earliest queued run. cancel_fd: instead of that of the whole program."""
        nonce = self._nonces.popleft()
        done = self.jail.finish(cancel_fd=self.cancel_fd if cancel_fd is None else cancel_fd)
        if self.code >= 0:
            seal_memfd(self.code)
        frame = read_frame(done.result, nonce)
        if frame and frame["stage"] == "compile" and self.language.warm:
            raise CompileError(frame["error"])
        return done, frame

    def drop(self) -> None:
        """Cancel all queued runs."""
        if self._nonces:
            self._nonces.clear()
            self.jail.drop()

    def _job(self, job: Frame, arguments: Sequence[str]) -> bytes:
        """`main`: of several files, the one that it starts in; it sees itself and its neighbours."""
        plain: Frame = {"source": self.layout.source, "kind": "stdio", "fn_name": None, "args": None, "steps": ()}
        plain |= {"argv": arguments, "preamble": self.problem.preamble}
        if self.layout.files:
            plain["main"] = self.layout.main
        return marshal.dumps({**plain, **job})

    def _place_of_source(self, job: bytes, files: Files) -> tuple[int, int] | None:
        """Return offset and size of the source in the job, where it is to be beside the program as its file."""
        taken = {name.partition("/")[0] for name, _ in files}  # by a case's files, in the place of the program's own
        if self.layout.files or find_language("python").source in taken:
            return None
        text = self.layout.source.encode("utf-8", "surrogatepass")  # as marshal writes it
        return job.index(text), len(text)


def _over(first: Files, *layers: Files) -> Files:
    """Merge files; later ones replace earlier ones of the same name, and any that are in their way."""
    found = dict(first)
    for layer in filter(None, layers):
        ours = dict(layer)
        folders = {folder for name in ours for folder in _folders(name)}
        found = {name: found[name] for name in found if name not in folders and ours.keys().isdisjoint(_folders(name))}
        found |= ours
    return tuple(found.items())


def _folders(name: str) -> list[str]:
    return [name[:at] for at, letter in enumerate(name) if letter == "/"]


def encode_files(files: tuple[tuple[str, str], ...]) -> Files:
    return tuple((name, encode_text(text)) for name, text in files)


def read_frame(result: bytes, nonce: bytes) -> Frame | None:
    """Return what a harness wrote about its run, if it carries the run's nonce and can be read.

    The program can read the nonce and write a frame of its own, so no shape is trusted: parts of another shape are
    dropped, and the rest is plain data of bounded size. Raises nothing, whatever the bytes are.
    """
    if not hmac.compare_digest(result[:NONCE_BYTES], nonce):
        return None
    try:
        with values.acyclic():
            data = json.loads(result[NONCE_BYTES:], parse_int=None if sys.get_int_max_str_digits() else _int)
    except (ValueError, RecursionError, MemoryError):
        return None
    if not isinstance(data, dict):
        return None
    texts = {name: data.get(name) for name in _TEXTS}
    frame: Frame = {name: text[:_FRAME_TEXT_MAX] if isinstance(text, str) else "" for name, text in texts.items()}
    frame["ok"] = data.get("ok") is True
    if isinstance(data.get("values"), list):
        frame["values"] = data["values"]
    return frame


def _int(digits: str) -> int:
    """Parse an integer in a caller that has lifted Python's limit: harnesses write long integers in another form."""
    if len(digits) > _DIGITS_MAX:
        raise ValueError("a long integer in decimal")
    return int(digits)

"""The result of one run of a program, for callers that want its output and no verdict."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

_STREAMS: Final = ("stdout", "stderr")


@dataclass(frozen=True, slots=True)
class ProgramRun:
    """One run. Streams and files are what the program wrote, and nothing in them is to be trusted; the rest is the
    sandbox's. Where the program does not compile, it did not run: streams and files are empty.
    """

    tier: str
    language: str
    toolchain: str
    stdout: bytes = b""
    stderr: bytes = b""
    """Each whole, at most ``limits.output_bytes``; also of a run that a limit ended."""
    exit_code: int | None = None
    """None where the program did not run, or was ended by a signal or by the sandbox."""
    signal: int | None = None
    """The signal that ended the program, unless the sandbox sent it."""
    cause: str = ""
    """Cause that ended the program other than itself: cpu, wall, memory, output, disk, processes, "security: CALL", or
    crash where it took down every process that ran it. "" where it ended itself, or never ran. Where its runtime says
    that memory was refused, memory, beside its exit code.
    """
    message: str = ""
    """Reason of the failure, in one line; "" after exit code 0."""
    cut: bool = False
    """The program wrote more than its streams and files hold here."""
    cpu_s: float = 0.0
    wall_s: float = 0.0
    memory_bytes: int = 0
    files: tuple[tuple[str, bytes], ...] = ()
    """Files that were asked for and are regular files after the run."""
    compiled: bool | None = None
    """None for a language that nothing compiles. False for a program in Python that cannot be parsed."""
    compile_log: str = ""
    compile_cause: str = ""
    """Cause that ended the compiler other than itself: see ``cause``."""
    compile_s: float = 0.0
    """0 where an equal program was compiled before."""
    queue_s: float = 0.0
    run_s: float = 0.0
    """Wall seconds at the worker."""

    @property
    def crashed(self) -> bool:
        """True when it ran and ended with an error that no limit caused."""
        return not self.cause and bool(self.exit_code or self.signal)

    def to_json(self) -> dict[str, Any]:
        """A plain dict; bytes as base64."""
        data = {item.name: getattr(self, item.name) for item in fields(self)}
        for name in _STREAMS:
            data[name] = b64encode(data[name]).decode()
        return data | {"files": [[name, b64encode(content).decode()] for name, content in self.files]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ProgramRun:
        """Raises KeyError, TypeError and ValueError for anything that `to_json` does not write."""
        streams = {name: b64decode(data[name], validate=True) for name in _STREAMS}
        files = tuple((name, b64decode(content, validate=True)) for name, content in data["files"])
        return cls(**{**data, **streams, "files": files})

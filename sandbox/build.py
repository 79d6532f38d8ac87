"""Compile once: source + flags + compiler version → an executable, kept by content hash while the pool lives."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from sandbox.errors import SandboxError
from sandbox.jail import Jail, Run, RunResult
from sandbox.languages import Language, toolchain

LOG_BYTES_MAX = 64 << 10


@dataclass(frozen=True, slots=True)
class Build:
    """An executable, or the log that says why there is none."""

    path: Path | None
    log: str
    cached: bool = False


class Builder:
    """Compiles in a jail, into `directory` (private to our uid, removed by its owner)."""

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def build(self, jail: Jail, language: Language, source: str, *, cancel_fd: int | None = None) -> Build:
        """Raises SandboxError for our faults only; what the compiler objects to is in the log."""
        argv = tuple(part.format(source=language.source, artifact=language.artifact) for part in language.compile)
        key = hashlib.sha256(json.dumps([toolchain(language), argv, source]).encode()).hexdigest()
        binary, log = self.directory / key, self.directory / f"{key}.log"
        if binary.exists():
            return Build(binary, log.read_text("utf-8"), cached=True)
        content = source.encode("utf-8", "surrogatepass")
        run = Run(language.compile_limits, argv=argv, files=((language.source, content),), collect=language.artifact)
        done = jail.run(run, cancel_fd=cancel_fd)
        text = done.stderr[:LOG_BYTES_MAX].decode("utf-8", "replace")
        if done.collected is None:
            return Build(None, _objection(done) + text)
        self._keep(log, text.encode())
        self._keep(binary, done.collected)
        return Build(binary, text)

    def _keep(self, path: Path, content: bytes) -> None:
        """Atomically, so that a second worker that builds the same sees all of it or nothing."""
        part = path.with_name(f"{path.name}.{os.getpid()}")
        try:
            part.write_bytes(content)
            part.replace(path)
        except OSError as error:
            part.unlink(missing_ok=True)
            raise SandboxError(f"cannot keep a compiled program in {self.directory}: {error}") from error


def _objection(done: RunResult) -> str:
    limits = {"cpu": "CPU time", "wall": "wall time", "memory": "memory", "output": "output"}
    if done.cause in limits:
        return f"the compiler exceeded its {limits[done.cause]} limit\n"
    return "" if done.exit_code == 1 else f"the compiler ended with exit code {done.exit_code}, signal {done.signal}\n"

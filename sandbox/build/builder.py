"""Compile once: files + argv + toolchain version → an artefact, kept by content hash while the pool lives.

`shared` holds what is compiled ahead (see `sandbox.build.headers`); a jail that is started with it shows it, read-only.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from sandbox.build import units
from sandbox.build.headers import Headers
from sandbox.build.units import Unit
from sandbox.core.nouns import MIB
from sandbox.errors import SandboxError, Starved, is_shortage, not_started
from sandbox.jail.jail import Jail
from sandbox.jail.run import JailedRun, RunResult
from sandbox.kernel import inherited
from sandbox.languages import toolchain

LOG_BYTES_MAX: Final = 64 << 10
KEPT_BYTES_MAX: Final = 1024 * MIB
_SHARE: Final = 16  # share of the cap that one worker may add between two checks of the directory's size
_DISK: Final = re.compile(
    r"^(?![^:\n]*:\d+:|\s*\d* \|)[^\n]*(?:File size limit exceeded|file too large|No space left on device)",
    re.MULTILINE | re.IGNORECASE,
)
"""Message of a compiler that a file met its limit or the work directory's; not in a line about the source, or of it."""
_ELF: Final = b"\x7fELF"
_KILLED: Final = b"Killed signal terminated program "  # gcc of a part of its own: caused from outside, unless it recurs


@dataclass(frozen=True, slots=True)
class Build:
    """An artefact, or the log that says why compilation failed."""

    artefact: bytes | None
    log: str
    cause: str = ""
    """The limit that ended the compiler, as in `RunResult`; "" where it ended itself."""


class Builder:
    """Compiles in a jail, into `directory` (removed by its owner); only `shared` is readable by other uids."""

    def __init__(self, directory: str | Path, *, kept_bytes_max: int = KEPT_BYTES_MAX) -> None:
        """Raises SandboxError when `directory` cannot be made."""
        self.directory = Path(directory)
        try:
            inherited.make_directory(self.directory, 0o711 if os.geteuid() == 0 else 0o700)
            self.headers = Headers(self.directory / "shared")
        except OSError as error:
            raise SandboxError(not_started("the builder", error)) from error
        self.shared = str(self.headers.directory)
        self._kept_bytes_max = kept_bytes_max
        self._added = 0

    def build(self, jail: Jail, unit: Unit, *, cancel_fd: int | None = None) -> Build:
        """Compile a unit. Raises SandboxError for failures of the sandbox; the compiler's complaints are in the log.

        A compiler waits for nothing but the machine, so its wall limit shows nothing about the source: Starved.
        """
        try:
            return self._build(jail, unit, cancel_fd)
        except OSError as error:
            raise SandboxError(f"cannot keep a compiled program in {self.directory}: {error}") from error

    def _build(self, jail: Jail, unit: Unit, cancel_fd: int | None) -> Build:
        language = unit.language
        text = [toolchain.toolchain(language), unit.argv, [(name, content.hex()) for name, content in unit.files]]
        key = hashlib.sha256(json.dumps(text).encode()).hexdigest()
        binary, log = self.directory / key, self.directory / f"{key}.log"
        with suppress(FileNotFoundError):  # not built yet, or removed by another worker to make room
            found = Build(binary.read_bytes(), log.read_text("utf-8"))
            for path in (log, binary):
                os.utime(path)
            return found
        ahead = self.headers.flags(jail, language, cancel_fd=cancel_fd) if unit.wants_header else ()
        run = JailedRun(
            language.compile_limits,
            argv=(*unit.argv, *ahead),
            files=unit.files,
            collect=unit.artifact,
            environment=units.environment_variables(language, language.compile_limits),
            runtime=language.compile_runtime,
            with_tools=True,
        )
        done = jail.run(run, cancel_fd=cancel_fd)
        if done.cause is None and _KILLED in done.stderr:
            done = jail.run(run, cancel_fd=cancel_fd)
        if done.cause == "wall":
            raise Starved(f"a compiler used {done.cpu_s:.1f} s of CPU in {done.wall_s:.0f} s; use fewer workers")
        text_log = done.stderr[:LOG_BYTES_MAX].decode("utf-8", "replace")
        if done.collected is None:
            if done.cause is None and _DISK.search(text_log):
                done = replace(done, cause="disk")
            return Build(None, _objection(done) + text_log, done.cause or "")
        if units.is_native_language(language) and not done.collected.startswith(_ELF):
            return Build(None, "the compiler made no program that can be run, but a library or nothing\n" + text_log)
        self._keep(log, text_log.encode())
        self._keep(binary, done.collected)
        return Build(done.collected, text_log)

    def _keep(self, path: Path, content: bytes) -> None:
        """Write atomically: another process or thread that builds the same unit sees the whole artefact or none."""
        part = path.with_name(f"{path.name}.{threading.get_native_id()}")
        try:
            inherited.write_with_mode(part, content, 0o600)
            part.replace(path)
            self._added += len(content)
            if self._added * _SHARE > self._kept_bytes_max:
                self._added = 0
                self._make_room()
        except OSError as error:
            part.unlink(missing_ok=True)
            # Another worker that made room took the part file, too. Not so where the directory itself is gone.
            made_room = isinstance(error, FileNotFoundError) and self.directory.is_dir()
            if not (made_room or is_shortage(error)):  # it is compiled again instead
                raise

    def _make_room(self) -> None:
        """Remove the least recently used artefacts until half of the cap is left.

        With n workers the directory may exceed the cap by n sixteenths for a while.
        """
        files = []
        for entry in os.scandir(self.directory):
            with suppress(FileNotFoundError):
                if entry.is_file(follow_symlinks=False):
                    files.append((entry.stat().st_mtime, entry.stat().st_size, entry.path))
        total = sum(size for _, size, _ in files)
        if total <= self._kept_bytes_max:
            return
        for _, size, path in sorted(files):
            if total <= self._kept_bytes_max // 2:
                return
            Path(path).unlink(missing_ok=True)
            total -= size


def _objection(done: RunResult) -> str:
    limits = {"cpu": "CPU time", "processes": "process"}
    limits |= {name: name for name in ("memory", "output", "disk")}
    if done.cause in limits:
        return f"the compiler exceeded its {limits[done.cause]} limit\n"
    return "" if done.exit_code == 1 else f"the compiler ended with exit code {done.exit_code}, signal {done.signal}\n"

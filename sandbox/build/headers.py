"""Headers compiled ahead, once per (toolchain version, flags), for every jail that is started with our directory.

A precompiled header is made in a jail, from the system's header and our flags alone, so it is as trusted as the
compiler. One worker compiles it while the others compile without; a header that cannot be made is not tried again,
unless the machine was too slow.
It takes about 120 MiB of disk, and goes with the directory, which the builder's owner removes.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Final

from sandbox.core.nouns import MIB
from sandbox.errors import Starved, is_shortage
from sandbox.jail.jail import Jail
from sandbox.jail.run import JailedRun
from sandbox.kernel import inherited
from sandbox.languages import toolchain
from sandbox.languages.language import Language

_BYTES_MAX: Final = 256 * MIB
_SOURCE, _ARTIFACT = "ahead.hpp", "ahead.gch"


class Headers:
    """Precompiled headers in `directory`, which compilers read and only the sandbox writes."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        inherited.make_directory(directory, 0o755)

    def flags(self, jail: Jail, language: Language, *, cancel_fd: int | None = None) -> tuple[str, ...]:
        """Return the compiler flags that make `jail` find the header, compiling it if needed; () where it cannot be
        made.
        """
        if jail.shared is None or jail.shared_from != str(self.directory):
            return ()
        argv = toolchain.fill(language, language.precompile, {"source": _SOURCE, "artifact": _ARTIFACT})
        name = hashlib.sha256(json.dumps([toolchain.toolchain(language), argv]).encode()).hexdigest()[:16]
        ready = self.directory / name / f"{language.header}.gch"
        if not ready.exists():
            try:
                self._make(jail, language, argv, name, cancel_fd)
            except (OSError, Starved) as error:
                if not (isinstance(error, Starved) or is_shortage(error)):  # a header is worth having, no more
                    raise
        return ("-I", f"{jail.shared}/{name}") if ready.exists() else ()

    def _make(self, jail: Jail, language: Language, argv: tuple[str, ...], name: str, cancel_fd: int | None) -> None:
        ready, part = self.directory / name / f"{language.header}.gch", self.directory / f"{name}.part"
        fd = os.open(self.directory / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with open(fd, "r+", encoding="ascii") as lock:
            os.fchmod(fd, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return  # another worker compiles it
            lock.seek(0)
            if lock.read() or ready.exists():
                return  # failed before, or finished in this moment
            content = self._compile(jail, language, argv, cancel_fd)
            if content is None:
                lock.write("failed")
                return
            for folder in (self.directory / name, ready.parent):
                inherited.make_directory(folder, 0o755)
            # The compiler reads the header itself where the compiled one does not apply.
            plain = ready.parent / os.path.basename(language.header)
            inherited.write_with_mode(plain, f"#include_next <{language.header}>\n".encode(), 0o644)
            inherited.write_with_mode(part, content, 0o644)
            part.replace(ready)

    def _compile(self, jail: Jail, language: Language, argv: tuple[str, ...], cancel_fd: int | None) -> bytes | None:
        """Compile in a jail of its own: the work directory of the others is too small."""
        limits = replace(language.compile_limits, cpu_s=60.0, file_bytes=_BYTES_MAX)
        run = JailedRun(
            limits,
            argv=argv,
            files=((_SOURCE, f"#include <{language.header}>\n".encode()),),
            collect=_ARTIFACT,
            runtime=language.compile_runtime,
            with_tools=True,
        )
        with Jail(jail.tier, run_dir=jail.run_dir, work_bytes=_BYTES_MAX) as wide:
            done = wide.run(run, cancel_fd=cancel_fd)
        if done.cause == "wall":
            raise Starved("a header was not compiled in time")
        return done.collected

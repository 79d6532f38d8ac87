"""Start one of the sandbox's own processes by exec, without memory, environment or descriptors of the caller."""

from __future__ import annotations

import os
import sys
from subprocess import DEVNULL, Popen
from typing import Final

from sandbox.errors import SandboxError
from sandbox.kernel import inherited
from sandbox.terminal import current_environment

_BOOT: Final = (
    "import sys; sys.path.append(sys.argv.pop(1)); from sandbox.kernel.inherited import reset_inherited; "
    "reset_inherited(); from sandbox.{module} import main; main()"
)
_KEPT: Final = ("TMPDIR", "CARGO_HOME", "RUSTUP_HOME", "RUSTUP_TOOLCHAIN")


def start_process(
    module: str, arguments: list[str], fds: list[int], *, stdout: int = DEVNULL, fixed_hashes: bool = False
) -> Popen[bytes]:
    """`sandbox.<module>.main()` in a new session, with `arguments` in sys.argv[1:] and `fds`, above 2, kept open.

    Raises OSError when the machine has no resources left, or the caller may not open as many files as are needed.
    Isolated from site-packages; the package's own directory comes last on the path, so nothing beside it can shadow
    the standard library.
    """
    inherited.check_open_files()
    python = getattr(sys, "_base_executable", None) or sys.executable
    if not python:
        raise SandboxError("sys.executable is empty: this interpreter cannot start another")
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    ours = current_environment()
    # With LD_BIND_NOW, or each fork would resolve its symbols again, and copy the tables for it.
    theirs = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "LD_BIND_NOW": "1"}
    if fixed_hashes:
        theirs["PYTHONHASHSEED"] = "0"  # the order of a set must be the same in every run
    theirs["SANDBOX_PATH"] = ours.get("SANDBOX_PATH", ours.get("PATH", ""))  # where tools are found
    theirs |= {name: ours[name] for name in _KEPT if name in ours}
    return Popen(
        [python, "-s", "-P", "-S", "-X", "utf8", "-c", _BOOT.format(module=module), root, *arguments],
        pass_fds=fds,
        stdin=DEVNULL,
        stdout=stdout,
        stderr=DEVNULL,
        env=theirs,
        cwd="/",
        umask=inherited.UMASK,
        start_new_session=True,
    )

"""End a Python program as the interpreter would, in a process that is not torn down.

    exit_status   of an error that ends it, printed by the program's own hook if it has one
    finish        joins threads, runs exit handlers, flushes; drops the program's objects where that has effects

A real finalization would clear every module of the template, which costs more than most programs. Its visible effects
are flushing unclosed files and running `__del__`: only programs that contain the words for these pay for them.
"""

from __future__ import annotations

import atexit
import builtins
import gc
import io
import linecache
import os
import re
import resource
import sys
import traceback
import types
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from sandbox.pyharness import _processes

_LINGERING: Final = frozenset(
    {"__del__", "detach", "BufferedWriter", "BufferedRandom", "BufferedRWPair", "TextIOWrapper", "FileIO", "exec"}
)
_STARTING: Final = ("multiprocessing", "ProcessPoolExecutor", "concurrent.futures.process")
_OPENING: Final = frozenset({"open", "fdopen"})
_STANDARD: Final = {
    path: fd
    for fd, name in ((1, "stdout"), (2, "stderr"))
    for path in (f"/dev/{name}", f"/dev/fd/{fd}", f"/proc/self/fd/{fd}")
}
_FLUSH_FAILED: Final = 120
WORDS: Final = re.compile(
    r"__del__|detach|Buffered|TextIOWrapper|FileIO|exec|open|/dev/|/proc/|multiprocessing|ProcessPoolExecutor|concurrent|setrlimit"
)
"""Pattern that occurs in every text in which `mark` would find something."""


_MARK: Final = "needs of the program"


def mark(code: types.CodeType) -> types.CodeType:
    """Return the code with its needs, recognised by the words that it uses, as a last constant if there are any."""
    names, texts, waiting = set[str](), set[str](), [code]
    while waiting:
        found = waiting.pop()
        names.update(found.co_names)
        texts.update(constant for constant in found.co_consts if type(constant) is str)
        waiting += [constant for constant in found.co_consts if type(constant) is types.CodeType]
    writes = any(len(text) < 5 and text.strip("rwaxbt+U") == "" and not text.startswith("r") for text in texts)
    asked = {
        "lingers": bool(names & _LINGERING) or (writes and bool(names & _OPENING)),
        "streams": not texts.isdisjoint(_STANDARD),
        "processes": any(name.startswith(_STARTING) for name in names),
        "stack": "setrlimit" in names,
    }
    needs = tuple(name for name, needed in asked.items() if needed)
    return code.replace(co_consts=(*code.co_consts, (_MARK, *needs))) if needs else code


def meet_needs(code: types.CodeType, source: str, preamble: str) -> tuple[str, ...]:
    """Give a program what `mark` found, for example its streams as files that are not truncated when opened."""
    last = code.co_consts[-1]
    if type(last) is not tuple or last[:1] != (_MARK,):
        return ()
    needs: tuple[str, ...] = last[1:]
    if "streams" in needs:
        builtins.open = io.open = _open
    if "processes" in needs:
        _processes.support_processes()
        if preamble:
            _write_whole(source, preamble)
    if "stack" in needs:
        resource.setrlimit = _setrlimit
    return needs


def _write_whole(source: str, preamble: str) -> None:
    """Let the program's file begin with the preamble, for processes that import it anew; line numbers leave it out."""
    with suppress(OSError):
        os.unlink("main.py")
        with open("main.py", "w", encoding="utf-8", errors="surrogatepass") as file:
            file.write(f"{preamble}\n{source}")
    linecache.cache["main.py"] = len(source), None, source.splitlines(keepends=True), "main.py"


_plain_open: Final = open


def _open(file: Any, *args: Any, **options: Any) -> Any:
    """A stream by its path is a second descriptor of it: here output is a file, which its path would open anew."""
    return _plain_open(os.dup(_STANDARD[file]) if type(file) is str and file in _STANDARD else file, *args, **options)


_plain_setrlimit: Final = resource.setrlimit


def _setrlimit(what: int, limits: Any) -> None:
    """Pretend to grant a larger stack: Python's own frames are not on it."""
    try:
        _plain_setrlimit(what, limits)
    except (ValueError, OSError):
        if what != resource.RLIMIT_STACK:
            raise


def exit_status(error: BaseException, *, lines: bool = False) -> int:
    """Return the exit status of a program that ends by an error, and print what the interpreter would. A hook may end
    the program itself.

    `lines`: with the lines of the program's main file, which take longer to read than most programs run.
    """
    if isinstance(error, SystemExit):
        return _system_exit_status(error)
    frames = error.__traceback__.tb_next if error.__traceback__ else None
    hook = getattr(sys, "excepthook", None)
    if hook is sys.__excepthook__ or hook is None:
        if not lines:
            linecache.cache.setdefault("main.py", (0, None, [], "main.py"))
        traceback.print_exception(type(error), error, frames, limit=-20)
        return 1
    try:
        hook(type(error), error, frames)
    except BaseException as failed:
        if isinstance(failed, SystemExit):
            return _system_exit_status(failed)
        traceback.print_exception(type(failed), failed, failed.__traceback__, limit=-20)
    return 1


def _system_exit_status(error: SystemExit) -> int:
    if error.code is None or isinstance(error.code, int):
        code = int(error.code or 0)
        return code & 0xFF if -(1 << 63) <= code < 1 << 63 else 0xFF
    print(error.code, file=sys.stderr)
    return 1


def finish(status: int, join_threads: Callable[[], object], needs: tuple[str, ...]) -> int:
    """Do what the interpreter does at its end; returns 120 when a standard stream cannot be flushed."""
    for step in (join_threads, atexit._run_exitfuncs):
        try:
            step()
        except BaseException as error:
            exit_status(error)
    if not all([_flush("stdout"), _flush("stderr")]):
        status = _FLUSH_FAILED
    sys.stdout = sys.__stdout__
    if "lingers" in needs:
        _drop()
    _flush("stdout")
    return status


def _drop() -> None:
    """Drop the program's objects. In a cycle a file may go before its buffer, so buffers are flushed first."""
    sys.modules.pop("__main__", None)
    for kind in (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom):
        for found in gc.get_objects():
            if type(found) is kind:
                with suppress(BaseException):
                    found.flush()
    gc.collect()


def _flush(name: str) -> bool:
    stream = getattr(sys, name, None)
    if stream is None:
        return True
    with suppress(BaseException):
        if stream.closed:
            return True
    try:
        stream.flush()
    except BaseException:
        return False
    return True

"""The program inside the jail that keeps state between calls, as `live_program` asks it to.

Sent as text and run like any other program; not trusted.
"""

from __future__ import annotations

import ast
import json
import linecache
import os
import socket
import struct
import sys
import traceback
import types
from typing import Any, NoReturn

WORD_BYTES = 16
_CHARACTERS_MAX = 8000
_DESCRIPTORS = struct.Struct("3i")


def main() -> NoReturn:
    """Answer calls until the channel closes."""
    channel = socket.socket(fileno=os.dup(0))
    null = os.open("/dev/null", os.O_RDWR)
    _point(null, null, null)
    os.register_at_fork(after_in_child=channel.close)
    module = types.ModuleType("__main__")
    module.__dict__["__builtins__"] = sys.modules["builtins"]
    sys.modules["__main__"] = module
    # `python3` is this interpreter: that of the machine may not read its own library here.
    os.environ["PATH"] = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # what a call has said before it is ended
    number, own = 0, os.getpid()
    while True:
        word, rights, _, _ = channel.recvmsg(WORD_BYTES, socket.CMSG_SPACE(_DESCRIPTORS.size))
        if not word:
            os._exit(0)
        code, out, err = _DESCRIPTORS.unpack(rights[0][2])
        _point(null, out, err)
        os.close(out)
        os.close(err)
        number += 1
        value, error = _run(_read(code), f"<call {number}>", module.__dict__)
        _flush()
        if os.getpid() != own:  # a fork that returns from the call must not answer
            os._exit(0)
        _point(null, null, null)
        channel.send(word + json.dumps([value, error]).encode())
        del value, error, word, rights


def _point(*targets: int) -> None:
    for fd, target in enumerate(targets):
        os.dup2(target, fd)


def _read(fd: int) -> str:
    with open(fd, "rb") as file:
        return file.read().decode("utf-8", "surrogatepass")


def _run(code: str, name: str, module: dict[str, Any]) -> tuple[str | None, str | None]:
    """The repr of the last expression, and the traceback."""
    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
    try:
        tree = ast.parse(code, name)
        last = tree.body[-1] if tree.body else None
        if isinstance(last, ast.Expr):
            tree.body.pop()
        exec(compile(tree, name, "exec", dont_inherit=True), module)
        if not isinstance(last, ast.Expr):
            return None, None
        value = eval(compile(ast.Expression(last.value), name, "eval", dont_inherit=True), module)
        return None if value is None else _short(repr(value)), None
    except BaseException as error:
        return None, _told(error)


def _told(error: BaseException) -> str:
    """Return the traceback, with the call's own frames and the frames below."""
    trace = error.__traceback__.tb_next if error.__traceback__ else None
    while trace is not None and trace.tb_frame.f_code.co_filename == "main.py":
        trace = trace.tb_next
    if isinstance(error, SyntaxError) and trace is not None and trace.tb_frame.f_code.co_name == "parse":
        trace = None
    return _short("".join(traceback.format_exception(type(error), error, trace)).rstrip())


def _short(text: str) -> str:
    if len(text) <= _CHARACTERS_MAX:
        return text
    half = _CHARACTERS_MAX // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters ...]\n{text[-half:]}"


def _flush() -> None:
    """Flush streams that the call may have closed or replaced."""
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        try:
            stream.flush()  # type: ignore[union-attr]
        except BaseException:
            continue


if __name__ == "__main__":
    main()

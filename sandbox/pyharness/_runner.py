"""The Python harness inside the jail: runs one program in this (forked, confined) process and ends it.

What is the same for every run is done once, before the fork (`prepare`), and the compiled program is kept for the runs
that follow (descriptor 5, closed before the program's first line runs).
The job is read from descriptor 3 (marshalled), the answer is written to descriptor 4 as `nonce + JSON`. No expected
output is here. A function's result is sent as a value and compared elsewhere, so a forged frame can only say
what the program could have returned. The nonce is fetched from the job after the last step: for an assert problem it
is the completion token.
"""

from __future__ import annotations

import _thread
import ast
import ctypes
import functools
import gc
import io
import json
import marshal
import os
import sys
import types
from _sitebuiltins import Quitter, _Helper, _Printer
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NoReturn

from sandbox.compare.values import Unencodable, encode_lazy, encode_value
from sandbox.pyharness import _answering, _apart, _chance, _ending, _wire

JOB_FD, RESULT_FD, CODE_FD = 3, 4, 5
NONCE_BYTES = 32
_MAIN: Final = "main.py"
_IMPORTED: Final = "main"
_SHORT = 32  # bytes of code; only what is shorter can be an empty program, so only that is parsed for it
_dumps, _loads, _pread, _pwrite, _lseek, _close = json.dumps, marshal.loads, os.pread, os.pwrite, os.lseek, os.close
_exit, _fstat, _getcwd = os._exit, os.fstat, os.getcwd

Job = dict[str, Any]
_fork_hooks: Final[list[dict[str, Callable[[], object]]]] = []
_join_threads: Callable[[], object] = int  # until `prepare`
_at_thread_exit: list[object] = []


def prepare_interpreter(modules: str) -> None:
    """Import, once in the zygote, what programs import, and make the interpreter look freshly started.

    Fork hooks of modules would cost every run a third of a millisecond for nothing: a single thread forks, and random
    numbers are seeded. They are kept for forks of the program itself, and registered at its first.
    """
    register = os.register_at_fork
    os.register_at_fork = lambda **hooks: _fork_hooks.append(hooks)
    try:
        for name in ("random", "threading", *modules.split()):
            __import__(name)
    finally:
        os.register_at_fork = register
    global _join_threads, _at_thread_exit
    _join_threads = sys.modules["threading"]._shutdown
    _at_thread_exit = sys.modules["threading"]._threading_atexits
    _fresh_interpreter()
    _hide_counters()
    code = _compile("pass")  # the first call of a kind makes what all later ones use
    marshal.loads(marshal.dumps(code))
    _dumps(json.loads("{}"))


def _hooked(fork: Callable[[], Any]) -> Callable[[], Any]:
    @functools.wraps(fork)
    def forking() -> Any:
        while _fork_hooks:
            os.register_at_fork(**_fork_hooks.pop(0))
        return fork()

    return forking


_fork, _forkpty = _hooked(os.fork), _hooked(os.forkpty)


def make_ready() -> None:
    """Put in place what a program sees instead of the harness's own functions: before the last fork, or after it."""
    os.fork, os.forkpty = _fork, _forkpty


def run_job(codes: list[types.CodeType | None]) -> NoReturn:
    """Run the job and exit; never returns, whatever the program does. `codes`: what `kept` returned, or None.

    It is taken out of the list, so that what the frames below hold is the same in every run.
    """
    job: Job = {}
    try:
        job = _loads(_pread(JOB_FD, _lseek(JOB_FD, 0, 2) - NONCE_BYTES, 0))
        if argv := job.get("argv"):
            sys.argv += argv
        if digits := job.get("digits"):
            sys.set_int_max_str_digits(digits)
        if "chance" in job:  # None: of a run that decides about a program
            _chance.hide_chance() if job["chance"] is None else _chance.fix_chance(job["chance"])
        loaded = codes.pop() or _load(job["source"], job.get("main", _MAIN))
        _close(CODE_FD)
        if isinstance(loaded, str):
            _answer(False, error=loaded, stage="compile")
            _exit(1)
        kind = job["kind"]
        _KINDS.get(kind, _values)(job, loaded, _module("__main__" if kind == "stdio" else _IMPORTED, job))
    except BaseException as error:
        _report(error, job.get("stage", "program"))
    finally:
        _exit(1)


def _fresh_interpreter() -> None:
    """Streams on the new descriptors, and what `site` would have added."""
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        mode, errors = "w" if fd else "r", "backslashreplace" if fd == 2 else "surrogateescape"
        stream = io.TextIOWrapper(_raw(fd, mode), "utf-8", errors, line_buffering=fd == 2)
        stream.mode, stream.buffer.raw.name = mode, f"<{name}>"  # type: ignore[misc]
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    sys.argv = [_MAIN]
    sys.set_int_max_str_digits(0)
    _chance.fix_chance(0)  # one program, one verdict
    sys.setrecursionlimit, sys.getrecursionlimit = _set_recursion_limit, _get_recursion_limit
    builtins = sys.modules["builtins"].__dict__
    builtins["exit"] = Quitter("exit", "Ctrl-D (i.e. EOF)")
    builtins["quit"] = Quitter("quit", "Ctrl-D (i.e. EOF)")
    builtins["help"] = _Helper()
    for name in ("copyright", "credits", "license"):
        builtins[name] = _Printer(name, sys.copyright if name == "copyright" else "See www.python.org.")


def _hide_counters() -> None:
    """Hide the interpreter's count of how often a function's code ran, from which a program could count runs."""
    (attributes,) = gc.get_referents(vars(types.CodeType))
    if "_co_code_adaptive" in attributes:
        attributes["_co_code_adaptive"] = attributes["co_code"]
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(types.CodeType))


_plain_set_limit: Final = sys.setrecursionlimit
_LIMIT_MAX: Final = (1 << 31) - 1
_below = 0  # frames of ours under the program's: it is not to pay for them out of its limit
_limit = 1000  # as the program knows it


def _set_recursion_limit(limit: int, /) -> None:
    global _limit
    _plain_set_limit(limit if limit < 1 or limit > _LIMIT_MAX else min(limit + _below, _LIMIT_MAX))
    _limit = limit


def _get_recursion_limit() -> int:
    return _limit


def count_below() -> None:
    """Count the harness's frames below the program; called once, by the frame below `run_job`, one more function and
    `exec`. A call of a class counts twice: for the object, and for its `__init__`.
    """
    global _below
    _below = 3
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        _below, frame = _below + 1 + (frame.f_code.co_name == "__init__"), frame.f_back
    _set_recursion_limit(_limit)


def _raw(fd: int, mode: str) -> Any:
    return open(fd, mode + "b", closefd=False)


def kept(fd: int) -> types.CodeType | None:
    """The program's code as an earlier run compiled it."""
    data = _pread(fd, _fstat(fd).st_size, 0)
    if len(data) > 8 and len(data) - 8 == int.from_bytes(data[-8:], "little"):  # else its writer was ended midway
        return marshal.loads(data[:-8])  # type: ignore[no-any-return]
    return None


def _load(source: str, main: str) -> types.CodeType | str:
    """The program's code: kept, or compiled now and kept for the next; or why there is none."""
    if (code := kept(CODE_FD)) is not None:
        return code
    compiled = _compile(source, main)
    if not isinstance(compiled, str):
        data = marshal.dumps(compiled)
        with suppress(OSError):  # longer than a file may be, or sealed: then the next run compiles again
            os.write(CODE_FD, data + len(data).to_bytes(8, "little"))
    return compiled


def _compile(source: str, main: str = _MAIN) -> types.CodeType | str:
    """The program's code, or why there is none."""
    source = source.removeprefix("\ufeff")
    try:
        code = compile(source, main, "exec", dont_inherit=True)
        if len(code.co_code) <= _SHORT:
            body = ast.parse(source).body
            if all(isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) for node in body):
                return "the program is empty"
        return _ending.mark(code) if _ending.WORDS.search(source) else code
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return f"{type(error).__name__}: {error}"


def _module(name: str, job: Job) -> dict[str, Any]:
    """Return the program's module. It finds files beside its own; a test in a jail of its own is no file."""
    main = job.get("main", _MAIN)
    module = types.ModuleType(name)
    module.__dict__.update(__file__=main, __cached__=None, __annotations__={}, __builtins__=sys.modules["builtins"])
    sys.modules[name] = module
    if name == _IMPORTED:
        sys.modules["solution"] = module  # as tests call it
    if job["kind"] != "ask":
        place = main.rpartition("/")[0]
        sys.path.insert(0, f"{_getcwd()}/{place}" if place else _getcwd())
    return module.__dict__


def _set_up(job: Job, module: dict[str, Any]) -> None:
    """Run the preamble of the problem's author, if there is one."""
    if job["preamble"]:
        job["stage"] = "preamble"
        exec(compile(job["preamble"], "preamble.py", "exec", dont_inherit=True), module)
    job["stage"] = "program"


def _stdio(job: Job, code: types.CodeType, module: dict[str, Any]) -> NoReturn:
    status = 0
    needs: tuple[str, ...] = ()
    if type(code.co_consts[-1]) is tuple:
        needs = _ending.meet_needs(code, job["source"], job["preamble"])
    _set_up(job, module)
    try:
        exec(code, module)
    except BaseException as error:
        if not isinstance(error, SystemExit):
            _report(error, "program")
        status = _ending.exit_status(error, lines="main" in job)
    del module, code
    join = _join_threads if _thread._count() or _at_thread_exit else int
    _exit(_ending.finish(status, join, needs))


def _values(job: Job, code: types.CodeType, module: dict[str, Any]) -> NoReturn:
    """Run a function (one call) or assert steps in order, each a statement or an expression whose value is sent."""
    values: list[Any] = []
    _ending.meet_needs(code, job["source"], job["preamble"])
    args = _arguments(job["args"]) if job["kind"] == "function" else None
    _set_up(job, module)
    exec(code, module)
    job["stage"] = "call"
    if args is not None:
        values.append(encode_value(_function(job["fn_name"], module)(*args)))
    for mode, text in job["steps"]:
        step = compile(text, "test.py", mode, dont_inherit=True)
        if mode == "eval":
            values.append(encode_value(eval(step, module), 0, encode_lazy))
        else:
            exec(step, module)
    _answer(True, values=values)
    _exit(0)


def _serve(job: Job, code: types.CodeType, module: dict[str, Any]) -> NoReturn:
    """Run the program for a test in another jail."""
    streams = _answering.take_streams()
    _ending.meet_needs(code, job["source"], job["preamble"])
    _set_up(job, module)
    classes = _wire.classes_in(module)
    exec(code, module)
    job["stage"] = "call"
    _answering.serve_calls(module, classes, streams)
    _answer(True, values=())
    _exit(0)


def _ask(job: Job, code: types.CodeType, module: dict[str, Any]) -> NoReturn:
    """Run a test of a program in another jail."""
    caller = _apart.Caller(module, _answering.take_streams(), job["makes"])
    _set_up(job, module)
    try:
        caller.know_classes()
        module.update((name, __import__(name)) for name in job["modules"])
        for name in job["names"]:
            if name in job["entry"] or name not in module:
                module[name] = caller.proxy(name)
        exec(code, module)
        swallowed = caller.swallowed(None)
        if not caller.calls:
            caller.lost = caller.lost or {"lost": "test", "error": "calls nothing of the program"}
    except BaseException as error:
        swallowed = caller.swallowed(error)
        if caller.loss and not caller.lost:
            caller.lost = {"lost": "test", "error": "objects of the preamble's classes do not cross as they are"}
        if not caller.lost and swallowed is None:
            _report(error, "call" if any(error is other for other in caller.raised) else "test")
            _exit(1)
    if swallowed is not None:
        caller.lost = caller.lost or {"lost": "end", "error": _text(swallowed)}
    is_weak = caller.doubt or caller.loss == _wire.KEPT
    _answer(not caller.lost and caller.calls > 0, kind="doubt" if is_weak else "", **caller.lost)
    _exit(0)


def _arguments(text: str) -> Any:
    """JSON, or else the Python literal that JSON has no form for."""
    try:
        return json.loads(text)
    except ValueError:
        return ast.literal_eval(text)


def _function(name: str, module: dict[str, Any]) -> Any:
    """Return the named function. A method of Solution may be a plain function, and the reverse, as graders allow."""
    cls, _, method = name.rpartition(".")
    if not cls and name not in module and "Solution" in module:
        cls = "Solution"
    if cls == "Solution" and cls not in module and method in module:
        cls = ""
    return getattr(module[cls](), method) if cls else module[method]


def _report(error: BaseException, stage: str) -> None:
    if isinstance(error, Unencodable):
        text = f"returned {error}, which has no JSON form"
        _answer(False, error=text, stage="value")
        return
    text = _text(error)
    kind = "memory" if type(error) is MemoryError else "assertion" if type(error) is AssertionError else "error"
    _answer(False, error=text, stage=stage, kind=kind)


def _text(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"[:300]
    except BaseException:
        return type(error).__name__


def _answer(ok: bool, **rest: Any) -> None:
    body = _dumps({"ok": ok, **rest}).encode()
    size = _fstat(JOB_FD).st_size
    frame = memoryview(_pread(JOB_FD, NONCE_BYTES, size - NONCE_BYTES) + body)
    offset = 0
    while offset < len(frame):
        offset += _pwrite(RESULT_FD, frame[offset:], offset)


_KINDS: Final = {"stdio": _stdio, "serve": _serve, "ask": _ask}

"""Call a reward function, each call in a forked child with a deadline, and count what the call leaves behind.

consumes  a JSON line {"problem", "program", "language", "row"} per call, on the socket whose descriptor is argv[1]
produces  {"ready": true, "style"} or {"error"} first; then of each call {"score", "error", "hang", "latency_s",
          "processes", "files"}, or {"unusable"} where the function cannot be called with the columns of the row
waits for a line, or for the current child until its deadline; ends when the socket closes, or by SIGTERM at once

The function is imported once. Each call has its own session and an empty directory (also TMPDIR), with stdin and stdout
on /dev/null; processes and files that remain after the call are counted as leaked, and removed. The directory's path is
short, for the sockets that a call makes there, as `multiprocessing.Manager` does.
"""

from __future__ import annotations

import atexit
import itertools
import json
import os
import select
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final, NoReturn

from sandbox.kernel import linux
from sandbox.kernel.clear import remove_tree
from sandbox.rewards.function_path import named_function
from sandbox.rewards.ground_truth import parsed_value
from sandbox.rewards.styles import Answered, BadReward, Function, MissingColumn, Style, StyleError, find_style
from sandbox.zygote.watch import descendant_pids, is_ending

_EXIT_S: Final = 2.0  # a child that has answered may take this long to end
_ANSWER_MAX: Final = 1 << 20
_FENCE: Final = "```"


def main() -> None:
    """argv: the socket's descriptor, and the fields of `check.Options` as JSON."""
    options = SimpleNamespace(**json.loads(sys.argv[2]))
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    linux.die_with_parent()
    linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGTERM, _end)
    sys.path.insert(0, os.getcwd())
    root, numbers = tempfile.gettempdir(), itertools.count()
    stream = control.makefile("rw", encoding="utf-8")
    named = options.target
    try:
        function = named_function(options.target)
        style = find_style(function, options.style)
        named = f"--row {options.row}"
        called = _Called(function, style, named_function(options.row) if options.row else None, options.bare)
    except Exception as error:
        kind = "" if isinstance(error, StyleError) else f"{type(error).__name__}: "
        _send(stream, {"error": f"{named}: {kind}{error}"})
        return
    _send(stream, {"ready": True, "style": style.name})
    ours = set(descendant_pids())
    for line in stream:
        try:
            answered = called.answered(json.loads(line))
        except Exception as error:
            _send(stream, {"unusable": f"{options.target}: {called.refusal(error)}"})
            continue
        _send(stream, _call(called, answered, f"{root}/{next(numbers)}", options.deadline_s, ours, control.fileno()))


@dataclass(frozen=True, slots=True)
class _Called:
    """The function, and how it is called."""

    function: Function
    style: Style
    rows: Function | None
    bare: bool

    def answered(self, request: dict[str, Any]) -> Answered:
        """Return the arguments of the function. Raises StyleError and MissingColumn where it cannot be called with
        these columns, and what `--row` raises.
        """
        problem, program, language = request["problem"], request["program"], request["language"]
        if self.style.name == "plain":
            return Answered(problem, "", program, program=program, language=language)
        row = columns_of(problem) | {"language": language} if self.rows is None else dict(self.rows(problem))
        row |= request.get("row") or {}
        prompt = row.get("prompt", f"Write a program that solves {problem['id']}.")
        answered = Answered(row, prompt, program if self.bare else fenced(program, language))
        if why := self.style.misfit(self.function, list(row)):
            raise StyleError(f"cannot be called in the style of {self.style.name} with columns {', '.join(row)}: {why}")
        self.style.arguments(answered)
        return answered

    def refusal(self, error: Exception) -> str:
        """Say why `answered` failed."""
        if not isinstance(error, StyleError | MissingColumn):
            return f"--row raised {type(error).__name__}: {error}"
        needs = f"the style {self.style.name} needs the column " if isinstance(error, MissingColumn) else ""
        return f"{needs}{error}; --row module:function makes the columns of a problem"


def _end(number: int, frame: object) -> NoReturn:
    """End the current call with this process, and everything that it started."""
    try:
        _kill_all(set())
    finally:
        os._exit(128 + number)


def _send(stream: Any, data: dict[str, Any]) -> None:
    stream.write(json.dumps(data) + "\n")
    stream.flush()


def _call(called: _Called, answered: Answered, base: str, deadline_s: float, ours: set[int], control: int) -> Any:
    directory = f"{base}/a/b"  # two levels down, so that a program's ../.. is still ours to count and remove
    os.makedirs(directory)
    nonce = os.urandom(16).hex()
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(control)
        os.close(receive)
        _become_call(called, answered, directory, nonce, send)
    os.close(send)
    pidfd = os.pidfd_open(child)
    try:
        text = _read(receive, pidfd, nonce, time.monotonic() + deadline_s)
        select.select([pidfd], [], [], _EXIT_S if text else 0.0)
        ended = os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # it stays to be reaped
        left = [pid for pid in descendant_pids() if pid not in ours and pid != child and not is_ending(pid)]
        _kill_all(ours)
        files = sum(len(names) for _, _, names in os.walk(base))
    finally:
        os.close(receive)
        os.close(pidfd)
        remove_tree(base)
    reply = {"score": None, "error": "", "hang": False, "latency_s": None, "processes": len(left), "files": files}
    if text is None:
        return {**reply, "hang": True, "processes": 0}
    if not text:
        return {**reply, "error": f"the call died ({f'status {ended.si_status}' if ended else 'no answer'})"}
    with suppress(ValueError):
        return {**reply, **json.loads(text)}
    return {**reply, "error": "the answer was overwritten"}


def _become_call(called: _Called, answered: Answered, directory: str, nonce: str, send: int) -> NoReturn:
    """Make the call in the child, report the result, and end as an interpreter does."""
    status = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.setsid()
        linux.die_with_parent()
        os.chdir(directory)
        os.environ["TMPDIR"] = tempfile.tempdir = directory
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        sys.stdin = open(os.devnull)  # noqa: SIM115 - for as long as the process lives
        answer = _answer(called, answered)
        os.write(send, (nonce + json.dumps(answer) + "\n").encode())
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        status = 0
    finally:
        os._exit(status)


def _answer(called: _Called, answered: Answered) -> dict[str, Any]:
    start = time.perf_counter()
    try:
        score = called.style.call(called.function, answered)
        score = None if score is None else float(score)
    except Exception as error:
        kind = "it " if isinstance(error, BadReward) else f"{type(error).__name__}: "
        return {"error": f"{kind}{error}"[:300]}
    return {"score": score, "latency_s": time.perf_counter() - start}


def _read(receive: int, pidfd: int, nonce: str, deadline: float) -> str | None:
    """Return the call's answer; "" when it died without one, None at the deadline.

    An answer without the nonce does not count.
    """
    data = b""
    poller = select.poll()
    for fd in (receive, pidfd):
        poller.register(fd, select.POLLIN)
    while (left := deadline - time.monotonic()) > 0:
        ready = {fd for fd, _ in poller.poll(left * 1000)}
        if receive in ready:
            chunk = os.read(receive, 1 << 16)
            data = (data + chunk)[-_ANSWER_MAX:]
            _, found, rest = data.partition(nonce.encode())
            if found and b"\n" in rest:
                return rest.partition(b"\n")[0].decode("utf-8", "replace")
            if not chunk:
                poller.unregister(receive)
        elif pidfd in ready:
            return ""
    return None


def _kill_all(ours: set[int]) -> None:
    """Kill and reap everything that a call started; what the module itself started at its import stays."""
    while True:
        left = [pid for pid in descendant_pids() if pid not in ours]
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in left:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)
        for pid in left:
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)
        if not left:
            return


# --- a row of data for a labelled problem -----------------------------------------------------------------------------


def columns_of(problem: Mapping[str, Any]) -> dict[str, Any]:
    """The columns that public data sets have, for a problem as `Problem.to_json` writes it: prompt, data_source,
    reward_model, extra_info (verl), verification_info (open-r1), input_output (APPS, TACO), test_list (MBPP), tests,
    label, answer.
    """
    kind, cases, name = problem["kind"], problem["cases"], problem.get("fn_name")
    truth: dict[str, Any] = {"inputs": [], "outputs": []}
    if kind == "assert":
        truth["assert_case"] = [case["input"] for case in cases]
    else:
        truth = {
            "inputs": [_lines(case["input"]) if kind == "function" else case["input"] for case in cases],
            "outputs": [case["expected"] for case in cases],
        }
    if name:
        truth["fn_name"] = name
    pairs = [{"input": i, "output": o} for i, o in zip(truth["inputs"], truth["outputs"], strict=True)]
    by_call = {"type": "function_call", "fn_name": name} if kind == "function" else {"type": "stdin_stdout"}
    text = json.dumps(truth)
    return {
        "id": problem["id"],
        "prompt": [{"role": "user", "content": f"Write a program that solves {problem['id']} ({kind})."}],
        "data_source": "taco",
        "ability": "code",
        "reward_model": {"style": "rule", "ground_truth": text},
        "extra_info": {"index": problem["id"], "split": "train"},
        **dict.fromkeys(("ground_truth", "label", "answer", "input_output"), text),
        **dict.fromkeys(("tests", "test_cases"), pairs),
        "test_list": truth.get("assert_case", []),
        "verification_info": {"language": "python", "test_cases": [by_call | pair for pair in pairs]},
        "metadata": truth,
        "language": "python",
    }


def fenced(program: str, language: str) -> str:
    """A program as the only block of an answer."""
    fence = _FENCE
    while any(line.lstrip().startswith(fence) for line in program.splitlines()):
        fence += "`"
    return f"{fence}{language}\n{program}{'' if program.endswith(chr(10)) else chr(10)}{fence}\n"


def _lines(arguments: str) -> str:
    """Each argument of a call as a line of JSON, as LiveCodeBench has them."""
    return "\n".join(map(json.dumps, parsed_value(arguments)))


if __name__ == "__main__":
    main()

"""A program of the problem's author that decides: the checker of a stdio problem, or an interactor (interactive.py).

    testlib   arguments: input, output, answer              exit 0 accepted; 1, 2, 4, 8 wrong; 3 and all else: its fault
    kattis    arguments: input, answer, feedback directory  exit 42 accepted; 43 wrong; all else: its fault
              a checker reads the output on stdin; what is left in the feedback directory is in the CaseResult

A case may have arguments of its own for it, which come after these.

input, output and answer are files in its work directory: the case's input, what the program wrote (an interactor may
write there), and the case's expected output. They are placed for this run alone and removed after it: nothing of the
program is alive while they are there.

It is trusted, and limited all the same. One that does not compile, crashes, breaks a limit or ends in another way is
the author's fault: CheckerError, never a verdict. A Python traceback is told from exit code 1 by the harness.
"""

from __future__ import annotations

from typing import Any, Final

from sandbox.core import MIB, Case, Convention, Limits, Verdict
from sandbox.errors import CheckerError, InvalidProblem
from sandbox.jail import RunResult
from sandbox.judging.prepared import CompileError, Files, Frame, Prepared
from sandbox.judging.verdicts import ACCEPTED, Decision

LIMITS: Final = Limits(cpu_s=30.0, wall_s=120.0, memory_bytes=1024 * MIB, output_bytes=64 * MIB)
_INPUT, _OUTPUT, _ANSWER = "input.txt", "output.txt", "answer.txt"
_EXITS: Final[dict[Convention, dict[int, Verdict]]] = {
    "testlib": {0: Verdict.AC} | dict.fromkeys((1, 2, 4, 8), Verdict.WA),
    "kattis": {42: Verdict.AC, 43: Verdict.WA},
}
_CRASH_IS_TOLD: Final = ("python", "c", "cpp", "rust")
_ARGUMENTS: Final[dict[Convention, tuple[str, ...]]] = {
    "testlib": (_INPUT, _OUTPUT, _ANSWER),
    "kattis": (_INPUT, _ANSWER, "feedback/"),
}
NEXT_PASS: Final = "nextpass.in"
_NOTES: Final = ("judgemessage.txt", "teammessage.txt", "score.txt", "score_multiplier.txt", "judgeerror.txt")
_NOTE_BYTES_MAX: Final = 16 << 10


class Referee:
    """A checker or an interactor, ready for one case after the other. Use as a context manager."""

    def __init__(
        self, prepared: Prepared, convention: Convention, role: str, *, limits: Limits = LIMITS, passes: int = 1
    ) -> None:
        """Raises InvalidProblem for a language whose crash looks like testlib's "wrong"."""
        name = prepared.language.name
        if convention == "testlib" and name not in _CRASH_IS_TOLD:
            raise InvalidProblem(
                f"convention='testlib': a {role} in {name} that crashes would say 'wrong' by its exit code; "
                f"use 'kattis', or one of {', '.join(_CRASH_IS_TOLD)}"
            )
        self.prepared = prepared
        self.convention = convention
        self.role = role
        self.limits = limits
        self.passes = passes
        self.gather = "feedback" if convention == "kattis" else None
        self.feedback: dict[str, bytes] = {}
        """What is in the feedback directory: the owner empties it for every case."""

    def __enter__(self) -> Referee:
        try:
            self.prepared.__enter__()
        except CompileError as error:
            raise self.fault(f"does not compile: {str(error)[:2000]}") from error
        return self

    def __exit__(self, *error: object) -> None:
        self.prepared.__exit__(*error)

    def check(self, case: Case, output: bytes) -> Decision:
        """Is the output right? Raises CheckerError, and SandboxError for our own faults."""
        kattis = self.convention == "kattis"
        files = self.files(case) + (() if kattis else ((_OUTPUT, output),))
        self.check_room(files)
        try:
            stdin = output if kattis else b""
            done, frame = self.prepared.run(self.limits, stdin, **self.how(case), files=files)
        except CompileError as error:
            raise self.fault(f"does not compile: {str(error)[:2000]}") from error
        return self.read(done, frame)

    def how(self, case: Case) -> dict[str, Any]:
        """How it is run for a case."""
        return {"arguments": (*_ARGUMENTS[self.convention], *case.referee_arguments), "gather": self.gather}

    def files(self, case: Case) -> Files:
        texts = ((_INPUT, case.input), (_ANSWER, case.expected or ""))
        files = tuple((name, text.encode("utf-8", "surrogateescape")) for name, text in texts)
        return (*files, *((f"{self.gather}/{name}", content) for name, content in self.feedback.items()))

    def notes(self) -> tuple[tuple[str, str], ...]:
        """What it told of the case, in the files that have a meaning."""
        told = ((name, self.feedback[name]) for name in _NOTES if name in self.feedback)
        return tuple((name, content[:_NOTE_BYTES_MAX].decode("utf-8", "replace")) for name, content in told)

    def check_room(self, files: Files) -> None:
        """Raises CheckerError where the work directory cannot hold the files."""
        needed, room = sum(len(content) for _, content in files), self.prepared.jail.work_bytes
        if needed > room:
            raise self.fault(f"needs files of {needed} bytes, and its work directory holds {room}; use shorter cases")

    def read(self, done: RunResult, frame: Frame | None) -> Decision:
        """What its end says."""
        if done.gathered is None:
            raise self.fault("left more in its feedback directory than can be brought back")
        self.feedback = dict(done.gathered)
        words = done.stderr or self.feedback.get("judgeerror.txt", b"")
        tail = words[-1000:].decode("utf-8", "replace").strip()
        if done.cause is not None:
            raise self.fault(f"was stopped: {done.cause}")
        if done.signal is not None:
            raise self.fault(f"ended by signal {done.signal}: {tail}")
        if frame is not None and not frame.get("ok"):
            raise self.fault(f"raised {frame.get('error')}")
        verdict = _EXITS[self.convention].get(done.exit_code if done.exit_code is not None else -1)
        if verdict is None:
            raise self.fault(f"ended with exit code {done.exit_code}, which says nothing in {self.convention}: {tail}")
        if NEXT_PASS in self.feedback and (self.passes == 1 or verdict is not Verdict.AC):
            why = "the problem has one pass" if self.passes == 1 else "it did not accept"
            raise self.fault(f"wrote {NEXT_PASS}, but {why}")
        return ACCEPTED if verdict is Verdict.AC else (Verdict.WA, f"wrong, says the {self.role}")

    def fault(self, text: str) -> CheckerError:
        return CheckerError(f"the {self.role} {text}")

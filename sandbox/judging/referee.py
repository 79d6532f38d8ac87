"""Programs of the problem's author that decide: the checker of a stdio problem, or an interactor (interactive.py).

    testlib   arguments: input, output, answer              exit 0 accepted; 1, 2, 4, 8 wrong; 3 and others: its fault,
              also 7 and from 16 up, testlib's parts of the points: a case here is right or wrong
    kattis    arguments: input, answer, feedback directory  exit 42 accepted; 43 wrong; others: its fault
              a checker reads the output on stdin; the feedback directory becomes part of the CaseResult
    score     arguments: input, answer, output              exit 0, and all that it prints is a number: 1 or 100 is
              accepted, another one wrong; all else: its fault. For checkers only, as open-r1's Codeforces set has them

Further arguments of a case come after these. Input, output and answer are files in the work directory: the case's
input, what the program wrote (an interactor may write there), and the expected output. They exist for this run only, in
a jail where no judged program ever runs, and are verified to be readable before it starts.

A referee is trusted but limited. One that does not compile is its author's fault: CheckerError, never a verdict. One
that crashes, exceeds a limit or ends without a decision may have been led there by the output. So a checker is asked
again, about the expected answer (without one: about a few plain outputs): if it fails again, CheckerError, else the
output is wrong. testlib's exit code 3 always is CheckerError. The harness distinguishes a Python traceback from exit
code 1. In a later run of a case (judge.py) the referee has read the program's earlier output, so a failure there is
the program's fault.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from sandbox.core.checks import encode_text
from sandbox.core.nouns import REFEREE_LIMITS, Case, Limits, Verdict
from sandbox.core.problem import Convention, Problem
from sandbox.errors import CheckerError, InvalidProblem
from sandbox.jail.run import RunResult
from sandbox.judging.prepared import Files, Frame, PreparedProgram, encode_files
from sandbox.judging.verdicts import ACCEPTED, Decision, decide_limits
from sandbox.languages.layout import CompileError
from sandbox.languages.table import LANGUAGES

HARNESS: Final = {"digits": 100_000, "chance": None}
"""Options of referees in Python: chance is a secret, and int() of more digits is refused, as plain Python does from
4,300; it would take minutes.
"""
_BRIEF: Final = replace(REFEREE_LIMITS, cpu_s=5.0, wall_s=30.0)
_PLAIN_OUTPUTS: Final = (b"", b"0\n", b"1\n")
_FAIL: Final = 3
_PARTIAL: Final = {7, *range(16, 217)} - {42, 43}  # which are more often those of kattis
_PART: Final = "by which testlib gives a part of the points: a case here is right or wrong, so let it end with 0 or 1"
_UNREAD: Final = "which has no meaning"
_BLOCK: Final = 4096
_INPUT, _OUTPUT, _ANSWER = "input.txt", "output.txt", "answer.txt"
EXITS: Final[dict[Convention, dict[int, Verdict]]] = {
    "testlib": {0: Verdict.AC} | dict.fromkeys((1, 2, 4, 8), Verdict.WA),
    "kattis": {42: Verdict.AC, 43: Verdict.WA},
}
ARGUMENTS: Final[dict[Convention, tuple[str, ...]]] = {
    "testlib": (_INPUT, _OUTPUT, _ANSWER),
    "kattis": (_INPUT, _ANSWER, "feedback/"),
    "score": (_INPUT, _ANSWER, _OUTPUT),
}
_SCORE: Final = re.compile(rb"\s*([-+]?(?:\d+(?:\.\d*)?|\.\d+))\s*")
_ACCEPTED_SCORES: Final = (1.0, 100.0)
NEXT_PASS: Final = "nextpass.in"
_NOTES: Final = ("judgemessage.txt", "teammessage.txt", "score.txt", "score_multiplier.txt", "judgeerror.txt")
_NOTE_BYTES_MAX: Final = 16 << 10


class Crash(CheckerError):
    """A failure that the referee's input may have caused. `brief` quotes nothing that the referee wrote."""

    def __init__(self, text: str, brief: str) -> None:
        super().__init__(text)
        self.brief = brief


class Referee:
    """A checker or interactor that decides one case after the other. Use as a context manager."""

    def __init__(self, prepared: PreparedProgram, problem: Problem, role: str) -> None:
        """Raises InvalidProblem for a language whose crash looks like testlib's "wrong"."""
        convention, language = problem.convention, prepared.language
        if convention == "testlib" and not language.crash_has_own_exit_code:
            known = ", ".join(name for name, each in LANGUAGES.items() if each.crash_has_own_exit_code)
            raise InvalidProblem(
                f"convention='testlib': the exit code of a {role} in {language.name} that crashes is the one for "
                f"'wrong'; use convention='kattis', or write it in one of {known}"
            )
        self.prepared = prepared
        self.convention = convention
        self.role = role
        self.limits = problem.referee_limits or REFEREE_LIMITS
        self.passes = problem.passes
        self.left = self.passes - 1
        """Runs of the case that the referee may still ask for; the owner counts them."""
        self.gather = "feedback" if convention == "kattis" else None
        self.feedback: dict[str, bytes] = {}
        """Content of the feedback directory."""
        self.again = False
        """The referee has accepted a run for this case, so its state may come from the program."""

    def __enter__(self) -> Referee:
        with self._compiled():
            self.prepared.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.prepared.__exit__(*error)

    def begin(self) -> None:
        """Begin another case, without feedback."""
        self.feedback, self.again = {}, False

    def check(self, case: Case, output: bytes) -> Decision:
        """Decide whether the output is right. Raises CheckerError, and SandboxError for failures of the sandbox."""
        before = self.feedback
        if not self.again:
            self.check_room(self.files(case))
        if not self._fits((*self.files(case), (_OUTPUT, output))):
            return Verdict.OLE, f"an output of {len(output)} bytes does not fit beside the {self.role}'s other files"
        said = self._ask(case, output, self.limits)
        if not isinstance(said, Crash):
            return said
        self.feedback = before
        works = self.again or any(not isinstance(self._ask(case, *other), Crash) for other in self._others(case))
        self.feedback = before
        if not works:
            raise CheckerError(str(said))
        return Verdict.WA, f"on this output, and not on others, the {self.role} {said.brief}"

    def _ask(self, case: Case, output: bytes, limits: Limits) -> Decision | Crash:
        kattis = self.convention == "kattis"
        files = self.files(case) + (() if kattis else ((_OUTPUT, output),))
        stdin = output if kattis else b""
        with self._compiled():
            done, frame = self.prepared.run(limits, stdin, **self.how(case), files=files)
        said = self.read(done, frame, limits)
        if isinstance(said, CheckerError) and not isinstance(said, Crash):
            raise said
        return said

    @contextmanager
    def _compiled(self) -> Iterator[None]:
        """Raise the referee's own fault where it does not compile."""
        try:
            yield
        except CompileError as error:
            raise self.fault(f"does not compile: {str(error)[:2000]}") from error

    def _others(self, case: Case) -> list[tuple[bytes, Limits]]:
        """Return the outputs that show whether the referee works: the expected answer or, without one, some others."""
        if case.expected is not None:
            return [(encode_text(case.expected), self.limits)]
        return [(output, _BRIEF) for output in (*_PLAIN_OUTPUTS, encode_text(case.input))]

    def how(self, case: Case) -> dict[str, Any]:
        """Return the options of its run for a case."""
        arguments = (*ARGUMENTS[self.convention], *case.referee_arguments)
        return {"arguments": arguments, "gather": self.gather, "job": HARNESS}

    def files(self, case: Case) -> Files:
        feedback = ((f"{self.gather}/{name}", content) for name, content in self.feedback.items())
        return (*encode_files(((_INPUT, case.input), (_ANSWER, case.expected or ""))), *feedback)

    def notes(self) -> tuple[tuple[str, str], ...]:
        """Return the files of the feedback directory that have a meaning."""
        told = ((name, self.feedback[name]) for name in _NOTES if name in self.feedback)
        return tuple((name, content[:_NOTE_BYTES_MAX].decode("utf-8", "replace")) for name, content in told)

    def check_room(self, files: Files) -> Crash | None:
        """Return a Crash where a run left more than the work directory holds. Raises CheckerError where a case does."""
        if self._fits(files):
            return None
        if self.again:
            return self.crash("left more for the next run than its work directory holds")
        needed, available = sum(len(content) for _, content in files), self.prepared.jail.work_bytes
        raise self.fault(f"needs files of {needed} bytes, and its work directory has {available}; use shorter cases")

    def _fits(self, files: Files) -> bool:
        return sum(-(-len(content) // _BLOCK) * _BLOCK for _, content in files) <= self.prepared.jail.work_bytes

    def read(self, done: RunResult, frame: Frame | None, limits: Limits) -> Decision | CheckerError:
        """Return what its end means: a Crash, and CheckerError where the referee reports its author's fault."""
        if done.gathered is None:
            return self.crash("left more in its feedback directory than can be brought back")
        self.feedback = dict(done.gathered)
        words = done.stderr or self.feedback.get("judgeerror.txt", b"")
        tail = words[-1000:].decode("utf-8", "replace").strip()
        if limited := decide_limits(done, limits):
            return self.crash(f"was stopped: {limited[1]}")
        if done.signal is not None:
            return self.crash(f"ended by signal {done.signal}", f": {tail}")
        if frame is not None and not frame["ok"]:
            return self.crash("raised an exception", f": {frame['error']}")
        if self.convention == "testlib" and done.exit_code == _FAIL:
            return self.fault(f"ended with exit code {_FAIL}, by which it says that the problem is at fault: {tail}")
        verdict = self._verdict(done)
        if verdict is None and self.convention == "score" and done.exit_code == 0:
            return self.crash("printed no score, which is a number and nothing else", f", but {done.stdout[:100]!a}")
        if verdict is None:
            is_part = self.convention == "testlib" and done.exit_code in _PARTIAL
            return self.crash(f"ended with exit code {done.exit_code}, {_PART if is_part else _UNREAD}", f"; {tail}")
        if NEXT_PASS in self.feedback and verdict is not Verdict.AC:
            return self.crash(f"wrote {NEXT_PASS}, but did not accept")
        if NEXT_PASS in self.feedback and self.left == 0:
            runs = "1 run" if self.passes == 1 else f"{self.passes} runs"
            return self.crash(f"asked for more than the problem's {runs} of a case")
        return ACCEPTED if verdict is Verdict.AC else (Verdict.WA, f"wrong, says the {self.role}")

    def _verdict(self, done: RunResult) -> Verdict | None:
        """Return what it says; None where that has no meaning."""
        if self.convention != "score":
            return EXITS[self.convention].get(done.exit_code if done.exit_code is not None else -1)
        if done.exit_code != 0 or not (score := _SCORE.fullmatch(done.stdout)):
            return None
        return Verdict.AC if float(score[1]) in _ACCEPTED_SCORES else Verdict.WA

    def fault(self, text: str) -> CheckerError:
        return CheckerError(f"the {self.role} {text}")

    def crash(self, brief: str, more: str = "") -> Crash:
        """Return a failure of which `more` is for the author alone."""
        return Crash(f"the {self.role} {brief}{more}", brief)

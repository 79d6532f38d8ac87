"""One jail for all submissions of a package: a program runs, and its cases are graded at a time limit.

A jail that fails is replaced, and what it did is done again.

Sources ─▶ Program ─▶ Judge ─▶ CaseResult per case ─▶ at the limit: Found per case ─▶ Grade per group
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Final

from sandbox.build.builder import Builder
from sandbox.core.nouns import Case, CaseResult, Isolation, Judgement, Program, Verdict
from sandbox.core.problem import Problem
from sandbox.errors import CheckerError
from sandbox.judging.judge import Judge, run_once
from sandbox.judging.tries import JailKeeper
from sandbox.kernel import inherited
from sandbox.kernel.clear import remove_tree
from sandbox.kernel.orphan_cleanup import reserve_directory
from sandbox.languages.table import find_language
from sandbox.packages import inputs
from sandbox.packages.expectations import Expected, SubmissionOutcome
from sandbox.packages.grading import Found, Grade, Grader
from sandbox.packages.package import Package
from sandbox.packages.programs import Sources, Unsupported
from sandbox.verify import outputs

VERDICT_CODES: Final = {
    **dict.fromkeys((Verdict.RE, Verdict.MLE, Verdict.OLE, Verdict.SEC), "RTE"),
    **{verdict: verdict.value for verdict in (Verdict.AC, Verdict.WA, Verdict.TLE, Verdict.CE)},
}


@dataclass(frozen=True, slots=True)
class Judged:
    """A submission's run and its result."""

    name: str
    judgement: Judgement | None
    """None when it was not run."""
    outcome: SubmissionOutcome | None
    language: str = ""
    expected: str = ""
    surprises: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    skipped: str = ""
    """Why it was not run."""
    failed: str = ""
    """Why there is no verdict: validator, grader or the sandbox failed."""
    cases: tuple[tuple[str, CaseResult], ...] = ()
    """By name; those that ran."""

    @property
    def slowest_s(self) -> float:
        return max((result.cpu_s for _, result in self.cases), default=0.0)

    @property
    def grade(self) -> Grade:
        return self.outcome.grades[""] if self.outcome and self.outcome.compiled else Grade("CE")


class Runner:
    """Use as a context manager."""

    def __init__(self, package: Package, *, isolation: Isolation = "auto", packages: Sequence[str] = ()) -> None:
        self.package = package
        self.names = [case.name for case in package.cases]
        self.grader = Grader(package.settings, package.tree, self._ask_grader)
        self._how = (isolation, tuple(packages))
        self._stack = ExitStack()
        self._graded: dict[tuple[tuple[str, ...], str], str] = {}
        self._problem = package.problem(1.0)

    def __enter__(self) -> Runner:
        isolation, packages = self._how
        with ExitStack() as stack:
            builds = reserve_directory()  # if this process is killed, the next one that starts a jail removes it
            stack.callback(remove_tree, builds)
            inherited.make_directory(builds, 0o711)
            self._builder = Builder(os.path.join(builds, "build"))
            self._keeper = JailKeeper(isolation, packages=packages, shared=self._builder.shared)
            stack.callback(self._keeper.close)
            self._keeper.use(lambda jail: None)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def check_inputs(self) -> inputs.Inputs:
        """Raises SandboxError."""
        validators = self.package.input_validators
        if not validators:
            return inputs.Inputs()
        limits = self.package.settings.bounds.validation
        data = self.package.data
        return self._keeper.use(
            lambda jail: inputs.check_inputs(validators, data, limits, jail.partner(), self._builder)
        )

    def check_outputs(self) -> outputs.Outputs:
        """Raises SandboxError."""
        return self._keeper.use(
            lambda jail: outputs.check_outputs(self.package, Judge(jail, self._builder, stop_at_first_failure=False))
        )

    def program(self, sources: Sources, said: Expected) -> tuple[Program, Problem]:
        """Return a submission's program and its problem. Raises Unsupported, InvalidProgram."""
        if "submit-answer" in self.package.settings.types:
            texts = {name: content.decode("utf-8", "surrogateescape") for name, content in sources.files.items()}
            answers = {case: texts[file] if file else "" for case, file in self._answer_files(sources).items()}
            return outputs.SAYS_ITS_ANSWER, self.package.problem(1.0, answers)
        program = self.package.submission(sources, code=said.language, entry=said.entry)
        allowed = self.package.settings.languages
        code = find_language(program.language).package_code
        if allowed is not None and code not in allowed:
            raise Unsupported(f"the package allows {', '.join(allowed)}, not {code}")
        return program, self._problem

    def _answer_files(self, sources: Sources) -> dict[str, str | None]:
        """By case, a file called like it: secret/1.out or 1.out. One file alone is the answer of the one case."""
        if len(self.names) == 1 and len(sources.files) == 1:
            return dict(zip(self.names, sources.files, strict=True))
        found: dict[str, str | None] = {}
        for name in self.names:
            called = (f"{stem}{ending}" for stem in (name, name.rpartition("/")[2]) for ending in (".out", ".ans"))
            found[name] = next((each for each in called if each in sources.files), None)
        return found

    def _answer_notes(self, sources: Sources) -> Iterator[str]:
        files = self._answer_files(sources)
        yield from (f"has no answer to {name}" for name, file in files.items() if file is None)
        yield from (f"{file} answers no test case" for file in sources.files if file not in files.values())

    def run(self, sources: Sources, said: Expected, cpu_s: float, limit_s: float) -> Judged:
        """Run a submission under `cpu_s`, as long as its verdict at `limit_s` is open.

        Raises Unsupported, SandboxError.
        """
        program, problem = self.program(sources, said)
        if sources.size > (most := self.package.settings.bounds.code_bytes) and program is not outputs.SAYS_ITS_ANSWER:
            note = f"its source of {sources.size} bytes is longer than the code limit of {most}"
            return Judged("", None, None, program.language, notes=(note,))
        problem = replace(problem, limits=replace(problem.limits, cpu_s=cpu_s))
        asked = ""

        def wanted(index: int, results: Sequence[CaseResult]) -> bool:
            nonlocal asked
            asked = f"{self.names[index]}: "
            if limit_s == math.inf and results and results[-1].verdict is Verdict.TLE:
                return False  # this says nothing about the time limit, and the other cases may take as long
            return self.grader.wanted(self.names[index], self._found(results, limit_s))

        try:
            judgement = self._keeper.use(lambda jail: Judge(jail, self._builder, wanted=wanted).judge(problem, program))
        except CheckerError as error:
            raise CheckerError(f"{asked}{error}") from error
        named = tuple((self.names[result.index], result) for result in judgement.cases)
        notes = tuple(self._answer_notes(sources)) if "submit-answer" in self.package.settings.types else ()
        return Judged("", judgement, None, program.language, cases=named, notes=notes)

    def _found(self, results: Sequence[CaseResult], limit_s: float) -> dict[str, Found]:
        return {
            self.names[result.index]: Found(
                "TLE" if result.cpu_s > limit_s else VERDICT_CODES[result.verdict], dict(result.feedback)
            )
            for result in results
        }

    def outcome(self, judged: Judged, limit_s: float) -> SubmissionOutcome:
        """Return the result of a run at a time limit. Raises CheckerError where validator or grader break a rule."""
        best, minimise = self.grader.score_range(), self.package.settings.minimise
        done = judged.judgement
        if done is None or done.verdict is Verdict.CE:
            return SubmissionOutcome({}, {}, best, minimise, compiled=False)
        results = self._found(done.cases, limit_s)
        return SubmissionOutcome(results, self.grader.grade(results), best, minimise)

    def _ask_grader(self, flags: Sequence[str], text: str) -> str:
        key = (tuple(flags), text)
        if key not in self._graded:
            program = self.package.grader
            if program is None:
                raise CheckerError("grading is custom, and there is no program in graders/")
            problem = Problem("grader", "stdio", (Case(text, "-", arguments=key[0]),))
            result, output, errors, _ = run_once(problem, program, isolation=self._how[0])
            if result.verdict is not Verdict.AC:
                raise CheckerError(f"the grader failed: {result.message} {errors[-500:].decode('utf-8', 'replace')}")
            self._graded[key] = output.decode("utf-8", "replace")
        return self._graded[key]

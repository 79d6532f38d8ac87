"""Input validators: each reads the input of every test case and verifies that it is as the statement promises.

input_validators/ ── programs ─▶ run in the jail: [arguments] < X.in ─▶ 42, or a Refusal
data/invalid_input/ ── at least one of them must refuse
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sandbox.build.builder import Builder
from sandbox.core.nouns import Limits, Program
from sandbox.errors import InvalidProblem, InvalidProgram
from sandbox.jail.jail import Jail
from sandbox.jail.run import RunResult
from sandbox.judging.prepared import CompileError, PreparedProgram
from sandbox.judging.verdicts import decide_limits
from sandbox.packages.links import INPUT_VALIDATORS
from sandbox.packages.programs import Unsupported, case_files, language_of, make_program, read_sources
from sandbox.packages.settings import Settings
from sandbox.packages.tree import TestCase, TestData

_ACCEPTS: Final = 42
_SCRIPTS: Final = ("build", "run")


@dataclass(frozen=True, slots=True)
class InputValidator:
    name: str
    """Of its file or directory, with the ending."""
    program: Program

    def arguments(self, case: TestCase) -> tuple[str, ...]:
        """The validator's own, then those of the program that is judged."""
        given = case.input_arguments
        own = next((given[name] for name in (self.name, Path(self.name).stem, "") if name in given), ())
        return (*own, *case.arguments)


@dataclass(frozen=True, slots=True)
class Refusal:
    validator: str
    case: str
    """Relative to data/; "" when it reads none, for it does not compile."""
    why: str


@dataclass(frozen=True, slots=True)
class Inputs:
    """Results of the input validators for all inputs."""

    validators: tuple[str, ...] = ()
    accepted: int = 0
    """By every one of them."""
    refusals: tuple[Refusal, ...] = ()
    passed_over: tuple[str, ...] = ()
    """Invalid inputs that none of them refuses."""
    invalid: int = 0

    @property
    def surprises(self) -> int:
        return len(self.refusals) + len(self.passed_over)


def read_validators(
    package: Path, settings: Settings, data: TestData, leaving: frozenset[Path] = frozenset()
) -> tuple[tuple[InputValidator, ...], list[str]]:
    """Return the input validators, and notes on those that cannot be run.

    leaving: links that lead out of the package, and are not followed.
    """
    found: list[InputValidator] = []
    notes: list[str] = []
    folders = [package / name for name in INPUT_VALIDATORS if package / name not in leaving]
    for path in sorted(path for folder in folders for path in folder.glob("*")):
        if path.name[0] in ".-" or path.name.startswith("README"):
            continue
        try:
            sources = read_sources(path, leaving)
            script = next((name for name in _SCRIPTS if name in sources.files), None)
            if script is not None:
                raise Unsupported(f"scripts like its {script!r} are not supported")
            found.append(InputValidator(path.name, make_program(sources, language_of(sources), settings)))
        except (Unsupported, InvalidProblem, InvalidProgram, OSError) as error:
            notes.append(f"{path.parent.name}/{path.name} is not run: {error}")
    if not found:
        notes.append("no input validator is run: nobody looks whether the inputs are as the statement says")
    known = {"", *(name for each in found for name in (each.name, Path(each.name).stem))}
    cases = (*data.tree.cases(), *(each.case for each in data.outputs), *data.invalid)
    unknown = {name: case.name for case in reversed(cases) for name in case.input_arguments if name not in known}
    for name, case in unknown.items() if found else ():
        notes.append(f"data/{case}: arguments are for the input validator {name!r}, and there is none")
    return tuple(found), notes


def check_inputs(
    validators: tuple[InputValidator, ...], data: TestData, limits: Limits, jail: Jail, builder: Builder
) -> Inputs:
    """Check all inputs by all validators. `jail`: one where no judged program has run. Raises SandboxError."""
    written = tuple(each.case for each in data.outputs if not each.case.name.startswith("sample/"))
    cases = (*data.tree.cases(), *written, *data.invalid)
    refusals = [each for validator in validators for each in _refusals(validator, cases, limits, jail, builder)]
    broken = any(not each.case for each in refusals)
    valid = {case.name for case in (*data.tree.cases(), *written)}
    refused = {each.case for each in refusals}
    return Inputs(
        validators=tuple(each.name for each in validators),
        accepted=0 if broken else len(valid - refused),
        refusals=tuple(each for each in refusals if not each.case or each.case in valid),
        passed_over=tuple(case.name for case in data.invalid if not broken and case.name not in refused),
        invalid=len(data.invalid),
    )


def _refusals(
    validator: InputValidator, cases: tuple[TestCase, ...], limits: Limits, jail: Jail, builder: Builder
) -> Iterator[Refusal]:
    try:
        with PreparedProgram(jail, builder, validator.program) as prepared:
            stopped = ""
            for case in cases:
                if stopped:
                    yield Refusal(validator.name, case.name, stopped)
                    continue
                arguments, files = validator.arguments(case), tuple(case_files(case.files).items())
                done, _ = prepared.run(limits, case.input.read_bytes(), arguments=arguments, files=files)
                if why := _why(done, limits):
                    yield Refusal(validator.name, case.name, why)
                if done.cause is not None:
                    stopped = f"not asked, for on data/{case.name}.in it {why}"
    except CompileError as error:
        yield Refusal(validator.name, "", f"does not compile: {str(error)[:2000]}")


def _why(done: RunResult, limits: Limits) -> str:
    """Return the reason of a refusal; "" where the validator accepts."""
    if limited := decide_limits(done, limits):
        return f"was stopped: {limited[1]}"
    if done.exit_code == _ACCEPTS:
        return ""
    end = f"signal {done.signal}" if done.signal is not None else f"exit code {done.exit_code}"
    said = " ".join((done.stdout[-500:] + b" " + done.stderr[-500:]).decode("utf-8", "replace").split())
    return f"{end}: {said[-300:]}" if said else end

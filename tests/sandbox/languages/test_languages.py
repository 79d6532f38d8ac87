"""Each language of the table: its self-test, its ways to end, its functions and asserts, in the jail."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from toolchains import need
from wide import wide

from sandbox import Case, InvalidProblem, Judgement, Limits, Problem, Program, Verdict
from sandbox.build.builder import Builder
from sandbox.core.nouns import MIB
from sandbox.doctor.doctor import self_test
from sandbox.jail.jail import Jail
from sandbox.judging.judge import Judge
from sandbox.languages.table import LANGUAGES, find_language

LIMITS = Limits(cpu_s=10, wall_s=100, memory_bytes=256 * MIB)


@pytest.fixture(scope="module")
def judge_in_b(builder: Builder) -> Iterator[Judge]:
    with Jail("B", shared=builder.shared) as jail:
        yield Judge(jail, Builder(builder.directory / "b"))


def run(judge: Judge, language: str, source: str, limits: Limits = LIMITS) -> Judgement:
    need(language)
    return judge.judge(Problem("p", "stdio", (Case("", "ok"),), limits=limits), Program(source, language))


@pytest.mark.promise("languages")
@pytest.mark.parametrize("language", LANGUAGES)
def test_every_language_passes_its_own_test(judge: Judge, language: str) -> None:
    need(language)
    passed, detail = self_test(judge, find_language(language))
    assert passed, detail
    assert any(character.isdigit() for character in detail)


@pytest.mark.parametrize("language", ["python", "c", *map(wide, LANGUAGES)])
def test_a_language_passes_its_own_test_in_tier_b_too(judge_in_b: Judge, language: str) -> None:
    need(language)
    assert self_test(judge_in_b, find_language(language))[0]


@pytest.mark.parametrize("language", ["python", "c", wide("cpp"), *map(wide, [*LANGUAGES][3:])])
def test_every_language_has_a_program_for_each_way_to_end(judge: Judge, language: str) -> None:
    samples, short = find_language(language).samples, Limits(cpu_s=0.8, wall_s=60, memory_bytes=256 * MIB)
    assert run(judge, language, samples.fails).verdict is Verdict.RE
    assert run(judge, language, samples.spins, short).verdict is Verdict.TLE
    hoards = run(judge, language, samples.hoards)
    assert hoards.verdict is Verdict.MLE, (hoards.compile_log, hoards.cases)
    broken = run(judge, language, samples.broken)
    assert broken.verdict is Verdict.CE
    assert find_language(language).source in broken.compile_log


KINDS = [(name, kind) for name in LANGUAGES for kind in find_language(name).harness]
DEFAULT = [("python", "function"), ("cpp", "function"), ("javascript", "assert"), ("c", "assert")]


@pytest.mark.promise("languages")
@pytest.mark.parametrize(("language", "kind"), [row if row in DEFAULT else wide(*row) for row in KINDS])
def test_every_kind_of_a_language_tells_right_from_wrong_and_from_an_early_end(
    judge: Judge, language: str, kind: str
) -> None:
    need(language)
    asked = find_language(language).samples.asked[kind]
    case = Case(asked.case, "2" if kind == "function" else None)
    fn_name = "f" if kind == "function" else None
    problem = Problem("p", kind, (case,), fn_name, language=language, limits=LIMITS)  # type: ignore[arg-type]
    right, wrong, early = (
        judge.judge(problem, Program(source, language)) for source in (asked.right, asked.wrong, asked.early)
    )
    assert right.verdict is Verdict.AC, (right.compile_log, right.cases)
    assert right.weak is (kind == "assert" and not find_language(language).warm)
    assert wrong.verdict == asked.wrong_is, (wrong.compile_log, wrong.cases)
    shown = str(wrong.cases[0].got and wrong.cases[0].got.head)
    assert shown == "3" or (kind == "assert" and shown.endswith("= 3") is find_language(language).warm)
    assert right.cases[0].got is None
    assert early.verdict is Verdict.RE, (early.compile_log, early.cases)
    if "before its result" in early.cases[0].message:
        assert find_language(language).harness[kind].complete in early.cases[0].message


@pytest.mark.parametrize(
    "source",
    [
        'class A { public static void main(String[] a) {} } class Main { public static void main(String[] a) { System.out.println("ok"); } }',  # noqa: E501
    ],
)
def test_java_starts_main_or_else_the_first_class_that_can_be_started(judge: Judge, source: str) -> None:
    assert run(judge, "java", source).verdict is Verdict.AC


@pytest.mark.parametrize(
    ("language", "source", "verdict"),
    [
        wide("cpp", "double f() { return 2; }", Verdict.WA),  # a float where an int is expected
        ("cpp", "int f(int a) { return a; }", Verdict.RE),
        wide("java", "class Solution { boolean f() { return true; } }", Verdict.WA),
        ("javascript", "const f = () => '2'", Verdict.WA),
        ("javascript", "const g = () => 2", Verdict.RE),
    ],
)
def test_another_type_and_a_missing_function_are_no_success(
    judge: Judge, language: str, source: str, verdict: Verdict
) -> None:
    need(language)
    problem = Problem("p", "function", (Case("[]", "2"),), fn_name="f", limits=LIMITS)
    assert judge.judge(problem, Program(source, language)).verdict is verdict


def test_asserts_in_one_language_do_not_judge_programs_of_another(judge: Judge) -> None:
    with pytest.raises(InvalidProblem, match="language='cpp'"):
        judge.judge(Problem("p", "assert", (Case("int main() {}"),), language="cpp"), Program("", "c"))

"""Each language of the table: its self-test, its ways to end, its functions and asserts, in the jail."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from package_files import NEW, write_package
from places import ROOT
from toolchains import need
from wide import wide

from sandbox import Case, InvalidProblem, Judgement, Limits, Problem, Program, Verdict
from sandbox.build.builder import Builder
from sandbox.cli import main
from sandbox.compare import modes
from sandbox.core.nouns import MIB
from sandbox.core.problem import Convention, Kind
from sandbox.doctor.doctor import self_test
from sandbox.jail.jail import Jail
from sandbox.judging import referee
from sandbox.judging.judge import Judge
from sandbox.languages.language import Samples
from sandbox.languages.table import LANGUAGES, by_suffix, find_language
from sandbox.packages import verify

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


# --- the table --------------------------------------------------------------------------------------------------------


DOCS = ROOT / "docs" / "sandbox"


def test_a_language_that_is_only_an_entry_of_the_table_is_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    need("c")
    names = {"name": "fake", "title": "Fake", "suffixes": (".fake",), "aliases": ()}
    monkeypatch.setitem(LANGUAGES, "fake", dataclasses.replace(LANGUAGES["c"], **names))
    program = '#include <stdio.h>\nint main(void) { int a, b; scanf("%d%d", &a, &b); printf("%d", a + b); }'
    files = {
        "problem.yaml": NEW + "limits: {time_limit: 1}\n",
        "submissions/accepted/a.fake": program,
    }
    package = write_package(tmp_path, files)
    assert main(["verify", str(package)]) == 0, capsys.readouterr()
    assert "1 submissions judged" in capsys.readouterr().out
    argv = ["judge", str(package), str(package / "submissions/accepted/a.fake"), "--language", "fake"]
    assert main(argv) == 0, capsys.readouterr()


def test_an_entry_without_all_its_samples_cannot_be_made() -> None:
    python = find_language("python")
    bare = dataclasses.replace(python.samples, asked={"function": python.samples.asked["function"]})
    with pytest.raises(ValueError, match=r"language 'python': give a sample for each .* \['assert', 'function'\]"):
        dataclasses.replace(python, samples=bare)
    with pytest.raises(TypeError, match="missing"):
        Samples(adds="", fails="", hoards="", spins="", broken="")  # type: ignore[call-arg]
    assert all(dataclasses.asdict(language.samples)["adds"] for language in LANGUAGES.values())


def test_no_name_or_suffix_means_two_languages() -> None:
    table = LANGUAGES.values()
    for names in (
        [name for language in table for name in (language.name, *language.aliases)],
        [suffix for language in table for suffix in language.suffixes],
    ):
        assert sorted(set(names)) == sorted(names)
    for language in table:
        assert all(find_language(name.upper()) is language for name in language.aliases)
        assert all(by_suffix(suffix) is language for suffix in language.suffixes)


def test_readme_and_documents_list_every_language_and_its_kinds() -> None:
    titles = [language.title for language in LANGUAGES.values()]
    assert f"| languages | {', '.join(titles)} |" in (ROOT / "sandbox" / "README.md").read_text("utf-8")
    rows = [
        f"| {language.title} | `{language.name}` | {' '.join(f'`{suffix}`' for suffix in language.suffixes)} | "
        f"{', '.join(language.kinds)} |"
        for language in LANGUAGES.values()
    ]
    page = (DOCS / "overview.md").read_text("utf-8").partition("\n## Languages\n")[2].partition("\n## ")[0].splitlines()
    assert [line for line in page if line.startswith("| ") and line.count("|") == 5][1:] == rows


def test_every_choice_has_its_place_in_each_table_that_is_looked_up_by_it() -> None:
    assert {verify.code(verdict) for verdict in Verdict} == {"AC", "WA", "TLE", "RTE", "CE"}
    assert set(referee.ARGUMENTS) == {*referee.EXITS, "score"} == set(get_args(Convention))
    kinds = {kind for language in LANGUAGES.values() for kind in language.kinds} | {"interactive"}
    assert kinds == set(get_args(Kind))
    page = (DOCS / "overview.md").read_text("utf-8")
    for name in (*Verdict, *get_args(Kind), *get_args(Convention), *modes.MODES, modes.CHECKER):
        assert f"`{name}`" in page, name

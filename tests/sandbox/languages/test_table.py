"""A language is complete with its entry in the table: nothing else in the repository lists languages by hand."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import get_args

import pytest
from package_files import NEW, write_package
from places import ROOT
from toolchains import need

from sandbox import Verdict
from sandbox.cli import main
from sandbox.compare import modes
from sandbox.core.problem import Convention, Kind
from sandbox.judging import referee
from sandbox.languages.language import Samples
from sandbox.languages.table import LANGUAGES, by_suffix, find_language
from sandbox.packages import verify

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

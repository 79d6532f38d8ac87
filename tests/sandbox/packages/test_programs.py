"""Programs of a package: their language, what include/ adds, constants, coding."""

from __future__ import annotations

from pathlib import Path

import pytest
from package_files import LEGACY, NEW, write_package

from sandbox.core.nouns import Program
from sandbox.packages.package import read_package
from sandbox.packages.programs import Sources, Unsupported, language_of, read_sources


def sources(**files: str) -> Sources:
    return Sources(Path("x"), {name.replace("_", "."): text.encode() for name, text in files.items()})


def test_a_language_is_known_by_the_endings_of_most_files() -> None:
    assert language_of(sources(a_py="")).name == "python"
    assert language_of(sources(a_cc="", b_h="", c_cpp="", d_py="")).name == "cpp"
    assert language_of(sources(a_C="")).name == "cpp"
    assert language_of(sources(a_txt=""), "java").name == "java"


@pytest.mark.parametrize(
    ("files", "code", "word"),
    [
        ({"a_kt": ""}, "", r"'\.kt'"),
        ({"a_py": "#!/usr/bin/env python2\n"}, "", "Python 2"),
        ({"a_py": "", "b_java": ""}, "", "java and python"),
        ({"a_py": ""}, "haskell", "'haskell'"),
        ({"README": ""}, "", "no supported language"),
    ],
)
def test_a_language_that_is_not_here_is_named(files: dict[str, str], code: str, word: str) -> None:
    with pytest.raises(Unsupported, match=word):
        language_of(sources(**files), code)


def test_include_lies_over_a_submission_by_language_and_constants_are_filled_in(tmp_path: Path) -> None:
    package = write_package(
        tmp_path,
        {
            "problem.yaml": NEW + "constants: {most: 10}\n",
            "include/default/words.txt": "{{most}} {{other}}",
            "include/default/util.py": "default = 1",
            "include/python3/util.py": "most = {{most}}",
            "include/java/Main.java": "class Main {}",
            "submissions/accepted/a.py": "import util # {{most}}",
            "submissions/accepted/b/main.py": "",
            "submissions/accepted/b/util.py": "mine = 1",
            "submissions/accepted/b/.git/x": "",
        },
    )
    found = read_package(package)
    one = found.submission(read_sources(package / "submissions/accepted/a.py"))
    assert dict(one.files) == {"a.py": "import util # 10", "words.txt": "10 {{other}}", "util.py": "most = 10"}
    several = found.submission(read_sources(package / "submissions/accepted/b"))
    assert dict(several.files) == {"main.py": "\npass\n", "util.py": "most = 10", "words.txt": "10 {{other}}"}


@pytest.mark.parametrize(
    ("include", "entry"),
    [({"python3/alib.py": ""}, "sol.py"), ({"python3/main.py": ""}, ""), ({"default/words.txt": ""}, "sol.py")],
)
def test_a_program_starts_in_its_own_file_unless_a_driver_is_included(
    tmp_path: Path, include: dict[str, str], entry: str
) -> None:
    files = {f"include/{name}": text for name, text in include.items()}
    package = write_package(tmp_path, {"problem.yaml": NEW, **files, "submissions/accepted/sol.py": "pass"})
    assert read_package(package).submission(read_sources(package / "submissions/accepted/sol.py")).entry == entry


def test_a_python_source_is_read_by_the_coding_that_it_declares(tmp_path: Path) -> None:
    package = read_package(write_package(tmp_path, {"problem.yaml": LEGACY}))
    assert package.submission(Sources(tmp_path, {"a.py": b"pass"})) == Program("pass", "python")
    content = "# coding: latin-1\nx = 'ä'".encode("latin-1")
    assert package.submission(Sources(tmp_path, {"a.py": content})).source.endswith("'ä'")
    assert "\udce4" in package.submission(Sources(tmp_path, {"a.cpp": content})).source


CUSTOM = LEGACY + "validation: custom\n"


@pytest.mark.parametrize(
    ("version", "files", "names"),
    [
        (CUSTOM, ["v.py"], []),
        (CUSTOM, ["v/a.cc", "v/a.h"], ["a.cc", "a.h"]),
        (CUSTOM, ["a.cc", "a.h"], ["a.cc", "a.h"]),
        (NEW, ["v.py"], []),
        (NEW, ["v/a.cc", "v/a.h"], ["a.cc", "a.h"]),
        (NEW, ["__main__.py", "__init__.py"], ["__init__.py", "__main__.py"]),
        (NEW, ["README.md", "v.py"], []),
    ],
)
def test_a_validator_is_a_file_or_a_directory(tmp_path: Path, version: str, files: list[str], names: list[str]) -> None:
    folder = "output_validator" if version == NEW else "output_validators"
    written = {"problem.yaml": version} | {f"{folder}/{name}": "1" for name in files}
    validator = read_package(write_package(tmp_path, written)).validator
    assert validator is not None
    assert [name for name, _ in validator.files] == names


def test_a_validator_that_the_package_does_not_ask_for_is_said_to_be_unused(tmp_path: Path) -> None:
    package = read_package(write_package(tmp_path, {"problem.yaml": LEGACY, "output_validators/v.py": "1"}))
    assert package.validator is None
    assert any("output_validators/ is not used" in note for note in package.notes)

"""A failed case as people see it: a short difference in which nothing a program wrote forges a line."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from package_files import Command

from sandbox import Case, Excerpt, Problem, diff_lines, terminal
from sandbox.differences import LINES_MAX

NUMBERS = [*range(100)]


@pytest.mark.parametrize(
    ("expected", "got", "lines"),
    [
        ("7", "8\n", ["- 7", "+ 8"]),
        ("1\n2\n3", "1 \n2\n4\n\n", ["  1", "  2", "- 3", "+ 4"]),
        ("7", "", ["- 7", "@ nothing was printed"]),
        ("", "7", ["+ 7"]),
        ("a b\nc", "a  b\nc\n", ["- a·b", "+ a··b", "  c"]),
        ("x\ty", "x y", ["- x→y", "+ x·y"]),
        ("7", "7 \n", ["- 7", "+ 7·⏎"]),
        ("a\nb", "a\nb\n", ["  a", "- b", "+ b⏎"]),
        ("1\r\n", "1\n", ["- 1␍⏎", "+ 1⏎"]),
        ("7", "7", []),
        ("a", "\x1b[2Kb\r- c", ["- a", "+ \\x1b[2Kb\\r- c"]),
        ("x" * 300 + "a", "x" * 300 + "b", ["- …" + "x" * 20 + "a", "+ …" + "x" * 20 + "b"]),
        ("a" * 5000 + "b" + "a" * 5000, "a" * 5000 + "c" + "a" * 5000, ["@ they differ in what is left out here"]),
    ],
)
def test_a_difference_shows_what_is_not_the_same_and_white_space_where_that_alone_differs(
    expected: str, got: str, lines: list[str]
) -> None:
    assert diff_lines(expected, got) == lines
    assert diff_lines(Excerpt.of(expected), Excerpt.of(got)) == lines


@pytest.mark.parametrize(
    ("expected", "got", "lines"),
    [
        ("[1,2,3]", "[1, 2, 4]", ["- [1, 2, 3]", "+ [1, 2, 4]"]),
        ("true", "1", ["- true", "+ 1"]),
        ("null", "[]", ["- null", "+ []"]),
        ("[1]", "{1}", ["- [1]", "+ {1}"]),
        (json.dumps(NUMBERS), json.dumps([*NUMBERS[:50], -1, *NUMBERS[51:]]), ["-   50,", "+   -1,"]),
        (
            '{"a": [' + "1, " * 30 + '1], "b": 2}',
            '{"a": [' + "1, " * 30 + '1], "b": 3}',
            ['-   "b": 2,', '+   "b": 3,'],
        ),
    ],
)
def test_values_are_compared_as_json_an_item_a_line(expected: str, got: str, lines: list[str]) -> None:
    assert [line for line in diff_lines(expected, got, kind="function") if line[0] in "-+"] == lines


def test_a_long_difference_is_cut_and_says_by_how_much() -> None:
    found = diff_lines("\n".join("ab"), "\n".join(map(str, range(200))))
    assert len(found) == LINES_MAX + 1
    assert found[-1].endswith("lines left out")
    far = diff_lines("\n".join(map(str, NUMBERS)), "\n".join(map(str, [*NUMBERS[:90], 0])))
    assert far[0] == "@ from line 89"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    kinds = {
        "stdio": Problem("p", "stdio", (Case("3 4\n", "7"), Case("5 6\n", "11"))),
        "function": Problem("p", "function", (Case("[3]", "[3, 4]"),), fn_name="f"),
        "assert": Problem("p", "assert", (Case("assert f(3) == [3, 4]"),)),
    }
    for name, problem in kinds.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(problem.to_json()))
    (tmp_path / "stdio.py").write_text("print(7)")
    (tmp_path / "dies.py").write_text("print(7)\nif input() == '5 6': raise ValueError('no')")
    (tmp_path / "function.py").write_text("def f(x): return [x, 5]")
    return tmp_path


@pytest.mark.parametrize(
    ("problem", "program", "lines"),
    [
        ("stdio", "stdio", ["test 2  WA  wrong output  (exit code 0)", "input", "    5 6", "- 11", "+ 7"]),
        ("stdio", "dies", ["test 2  RE  exit code 1: ValueError: no", "stderr", "    ValueError: no"]),
        ("function", "function", ["    [3]", "- [3, 4]", "+ [3, 5]"]),
        ("assert", "function", ["the test", "    assert f(3) == [3, 4]", "its calls gave", "    f(3) = [3, 5]"]),
    ],
)
def test_judge_shows_the_first_failed_case_when_asked(
    files: Path, command: Command, problem: str, program: str, lines: list[str]
) -> None:
    asked = "judge", files / f"{problem}.json", files / f"{program}.py"
    plain = command(1, *asked).out
    shown = command(1, *asked, "--diff").out
    assert "expected" not in plain
    assert "\x1b" not in shown
    assert set(lines) <= set(shown.splitlines()), shown


def test_an_accepted_program_has_no_difference_and_json_has_no_form_of_it(files: Path, command: Command) -> None:
    (files / "right.py").write_text("print(sum(map(int, input().split())))")
    shown = command(0, "judge", files / "stdio.json", files / "right.py", "--diff").out
    assert shown.splitlines()[-1].startswith("AC  2 of 2")
    assert "cases[..].got" in command(2, "judge", files / "stdio.json", files / "right.py", "--diff", "--json").err


class Tty(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "settings", "coloured"),
    [
        (Tty(), {}, True),
        (Tty(), {"NO_COLOR": "1"}, False),
        (Tty(), {"NO_COLOR": ""}, True),
        (Tty(), {"TERM": "dumb"}, False),
        (io.StringIO(), {}, False),
    ],
)
def test_colours_are_for_terminals_that_want_them(
    monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, settings: dict[str, str], coloured: bool
) -> None:
    for name, value in ({"NO_COLOR": "", "TERM": "xterm"} | settings).items():
        monkeypatch.setenv(name, value)
    terminal.print_coloured(["- 7", "+ 8"], stream)
    assert stream.getvalue() == ("\x1b[31m- 7\x1b[0m\n\x1b[32m+ 8\x1b[0m\n" if coloured else "- 7\n+ 8\n")


def test_the_zoo_shows_a_program_its_problem_and_what_the_sandbox_says_now(command: Command) -> None:
    shown = command(0, "zoo", "--show", "01-exit-before-asserts-1").out
    for part in (
        "a hostile program in python",
        "row 1:",
        "what stops it:",
        "   2 | sys.exit(0)",
        "expected RE; the sandbox says RE",
    ):
        assert part in shown
    assert "expected AC; the sandbox says AC" in command(0, "zoo", "--show", "01-exit-before-asserts-twin-1").out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("exit-befor", "near it: exit-before-asserts"),
        ("qqqq", "`sandbox zoo` lists the entries"),
        ("", "`sandbox zoo` lists the entries"),
        ("17 --json", "leave out"),
    ],
)
def test_a_name_that_the_zoo_does_not_have_is_one_line_with_those_that_are_near(
    command: Command, words: str, said: str
) -> None:
    told = command(2, "zoo", "--show", *(words.split(" ") or [""]))
    assert said in told.err
    assert len(told.err.splitlines()) == 1

"""``scripts/checks/promises.py`` on small trees: marks and rows that fit, and each way in which they do not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT

TABLE = "| key | promise | tests | more with `--wide` |\n|---|---|---|---|\n"
ROW = TABLE + "| `gate` | no dummy token is served | 2 | two engines |\n"
MARK = '@pytest.mark.promise("gate")\n'
ONE, TWO = (f"def test_{name}(): ...\n" for name in ("one", "two"))
HELD = MARK + ONE + "@pytest.mark.timeout(9)\n" + MARK + "async " + TWO
WIDE = "@pytest.mark.wide\n" + HELD.replace("@pytest.mark.timeout(9)", "@pytest.mark.wide")


def checked(root: Path, document: str, tests: str, *words: str) -> tuple[int, list[str]]:
    """Exit code and lines of the check for a document and one file of tests."""
    for path, text in (("docs/tests.md", document), ("tests/test_a.py", tests)):
        (root / path).parent.mkdir()
        (root / path).write_text(text)
    command = [sys.executable, str(ROOT / "scripts" / "checks" / "promises.py"), str(root), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    return done.returncode, done.stdout.splitlines()


@pytest.mark.parametrize(
    ("document", "tests", "line"),
    [
        pytest.param(ROW, MARK + ONE + TWO, "gate: 2 tests by its row, 1 with its mark: mark the test", id="gone"),
        pytest.param(ROW, HELD + MARK + "def test_3(): ...", "2 tests by its row, 3 with its mark: write 3", id="more"),
        pytest.param(ROW, ONE, "gate: 2 tests by its row, 0 with its mark, none that runs by default", id="none"),
        pytest.param(ROW, WIDE, "gate: 2 tests by its row, 2 with its mark, none that runs by default", id="wide only"),
        pytest.param(
            ROW, HELD + MARK.replace("gate", "gaet") + "def test_3(): ...",
            "tests/test_a.py::test_3: no row of docs/tests.md has the key 'gaet'", id="a mark without a row",
        ),
        pytest.param(ROW + ROW, HELD, "gate: two rows have this key", id="two rows"),
        pytest.param(TABLE, ONE, "docs/tests.md: no table of promises was found", id="no table"),
    ],
)  # fmt: skip
def test_one_line_says_which_promise_is_not_held_as_its_row_says(
    tmp_path: Path, document: str, tests: str, line: str
) -> None:
    code, told = checked(tmp_path, document, tests)
    assert code == 1
    assert len(told) == 1
    assert line in told[0]


@pytest.mark.parametrize(
    "tests",
    [
        HELD,
        "pytestmark = [pytest.mark.e2e, pytest.mark.promise('gate')]\n" + ONE + TWO,
        f"{MARK}class TestGate:\n    {ONE}    {TWO}",
        f"class TestGate:\n    pytestmark = pytest.mark.promise('gate')\n    {ONE}    {TWO}",
    ],
)
def test_a_test_may_have_the_mark_of_its_class_or_module(tmp_path: Path, tests: str) -> None:
    assert checked(tmp_path, ROW, tests) == (0, ["1 promises, held by 2 tests"])


def test_the_tests_of_a_promise_are_listed_as_pytest_names_them(tmp_path: Path) -> None:
    tests = MARK.replace(")", ', "parity")') + f"class TestGate:\n    {ONE}" + MARK + TWO
    assert checked(tmp_path, ROW, tests, "--list", "parity") == (0, ["tests/test_a.py::TestGate::test_one"])

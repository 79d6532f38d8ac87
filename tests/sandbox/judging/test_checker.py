"""Custom checkers: they decide, in a run of their own; what goes wrong in them is never a verdict."""

from __future__ import annotations

import pytest
from wide import wide

from sandbox import Case, CheckerError, Judgement, Limits, Problem, Program, Verdict
from sandbox.judging.judge import Judge

LIMITS = Limits(cpu_s=2, wall_s=30)

# Any two numbers with the given sum. testlib convention.
SUM_OF_TWO = Program("""
import sys
given, output, answer = (open(name).read().split() for name in sys.argv[1:])
try:
    a, b = map(int, output)
except ValueError:
    sys.exit(2)
sys.exit(0 if a + b == int(given[0]) else 1)
""")
SUM_OF_TWO_CPP = Program(
    """
#include <fstream>
#include <iostream>
int main(int, char **argv) {
    std::ifstream given(argv[1]);
    long want, a, b;
    given >> want;
    if (!(std::cin >> a >> b)) return 43;
    std::ofstream(std::string(argv[3]) + "/judgemessage.txt") << "seen";
    return a + b == want ? 42 : 43;
}
""",
    "cpp",
)
CONVENTIONS = [("testlib", SUM_OF_TWO), wide("kattis", SUM_OF_TWO_CPP)]


def checked(judge: Judge, source: str, checker: Program, *cases: Case, **fields: object) -> Judgement:
    options = {"limits": LIMITS, "compare": "checker", "checker": checker, **fields}
    problem = Problem("p", "stdio", cases or (Case("7"), Case("10")), **options)  # type: ignore[arg-type]
    return judge.judge(problem, Program(source))


@pytest.mark.parametrize(("convention", "checker"), CONVENTIONS)
@pytest.mark.parametrize(
    ("source", "verdict"),
    [
        ("n = int(input()); print(1, n - 1)", Verdict.AC),
        ("n = int(input()); print(n + 5)\nprint(-5)", Verdict.AC),
        ("print(3, 4)", Verdict.WA),
        ("print('no number')", Verdict.WA),
        ("pass", Verdict.WA),
        ("n = int(input()); print(1, n - 1); 1 / 0", Verdict.RE),
        ("n = int(input()); print(1, n - 1, flush=True)\nwhile True: pass", Verdict.TLE),
        ("1 +", Verdict.CE),
    ],
)
def test_the_checker_decides_about_clean_ends_only(
    judge: Judge, convention: str, checker: Program, source: str, verdict: Verdict
) -> None:
    limits = Limits(cpu_s=0.3, wall_s=30)
    assert checked(judge, source, checker, convention=convention, limits=limits).verdict is verdict


def test_the_checker_gets_input_output_and_answer(judge: Judge) -> None:
    checker = Program(
        "import sys\ntexts = [open(name, 'rb').read() for name in sys.argv[1:]]\n"
        "sys.exit(0 if texts == [b'in \\xc3\\xa9', b'out\\xff', b'ans'] else 1)"
    )
    source = "import sys; sys.stdout.buffer.write(b'out\\xff')"
    assert checked(judge, source, checker, Case("in é", "ans")).verdict is Verdict.AC
    assert checked(judge, source, checker, Case("in é", "other")).verdict is Verdict.WA


@pytest.mark.parametrize(("code", "verdict"), [(0, "AC"), (1, "WA"), (2, "WA"), (4, "WA"), (8, "WA")])
def test_the_exit_codes_of_testlib(judge: Judge, code: int, verdict: str) -> None:
    assert checked(judge, "print(1)", Program(f"import sys; sys.exit({code})")).verdict == verdict


@pytest.mark.parametrize(
    ("convention", "checker", "word"),
    [
        ("testlib", Program("1 +"), "does not compile"),
        ("testlib", Program("int main() { return x; }", "cpp"), "does not compile"),
        ("testlib", Program("1 / 0"), "ZeroDivisionError"),
        ("testlib", Program("import sys; sys.exit(3)"), "exit code 3"),
        ("testlib", Program("import sys; sys.exit(42)"), "exit code 42"),
        ("kattis", Program("import sys; sys.exit(0)"), "exit code 0"),
        ("kattis", Program("import sys; sys.exit(1)"), "exit code 1"),
        ("testlib", Program("#include <cstdlib>\nint main() { abort(); }", "cpp"), "signal 6"),
        ("testlib", Program("import os; os.fork(); os.setuid(0)"), "raised|stopped"),
    ],
)
def test_a_checker_that_fails_is_our_error_and_no_verdict(
    judge: Judge, convention: str, checker: Program, word: str
) -> None:
    with pytest.raises(CheckerError, match=word):
        checked(judge, "print(1)", checker, convention=convention)


def test_a_checker_that_breaks_a_limit_is_our_error(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandbox.judging.referee.LIMITS", Limits(cpu_s=0.2, wall_s=30))
    with pytest.raises(CheckerError, match="cpu"):
        checked(judge, "print(1)", Program("while True: pass"), Case("1", "2"))


def test_files_that_do_not_fit_are_our_error(judge: Judge) -> None:
    with pytest.raises(CheckerError, match="has"):
        checked(judge, "print(1)", SUM_OF_TWO, Case("7" * (judge.jail.work_bytes + 1)))


def test_the_answer_is_gone_before_the_program_runs_again(judge: Judge) -> None:
    source = (
        "import os\n"
        "found = [name for top, _, names in os.walk('.') for name in names]\n"
        "n = int(input()); print(1, n - 1 if not found else 0)"
    )
    done = checked(judge, source, SUM_OF_TWO, Case("7", "NEEDLE"), Case("8", "NEEDLE"), Case("9", "NEEDLE"))
    assert (done.verdict, done.passed) == (Verdict.AC, 3)


def test_the_program_leaves_nothing_for_the_checker(judge: Judge) -> None:
    source = "open('json.py', 'w').write('import os; os._exit(0)'); open('output.txt', 'w').write('1 6'); print(0, 0)"
    checker = Program("import json\n" + SUM_OF_TWO.source)
    assert checked(judge, source, checker).verdict is Verdict.WA

"""Programs that usual graders get wrong, one by one, through the real judge: what ours says of them."""

from __future__ import annotations

import pytest

from sandbox import Case, InvalidProblem, Limits, Problem, Program, Verdict
from sandbox.judging import Judge
from sandbox.rewards import outcome as rewards

LIMITS = Limits(cpu_s=0.4, wall_s=1.0)
AC, WA, RE, TLE = Verdict.AC, Verdict.WA, Verdict.RE, Verdict.TLE
# Every program gets "3\n4\n" and should print 7.
READ = "a, b = map(int, sys.stdin.read().split())"


@pytest.mark.parametrize(
    "body",
    [
        "print(sum(int(line) for line in sys.stdin))",
        "print(sum(map(int, sys.stdin.buffer.read().split())))",
        "print(int(sys.stdin.buffer.readline()) + int(sys.stdin.buffer.readline()))",
        "print(sum(map(int, open(0).read().split())))",
        "print(sum(map(int, os.read(0, 100).split())))",
        f"{READ}; sys.stdout.buffer.write(b'%d' % (a + b))",
        f"{READ}; os.write(1, b'%d' % (a + b))",
        f"{READ}\ncount = 0\ndef add(n):\n  global count\n  count += n\nadd(a); add(b); print(count)",
        f"def main():\n  {READ}; print(a + b)\nif __name__ == '__main__':\n  main()\nx = 1",
        f"{READ}; print(a + b); exit()",
        f"{READ}; print(a + b); sys.exit(0)",
        f"{READ}; str(10 ** 5000); print(a + b)",
    ],
)
def test_honest_ways_to_read_and_write_are_accepted(judge: Judge, body: str) -> None:
    problem = Problem("sum", "stdio", (Case("3\n4\n", "7"),), limits=LIMITS)
    assert judge.judge(problem, Program(f"import os, sys\n{body}")).verdict is AC


@pytest.mark.parametrize(
    ("source", "expected", "verdict"),
    [
        ("print(7); exit(1)", "7", RE),
        ("print(7); raise ValueError", "7", RE),
        ("print('NO')", "YES", WA),
        ("print(100001)", "100000", WA),
        ("print(1)", "1\n2\n3", WA),
        ("while True:\n  try:\n    while True: pass\n  except BaseException: pass", "7", TLE),
        ("import signal, time\nsignal.alarm(0); time.sleep(99); print(7)", "7", TLE),
    ],
)
def test_what_usual_graders_accept_is_not(judge: Judge, source: str, expected: str, verdict: Verdict) -> None:
    problem = Problem("p", "stdio", (Case("", expected),), limits=LIMITS)
    assert judge.judge(problem, Program(source)).verdict is verdict


def test_the_eleventh_of_twelve_tests_counts(judge: Judge) -> None:
    problem = Problem("p", "stdio", tuple(Case(str(n), str(n)) for n in range(12)), limits=LIMITS)
    done = judge.judge(problem, Program("n = int(input()); print(n if n != 10 else 0)"))
    assert done.verdict is WA
    assert rewards.share_of_cases(done) == pytest.approx(11 / 12)


EQUAL_TO_ALL = "class I(int):\n  def __eq__(self, other): return True\n  __hash__ = int.__hash__\n"


@pytest.mark.parametrize(
    ("body", "expected", "compare", "verdict"),
    [
        ("return [(1, 2), (3, 4)]", "[[1, 2], [3, 4]]", "tokens", AC),
        ("return 0.1 + 0.2", "0.3", "float(1e-9)", AC),
        ("return 0.1 + 0.2", "0.3", "tokens", WA),
        ("return True", "1", "tokens", WA),
        ("return 2", "[2, 4]", "tokens", WA),
        ("return I(5)", "7", "tokens", WA),
    ],
)
def test_values_of_functions(judge: Judge, body: str, expected: str, compare: str, verdict: Verdict) -> None:
    problem = Problem("p", "function", (Case("[]", expected),), "f", compare=compare, limits=LIMITS)
    assert judge.judge(problem, Program(f"{EQUAL_TO_ALL}def f(): {body}")).verdict is verdict


def test_no_state_is_carried_from_test_to_test(judge: Judge) -> None:
    source = "class Solution:\n  calls = 0\n  def f(self):\n    Solution.calls += 1\n    return Solution.calls"
    cases = tuple(Case("[]", str(n)) for n in (1, 2, 3))
    done = judge.judge(Problem("p", "function", cases, "Solution.f", limits=LIMITS), Program(source))
    assert [case.verdict for case in done.cases] == [AC, WA, WA]


def test_a_problem_without_tests_is_no_problem() -> None:
    with pytest.raises(InvalidProblem):
        Problem("p", "stdio", ())


# --- the published modes, through the judge ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("output", "expected", "accepted"),
    [
        ("5.0\\n", "5", {"lcb", "sf", "code_contests", "float(1e-5)"}),
        ("1 2", "1\n2", {"tokens", "code_contests"}),
        ("Yes", "YES", {"sf", "code_contests", "tokens+ignore_case"}),
        ("0.333334", "0.333333", {"sf", "code_contests", "float(1e-5)"}),
        ("7", "8", set()),
    ],
)
def test_a_problem_is_judged_by_the_mode_it_names(judge: Judge, output: str, expected: str, accepted: set[str]) -> None:
    for mode in ("exact", "lines", "tokens", "lcb", "sf", "code_contests", "tokens+ignore_case", "float(1e-5)"):
        problem = Problem("p", "stdio", (Case("", expected),), compare=mode, limits=LIMITS)
        wanted = mode in accepted or (mode.startswith(("tokens+", "float")) and "tokens" in accepted)
        assert (judge.judge(problem, Program(f"print('{output}', end='')")).verdict is AC) is wanted, mode

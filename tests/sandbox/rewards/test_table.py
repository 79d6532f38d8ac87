"""Programs that usual graders get wrong, one by one, through the real judge: what ours says of them."""

from __future__ import annotations

import pytest

from sandbox import Case, Limits, Problem, Program, Verdict
from sandbox.judging import Judge
from sandbox.rewards import outcome as rewards

LIMITS = Limits(cpu_s=0.4, wall_s=1.0)
AC, WA, RE, TLE = Verdict.AC, Verdict.WA, Verdict.RE, Verdict.TLE
# Every program gets "3\n4\n" and should print 7.


def test_the_eleventh_of_twelve_tests_counts(judge: Judge) -> None:
    problem = Problem("p", "stdio", tuple(Case(str(n), str(n)) for n in range(12)), limits=LIMITS)
    done = judge.judge(problem, Program("n = int(input()); print(n if n != 10 else 0)"))
    assert done.verdict is WA
    assert rewards.share_of_cases(done) == pytest.approx(11 / 12)


def test_no_state_is_carried_from_test_to_test(judge: Judge) -> None:
    source = "class Solution:\n  calls = 0\n  def f(self):\n    Solution.calls += 1\n    return Solution.calls"
    cases = tuple(Case("[]", str(n)) for n in (1, 2, 3))
    done = judge.judge(Problem("p", "function", cases, "Solution.f", limits=LIMITS), Program(source))
    assert [case.verdict for case in done.cases] == [AC, WA, WA]


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

"""Assert problems in Python: who decides, and that no program decides for itself."""

from __future__ import annotations

import gc
import json
import math
from decimal import Decimal
from fractions import Fraction

import pytest
from asserting import FORGED, PATCHES, SQUARE, asserts, is_decisive

from sandbox import Verdict
from sandbox.compare import values
from sandbox.judging import assert_values, python_asserts
from sandbox.judging.judge import Judge

# --- who decides ------------------------------------------------------------------------------------------------------

OUTSIDE = [
    "assert sq(3) == 9",
    "assert 9 == sq(3)",
    "assert sq(3) == 9 and not sq(2) == 5",
    "assert abs(sq(1.5) - 2.25) < 1e-9",
    "assert 8 < sq(3) <= 9, 'message'",
    "import math\nassert math.isclose(sq(1.5), 2.25)",
    "x = 3\nassert sq(x) == 9",
    "assert sorted([sq(2), sq(1)]) == [1, 4]",
    "assert sq(3) in (9, 10)",
    "assert type(sq(3)) == int",
    "assert sq(sq(2)) == 16",
    "assert [sq(2)] * 2 == [4] * 2",
    "def check(candidate):\n  assert candidate(3) == 9\n  assert candidate(-1) == 1\ncheck(sq)",
    "META = {'author': 'x'}\ndef check(f):\n  y = 2\n  assert f(y) == 4\n\ncheck(sq)",
]
APART = [
    "for i in range(5):\n  assert sq(i) == i * i",
    "want = 9\nassert sq(3) == want",
    "assert (lambda f: f(3) == 9)(sq)",
    "assert all(sq(i) == i * i for i in range(5))",
    "def check(f):\n  for i in range(3):\n    assert f(i) == i * i\ncheck(sq)",
    "def same(a, b): return a == b\nassert same(sq(3), 9)",
    "assert sq.__name__ == 'sq'",
    "assert sq(3).bit_length() == 4",
    "from math import *\nassert isclose(sq(3), 9)",
    "if True:\n  from math import isclose\nassert isclose(sq(3), 9)",
    "if True:\n  def ref(x): return x ** 2\nassert sq(3) == ref(3)",
    "for ref in [lambda x: x ** 2]: pass\nassert sq(3) == ref(3)",
    "import contextlib\nwith contextlib.nullcontext(lambda x: x ** 2) as ref: assert sq(3) == ref(3)",
    "class C: pass\nc = C()\nc.ref = lambda x: x ** 2\nassert sq(3) == c.ref(3)",
    "ok = lambda a, b: a == b\nassert ok(sq(3), 9)",
    "class Ref:\n  def of(self, x): return x ** 2\nassert Ref().of(3) == sq(3)",
    "from collections import Counter\nassert Counter([sq(1), sq(-1), sq(2)]).most_common(1) == [(1, 2)]",
    "if (ref := lambda x: x ** 2): assert sq(3) == ref(3)",
    "import math as m\nassert m.isclose(sq(3), 9)",
    "math = type('M', (), {'isclose': staticmethod(lambda a, b: a == b)})\nassert math.isclose(sq(3), 9)",
    "def abs(x): return x\nassert abs(sq(3)) == 9",
    "try: sq('a')\nexcept TypeError: pass\nelse: assert False",
    "assert '%d' % sq(3) == '9'",
]


@pytest.mark.promise("asserts")
@pytest.mark.parametrize("test", OUTSIDE + APART)
def test_an_assert_is_decided_out_of_the_reach_of_forged_frames_and_patched_names(judge: Judge, test: str) -> None:
    right, wrong = asserts(judge, SQUARE, test), asserts(judge, "def sq(x): return -7", test)
    assert (right.verdict, right.weak) == (Verdict.AC, False)
    any_value_will_do = "type(sq" in test or "__name__" in test
    assert wrong.verdict is (Verdict.AC if any_value_will_do else Verdict.WA)
    for attack in (FORGED, PATCHES):
        done = asserts(judge, attack, test)
        assert done.verdict is not Verdict.AC or any_value_will_do or (done.weak and not is_decisive(test)), attack


@pytest.mark.parametrize(
    "test",
    [
        "if sq(3) != 9: raise AssertionError('no')",
        "def check(f):\n  for i in range(4):\n    if f(i) != i * i:\n      raise AssertionError\ncheck(sq)",
        "import unittest\nunittest.TestCase().assertEqual(sq(3), 9)",
    ],
)
def test_a_test_that_fails_without_an_assert_statement_is_weak(judge: Judge, test: str) -> None:
    right, wrong = asserts(judge, SQUARE, test), asserts(judge, "def sq(x): return -7", test)
    assert (right.verdict, right.weak, wrong.verdict) == (Verdict.AC, True, Verdict.WA)


@pytest.mark.parametrize(
    ("test", "preamble"),
    [
        ("assert same(sq(3), 9)", "def same(a, b): return a == b"),
        ("assert isclose(sq(3), 9)", "from math import *"),
        ("assert isclose(sq(3), 9)", "from math import isclose"),
        ("assert same(sq(3), 9)", "same = lambda a, b: a == b"),
        ("assert same(sq(3), 9)", "if True:\n  def same(a, b): return a == b"),
        ("assert Box(sq(3)).has(9)", "class Box:\n  def __init__(s, v): s.v = v\n  def has(s, w): return s.v == w"),
        ("assert sq(3) == two(4.5)", "two = lambda x: int(2 * x)"),
    ],
)
def test_a_helper_of_the_preamble_is_not_the_programs_to_redefine(judge: Judge, test: str, preamble: str) -> None:
    right = asserts(judge, SQUARE, test, preamble=preamble)
    assert (right.verdict, right.weak) == (Verdict.AC, False)
    helpers = "same = isclose = lambda *a: True\nclass Box:\n  def __init__(s, v): pass\n  def has(s, w): return True\n"
    for attack in (f"{helpers}two = lambda x: 5\ndef sq(x): return 5", f"{PATCHES}\ntwo = sq", FORGED):
        assert is_decisive(test, preamble)
        assert asserts(judge, attack, test, preamble=preamble).verdict is not Verdict.AC


HELPED = f"{SQUARE}\ndef same(a, b): return a == b\ndef other(a, b): return a != b"
SUM = "def sum(a, b): return a - b"
METHOD = "class Solution:\n  def f(s, x): return x\nf = Solution().f"


@pytest.mark.parametrize(
    ("source", "test", "fn_name", "weak"),
    [
        (HELPED, "assert same(sq(3), 9)", None, True),  # a helper that only the program can have
        (HELPED, "assert not other(sq(3), 9)", None, True),
        (HELPED, "assert same(sq(3), 9) is True", None, True),
        (SUM, "assert sum(5, 3) == 2", None, True),  # named like a builtin, with nothing that says so
        (SUM, "assert sum(5, 3) == 2", "sum", False),
        (METHOD, "assert Solution().f(2) == 2", "f", False),
        (METHOD, "for x in (1, 2): assert Solution().f(x) == x", "f", False),
    ],
)
def test_what_the_program_may_answer_for_itself_is_weak(
    judge: Judge, source: str, test: str, fn_name: str | None, weak: bool
) -> None:
    done = asserts(judge, source, test, fn_name=fn_name)
    assert (done.verdict, done.weak) == (Verdict.AC, weak)


REF = (
    "f = ref = lambda *x: 7\nclass P:\n  def __init__(s, *x): pass\n  y = 7\nclass Counter(P): __eq__ = lambda *x: True"
)


@pytest.mark.parametrize(
    ("test", "fn_name"),
    [
        ("assert f(1) == 7 and ref(2) == 7", None),
        ("assert f(f(2)) == 7", None),
        ("assert f(2) == 7\nassert ref(2) == 7", None),
        ("for x in range(3): assert f(x) == 7 and ref(x) != 8", None),
        ("def ref(x): return 7\nassert f(2) == ref(3)", None),
        ("from collections import Counter\nassert Counter(str(f(2))) == Counter('7')", "f"),
        ("for x in (1, 2): assert f(x) == P.y or True", "P"),
        ("assert P(1).y == 7", None),
        ("p = P(1)\nassert p.y == 7 and P(p.y).y == 7", "P"),
    ],
)
def test_a_question_about_one_name_of_the_programs_is_not_weak(judge: Judge, test: str, fn_name: str | None) -> None:
    done = asserts(judge, REF, test, fn_name=fn_name)
    assert (done.verdict, done.weak) == (Verdict.AC, fn_name == "P" and "f(" in test)


SEEN_BESIDE = [
    ("def f(x): return x", "a = [1]\nfor b in [f(a)]: assert b is not a"),
    ("def f(x): return x", "a = [1]\nfor b in [f(a)]: assert id(b) != id(a)"),
    ("def f(x): return x", "import operator\na = [1]\nassert operator.is_not(f(a), a)"),
    ("def f(x): print(x)", "import contextlib, io\nout = io.StringIO()\nwith contextlib.redirect_stdout(out): f(3)\n"
     "assert out.getvalue() == ''"),
    ("def f(x): print(x)", "import io, sys\nkept, sys.stdout = sys.stdout, io.StringIO()\nf(3)\n"
     "said, sys.stdout = sys.stdout.getvalue(), kept\nassert said == ''"),
]  # fmt: skip


@pytest.mark.parametrize(("source", "test"), SEEN_BESIDE)
def test_what_is_seen_only_beside_the_program_is_decided_there(judge: Judge, source: str, test: str) -> None:
    for fn_name in (None, "f"):
        assert asserts(judge, source, test, fn_name=fn_name).verdict is Verdict.WA


@pytest.mark.parametrize("fn_name", [None, "sq"])
def test_modules_that_only_the_program_imports_are_not_its_to_replace(judge: Judge, fn_name: str | None) -> None:
    test = "assert abs(sq(3) - math.sqrt(81)) < 1e-9\nassert math.isclose(sq(2), 4)"
    honest, fake = "import math\n", "class math:\n  sqrt = staticmethod(lambda x: 5)\n  isclose = sqrt\n"
    done = asserts(judge, honest + SQUARE, test, fn_name=fn_name)
    assert (done.verdict, done.weak) == (Verdict.AC, False)
    done = asserts(judge, fake + "def sq(x): return 5", test, fn_name=fn_name)
    assert done.verdict is not Verdict.AC or done.weak


@pytest.mark.parametrize(
    "test",
    [
        "r = sq(3)\nassert same(r, 9)",
        "import unittest\nassert unittest.TestCase().assertTrue(same(sq(3), 9)) is None",
        "x = np.near(sq(3), 9)\nassert x",
    ],
)
def test_a_helper_of_the_programs_makes_no_test_strong(judge: Judge, test: str) -> None:
    source = "class np:\n  near = staticmethod(lambda a, b: True)\ndef same(a, b): return True\ndef sq(x): return 5"
    done = asserts(judge, source, test, fn_name="sq")
    assert done.verdict is not Verdict.AC or done.weak


@pytest.mark.parametrize("binds", ["exec('def same(a, b): return a == b')", "globals()['same'] = lambda a, b: a == b"])
def test_names_that_nobody_can_see_are_never_taken_for_the_programs(judge: Judge, binds: str) -> None:
    test = f"{binds}\nassert same(sq(3), 9)"
    assert asserts(judge, SQUARE, test).verdict is Verdict.AC
    assert asserts(judge, "def sq(x): return 5\nsame = lambda *a: True", test).verdict is Verdict.WA


def test_a_function_named_like_one_of_the_preambles_is_still_the_one_that_is_judged(judge: Judge) -> None:
    test, other = "for a in [4]: assert gcd(a, 6) == 2", "\nassert other(4, 6) == 12"
    source = "def gcd(a, b): return {}\ndef other(a, b): return 12"
    for fn_name, weak in ((None, True), ("gcd", False)):
        right, wrong = (
            asserts(judge, source.format(value), test + other * weak, preamble="from math import *", fn_name=fn_name)
            for value in (2, 7)
        )
        assert (right.verdict, right.weak) == (Verdict.AC, weak)
        assert wrong.verdict is Verdict.WA


@pytest.mark.parametrize(("source", "verdict"), [("def f(): print(2)", Verdict.WA), ("def f(): 1 / 0", Verdict.RE)])
def test_a_failure_is_never_weak(judge: Judge, source: str, verdict: Verdict) -> None:
    """Nobody forges it, and whoever masks what is weak would mask it too."""
    test = "import io\nfrom contextlib import redirect_stdout\nb = io.StringIO()\nwith redirect_stdout(b): f()\n"
    right = asserts(judge, "def f(): print(1)", test + "assert b.getvalue() == '1\\n'")
    assert (right.verdict, right.weak) == (Verdict.AC, True)
    done = asserts(judge, source, test + "assert b.getvalue() == '1\\n'")
    assert (done.verdict, done.weak) == (verdict, False)


@pytest.mark.parametrize(
    ("source", "test", "verdict"),
    [
        ("def abs(x): return 0.0\ndef sq(x): return 5", "assert abs(sq(2) - 4) < 1e-9", Verdict.WA),
        ("def sq(x): return 0", APART[0], Verdict.WA),
        ("def sq(x): return 0", OUTSIDE[0], Verdict.WA),
        ("1 + x", APART[0], Verdict.RE),
        ("1 + x", OUTSIDE[0], Verdict.RE),
        ("assert False", APART[0], Verdict.RE),  # an assertion of the program's own
        ("assert False", OUTSIDE[0], Verdict.RE),
    ],
)
def test_a_failing_assert_is_a_wrong_answer_and_a_failing_program_is_not(
    judge: Judge, source: str, test: str, verdict: Verdict
) -> None:
    assert asserts(judge, source, test).verdict is verdict


def test_every_case_of_an_assert_problem_runs_in_a_fresh_process(judge: Judge) -> None:
    source = "calls = []\ndef sq(x):\n  calls.append(x)\n  return len(calls)"
    assert asserts(judge, source, "assert sq(9) == 1", "assert sq(9) == 1").verdict is Verdict.AC
    assert asserts(judge, source, *["want = 1\nassert sq(9) == want"] * 2).verdict is Verdict.AC


# --- sums, products and sets, as Python's until they would cost the judge too much -----------------------------------

PRIME = (1 << 61) - 1  # integers that differ by it have one hash
LONG = [Fraction((1 << 8000) - 2 * k, (1 << 8000) - 3 * k - 7) for k in range(400)]


def holds(test: str, *found: object) -> bool:
    plan = python_asserts.plan_asserts(f"assert {test}")
    assert not plan.weak
    affordable = assert_values.is_affordable([values.encode_value(value) for value in found])
    return affordable and all(assert_values.holds(check, list(found)) for check in plan.checks)


@pytest.mark.parametrize(
    ("test", "found"),
    [
        ("sum(f()) == 6", [[1, 2, 3]]),
        ("sum(f(), 4) == 10", [[1, 2, 3]]),
        ("sum(f(), []) == [1, 2]", [[[1], [2]]]),
        ("sum(f(), ()) == (1, 2)", [[(1,), (2,)]]),
        ("sum(f()) == 500000500000", [list(range(1_000_001))]),
        ("sum(f()) == 1.5", [[0.5, 1]]),
        ("len(sum(f(), [])) == 250000", [[[0] * 500] * 500]),
        ("set(f()) == {1, 2}", [[1, 2, 2]]),
        ("set() == f()", [set()]),
        ("frozenset(f()) == {1, 2}", [[1, 2, 2]]),
        ("dict(f()) == {1: 2}", [[(1, 2)]]),
        ("dict(f(), b=3) == {'a': 2, 'b': 3}", [{"a": 2}]),
        ("dict(f(), items=3) == {'a': 2, 'items': 3}", [{"a": 2}]),
        ("f() % 1000000007 == 437918130", [math.factorial(100)]),
        ("f() // 10 == 10 * f()", [100, 1]),
        ("f() * f() == f()", [3**5000, 3**5000, 3**10000]),
        ("type(f()) == set", [{1}]),
        ("sum(f()) == sum(f())", [[Fraction(1, k) for k in range(1, 2000)]] * 2),
        ("round(sum(f()), 2) == 1.5", [[Fraction(1, 2), 1]]),
        ("max(f()) == 0.5", [[Fraction(1, 3), Decimal("0.5"), 0.25]]),
        ("f() != f() * 1", [Decimal("1" * 60_000), Decimal(1) / 3]),
        ("max(f()) > 4", [[1 << (1 << 20), 5]]),
        ("sum(f()) == 4", [[1, 2, True]]),
        ("sum(f(), 0.5) == 3.5", [[1, 2]]),
        ("max(f(), key=set) == [1, 2]", [[[1, 1], [1, 2]]]),
        ("sorted(f(), key=str) == [10, 9]", [[9, 10]]),
        ("round(f(), -2) == 1200 and round(f(), 2) == 1234", [1234, 1234]),
        ("str(f(), 'UTF-8') == 'a' * 100000", [b"a" * 100_000]),
        ("str(f(), 'punycode') == 'a'", [b"a-"]),
        ("str(object=f(), encoding='ascii') == str('a')", [b"a"]),
    ],
)
def test_what_is_honest_is_decided_as_python_would(test: str, found: list[object]) -> None:
    assert holds(test, *found)


@pytest.mark.parametrize(
    ("test", "found"),
    [
        ("sum(f()) != 0", [[1 << (1 << 20), *[1] * 100_000]]),
        ("sum(f(), []) != 0", [[[1] * 100_000, *[[]] * 100_000]]),
        ("f() * f() != 0", [1 << (1 << 20)] * 2),
        ("f() % f() != 0", [(1 << (1 << 21)) - 1, (1 << (1 << 20)) - 1]),
        ("f() // f() != 0", [(1 << (1 << 21)) - 1, (1 << (1 << 20)) - 1]),
        ("f() / f() != 0", [(1 << (1 << 21)) - 1, (1 << (1 << 20)) - 1]),
        ("sum(f()) != 6", [LONG]),
        ("max(f()) != 6", [[LONG[0] ** 8, *[0.5] * 1000]]),
        ("sorted(f()) != 6", [[Decimal(1), 1 << (1 << 18)]]),
        ("sorted(f()) != f()", [[Decimal(1)], [1 << (1 << 18)]]),
        ("f() + f() != 6", [Decimal(1), 1 << (1 << 18)]),
        ("sum(f()) + f() != 6", [[1 << (1 << 18)], Fraction(1, 3)]),
        ("round(f(), f()) != 6", [5, -(10**7)]),
        ("len(set(f())) != 0", [[k * PRIME for k in range(1_000)]]),
        ("dict(f()) != 0", [[(k * PRIME, 1) for k in range(1_000)]]),
        ("max(f(), key=set) != 0", [[[k * PRIME for k in range(1_000)]]]),
        ("sorted(f(), key=dict) != 0", [[[(k * PRIME, 1) for k in range(1_000)]]]),
        ("round(f(), -60000) != 1", [1 << (1 << 22)]),
        ("str(f(), 'punycode') != 'a'", [b"9" * 20_000]),
        ("str(object=f(), encoding='idna') != 'a'", [b"a." * 20_000]),
    ],
)
def test_what_would_take_the_judge_too_long_does_not_hold(test: str, found: list[object]) -> None:
    assert not holds(test, *found)


def test_nothing_is_kept_of_an_assert_whose_plan_is_forgotten() -> None:
    assert holds("f() == 3", 3)
    python_asserts.plan_asserts.cache_clear()
    assert not [found for found in gc.get_objects() if type(found) is assert_values.Check]


@pytest.mark.parametrize(
    "data", ['{"t": {"r": [0, 1048576, 1]}}', '{"m": {"r": [0, 9, 1]}}', '{"i": 3}', '{"f": {}}', "{}"]
)
def test_values_that_no_harness_writes_are_refused(data: str) -> None:
    with pytest.raises(ValueError, match="not"):
        assert_values.is_affordable([json.loads(data)]) and values.decode_value(json.loads(data))

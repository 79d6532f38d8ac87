"""Assert problems in Python: who decides, and that no program decides for itself."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sandbox import Case, Judgement, Limits, Problem, Program, Verdict
from sandbox.build import Builder
from sandbox.jail import Jail
from sandbox.judging import python_asserts
from sandbox.judging.judge import Judge

LIMITS = Limits(cpu_s=2, wall_s=30)


def asserts(judge: Judge, source: str, *tests: str, **fields: object) -> Judgement:
    options = {"limits": LIMITS, **fields}
    return judge.judge(Problem("p", "assert", tuple(map(Case, tests)), **options), Program(source))  # type: ignore[arg-type]


# --- who decides ------------------------------------------------------------------------------------------------------

SQUARE = "def sq(x): return x * x"
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


@pytest.mark.parametrize("test", OUTSIDE + APART)
def test_an_assert_is_decided_out_of_the_programs_reach(judge: Judge, test: str) -> None:
    right, wrong = asserts(judge, SQUARE, test), asserts(judge, "def sq(x): return -7", test)
    assert (right.verdict, right.weak) == (Verdict.AC, False)
    assert wrong.verdict is (Verdict.AC if "type(sq" in test or "__name__" in test else Verdict.WA)


def is_decisive(test: str, preamble: str = "") -> bool:
    found = python_asserts.plan(test, preamble)
    return not found.weak or (found.apart is not None and found.apart.decisive)


FORGED = """
import json, os, sys
def sq(x):
    nonce = os.pread(3, 1 << 20, 0)[-32:]
    for values in ([True], [True, True]):
        os.pwrite(4, nonce + json.dumps({"ok": True, "values": values}).encode(), 0)
    os._exit(0)
"""
PATCHES = """
import builtins, collections, math, operator
math.isclose = lambda *a, **k: True
collections.Counter.most_common = lambda *a: [(1, 2)]
isclose = same = ok = ref = abs = lambda *a, **k: True
class Ref:
    def of(self, x): return sq(x)
builtins.all = lambda *a: True
def sq(x): return 7
"""


@pytest.mark.parametrize("test", OUTSIDE + APART)
def test_no_forged_frame_and_no_patched_name_is_accepted_as_strong(judge: Judge, test: str) -> None:
    for attack in (FORGED, PATCHES):
        done = asserts(judge, attack, test)
        if "type(sq" not in test and "__name__" not in test:
            assert done.verdict is not Verdict.AC or (done.weak and not is_decisive(test)), attack


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


def test_a_helper_that_only_the_program_can_have_is_weak(judge: Judge) -> None:
    for test in ("assert same(sq(3), 9)", "assert not other(sq(3), 9)", "assert same(sq(3), 9) is True"):
        source = f"{SQUARE}\ndef same(a, b): return a == b\ndef other(a, b): return a != b"
        done = asserts(judge, source, test)
        assert (done.verdict, done.weak) == (Verdict.AC, True)


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


@pytest.mark.parametrize(
    "test",
    [
        "exec('def same(a, b): return a == b')\nassert same(sq(3), 9)",
        "globals()['same'] = lambda a, b: a == b\nassert same(sq(3), 9)",
    ],
)
def test_names_that_nobody_can_see_are_never_taken_for_the_programs(judge: Judge, test: str) -> None:
    assert asserts(judge, SQUARE, test).verdict is Verdict.AC
    attack = "def sq(x): return 5\nsame = lambda *a: True"
    assert asserts(judge, attack, test).verdict is Verdict.WA


def test_an_assert_that_asks_nothing_of_the_program_is_weak(judge: Judge) -> None:
    done = asserts(judge, SQUARE, "assert True")
    assert (done.verdict, done.weak) == (Verdict.AC, True)


def test_a_program_may_be_named_like_a_builtin(judge: Judge) -> None:
    source = "def sum(a, b): return a - b"
    for fields, weak in (({}, True), ({"fn_name": "sum"}, False)):
        done = asserts(judge, source, "assert sum(5, 3) == 2", **fields)
        assert (done.verdict, done.weak) == (Verdict.AC, weak)


def test_a_shadowed_builtin_does_not_decide_an_assert(judge: Judge) -> None:
    attack = "def abs(x): return 0.0\ndef sq(x): return 5"
    assert asserts(judge, attack, "assert abs(sq(2) - 4) < 1e-9").verdict is Verdict.WA


@pytest.mark.parametrize("test", ["for i in range(5):\n  assert sq(i) == i * i", "assert sq(3) == 9"])
def test_a_failing_assert_is_a_wrong_answer(judge: Judge, test: str) -> None:
    assert asserts(judge, "def sq(x): return 0", test).verdict is Verdict.WA
    assert asserts(judge, "1 + x", test).verdict is Verdict.RE


def test_an_assertion_of_the_programs_own_is_a_runtime_error(judge: Judge) -> None:
    for test in (OUTSIDE[0], APART[0]):
        assert asserts(judge, "assert False", test).verdict is Verdict.RE


def test_every_case_of_an_assert_problem_runs_in_a_fresh_process(judge: Judge) -> None:
    source = "calls = []\ndef sq(x):\n  calls.append(x)\n  return len(calls)"
    assert asserts(judge, source, "assert sq(9) == 1", "assert sq(9) == 1").verdict is Verdict.AC
    assert asserts(judge, source, *["want = 1\nassert sq(9) == want"] * 2).verdict is Verdict.AC


# --- a test in a jail of its own --------------------------------------------------------------------------------------

NODE = """
class ListNode:
    def __init__(self, val=0, next=None): self.val, self.next = val, next
def row(values):
    head = None
    for value in reversed(values): head = ListNode(value, head)
    return head
def same_row(a, b):
    while a and b:
        if a.val != b.val: return False
        a, b = a.next, b.next
    return a is b
"""
HONEST = [
    ("def f(a): a.sort()", "a = [3, 1]\nf(a)\nassert a == [1, 3]"),
    ("def f(a): a[0].append(9)", "b = [1]\nf([b])\nassert b == [1, 9]"),
    ("class S:\n  def __init__(s): s.x = []\n  def push(s, v): s.x.append(v)\n  def pop(s): return s.x.pop()",
     "s = S()\ns.push(1)\ns.push(2)\nassert s.pop() == 2 and s.x == [1]"),
    ("def f(n):\n  for i in range(n): yield i", "assert list(f(3)) == [0, 1, 2]"),
    ("def f():\n  i = 0\n  while True:\n    yield i\n    i += 1", "g = f()\nassert next(g) == 0 and next(g) == 1"),
    ("def f(x):\n  if x < 0: raise ValueError('negative')\n  return x",
     "try:\n  f(-1)\n  assert False\nexcept ValueError as e:\n  assert 'neg' in str(e)"),
    ("def f(n): return lambda x: x + n", "assert f(2)(3) == 5"),
    ("class P:\n  def __init__(s, x): s.x = x", "assert P(3).x == 3"),
    ("def f(a, *, k=1): return [x + k for x in a]", "want = [2, 3]\nassert f([1, 2]) == want == f(a=[1, 2], k=1)"),
]  # fmt: skip


@pytest.mark.parametrize(("source", "test"), HONEST)
def test_what_tests_do_with_programs_works_between_two_jails(judge: Judge, source: str, test: str) -> None:
    done = asserts(judge, source, test)
    assert (done.verdict, done.weak) == (Verdict.AC, False)


def test_a_test_has_a_jail_of_its_own_in_every_tier(tiered_judge: Judge) -> None:
    for source, verdict in ((SQUARE, Verdict.AC), (PATCHES, Verdict.WA), (FORGED, Verdict.RE), (POSES, Verdict.RE)):
        done = asserts(tiered_judge, source, "for i in range(3):\n  assert sq(i) == i * i")
        assert (done.verdict, done.weak) == (verdict, False)


def test_objects_of_the_preambles_classes_cross(judge: Judge) -> None:
    source = (
        "class Solution:\n  def reverse(self, head):\n    last = None\n    while head:\n"
        "      head.next, last, head = last, head, head.next\n    return last"
    )
    test = "assert same_row(Solution().reverse(row([1, 2, 3])), row([3, 2, 1]))"
    right, wrong = (asserts(judge, s, test, preamble=NODE) for s in (source, source.replace("return last", "return 1")))
    assert (right.verdict, right.weak) == (Verdict.AC, False)
    assert wrong.verdict is not Verdict.AC


@pytest.mark.parametrize(
    ("source", "test"),
    [
        ("def f(): print(3)", "import contextlib, io\nout = io.StringIO()\nwith contextlib.redirect_stdout(out): f()\n"
         "assert out.getvalue() == '3\\n'"),
        ("def f(a): return a", "a = [1]\nassert f(a) is a"),
        ("def f(g): return g(2)", "want = 3\nassert f(lambda x: x + 1) == want"),
        ("def f(g): return g(2)", "def g(x): return x + 1\nwant = 3\nassert f(g) == want"),
        ("class P:\n  def __init__(s, x): s.x = x\n  def __eq__(s, o): return s.x == o.x\ndef f(p): return P(p.x + 1)",
         "for i in range(3): assert f(P(i)) == P(i + 1)"),
        ("def f(): return input()", "from unittest import mock\nwith mock.patch('builtins.input', lambda: 'x'):\n"
         "  assert f() == 'x'"),
        ("import random\ndef f(): return random.random()",
         "import random\nrandom.seed(3)\na = f()\nrandom.seed(3)\nassert f() == a"),
        ("def f(x): return x.y", "class C: y = 1\nwant = 1\nassert f(C()) == want"),
    ],
)  # fmt: skip
def test_a_test_that_needs_the_program_beside_it_is_weak_and_not_wrong(judge: Judge, source: str, test: str) -> None:
    done = asserts(judge, source, test)
    assert (done.verdict, done.weak) == (Verdict.AC, True)
    assert not is_decisive(test)


def test_long_rows_of_objects_cross(judge: Judge) -> None:
    source = "def f(head):\n  n = 0\n  while head: n, head = n + 1, head.next\n  return row(range(n))"
    for test in ("want = row(range(900))\nassert same_row(f(row([0] * 900)), want)",):
        done = asserts(judge, source, test, preamble=NODE)
        assert (done.verdict, done.weak) == (Verdict.AC, False)


POSES = """
class A:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __bool__(self): return True
    def __len__(self): return 9
    def __contains__(self, x): return True
    __hash__ = None
def f(x): return A()
"""


@pytest.mark.parametrize(
    "test",
    [
        "want = 2\nassert f(1) == want",
        "def same(a, b): return a == b\nassert same(f(1), 2)",
        "for i in range(3): assert f(i) != 3",
        "want = 2\ntry: assert f(1) == want\nexcept BaseException: pass",
        "import contextlib\nwith contextlib.suppress(BaseException): assert f(1) == 7",
        "def g():\n  assert f(1)\ng()",
        "want = 3\nassert want in f(1)",
        "import unittest\nclass T(unittest.TestCase):\n  def test(self): self.assertEqual(f(1), 2)\n"
        "r = unittest.TestResult()\nT('test').run(r)\nassert r.wasSuccessful()",
    ],
)
def test_an_object_that_poses_decides_nothing_strong(judge: Judge, test: str) -> None:
    done = asserts(judge, POSES, test)
    assert done.verdict is not Verdict.AC or (done.weak and not is_decisive(test))


@pytest.mark.parametrize(
    ("attack", "verdict"),
    [
        ("import os\ndef f(x): os._exit(0)", Verdict.RE),
        ("def f(x):\n  while True: pass", Verdict.TLE),
        ("import os\ndef f(x):\n  for fd in range(3, 64):\n    try: os.write(fd, b'[\"value\", true, null]\\n' * 9)\n"
         "    except OSError: pass\n  return 5", None),
        ("import os\ndef f(x):\n  os.closerange(0, 64)", Verdict.RE),
        ("class V(BaseException): pass\ndef f(x): raise V", Verdict.RE),
        ("def f(x):\n  import sys\n  sys.exit(0)", Verdict.RE),
        ("import sys\nsys.exit(0)", Verdict.RE),
        ("import os\nos.fork()\ndef f(x): return 5", None),
    ],
)  # fmt: skip
def test_whatever_a_program_does_to_its_caller_is_a_verdict(judge: Judge, attack: str, verdict: Verdict | None) -> None:
    done = judge.judge(
        Problem("p", "assert", (Case("want = 2\nassert f(1) == want"),), limits=Limits(cpu_s=0.5, wall_s=5)),
        Program(attack),
    )
    assert done.verdict is (verdict or done.verdict)
    assert done.verdict is not Verdict.AC
    assert asserts(judge, "def f(x): return 2", "want = 2\nassert f(1) == want").verdict is Verdict.AC


PEEK = """
import gc, os, sys
def f(x):
    found, frame = [], sys._getframe()
    while frame:
        found += [repr(v) for v in list(frame.f_locals.values()) + list(frame.f_globals.values())]
        frame = frame.f_back
    found += [repr(o) for o in gc.get_objects() if isinstance(o, (str, bytes, dict, list, tuple))]
    for fd in range(64):
        try: found.append(repr(os.pread(fd, 1 << 20, 0)))
        except OSError: pass
    needle = ''.join(reversed('24-ELDEEN'))
    return needle if any(needle in text for text in found) else 'nothing found'
"""


@pytest.mark.parametrize(
    "test",
    [
        "want = 'NEEDLE-42'\nassert f(1) == 'NEEDLE-42'",
        "for x, want in [(1, 'NEEDLE-42')]: assert f(x) == want",
        "def ref(x): return 'NEEDLE-42'\nassert f(1) == ref(1)",
    ],
)
def test_the_answers_of_a_test_are_not_where_the_program_is(judge: Judge, test: str) -> None:
    assert asserts(judge, PEEK, test).verdict is Verdict.WA


# --- values -----------------------------------------------------------------------------------------------------------

VALUES = [
    ("def f(): return (i for i in range(3))", "assert list(f()) == [0, 1, 2]", "assert f() == [0, 1, 2]"),
    ("def f(): return map(int, '12')", "assert sorted(f()) == [1, 2]", "assert sum(f()) == 4"),
    ("def f(): return {3, 4}", "assert f() == {4, 3}", "assert f() == [3, 4]"),
    ("def f(): return {'a': 1}.keys()", "assert f() == {'a'}", "assert list(f()) == ['b']"),
    ("def f(): return {'a': 1}.items()", "assert sorted(f()) == [('a', 1)]", "assert len(f()) == 2"),
    ("def f(): return reversed([1, 2])", "assert list(f()) == [2, 1]", "assert tuple(f()) == (1, 2)"),
    ("def f(): return range(3)", "assert list(f()) == [0, 1, 2]", "assert f() == [0, 1, 2]"),
    ("from fractions import Fraction\ndef f(): return Fraction(1, 2)", "assert f() == 0.5", "assert f() * 2 == 2"),
    ("from fractions import Fraction\ndef f(): return Fraction(1, 2)",
     "from fractions import Fraction\nassert f() == Fraction(2, 4)",
     "from fractions import Fraction\nassert f() == Fraction(1, 3)"),
    ("from decimal import Decimal\ndef f(): return Decimal('1.50')",
     "from decimal import *\nassert f() == Decimal('1.5')", "assert f() == 1"),
    ("from collections import namedtuple\nP = namedtuple('P', 'x y')\ndef f(): return P(1, 2)",
     "assert f() == (1, 2)", "assert f() == [1, 2]"),
    ("from enum import IntEnum\nclass C(IntEnum):\n  RED = 1\ndef f(): return C.RED", "assert f() == 1",
     "assert f() == 2"),
    ("from collections import Counter\ndef f(): return Counter('aab')", "assert f() == {'a': 2, 'b': 1}",
     "from collections import Counter\nassert f() == Counter('ab')"),
    ("from collections import deque\ndef f(): return deque([1])",
     "from collections import deque\nassert f() == deque([1])", "assert f() == [1]"),
    ("def f(): return 3", "assert isinstance(f(), int)", "assert isinstance(f(), str)"),
]  # fmt: skip


@pytest.mark.parametrize(("source", "right", "wrong"), VALUES)
def test_values_of_the_standard_library_are_decided_as_python_decides_them(
    judge: Judge, source: str, right: str, wrong: str
) -> None:
    held, failed = asserts(judge, source, right), asserts(judge, source, wrong)
    assert (held.verdict, held.weak) == (Verdict.AC, False)
    assert failed.verdict is Verdict.WA


@pytest.mark.parametrize(
    ("source", "test"),
    [
        ("from dataclasses import dataclass\n@dataclass\nclass P:\n  x: int\ndef f(): return P(1)",
         "assert f() == P(1)"),
        ("from enum import Enum\nclass C(Enum):\n  RED = 1\ndef f(): return C.RED", "assert f() == C.RED"),
        ("class P:\n  def __init__(s, x): s.x = x\n  def __eq__(s, o): return s.x == o.x\ndef f(): return P(1)",
         "assert f() == P(1)"),
        ("def f(): return len", "assert f() is len"),
    ],
)  # fmt: skip
def test_what_only_the_programs_own_class_can_compare_is_weak(judge: Judge, source: str, test: str) -> None:
    done = asserts(judge, source, test)
    assert (done.verdict, done.weak) == (Verdict.AC, True)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("from collections import namedtuple\nP = namedtuple('P', 'x y')\ndef f(): return [P(1, 2)]", "[[1, 2]]"),
        ("from collections import deque\ndef f(): return deque([1, 2])", "[1, 2]"),
        ("from enum import IntEnum\nclass C(IntEnum):\n  RED = 1\ndef f(): return {C.RED: C.RED}", '{"1": 1}'),
        ("import numpy\ndef f(): return [numpy.int64(3), numpy.float64(1.5), numpy.bool_(True), numpy.str_('a')]",
         '[3, 1.5, true, "a"]'),
    ],
)  # fmt: skip
def test_a_function_may_return_what_its_library_makes_of_a_number(packaged: Judge, source: str, expected: str) -> None:
    problem = Problem("p", "function", (Case("[]", expected),), fn_name="f", limits=LIMITS)
    assert packaged.judge(problem, Program(source)).verdict is Verdict.AC
    other = Problem("p", "function", (Case("[]", "[7, 7]"),), fn_name="f", limits=LIMITS)
    assert packaged.judge(other, Program(source)).verdict is Verdict.WA


@pytest.fixture(scope="module")
def packaged(builder: Builder) -> Iterator[Judge]:
    pytest.importorskip("numpy")
    with Jail(packages=("numpy",)) as jail:
        yield Judge(jail, builder)

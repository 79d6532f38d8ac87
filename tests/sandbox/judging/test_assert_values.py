"""What crosses between a test and the program that it is about: in two jails, and to the judge."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from asserting import FORGED, LIMITS, PATCHES, SQUARE, TWO_FACED, asserts, is_decisive

from sandbox import Case, Limits, Problem, Program, Verdict
from sandbox.build.builder import Builder
from sandbox.jail.jail import Jail
from sandbox.judging.judge import Judge

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
    ("class Row:\n  def __init__(s, a): s.a = a\n  def union(s, b): return Row(s.a + b)\n"
     "  def issubset(s, b): return set(s.a) <= set(b)\n  def __getitem__(s, k): return s.a[k]",
     "row = Row([1])\nassert row.issubset([1, 2])\nassert row[:1] == [1] and row.union([4]).a == [1, 4]"),
    ("class Trie:\n  def __init__(s): s.d = []\n  def insert(s, w): s.d.append(w)\n  def __len__(s): return len(s.d)\n"
     "  def startswith(s, p): return any(w.startswith(p) for w in s.d)",
     "t = Trie()\nt.insert('abc')\nassert t.startswith('ab') and not t.startswith('b') and len(t) == 1"),
    ("class Sum:\n  def __init__(s, n): s.n = n\n  def add(s, k): s.n += k; return s\n  def result(s): return s.n",
     "assert Sum(1).add(2).add(3).result() == 6"),
    ("class Node:\n  def __init__(s, v): s.val, s.next = v, None\n  def get(s): return s.val\n"
     "class L:\n  def __init__(s): s.head = Node(3)\n  def first(s): return s.head",
     "l = L()\nassert l.head.get() == 3 and l.first().val == 3 and l.first().next is None"),
    ("def stack():\n  class S:\n    d = []\n    def push(s, k): s.d.append(k)\n    def pop(s): return s.d.pop()\n"
     "  return S()",
     "s = stack()\ns.push(2)\nassert s.pop() == 2"),
    ("def f(x): return x", "for kind in (int, len, ValueError): assert f(kind) == kind"),
    ("def f(x): return lambda y: x(y)", "for kind in (str, repr): assert f(kind)(3) == '3'"),
    ("def f(x): return lambda h, y: h(y)", "for kind in (str, repr): assert f(3)(kind, 3) == '3'"),
    ("def f(x): raise StopIteration", "try: f(1)\nexcept StopIteration: pass\nelse: assert False"),
    ("def f(x): assert False", "for x in (1, 2):\n  try: f(x)\n  except AssertionError: continue\n  assert False"),
    ("def f(x): [][x]", "def g():\n  try: f(1)\n  except IndexError: return 5\nassert g() == 5"),
    ("def f(x): [][x]",
     "def g():\n  try: f(1)\n  finally: pass\ntry: g()\nexcept IndexError: pass\nelse: assert False"),
    ("def f(x): [][x]", "try: f(1)\nexcept IndexError as e: g = e\nassert isinstance(g, LookupError)"),
    ("def f(x): return iter([x])", "assert [*f(3)] == [3] and next(f(3), 4) == 3"),
    ("def f(x): return type('R', (), {'__getitem__': lambda s, k: [x][k]})()", "assert [y for y in f(3)] == [3]"),
    ("def f(x): return type('R', (), {'__iter__': lambda s: iter([x])})()", "for x in (3,): assert list(f(x)) == [x]"),
    ("def f(x): return type('R', (), {'y': x})()", "assert not hasattr(f(3), 'z') and f(3).y == 3"),
    *(("def f(x): [][x]", f"import contextlib, unittest\n{how}\nassert True") for how in (
        "with unittest.TestCase().assertRaises(IndexError): f(1)", "unittest.TestCase().assertRaises(IndexError, f, 1)",
        "with contextlib.suppress(IndexError): f(1)",
    )),
]  # fmt: skip


@pytest.mark.promise("asserts")
@pytest.mark.parametrize(("source", "test"), HONEST)
def test_what_tests_do_with_programs_works_between_two_jails(judge: Judge, source: str, test: str) -> None:
    done = asserts(judge, source, test)
    assert (done.verdict, done.weak) == (Verdict.AC, False)


def test_a_test_has_a_jail_of_its_own_in_every_tier(tiered_judge: Judge) -> None:
    for source, verdict in ((SQUARE, Verdict.AC), (PATCHES, Verdict.WA), (FORGED, Verdict.RE), (POSES, Verdict.RE)):
        done = asserts(tiered_judge, source, "for i in range(3):\n  assert sq(i) == i * i")
        assert (done.verdict, done.weak) == (verdict, False)


SAYS_SO = """
class Solution:
  def __getattr__(self, name): return lambda *a: {0}
  def __getitem__(self, key): return {0}
  def __len__(self): return 1
  def f(self, x): return self
def f(x): return Solution()
"""


@pytest.mark.promise("asserts")
@pytest.mark.parametrize(
    ("test", "honest"),
    [
        ("assert f(2).issubset({1, 2})", "def f(x): return {2}"),
        ("assert f(2).startswith('ab')", "def f(x): return 'abc'"),
        ("assert f(2).isdigit()", "def f(x): return '2'"),
        ("found = f(2)\nfor _ in range(1): assert found.isdisjoint([3])", "def f(x): return {2}"),
        ("assert not f(2).difference({1, 2})", "def f(x): return {2}"),
        ("assert f(2).__eq__(4)", "def f(x): return 4"),
        ("assert f(2).find('b') == 1", "def f(x): return 'abc'"),
        ("assert f(2).rfind('b') == 1", "def f(x): return 'abc'"),
        ("assert f(2).count(4) == 1", "def f(x): return [4]"),
        ("assert f(2).index(4) == 1", "def f(x): return [3, 4]"),
        ("assert f(2).get(4) == 1", "def f(x): return {4: 1}"),
        ("assert f(2).pop() == 1", "def f(x): return {1}"),
        ("assert f(2).union([3]) == {1, 3}", "def f(x): return {1}"),
        ("assert f(2).bit_length() == 1", "def f(x): return 1"),
        ("assert f(2)[0] == 1", "def f(x): return [1]"),
        ("x = f(2)\nfor k in (1,): assert x[k] == 1", "def f(x): return [0, 1]"),
        ("x = f(2)\nfor k in (1,): assert len(x) == 1", "def f(x): return [0]"),
        ("assert Solution().f(2).startswith('ab')", "class Solution:\n  def f(s, x): return 'abc'"),
        ("assert Solution().f(2).issubset({1, 2})", "class Solution:\n  def f(s, x): return {2}"),
        ("assert Solution().f(2).find('b') == 1", "class Solution:\n  def f(s, x): return 'abc'"),
        ("s = Solution()\nassert s.f(2)[0] == 1", "class Solution:\n  def f(s, x): return [1]"),
        (
            "s = Solution()\nfor k in (1,): assert s.f(2)[k:] == 1",
            "class Solution:\n  def f(s, x): return type('R', (), {'__getitem__': lambda s, k: 1})()",
        ),
        ("assert f(2).all()", "def f(x): return type('Row', (), {'all': lambda self: True})()"),
    ],
)
def test_no_object_of_the_programs_says_itself_that_it_is_right(judge: Judge, test: str, honest: str) -> None:
    assert asserts(judge, honest, test).verdict is Verdict.AC
    for word in ("True", "False", "{1, 3}"):
        done = asserts(judge, SAYS_SO.format(word), test)
        assert done.verdict is not Verdict.AC or done.weak


@pytest.mark.parametrize(
    ("helper", "apart"),
    [
        ("len(x) == 5", "return 3"),
        ("x.lower() == 'a'", "return 4"),
        ("x[1:] == [2]", "return object()"),
        ("x['a'] == 1", "return {}"),
        ("f(x) == 1", "return object()"),
        ("sorted(x) == [1]", "return [1, 'a']"),
        ("1 / x == 3", "return 0"),
        ("x.sort(key=len) is None", "return type('Row', (), {'sort': lambda *a, **k: None})()"),
    ],
)
def test_a_value_that_breaks_the_test_does_not_have_it_judged_weakly(judge: Judge, helper: str, apart: str) -> None:
    test = f"def right(x): return {helper}\nassert right(f(2))"
    assert is_decisive(test)
    assert asserts(judge, TWO_FACED.format(apart=apart), test).verdict in (Verdict.WA, Verdict.RE)


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
        ("def f(a): return a", "a = 'ab'\nassert f(a) is a"),
        ("def f(a): return a", "a = [1]\nassert not f(a) is not a"),
        ("def f(g): return g(2)", "want = 3\nassert f(lambda x: x + 1) == want"),
        ("def f(g): return g(2)", "def g(x): return x + 1\nwant = 3\nassert f(g) == want"),
        ("class P:\n  def __init__(s, x): s.x = x\n  def __eq__(s, o): return s.x == o.x\ndef f(p): return P(p.x + 1)",
         "for i in range(3): assert f(P(i)) == P(i + 1)"),
        ("def f(): return input()", "from unittest import mock\nwith mock.patch('builtins.input', lambda: 'x'):\n"
         "  assert f() == 'x'"),
        ("import random\ndef f(): return random.random()",
         "import random\nrandom.seed(3)\na = f()\nrandom.seed(3)\nassert f() == a"),
        ("def f(x): return x.y", "class C: y = 1\nwant = 1\nassert f(C()) == want"),
        # what only a class of the program's own can compare
        ("from dataclasses import dataclass\n@dataclass\nclass P:\n  x: int\ndef f(): return P(1)",
         "assert f() == P(1)"),
        ("from enum import Enum\nclass C(Enum):\n  RED = 1\ndef f(): return C.RED", "assert f() == C.RED"),
        ("class P:\n  def __init__(s, x): s.x = x\n  def __eq__(s, o): return s.x == o.x\ndef f(): return P(1)",
         "assert f() == P(1)"),
        ("def f(): return len", "assert f() is not max"),
    ],
)  # fmt: skip
def test_a_test_that_needs_the_program_beside_it_is_weak_and_not_wrong(judge: Judge, source: str, test: str) -> None:
    done = asserts(judge, source, test)
    assert (done.verdict, done.weak) == (Verdict.AC, True)
    assert not is_decisive(test)


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


GIVEN_BACK = [
    "for k in (1,): s.put(s.get().values())",
    "for k in (1,): s.put(s.get().items())",
    "for k in (1,): s.put(x for x in s.get().values())",
    "for k in (1,): s.put(iter([s.get()[1]]))",
    "for k in (1,): s.put(map(s.chosen, [1]))",
    "for k in (1,): s.put(zip([s.get()[1]], 'a'))",
]


@pytest.mark.parametrize("test", GIVEN_BACK)
def test_a_value_that_the_test_gives_back_does_not_have_it_judged_weakly(judge: Judge, test: str) -> None:
    source = (
        f"{TWO_FACED.format(apart='pass')}\nclass S:\n  def get(s): return {{1: VALUE}}\n"
        "  def chosen(s, x): raise ValueError(x)\n  def put(s, x):\n    if '_serve' not in names: f(x)\n"
    )
    test = f"s = S()\n{test}\nassert s.get()[1] == 4"
    for value in ("object()", "S()", "iter([S()])"):
        done = asserts(judge, source.replace("VALUE", value), test, fn_name="S")
        assert done.verdict in (Verdict.WA, Verdict.RE)
    honest = "class S:\n  def get(s): return {1: 4}\n  def put(s, x): s.x = list(x)\n  def chosen(s, x): return x"
    done = asserts(judge, honest, test, fn_name="S")
    assert (done.verdict, done.weak) == (Verdict.AC, False)


LOOPS = [
    ("class Its:\n  def __iter__(s): return s\n  def __next__(s): return f(1)\nfor x in Its(): assert x == 2",
     "StopIteration"),
    ("class Row:\n  def __getitem__(s, k): return f(k)\nfor x in Row(): assert x == 2", "IndexError"),
    ("assert list(map(f, [1, 2])) in ([2, 4], [])", "StopIteration"),
    ("for x in map(f, [1, 2]): assert x == 2", "StopIteration"),
    ("x = next(map(f, [1]), 2)\nassert x == 2", "StopIteration"),
    ("want = [2]\nassert [*filter(f, want)] in (want, [])", "StopIteration"),
    ("class Its:\n  def __iter__(s): return s\n  def __next__(s):\n    try: return f(1)\n    except KeyError: pass\n"
     "try:\n  for x in Its(): assert x == 2\nexcept KeyError: pass", "StopIteration"),
    ("class Its:\n  def __iter__(s): return s\n  def __next__(s):\n    try: return f(1)\n    finally: pass\n"
     "for x in Its(): assert x == 2", "StopIteration"),
    ("def g():\n  try: yield\n  except GeneratorExit: assert f(1) == 2\nrow = g()\nnext(row)\nrow.close()",
     "GeneratorExit"),
    ("def g():\n  try: yield\n  finally: assert f(1) == 2\nrow = g()\nnext(row)\nrow.close()", "StopIteration"),
    ("class Row:\n  @property\n  def x(s): return f(1)\nassert getattr(Row(), 'x', 2) == 2", "AttributeError"),
    ("from collections.abc import Sequence\nclass Row(Sequence):\n  def __len__(s): return 3\n"
     "  def __getitem__(s, k): return f(k)\nassert 7 not in Row()", "IndexError"),
    ("import unittest\nclass T(unittest.TestCase):\n  def test(s): s.assertEqual(f(1), 2)\n"
     "r = unittest.TestResult()\nT('test').run(r)\nassert not r.errors", "AssertionError"),
    ("for x in (1, 2): assert f(x) == 2", "AssertionError"),
    ("want = 2\nassert f(1) == want", "unittest.SkipTest"),
    ("class R:\n  def __getattr__(s, k): return f(k)\nassert not hasattr(R(), 'x') or R().x == 2", "AttributeError"),
    ("class D(dict):\n  def __missing__(s, k): return f(k)\nassert D().get(1, 2) == 2 and D()[1] == 2", "KeyError"),
    ("for x in iter(lambda: f(1), 0): assert x == 2", "StopAsyncIteration"),
    ("for x in (1, 2): assert f(x) == 2", "KeyboardInterrupt"),
]  # fmt: skip


@pytest.mark.parametrize(("test", "error"), LOOPS)
def test_what_a_program_raises_does_not_end_a_loop_of_the_tests(judge: Judge, test: str, error: str) -> None:
    source = f"import unittest\ndef f(x): raise {error}"
    for fn_name in (None, "f"):
        assert asserts(judge, source, test, fn_name=fn_name).verdict is Verdict.RE


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


@pytest.mark.promise("expected-outputs")
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
    ("def f(): return {3, 4}", "assert f() == {4, 3}", "assert f() == [3, 4]"),
    ("def f(): return {'a': 1}.items()", "assert sorted(f()) == [('a', 1)]", "assert len(f()) == 2"),
    ("def f(): return reversed([1, 2])", "assert list(f()) == [2, 1]", "assert tuple(f()) == (1, 2)"),
    ("def f(): return range(3)", "assert list(f()) == [0, 1, 2]", "assert f() == [0, 1, 2]"),
    ("from fractions import Fraction\ndef f(): return Fraction(1, 2)",
     "from fractions import Fraction\nassert f() == Fraction(2, 4)",
     "from fractions import Fraction\nassert f() == Fraction(1, 3)"),
    ("from decimal import Decimal\ndef f(): return Decimal('1.50')",
     "from decimal import *\nassert f() == Decimal('1.5')", "assert f() == 1"),
    ("from collections import namedtuple\nP = namedtuple('P', 'x y')\ndef f(): return P(1, 2)",
     "assert f() == (1, 2)", "assert f() == [1, 2]"),
    ("from enum import StrEnum\nclass C(StrEnum):\n  RED = 'r'\ndef f(): return C.RED", "assert type(f()) == str",
     "assert f() == 'RED'"),
    ("from collections import Counter\ndef f(): return Counter('aab')", "assert f() == {'a': 2, 'b': 1}",
     "from collections import Counter\nassert f() == Counter('ab')"),
    ("from collections import deque\ndef f(): return deque([1])",
     "from collections import deque\nassert f() == deque([1])", "assert f() == [1]"),
]  # fmt: skip


@pytest.mark.parametrize(("source", "right", "wrong"), VALUES)
def test_values_of_the_standard_library_are_decided_as_python_decides_them(
    judge: Judge, source: str, right: str, wrong: str
) -> None:
    held, failed = asserts(judge, source, right), asserts(judge, source, wrong)
    assert (held.verdict, held.weak) == (Verdict.AC, False)
    assert failed.verdict is Verdict.WA


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

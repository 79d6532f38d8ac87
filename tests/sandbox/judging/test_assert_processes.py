"""What a test and its program have once in one process: weak where two processes would differ, else as in one."""

from __future__ import annotations

import pytest
from asserting import TWO_FACED, asserts, holds
from tiers import jail_of
from wide import wide

from sandbox import Verdict
from sandbox.judging.judge import Judge

tiered_jail = jail_of("A", wide("B"))  # what an assert is about crosses in one way in both

ABOVE = """
import collections, enum, heapq, typing
from dataclasses import dataclass
class ListNode:
    def __init__(self, val=0, next=None): self.val, self.next = val, next
class Perm(enum.Flag):
    R = 1
    W = 2
@dataclass(frozen=True)
class P:
    x: int
@dataclass(frozen=True)
class G:
    items: object
def to_list(h):
    out = []
    while h: out.append(h.val); h = h.next
    return out
"""
STATE = """
class Counted:
    made = 0
    def __init__(self, v): self.v = v; Counted.made += 1
class Kept:
    all = []
    def __init__(self, v): Kept.all.append(self)
SECRET, CALLS, LOG = 3, 0, []
def is_bad(v):
    global CALLS
    CALLS += 1
    return v >= SECRET
def log(x): LOG.append(x)
def logged(): return len(LOG)
"""
VECTOR = """
class V:
    def __init__(s, *a): s.a = list(a)
    def __add__(s, o): return V(*[x + y for x, y in zip(s.a, o.a)])
    def __lshift__(s, k): return V(*[x << k for x in s.a])
    def __divmod__(s, k): return divmod(s.a[0], k)
    def __invert__(s): return V(*s.a[::-1])
    def __eq__(s, o): return isinstance(o, V) and s.a == o.a
    def __lt__(s, o): return s.a < o.a
    def __hash__(s): return hash(tuple(s.a))
    def __len__(s): return len(s.a)
    def __getitem__(s, i): return s.a[i]
    def __delitem__(s, i): del s.a[i]
    def __contains__(s, x): return x in s.a
    def __bool__(s): return any(s.a)
    def __abs__(s): return sum(x * x for x in s.a) ** .5
    def __str__(s): return f"<{s.a}>"
    @property
    def first(s): return s.a[0]
    @first.deleter
    def first(s): del s.a[0]
"""


COUNTS = "def f(n): return [Counted(i) for i in range(n)]"
FIRST_BAD = "def f(n): return next(i for i in range(1, n + 1) if is_bad(i))"
LOGS = "def f(n):\n  for i in range(n): log(i)"
TAKES = "def f(it): return [next(it), next(it)]"
RAISES = "def f(x):\n  try: {}[x]\n  except KeyError as e: raise ValueError('v') from e"
ONE_PROCESS = [  # source, test, and what it sees in one process and in two
    (COUNTS, "f(3)\nassert Counted.made == WANT", ("3", "0")),
    (COUNTS, "a = f(3)\nassert a[0].made == WANT", ("3", "0")),
    ("def f(n): return [Kept(i) for i in range(n)]", "f(3)\nassert len(Kept.all) == WANT", ("3", "0")),
    (FIRST_BAD, "SECRET = 4\nfor k in (5,): assert f(k) == WANT", ("4", "3")),
    (FIRST_BAD, "def is_bad(v): return v > 1\nfor k in (5,): assert f(k) == WANT", ("2", "3")),
    (FIRST_BAD, "f(9)\nassert CALLS == WANT", ("3", "0")),
    (LOGS, "f(3)\nassert LOG == WANT", ("[0, 1, 2]", "[]")),
    (LOGS, "f(3)\nassert logged() == WANT", ("3", "0")),
    ("def f(n): return len(LOG)", "LOG.append(7)\nfor k in (1,): assert f(k) == WANT", ("1", "0")),
    ("def f(n): ListNode.tag = n", "f(3)\nassert ListNode.tag == WANT", ("3", "4")),
    (TAKES, "it = iter([1, 2, 3])\nassert f(it) == [1, 2]\nassert list(it) == WANT", ("[3]", "[]")),
    (TAKES, "it = (x for x in [1, 2, 3])\nassert f(it) == [1, 2]\nassert list(it) == WANT", ("[3]", "[]")),
    (RAISES, "try: f(1)\nexcept ValueError as e: assert (type(e.__cause__) is KeyError) is WANT", ("True", "False")),
    (RAISES, "try: f(1)\nexcept ValueError as e: assert (e.__context__ is None) is WANT", ("False", "True")),
    ("from decimal import *\ndef f(x): return Decimal(1) / x",
     "from decimal import *\nwith localcontext() as c:\n  c.prec = 4\n  assert (f(3) == Decimal('0.3333')) is WANT",
     ("True", "False")),
    ("def f(x): return x", "from operator import is_\na = (1,)\nfor k in (3,): assert is_(f(a), a) is WANT",
     ("True", "False")),
]  # fmt: skip


@pytest.mark.parametrize(("source", "test", "values"), ONE_PROCESS)
def test_state_that_one_process_has_once_is_weak(judge: Judge, source: str, test: str, values: tuple[str, str]) -> None:
    for value, right in zip(values, (True, False), strict=True):
        filled, above = test.replace("WANT", value), ABOVE + STATE
        assert holds(above, source, filled) is right
        done = asserts(judge, source, filled, preamble=above, fn_name="f")
        assert (done.verdict is Verdict.AC) is right, filled
        assert done.weak or not right


def test_a_single_call_sees_what_the_test_binds_of_the_preamble(judge: Judge) -> None:
    for want, verdict in (4, Verdict.AC), (3, Verdict.WA):
        done = asserts(judge, FIRST_BAD, f"SECRET = 4\nassert f(5) == {want}", preamble=ABOVE + STATE, fn_name="f")
        assert (done.verdict, done.weak) == (verdict, False)


STATELESS = [
    (COUNTS, "for k in (3,): assert [c.v for c in f(k)] == [0, 1, 2]"),
    (FIRST_BAD, "for k in (5, 6): assert f(k) == 3"),
    ("def f(n): return ListNode(n)", "for k in (5, 6): assert to_list(f(k)) == [k]"),
    ("def f(it): return sum(it)", "for k in (1,):\n  it = iter([k, 2])\n  assert f(it) == 3"),
]


@pytest.mark.parametrize(("source", "test"), STATELESS)
def test_state_that_a_test_does_not_see_is_not_weak(judge: Judge, source: str, test: str) -> None:
    done = asserts(judge, source, test, preamble=ABOVE + STATE, fn_name="f")
    assert (done.verdict, done.weak) == (Verdict.AC, False)


OPERATORS = [
    ("V(1, 2) + V(3, 4) == V(4, 6)", "V(1, 2) + V(3, 4) == V(4, 7)"),
    ("(V(1) << 2).a == [4]", "(V(1) << 2).a == [5]"),
    ("divmod(V(7), 2) == (3, 1)", "divmod(V(7), 2) == (3, 2)"),
    ("(~V(1, 2)).a == [2, 1]", "(~V(1, 2)).a == [1, 2]"),
    ("sorted([V(2), V(1)])[0].a == [1]", "sorted([V(2), V(1)])[0].a == [2]"),
    ("len({V(1), V(1)}) == 1", "len({V(1), V(1)}) == 2"),
    ("V(1, 2)[1] == 2", "V(1, 2)[1] == 1"),
    ("2 in V(1, 2)", "3 in V(1, 2)"),
    ("bool(V(1)) and not V(0)", "bool(V(0))"),
    ("f'{V(1)}' == '<[1]>'", "f'{V(1)}' == '<1>'"),
    ("isinstance(V(1), V)", "not isinstance(V(1), V)"),
    ("V(1) is not None", "V(1) is None"),
    ("callable(V)", "not callable(V)"),
]


@pytest.mark.parametrize(("right", "wrong"), OPERATORS)
@pytest.mark.parametrize("fn_name", ["V", None])
def test_objects_that_a_test_makes_have_operators_of_their_own(
    tiered_judge: Judge, right: str, wrong: str, fn_name: str | None
) -> None:
    for shape in "assert {}", "for k in (1,): assert {}":
        assert holds(ABOVE, VECTOR, shape.format(right))
        assert not holds(ABOVE, VECTOR, shape.format(wrong))
        assert asserts(tiered_judge, VECTOR, shape.format(right), fn_name=fn_name).verdict is Verdict.AC
        assert asserts(tiered_judge, VECTOR, shape.format(wrong), fn_name=fn_name).verdict is not Verdict.AC


def test_what_a_method_returns_is_not_an_object_that_the_test_makes(judge: Judge) -> None:
    """A program that can tell how it is run cannot have itself judged weakly by an answer of its own class."""
    lies = TWO_FACED.format(apart="return V()").replace("def f(x)", "def g(x)")
    source = f"class V:\n  def top(s): return g(s)\n  def me(s): return s\n  __eq__ = lambda s, o: True\n{lies}"
    for ask in "top()", "me()", "me().me()":
        done = asserts(judge, source, f"v = V()\nfor k in (4,): assert v.{ask} == k", fn_name="V")
        assert done.verdict in (Verdict.WA, Verdict.RE)


def test_a_function_with_a_capital_is_asked_for_values(judge: Judge) -> None:
    source = "class V:\n  __eq__ = lambda s, o: True\ndef Area(x): return V()"
    for test in "assert Area(3) == 9", "for k in (3,): assert Area(k) == 9":
        done = asserts(judge, source, test)
        assert done.verdict is Verdict.WA


LACKS = [
    ("object()", "callable(f(x))"), ("object()", "hasattr(f(x), '__iter__')"), ("object()", "hasattr(f(x), '__len__')"),
    ("object()", "isinstance(f(x), collections.abc.Iterator)"), ("object()", "isinstance(f(x), collections.abc.Sized)"),
    ("object()", "isinstance(f(x), collections.abc.Callable)"), ("object()", "isinstance(f(x), typing.SupportsInt)"),
    ("iter([x])", "isinstance(f(x), collections.abc.Generator)"), ("(y for y in [x])", "callable(f(x))"),
    ("(y for y in [x])", "x + 1 in f(x)"),
]  # fmt: skip
HAS = [
    ("lambda: 4", "callable(f(x))"), ("lambda: 4", "isinstance(f(x), collections.abc.Callable)"),
    ("(y for y in [x])", "isinstance(f(x), collections.abc.Generator)"),
    ("(y for y in [x])", "hasattr(f(x), '__next__')"), ("(y for y in [x])", "x in f(x)"),
    ("(y for y in [x])", "x + 1 not in f(x)"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "test"), LACKS + HAS)
def test_an_object_has_the_protocols_that_it_has(judge: Judge, value: str, test: str) -> None:
    source, whole = f"def f(x): return {value}", f"for x in (3,): assert {test}"
    assert holds(ABOVE, source, whole) is ((value, test) in HAS)
    done = asserts(judge, source, whole, preamble=ABOVE, fn_name="f")
    assert (done.verdict is Verdict.AC and not done.weak) is holds(ABOVE, source, whole), done


CARRIED = [
    (VECTOR, "v = V(1, 2)\ndel v[0]\nassert v.a == [2]"),
    (VECTOR, "v = V(1)\ndel v.first\nassert v.a == []"),
    ("def f(n): return G(frozenset({P(1), P(2)}))", "assert f(1) == G(frozenset({P(2), P(1)}))"),
    ("def f(n): return G((frozenset({P(1)}), G(frozenset({G(frozenset({P(4)}))}))))",
     "assert f(1).items[1] == G(frozenset({G(frozenset({P(4)}))}))"),
    ("def f(n): return Perm.R | Perm.W", "assert f(1) == Perm.R | Perm.W and Perm.R in f(1)"),
    ("def f(p): return p & Perm.R", "assert f(Perm.R | Perm.W) is Perm.R and not f(Perm.W)"),
    ("def f(n): return bytearray(n)", "assert f(1) == b'\\0' and isinstance(f(1), bytearray) and f(1)[0] == 0"),
    ("def f(b): b.append(1); return b", "b = bytearray(1)\nassert f(b) is b\nassert b == b'\\0\\1'"),
    ("class My(ListNode):\n  def __lt__(a, b): return a.val < b.val\ndef f(n): return min(My(n, My(2)), My(7))",
     "assert to_list(f(1)) == [1, 2]"),
    ("class My(ListNode): pass\nseen = []\ndef f(n):\n  if seen: return n is seen[0]\n  seen.append(My(4))\n"
     "  return seen[0]", "a = f(1)\na.val = 5\nassert f(a) is True\nassert a.val == 5"),
    ("class Low(Exception):\n  def __init__(s, a): super().__init__(f'low {a}'); s.a, s.p = a, P(a)\n"
     "  def twice(s): return 2 * s.a\n  @property\n  def half(s): return s.a / 2\ndef f(x): raise Low(x)",
     "p = P(1)\ntry: f(1)\nexcept Exception as e: assert (e.twice(), e.half, e.p) == (2, .5, p)\nelse: assert False"),
    ("from decimal import Decimal\ndef f(x): raise ValueError(Decimal(x), P(x))",
     "p = P(1)\ntry: f(1)\nexcept ValueError as e: assert e.args == (1, p)\nelse: assert False"),
]  # fmt: skip


@pytest.mark.parametrize(("source", "test"), CARRIED)
def test_a_value_crosses_as_what_it_is(judge: Judge, source: str, test: str) -> None:
    test = f"for k in (1,): pass\n{test}"
    assert holds(ABOVE, source, test)
    done = asserts(judge, source, test, preamble=ABOVE, fn_name="V" if source is VECTOR else "f")
    assert (done.verdict, done.weak) == (Verdict.AC, False)


PASSED = [
    "@f(2)\ndef g(x): return x\nassert g(3) == [3, 3]",
    "d = f(2)\n@d\ndef g(x): return x\nassert g(3) == [3, 3]",
    "for k in (3,): assert f(2)(str.upper)('a') == ['A', 'A']",
]


@pytest.mark.parametrize("test", PASSED)
def test_functions_can_be_given_to_what_a_program_returned(judge: Judge, test: str) -> None:
    source = "def f(n): return lambda g: lambda *a: [g(*a)] * n"
    assert holds(ABOVE, source, test)
    assert asserts(judge, source, test, fn_name="f").verdict is Verdict.AC

"""Tests and programs made from tables, judged as plain Python judges them in one process.

What plain Python rejects is not accepted, what it accepts is accepted (weakly, if only one process can tell). The
exceptions are what a program would decide for itself: it is never accepted with that, unless weakly.
"""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import pytest
from asserting import TWO_FACED, asserts, holds
from tiers import jail_of
from wide import every, wide

from sandbox import Verdict
from sandbox.judging.judge import Judge

tiered_jail = jail_of("A", wide("B"))  # what an assert is about crosses in one way in both

ABOVE = """
import collections, copy, datetime, enum, typing
from dataclasses import dataclass
class ListNode:
    def __init__(self, val=0, next=None): self.val, self.next = val, next
class Slim:
    __slots__ = ("val", "next")
    def __init__(self, val=0, next=None): self.val, self.next = val, next
class Colour(enum.Enum):
    RED = 1
    BLUE = 2
class Pair(typing.NamedTuple):
    x: int
    y: list
@dataclass(frozen=True)
class Point:
    x: int
    y: int = 0
class Bad(Exception):
    def __init__(self, code):
        super().__init__(f"bad {code}")
        self.code = code
"""


class Row(NamedTuple):
    source: str
    test: str
    fn_name: str = "f"


# --- what is one object stays one object ------------------------------------------------------------------------------

MAKERS = [  # how a value is made, how it is changed, and what is to be seen of it
    ("[1, [2]]", "{}.append(9)", "{}"),
    ("[1, [2]]", "{}[1].append(9)", "{}[1]"),
    ("{1: [2]}", "{}[7] = 9", "{}"),
    ("{(1, 2): [3]}", "{}[1, 2].append(9)", "{}"),
    ("{1, 2}", "{}.add(9)", "{}"),
    ("collections.deque([1], 3)", "{}.append(9)", "list({})"),
    ("collections.defaultdict(list)", "{}[3].append(9)", "{}"),
    ("collections.Counter('aab')", "{}.update('b')", "{}"),
    ("collections.OrderedDict(a=1, b=2)", "{}.move_to_end('a')", "list({})"),
    ("ListNode(1, ListNode(2))", "{}.val = 9", "{}.val"),
    ("ListNode(1, ListNode(2))", "{}.next.next = ListNode(3)", "{}.next.next"),
    ("Slim(1, Slim(2))", "{}.next.val = 9", "{}.next.val"),
    ("(1, [2])", "{}[1].append(9)", "{}[1]"),
    ("Pair(1, [2])", "{}.y.append(9)", "{}.y"),
    ("[Colour.RED]", "{}.append(Colour.BLUE)", "{}"),
    ("[datetime.date(2020, 1, 1)]", "{}.append(datetime.timedelta(1))", "{}"),
    ("[Point(1), Point(2)]", "{}.pop()", "{}"),
]
RETURNS = [
    "def f(x): return x",
    "def f(x): return copy.copy(x)",
    "def f(x): return copy.deepcopy(x)",
    "seen = []\ndef f(x): seen.append(x); return seen[0]",
    "def f(x): return [x, x][1]",
]
CHECKS = [
    "b = f(a)\n{b}\nassert {see_a} == {see_b}",
    "b = f(a)\nold = copy.deepcopy({see_a})\n{b}\nassert {see_a} == old",
    "b = f(a)\n{a}\nassert {see_a} == {see_b}",
    "b = f(a)\nassert b is a",
    "b = f(a)\nassert b is not a",
    "b = f(a)\nc = f(a)\n{b}\nassert {see_b} == {see_c} and {see_a} == {see_a}",
    "b = f([a, a])\n{b0}\nassert {see_b0} == {see_b1}",
]


def changes(made: tuple[str, str, str], check: str) -> str:
    make, change, see = made
    words = {"a": "a", "b": "b", "c": "c", "b0": "b[0]", "b1": "b[1]"}
    filled = {name: change.format(word) for name, word in words.items()}
    filled |= {f"see_{name}": see.format(word) for name, word in words.items()}
    return f"a = {make}\n{check.format(**filled)}"


ALIASES = [Row(source, changes(made, check)) for source, made, check in product(RETURNS, MAKERS, CHECKS)][::3]

KEEPERS = [
    "class S:\n  def __init__(s, a): s.a = a\n  def get(s): return s.a\n  def put(s, a): s.a = a",
    "class S:\n  def __init__(s, a): s.a = copy.deepcopy(a)\n  def get(s): return s.a\n  def put(s, a): s.a = a",
    "class S:\n  def __init__(s, a): s.a = a\n  def get(s): return copy.deepcopy(s.a)\n  def put(s, a): s.a = a",
]
STATES = [
    "s = S(a)\n{a}\nb = s.get()\nassert {see_b} == {see_a}",
    "s = S(a)\nb = s.get()\n{b}\nc = s.get()\nassert {see_c} == {see_b}",
    "s = S(0)\ns.put(a)\n{a}\nb = s.get()\nassert {see_a} == {see_b}",
    "s = S(a)\nb = s.get()\nold = copy.deepcopy({see_b})\n{a}\nassert {see_b} == old",
]
KEPT = [Row(source, changes(made, check), "S") for source, made, check in product(KEEPERS, MAKERS, STATES)][::3]


def judged_as_plain_python(judge: Judge, row: Row) -> None:
    done = asserts(judge, row.source, row.test, preamble=ABOVE, fn_name=row.fn_name)
    assert (done.verdict is Verdict.AC) is holds(ABOVE, row.source, row.test), done


@pytest.mark.parametrize(("source", "test", "fn_name"), every(25, ALIASES + KEPT))
def test_objects_are_shared_as_in_one_process(tiered_judge: Judge, source: str, test: str, fn_name: str) -> None:
    judged_as_plain_python(tiered_judge, Row(source, test, fn_name))


# --- what crosses -----------------------------------------------------------------------------------------------------

VALUES = [
    "Colour.RED", "Pair(1, [2])", "Point(3)", "Slim(1)", "ListNode(1)", "datetime.date(2020, 2, 29)",
    "datetime.datetime(2020, 1, 2, 3, 4, 5, 6)", "datetime.timedelta(1, 2, 3)", "collections.OrderedDict(a=1, b=2)",
    "collections.OrderedDict(b=2, a=1)", "collections.Counter(a=0)", "collections.Counter()", "{}",
    "collections.defaultdict(int)", "{'a': 1, 'b': 2}.keys()", "{'a': [1]}.items()", "(1, (2, [3]))", "b'x'", "2**70",
    "frozenset([Point(1)])", "{Point(1): [2]}",
]  # fmt: skip
USES = [
    ("def f(x): return VALUE", "for k in (1,): assert f(k) == WANT"),
    ("def f(x): return [VALUE, x]", "for k in (1,): assert f(k) == [WANT, 1]"),
    ("def f(x): return x == VALUE", "for k in (1,): assert f(WANT) is True"),
    ("def f(x): return type(x).__name__", "for k in (1,): assert f(WANT) == type(VALUE).__name__"),
]
CROSSING = [
    Row(source.replace("VALUE", value), test.replace("VALUE", value).replace("WANT", want))
    for source, test in USES
    for number, value in enumerate(VALUES)
    for want in (value, VALUES[number - 1])
]
RAISES = ["Bad(3)", "KeyError('a')", "KeyError(Point(1))", "ValueError('x', 3)", "ValueError()", "Own('x')", "Told(4)",
          "UnicodeDecodeError('utf-8', b'x', 0, 1, 'odd')", "OSError(2, 'gone')", "StopIteration(3)"]  # fmt: skip
OWN = (
    "class Own(ValueError): pass\nclass Told(Exception):\n"
    "  def __init__(s, x): s.x = x\n  def __str__(s): return 'told'\n"
)
TEXTS = ("bad 3", "'a'", "", "x", "told", "Point(x=1, y=0)")
TELLS = [
    *(f"assert str(e) == {text!r}" for text in TEXTS),
    *("assert e.args == ('x', 3)", "assert type(e).__name__ == 'Own'", "assert isinstance(e, ValueError)"),
    *("assert e.code == 3", "assert e.x == 4", "assert 'odd' in str(e)", "assert e.errno == 2", "assert e.value == 3"),
]
ERRORS = [
    Row(f"{OWN}def f(x): raise {what}", f"try: f(1)\nexcept Exception as e:\n  {tell}\nelse: assert False")
    for what, tell in product(RAISES, TELLS)
]
WALKS = [
    Row(f"class N:\n  def __init__(s, v, n): s.v, s.n = v, n\ndef f(k): return {made}",
        f"n, t = f(1), []\nwhile {test}: t.append(n.v); n = n.n\nassert t == {want}")
    for made in ("None", "N(1, None)", "N(1, N(2, None))", "N(2, None)")
    for test in ("n", "n is not None", "n and len(t) < 9", "not n is None")
    for want in ("[]", "[1]", "[1, 2]", "[2]")
]  # fmt: skip


@pytest.mark.parametrize(("source", "test", "fn_name"), every(25, CROSSING + ERRORS + WALKS))
def test_what_crosses_is_what_it_was(tiered_judge: Judge, source: str, test: str, fn_name: str) -> None:
    judged_as_plain_python(tiered_judge, Row(source, test, fn_name))


# --- keywords ---------------------------------------------------------------------------------------------------------

WORDS = ("self", "what", "target", "name", "args", "keywords", "kind", "value", "data", "message", "side", "number",
         "cls", "key", "items", "start", "_", "error", "roots", "gone")  # fmt: skip
CALLS = [
    ("def f(x=1, NAME=0): return [x, NAME]", "for k in (1, 2): assert f(NAME=k) == [1, WANT]", "f"),
    ("def f(*a, **k): return k", "for k in (1, 2): assert f(NAME=k, other=1) == {'other': 1, 'NAME': WANT}", "f"),
    ("class C:\n  def __init__(this, NAME): this.x = NAME\n  def get(this): return this.x",
     "for k in (1, 2): assert C(NAME=k).get() == WANT", "C"),
    ("class C:\n  def go(this, NAME): return NAME", "c = C()\nfor k in (1, 2): assert c.go(NAME=k) == WANT", "C"),
]  # fmt: skip
NAMED = [
    Row(source.replace("NAME", word), test.replace("NAME", word).replace("WANT", want), fn_name)
    for (source, test, fn_name), word, want in product(CALLS, WORDS, ("k", "3"))
]


@pytest.mark.parametrize(("source", "test", "fn_name"), every(25, NAMED))
def test_keywords_of_any_name_are_arguments(tiered_judge: Judge, source: str, test: str, fn_name: str) -> None:
    judged_as_plain_python(tiered_judge, Row(source, test, fn_name))


# --- what a program would decide for itself ---------------------------------------------------------------------------

ITSELF = [
    "assert f(5) == ref(5)", "assert [f(5)] == [ref(5)]", "assert abs(f(5) - ref(5)) < 1e-6", "assert f(5) in [ref(5)]",
    "want = ref(5)\nassert f(5) == want", "assert all(f(x) == ref(x) for x in range(3))",
    "for w in [ref(5)]: assert w == f(5)", "def want(x): return ref(x)\nassert f(5) == want(5)",
    "assert Counter([f(5)]) == Counter([5])", "assert same(f(5), 5)", "assert {1: f(5)} == {1: ref(5)}",
    "if f(5) != ref(5): assert False\nassert True", "assert sorted([f(5)]) == sorted([ref(5)])",
    "assert (lambda x: x == ref(5))(f(5))", "w = []\nw.append(ref(5))\nassert f(5) in w",
    "assert str(f(5)) == ref.text", "assert -ref(5) + f(5) == 0", "assert (f(5), 1) == (ref(5), 1)",
    "assert f(5) == (3, 7)[ref(5) > 0]", "assert not f(5) != ref(5) and True", "assert f(ref(5)) == ref(5)",
    "want = {}\nwant[0] = ref(5)\nassert f(5) == want[0]", "same = lambda x: f(x) == ref(x)\nassert same(5)",
    "def same(a, b): return a == b\nassert same(f(5), ref(5))", "assert f(5) == P(5).y", "assert f(5) == (w := ref(5))",
    "assert all(f(1) == want for want in map(ref, [3]))",
    "with memoryview(b'') as v: want = ref(5)\nassert f(5) == want",
    "if f(5) != ref(5): raise AssertionError\nassert True",
    "import unittest\nassert unittest.TestCase().assertEqual(f(5), ref(5)) is None",
]  # fmt: skip
CHEATS = [
    "f = ref = lambda *a: 7\nref.text = '7'\nsame = lambda *a: True\nclass Counter:\n  def __init__(s, x): pass\n"
    "  __eq__ = lambda *a: True\nclass P:\n  def __init__(s, *x): pass\n  y = 7",
    "f = ref = lambda *a: 0\nref.text = '0'\nsame = lambda *a: 1\nclass Counter(dict):\n  def __init__(s, x): pass",
    "class A(int):\n  __eq__ = lambda *a: True\n  __ne__ = lambda *a: False\n  __hash__ = int.__hash__\n"
    "f = ref = lambda x: A(x)\nref.text = '5'\nsame = lambda *a: True\nCounter = lambda x: A(3)",
    "f = lambda x: x * 0\nclass R:\n  text = '0'\n  def __call__(s, x): return f(x)\nref = R()\n"
    "same = lambda a, b: True\n"
    "Counter = lambda x: 1",
]


@pytest.mark.promise("asserts")
@pytest.mark.parametrize(
    ("source", "test"), [*product(CHEATS[:1], ITSELF), *every(8, list(product(CHEATS[1:], ITSELF)))]
)
def test_no_comparison_with_its_own_is_accepted(tiered_judge: Judge, source: str, test: str) -> None:
    for fn_name in (None, "f"):
        done = asserts(tiered_judge, source, test, fn_name=fn_name)
        assert done.verdict is not Verdict.AC or done.weak


# --- objects that stand for values ------------------------------------------------------------------------------------


ODD = ("object()", "lambda: 4", "os", "type('V', (), {})", "iter([object()])", "[object()]", "{1: object()}",
       "memoryview(b'x')", "(object(),)", "type('V', (int,), {})(4)", "type('L', (list,), {})([4])", "bytearray(b'x')",
       "type('V', (), {'__eq__': lambda *a: True, '__hash__': None})()")  # fmt: skip
BACK = [
    "assert right(f(2))", "x = f(2)\nassert right(f(x)) and right(x)", "assert right([f(2)])",
    "assert right(f([f(2)]))", "assert right(f({1: f(2)}))", "for x in (f(2),): assert right(f(x))",
]  # fmt: skip


@pytest.mark.parametrize(("odd", "test"), every(8, list(product(ODD, BACK))))
def test_no_answer_has_a_program_judged_weakly(tiered_judge: Judge, odd: str, test: str) -> None:
    test = f"def right(x): return x == 4 or x == [4]\n{test}"
    done = asserts(tiered_judge, TWO_FACED.format(apart=f"return {odd}"), test, fn_name="f")
    assert done.verdict in (Verdict.WA, Verdict.RE)
